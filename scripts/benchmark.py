"""The engine against its peers on one workload, in one run.

    python scripts/benchmark.py [HARVEST.nc ...] [--tail drop] [--ledger]

The grid is that of `sweeps/dense.toml` (50 temperatures x 8 min_p x 6 top_k x 11 alpha x 11 beta).
Without harvests the small ones that come with the package are used. Peers time a sample of points
and extrapolate: (a) a NumPy and SciPy loop over points, (b) `jit(vmap)` over points with
`jax.scipy.special.betainc`. `--ledger` appends the figures to scripts/benchmarks.jsonl.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ledger
import numpy as np
from jax.scipy.special import betainc as jax_betainc
from scipy.special import betainc

import jaxsppl
from jaxsppl import config
from jaxsppl.demo import ready_config, shipped_harvests
from jaxsppl.store import harvests
from jaxsppl.sweep.audit import audit
from jaxsppl.sweep.binning import shared_tables
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.engine import grid_sums, means_of
from jaxsppl.sweep.plan import Plan

EPSILON = 0.01
REACHED = 14_000  # nodes that the tokens of the reference workload reach at one temperature
Point = dict[str, float]


def numpy_point(tokens: TokenArrays, point: Point) -> float:
    """Return the nll of one point as a careful NumPy user would write it (tail dropped)."""
    logprob = tokens.top_logprob.astype(np.float64)
    n_rank = int(point["top_k"]) or logprob.shape[1]
    part = logprob[:, :n_rank]
    kept = part >= part[:, :1] + np.log(max(point["min_p"], 1e-300))
    weight = np.where(kept, np.exp((part - part[:, :1]) / point["temperature"]), 0.0)
    total = np.cumsum(weight, axis=1)
    place = np.clip(tokens.token_rank - 1, 0, n_rank - 1)
    row = np.arange(len(place))
    stop = np.minimum(total[row, place] / total[:, -1], 1.0)
    start = np.maximum(stop - weight[row, place] / total[:, -1], 0.0)
    mass = betainc(point["alpha"], point["beta"], stop) - betainc(
        point["alpha"], point["beta"], start
    )
    alive = (tokens.token_rank > 0) & (tokens.token_rank <= n_rank) & kept[row, place]
    return -float(np.log(np.maximum(np.where(alive, mass, 0.0), EPSILON)).mean())


def vmap_points(tokens: TokenArrays) -> Callable[..., jax.Array]:
    """Return the same for a block of points, compiled."""
    logprob = jnp.asarray(tokens.top_logprob, jnp.float32)
    rank = jnp.asarray(tokens.token_rank)

    def one(
        temperature: jax.Array,
        min_p: jax.Array,
        top_k: jax.Array,
        alpha: jax.Array,
        beta: jax.Array,
    ) -> jax.Array:
        place = jnp.arange(logprob.shape[1])
        kept = (logprob >= logprob[:, :1] + jnp.log(jnp.maximum(min_p, 1e-30))) & (
            (top_k <= 0) | (place < top_k)
        )
        weight = jnp.where(kept, jnp.exp((logprob - logprob[:, :1]) / temperature), 0.0)
        total = jnp.cumsum(weight, axis=1)
        at = jnp.clip(rank - 1, 0, None)[:, None]
        own = jnp.take_along_axis(weight, at, 1)[:, 0] / total[:, -1]
        stop = jnp.minimum(jnp.take_along_axis(total, at, 1)[:, 0] / total[:, -1], 1.0)
        mass = jax_betainc(alpha, beta, stop) - jax_betainc(
            alpha, beta, jnp.maximum(stop - own, 0.0)
        )
        mass = jnp.where((rank > 0) & (own > 0), mass, 0.0)
        return -jnp.log(jnp.maximum(mass, EPSILON)).mean()

    return jax.jit(jax.vmap(one))


def floor_seconds(tokens: Sequence[TokenArrays], grid: dict[str, list[float]]) -> float:
    """Return the seconds of the least work that any engine of this kind must do, on all cores.

    The exponential of every alternative at every temperature, and the product of rows by the nodes
    that tokens reach by draws, both in float32: as measured, not by counting.
    """
    n_row = len(grid["min_p"]) * len(grid["top_k"])
    n_draw = len(grid["alpha"]) * len(grid["beta"])
    n_time = len(grid["temperature"])
    key = jax.random.key(0)
    logprob = [jnp.asarray(one.top_logprob) for one in tokens]
    left, right = (
        jax.random.normal(key, (n_row, REACHED)),
        jax.random.normal(key, (REACHED, n_draw)),
    )
    power = jax.jit(lambda x, t: jnp.exp(x / t).sum())
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    for one in logprob:
        jax.block_until_ready(power(one, 1.0))
    jax.block_until_ready(product(left, right))
    powers = timed(lambda: [power(one, t) for one in logprob for t in grid["temperature"]])
    # Twice: the losses, and the tokens below epsilon.
    products = timed(lambda: [product(left, right) for _ in range(2 * n_time * len(tokens))])
    return powers + products


def phases(data: Sequence[TokenArrays], plan: Plan) -> dict[str, float]:
    """Return the seconds of the parts of a sweep that is compiled already."""
    held: dict[str, Any] = {}

    def tables() -> object:
        held["tables"] = shared_tables(plan)
        return held["tables"][0].values.log_mass

    def grids() -> None:
        sums = [grid_sums(plan, one, lambda _: None, held["tables"]) for one in data]
        held["means"] = [
            means_of(each.loss, each.ood, one.n_token) for each, one in zip(sums, data, strict=True)
        ]

    def audits() -> None:
        for one, means in zip(data, held["means"], strict=True):
            audit(plan, one, means, 32, np.random.default_rng(0))

    return {
        "node_values_s": timed(tables),
        "spreading_and_products_s": timed(grids),
        "audit_s": timed(audits),
    }


def on_processor(work: Callable[[], object]) -> float:
    """Return the processor seconds that a piece of work takes, least of three runs.

    Unlike the clock's they are little disturbed by what else the machine does.
    """
    seconds: list[float] = []
    for _ in range(3):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a piece of work takes."""
    began = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - began


