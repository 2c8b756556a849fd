"""The multistart search beside SciPy's L-BFGS-B with numerical gradients, from the same starts.

    python scripts/optimize_benchmark.py [HARVEST.nc ...] [--scipy-starts N] [--ledger]

Temperature, alpha and beta on every harvest and, where there are several of a model, on all of its
datasets together; only the alternatives exist (tail "drop"), nothing is cut. Without harvests the
small ones that come with the package are used. SciPy minimises a NumPy function of the logarithms
of the parameters, in the same box. `--ledger` appends the figures to scripts/benchmarks.jsonl.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import jax
import ledger
import numpy as np
from scipy.optimize import minimize
from scipy.special import betainc

import jaxsppl
from jaxsppl.demo import shipped_harvests
from jaxsppl.parameters import PARAMETERS
from jaxsppl.store import harvests
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.optimize import POOLED

EPSILON = 0.01
OVER = ("temperature", "alpha", "beta")
# Optima whose nll differ by less are one [nat/token].
SAME = 1e-6


def nll(place: np.ndarray, tokens: Sequence[TokenArrays]) -> float:
    """Return the nll at logarithms of parameters, as a careful NumPy user would write it."""
    temperature, alpha, beta = np.exp(place)
    total = 0.0
    for one in tokens:
        logprob = one.top_logprob.astype(np.float64)
        weight = np.exp((logprob - logprob[:, :1]) / temperature)
        sums = np.cumsum(weight, axis=1)
        rank = np.maximum(one.token_rank, 1) - 1
        row = np.arange(len(rank))
        stop = sums[row, rank] / sums[:, -1]
        start = (sums[row, rank] - weight[row, rank]) / sums[:, -1]
        mass = betainc(alpha, beta, np.minimum(stop, 1.0)) - betainc(
            alpha, beta, np.maximum(start, 0.0)
        )
        mass = np.where(one.token_rank > 0, mass, 0.0)
        total -= np.log(np.maximum(mass, EPSILON)).sum()
    return total / sum(one.n_token for one in tokens)


def scipy_search(tokens: Sequence[TokenArrays], starts: np.ndarray) -> tuple[np.ndarray, float]:
    """Return (start,) the nll where SciPy stops, and the seconds that a start takes."""
    box = np.log([PARAMETERS[name].search for name in OVER])
    began = time.perf_counter()
    found = [
        minimize(nll, np.log(start), args=(tokens,), method="L-BFGS-B", bounds=box).fun
        for start in starts
    ]
    return np.asarray(found), (time.perf_counter() - began) / len(starts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*")
    parser.add_argument("--starts", type=int, default=32)
    parser.add_argument(
        "--scipy-starts", type=int, default=0, help="fewer for SciPy, which is slow"
    )
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    opened = harvests(arguments.files or shipped_harvests())
    tokens = [token_arrays(one) for one in opened]
    pooled = len(tokens) > 1 and len({one.model for one in tokens}) == 1

    def search() -> tuple[Any, float]:
        """Search every harvest and the pool; return the result and the seconds."""
        began = time.perf_counter()
        result = jaxsppl.optimize(
            opened, over=OVER, tail="drop", epsilon=EPSILON, starts=arguments.starts, pooled=pooled
        )
        return result, time.perf_counter() - began

    first = search()[1]
    result, again = search()
    problems = [(one.model, one.dataset, [one]) for one in tokens]
    problems += [(tokens[0].model, POOLED, tokens)] if pooled else []
    rows: list[dict[str, Any]] = []
    for model, dataset, some in problems:
        ours = result.sel(model=model, dataset=dataset)
        ended = np.isin(ours["status"].values, ("converged", "at a bound"))
        starts = ours["initial"].values[: arguments.scipy_starts or None]
        theirs, seconds = scipy_search(some, starts)
        best = min(float(ours["best_nll"]), float(theirs.min()))
        rows.append({
            "dataset": dataset,
            "n_token": sum(one.n_token for one in some),
            "best": dict(zip(OVER, ours["best_value"].values.tolist(), strict=True)),
            "nll": float(ours["best_nll"]),
            "scipy_nll": float(theirs.min()),
            "ended": int(ended.sum()),
            "ended_at_best": int((ours["nll"].values[ended] <= best + SAME).sum()),
            "scipy_starts": len(starts),
            "scipy_at_best": int((theirs <= best + SAME).sum()),
            "scipy_worst": float(theirs.max() - best),
            "scipy_s_a_start": seconds,
        })  # fmt: skip
        for name, value in rows[-1].items():
            print(f"{name:24} {value:.8g}" if isinstance(value, float) else f"{name:24} {value}")
        print()
    scipy_s = sum(row["scipy_s_a_start"] for row in rows) * arguments.starts
    figures = {
        "starts": arguments.starts,
        "problems": len(rows),
        "first_s": first,
        "again_s": again,
        "again_s_a_problem": again / len(rows),
        "scipy_s": scipy_s,
        "times_faster_than_scipy": scipy_s / again,
        "first_times_faster_than_scipy": scipy_s / first,
    }
    for name, value in figures.items():
        print(f"{name:32} {value:,.4g}")
    if arguments.ledger:
        device = str(jax.devices()[0].device_kind)
        ledger.append("optimize", "jax", "numpy", "scipy", device=device, **figures, rows=rows)


if __name__ == "__main__":
    main()
