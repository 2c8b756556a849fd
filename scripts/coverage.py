"""How often the intervals hold the truth, and the plateau the true best, by simulation.

    python scripts/coverage.py [--turns 1000] [--ledger scripts/benchmarks.jsonl]

Documents of uneven length come from four known generators; each turn draws some, resamples them and
looks whether a 95 % interval holds the generator's own mean. Beside the interval that jaxsppl takes
stand the percentile interval and Student's, of the same turns. For the plateau, documents prefer
different parts of a grid whose true best is known.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from jaxsppl import __version__
from jaxsppl.sweep import bootstrap
from jaxsppl.sweep.plateau import uncertainty

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
CONFIDENCE, RESAMPLES = 0.95, 600
DOCUMENTS = (3, 5, 8, 10, 20, 40)


def sizes(rng: Rng, n: int) -> Array:
    """Draw the tokens of documents."""
    return rng.integers(80, 320, n).astype(float)


def normal(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw documents whose difficulty is normal, plus noise of the tokens."""
    size = sizes(rng, n)
    return size * (2 + 0.4 * rng.normal(size=n)) + 1.5 * np.sqrt(size) * rng.normal(size=n), size


def skewed(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw documents of which a few are very hard: an exponential."""
    size = sizes(rng, n)
    return size * (1.5 + 0.5 * rng.gamma(1.0, 1.0, n)), size


def longer_is_harder(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw documents whose difficulty goes with their length."""
    size = sizes(rng, n)
    return size * (2 + (size - 200) / 400 + 0.3 * rng.normal(size=n)), size


def paired(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw paired differences with heavy tails."""
    size = sizes(rng, n)
    return size * 0.02 * rng.standard_t(5, n), size


WORLDS: tuple[Callable[[Rng, int], tuple[Array, Array]], ...] = (
    normal, skewed, longer_is_harder, paired,
)  # fmt: skip


def coverage(world: Callable[[Rng, int], tuple[Array, Array]], n: int, turns: int) -> Array:
    """Return the coverage of jaxsppl's interval, of percentiles, and of Student's."""
    loss, weight = world(np.random.default_rng(9), 1_000_000)
    truth, rng = loss.sum() / weight.sum(), np.random.default_rng(n)
    held = np.zeros(3)
    for turn in range(turns):
        found = bootstrap.resample(*world(rng, n), bootstrap.draw_documents(n, RESAMPLES, turn))
        ours = found.estimate(CONFIDENCE)
        tail = (1 - CONFIDENCE) / 2
        reach = stats.t.ppf(1 - tail, n - 1) * found.se
        ends = (
            (ours.low, ours.high),
            tuple(np.quantile(found.values, [tail, 1 - tail])),
            (found.value - reach, found.value + reach),
        )
        held += [low <= truth <= high for low, high in ends]
    return held / turns


def plateau(n: int, rough: float, turns: int) -> tuple[float, float]:
    """Return how often the plateau holds the true best, and its share of the grid."""
    x = np.linspace(-1, 1, 60)
    level = np.where(np.abs(x - 0.2) < 0.1, 0.0, 0.0004) - 1e-5 * (np.arange(60) == 37)
    best, rng, held, share = int(np.argmin(level)), np.random.default_rng(n), 0.0, 0.0
    for turn in range(turns):
        size = sizes(rng, n)
        own = 2 + 0.4 * rng.normal(size=(n, 1)) + level + 0.03 * rng.standard_t(5, (n, 1)) * x
        loss = size[:, None] * (own + rough * rng.normal(size=(n, 60)))
        found = uncertainty(
            (loss.sum(axis=0) / size.sum())[None],
            ((row[None], 0.0 * row[None]) for row in loss),
            size, np.zeros(n, int), resamples=400, confidence=CONFIDENCE, seed=turn,
        )  # fmt: skip
        held += found.plateau[0, best] / turns
        share += found.plateau.mean() / turns
    return held, share


def main() -> None:
    """Print a Markdown table, and append it to the ledger when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--ledger", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print("| documents | generator | jaxsppl | percentile | Student |\n|--:|---|--:|--:|--:|")
    for n in DOCUMENTS:
        for world in WORLDS:
            ours, percentile, student = (float(v) for v in coverage(world, n, options.turns))
            name = world.__name__.replace("_", " ")
            rows.append({"documents": n, "generator": name, "jaxsppl": ours,
                         "percentile": percentile, "student": student})  # fmt: skip
            print(f"| {n} | {name} | {ours:.1%} | {percentile:.1%} | {student:.1%} |", flush=True)
    flat: list[dict[str, float]] = []
    print(
        "\n| documents | roughness | holds the true best | share of the grid |\n|--:|--:|--:|--:|"
    )
    for n in (8, 30):
        for rough in (0.0, 0.01):
            held, share = plateau(n, rough, options.turns // 2)
            flat.append({"documents": n, "rough": rough, "held": held, "share": share})
            print(f"| {n} | {rough:g} | {held:.1%} | {share:.0%} |", flush=True)
    if options.ledger is not None:
        entry = {
            "what": "coverage",
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": platform.machine(),
            "n_cpu": os.cpu_count(),
            "python": platform.python_version(),
            "jaxsppl": __version__,
            "turns": options.turns,
            "resamples": RESAMPLES,
            "intervals": rows,
            "plateau": flat,
        }
        with options.ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