def main() -> None:
    """Measure and print; say the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harvest", nargs="*", type=Path)
    parser.add_argument("--tail", choices=["drop", "bound"], default="drop")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    files: Sequence[Path] = arguments.harvest or shipped_harvests()
    settings = config.load(ready_config("dense"))
    grid, order = settings.grid, settings.order()
    data = [token_arrays(harvest) for harvest in harvests(list(files))]
    n_token = sum(tokens.n_token for tokens in data)
    n_point = int(np.prod([len(axis) for axis in grid.values()]))

    def run(axes: dict[str, list[float]]) -> Callable[[], object]:
        return lambda: (
            jaxsppl.sweep(list(files), axes, chain=order, tail=arguments.tail, epsilon=EPSILON)[
                "nll"
            ].values
        )

    plan = jaxsppl.explain(list(files), grid, chain=order, tail=arguments.tail)
    first = timed(run(grid))
    again = min(timed(run(grid)) for _ in range(3))
    result = jaxsppl.sweep(list(files), grid, chain=order, tail=arguments.tail, epsilon=EPSILON)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    more = {**grid, "alpha": np.geomspace(0.4, 2.5, 35).tolist()}
    more["beta"] = np.geomspace(0.4, 2.5, 35).tolist()
    timed(run(more))
    wide = min(timed(run(more)) for _ in range(3))
    processor = on_processor(run(grid))

    rng = np.random.default_rng(0)
    names = list(grid)
    sample: list[Point] = [
        {name: float(rng.choice(grid[name])) for name in names} for _ in range(arguments.sample)
    ]
    loop = timed(lambda: [numpy_point(tokens, point) for tokens in data for point in sample])
    blocks = [jnp.asarray([point[name] for point in sample], jnp.float32) for name in names]
    plain = 0.0
    for tokens in data:
        compiled = vmap_points(tokens)
        named = dict(zip(names, blocks, strict=True))
        call = [named[n] for n in ("temperature", "min_p", "top_k", "alpha", "beta")]
        pieces = [[axis[i : i + 4] for axis in call] for i in range(0, len(sample) - 3, 4)]
        jax.block_until_ready(compiled(*pieces[0]))
        plain += timed(lambda c=compiled, p=pieces: [c(*piece) for piece in p])
    scale = n_point / len(sample)
    floor = floor_seconds(data, grid)
    parts = phases(data, plan) if plan.level == "binned" else {}
    figures = {
        "n_token": n_token,
        "n_point": n_point,
        "tail": arguments.tail,
        "level": plan.level,
        "threads": plan.workers,
        "first_s": first,
        "again_s": again,
        "numpy_loop_s": loop * scale,
        "jit_vmap_s": plain * n_point / (len(sample) // 4 * 4),
        "draws_times_10_ratio": wide / again,
        "draws_times_10_processor_ratio": on_processor(run(more)) / processor,
        "again_processor_s": processor,
        "peak_mib": peak,
        "floor_s": floor,
        "again_over_floor": again / floor,
        **parts,
        "audit_nll": float(result.attrs["audit_nll"]),
        "audit_ood": float(result.attrs["audit_ood"]),
    }
    figures["times_faster_than_numpy"] = figures["numpy_loop_s"] / again
    figures["times_faster_than_jit_vmap"] = figures["jit_vmap_s"] / again
    figures["first_times_faster_than_numpy"] = figures["numpy_loop_s"] / first
    figures["first_times_faster_than_jit_vmap"] = figures["jit_vmap_s"] / first
    for name, value in figures.items():
        print(f"{name:32} {value:,.4g}" if isinstance(value, float) else f"{name:32} {value}")
    if arguments.ledger:
        device = str(jax.devices()[0].device_kind)
        ledger.append("engine", "jax", "numpy", "scipy", device=device, **figures)


if __name__ == "__main__":
    main()
