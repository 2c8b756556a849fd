"""Compare sweeps with golden values of an independent program.

    python scripts/golden.py HARVEST.nc GOLDEN.csv [HARVEST.nc GOLDEN.csv ...]

A row of the CSV holds temperature, min_p, top_k, alpha, beta, epsilon, nll, ood; the chain is
top_k, min_p, temperature and the tail is dropped. Rows that differ by more than 1e-6 nat are
recomputed with 50 digits, which says on whose side the difference lies.
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

import mpmath
import numpy as np

import jaxsppl
from jaxsppl.store import read_harvest

CHAIN = ("top_k", "min_p", "temperature")


def exact_nll(harvest_file: str, row: Mapping[str, float]) -> float:
    """Return the objective of one row with 50 digits, from the float32 log-probabilities."""
    mpmath.mp.dps = 50
    harvest = read_harvest(harvest_file)
    top, rank = harvest["top_logprob"].values, harvest["token_rank"].values
    inverse = 1 / mpmath.mpf(row["temperature"])
    least = mpmath.log(row["min_p"]) if row["min_p"] > 0 else mpmath.mpf("-inf")
    n_rank = int(row["top_k"]) or top.shape[1]
    total = mpmath.mpf(0)
    for logprobs, place in zip(top, rank, strict=True):
        kept = [mpmath.mpf(float(x)) for x in logprobs[:n_rank]]
        kept = [x for x in kept if x - kept[0] >= least]
        probability = mpmath.mpf(0)
        if 1 <= place <= len(kept):
            weights = [mpmath.exp((x - kept[0]) * inverse) for x in kept]
            norm, own = mpmath.fsum(weights), int(place) - 1
            before = mpmath.fsum(weights[:own]) / norm
            stop = before + weights[own] / norm
            # A rounding above 1 would make the integral complex.
            probability = mpmath.betainc(
                row["alpha"], row["beta"], before, min(stop, mpmath.mpf(1)), regularized=True
            )
        total -= mpmath.log(max(probability, mpmath.mpf(row["epsilon"])))
    return float(total / len(rank))


def main() -> None:
    """Print the largest differences of each pair of files."""
    files = sys.argv[1:]
    if not files or len(files) % 2:
        sys.exit(__doc__)
    for harvest, golden in zip(files[::2], files[1::2], strict=True):
        differences: list[tuple[float, float, dict[str, float]]] = []
        with Path(golden).open(newline="") as file:
            for record in csv.DictReader(file):
                row = {name: float(value) for name, value in record.items()}
                grid = {name: [row[name]] for name in row if name not in ("nll", "ood")}
                result = jaxsppl.sweep(harvest, grid, chain=CHAIN, tail="drop", audit_points=0)
                nll, ood = float(result["nll"].squeeze()), float(result["ood"].squeeze())
                differences.append(
                    (abs(nll - row["nll"]), abs(ood - row["ood"]), {**row, "ours": nll})
                )
        within = [d for d in differences if d[0] <= 1e-6]
        print(
            f"{golden}: {len(within)} of {len(differences)} rows within 1e-6 nat, the largest of "
            f"these {max((d[0] for d in within), default=0.0):.1e}; ood differs by at most "
            f"{max(d[1] for d in differences):.1e}"
        )
        for difference, _, row in differences:
            if difference > 1e-6:
                truth = exact_nll(harvest, row)
                print(
                    f"  off by {difference:.1e} at "
                    + ", ".join(
                        f"{k} {v:g}" for k, v in row.items() if k not in ("nll", "ood", "ours")
                    )
                    + f"; against 50 digits golden is off by {abs(row['nll'] - truth):.1e}, "
                    f"jaxsppl by {abs(row['ours'] - truth):.1e}"
                )


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
