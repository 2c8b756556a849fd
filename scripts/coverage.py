"""How often the intervals hold the truth, and the plateau the true best, by simulation.

    python scripts/coverage.py [--turns 1000] [--ledger]

Documents of uneven length come from five known generators; each turn draws some, resamples them and
looks whether a 95 % interval holds the generator's own mean. Beside the interval that jaxsppl takes
stand the percentile interval and Student's, of the same turns. For the plateau and for held-out
gains, documents prefer different parts of a grid whose true best is known; for groups, documents of
one group are alike; and the numbers of documents needed are put to the test.
"""

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from jaxsppl.choice import Choice
from jaxsppl.sweep import bootstrap, heldout
from jaxsppl.sweep.documents import Documents
from jaxsppl.sweep.plateau import uncertainty

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
Row = dict[str, float | str]
CONFIDENCE, RESAMPLES = 0.95, 600
SHARES = ("jaxsppl", "percentile", "student", "held", "share", "by_group", "by_document", "power")
DOCUMENTS = (3, 4, 5, 6, 8, 10, 20, 40)


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


def very_skewed(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw documents of which a few are harder than all others together: a lognormal."""
    size = sizes(rng, n)
    return size * (1.5 + 0.5 * np.exp(rng.normal(size=n))), size


def longer_is_harder(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw documents whose difficulty goes with their length."""
    size = sizes(rng, n)
    return size * (2 + (size - 200) / 400 + 0.3 * rng.normal(size=n)), size


def paired(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw paired differences with heavy tails."""
    size = sizes(rng, n)
    return size * 0.02 * rng.standard_t(5, n), size


WORLDS: tuple[Callable[[Rng, int], tuple[Array, Array]], ...] = (
    normal, skewed, very_skewed, longer_is_harder, paired,
)  # fmt: skip


def interval(world: Callable[[Rng, int], tuple[Array, Array]], n: int, turns: int) -> Row:
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
    ours, percentile, student = (float(share) for share in held / turns)
    return {"documents": n, "generator": world.__name__.replace("_", " "), "jaxsppl": ours,
            "percentile": percentile, "student": student}  # fmt: skip


def surface(rng: Rng, n: int, level: Array, rough: float) -> tuple[Array, Array]:
    """Draw (document, point) sums: documents prefer other parts of a grid, and points are rough."""
    size, x = sizes(rng, n), np.linspace(-1, 1, len(level))
    own = 2 + 0.4 * rng.normal(size=(n, 1)) + level + 0.03 * rng.standard_t(5, (n, 1)) * x
    return size[:, None] * (own + rough * rng.normal(size=(n, len(level)))), size


def plateau(n: int, rough: float, turns: int) -> Row:
    """Return how often the plateau holds the true best, and its share of the grid."""
    x = np.linspace(-1, 1, 60)
    level = np.where(np.abs(x - 0.2) < 0.1, 0.0, 0.0004) - 1e-5 * (np.arange(60) == 37)
    best, rng, held, share = int(np.argmin(level)), np.random.default_rng(n), 0.0, 0.0
    for turn in range(turns):
        loss, size = surface(rng, n, level, rough)
        found = uncertainty(
            (loss.sum(axis=0) / size.sum())[None],
            ((row[None], 0.0 * row[None]) for row in loss),
            size, np.zeros(n, int), resamples=400, confidence=CONFIDENCE, seed=turn,
        )  # fmt: skip
        held += found.plateau[0, best] / turns
        share += found.plateau.mean() / turns
    return {"documents": n, "rough": rough, "held": held, "share": share}


def gains(n: int, rough: float, folds: int, turns: int) -> Row:
    """Return how often the interval of a held-out gain holds the true gain of what was chosen.

    One fold stands for one half that is held out once.

    Beside it the mean of that true gain, of the held-out gain, and of what the best point of the
    whole text gains there.
    """
    level, rng = 0.02 * (np.linspace(-1, 1, 60) - 0.2) ** 2, np.random.default_rng(n)
    held, means = 0.0, np.zeros(3)
    for turn in range(turns):
        loss, size = surface(rng, n, level, rough)
        names = tuple(f"{turn} {document}" for document in range(n))
        documents = Documents(names, np.arange(n), size, size, size, ("",) * n, n)
        split = "folds" if folds > 1 else "test"
        cut = heldout.make_split(documents, split=split, fraction=0.5, folds=folds, seed=0)
        fold = cut.document_fold
        by_fold = np.stack([loss[fold == one].sum(axis=0) for one in range(fold.max() + 1)])
        weight = np.bincount(fold, size)
        chosen = heldout.choose(by_fold, 0.0 * by_fold, weight, cut.proven, Choice())
        own, _ = heldout.held_out_sums(
            cut, chosen, lambda place, loss=loss, size=size: (loss[:, place], size)
        )
        proves = np.isfinite(own)
        drawn = bootstrap.draw_documents(int(proves.sum()), RESAMPLES, turn)
        gain = bootstrap.resample((loss[:, 0] - own)[proves], size[proves], drawn)
        ends = gain.estimate(CONFIDENCE)
        truth = np.average(
            [level[0] - level[place] for place in chosen.values()],
            weights=[weight[one] for one in chosen],
        )
        held += (ends.low <= truth <= ends.high) / turns
        total = loss.sum(axis=0) / size.sum()
        means += np.array([truth, gain.value, total[0] - total.min()]) / turns
    truth, held_out, in_sample = (float(mean) for mean in means)
    return {"documents": n, "rough": rough, "folds": folds, "held": float(held), "truth": truth,
            "held_out": held_out, "in_sample": in_sample}  # fmt: skip


def groups(n: int, turns: int) -> Row:
    """Return the coverage with groups of five documents drawn whole, and with documents drawn."""
    rng, each, held = np.random.default_rng(n), 5, np.zeros(2)
    for turn in range(turns):
        size = sizes(rng, n * each).reshape(n, each)
        loss = size * (2 + 0.4 * rng.normal(size=(n, 1)) + 0.2 * rng.normal(size=(n, each)))
        for which, (x, w) in enumerate(((loss.sum(axis=1), size.sum(axis=1)),
                                        (loss.ravel(), size.ravel()))):  # fmt: skip
            drawn = bootstrap.draw_documents(len(w), RESAMPLES, turn)
            found = bootstrap.resample(x, w, drawn).estimate(CONFIDENCE)
            held[which] += (found.low <= 2 <= found.high) / turns
    return {"groups": n, "by_group": float(held[0]), "by_document": float(held[1])}


def normal_difference(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw paired differences."""
    size = sizes(rng, n)
    return size * 0.02 * rng.normal(size=n), size


def skewed_difference(rng: Rng, n: int) -> tuple[Array, Array]:
    """Draw paired differences of which a few are far above the others."""
    size = sizes(rng, n)
    return size * 0.02 * (rng.gamma(1.0, 1.0, n) - 1), size


def power(name: str, pilot: int, difference: float, turns: int) -> Row:
    """Return how often as many documents as a first look asks for show a difference."""
    sign = -1 if name == "skewed against it" else 1
    world = {"normal": normal_difference, "heavy tails": paired}.get(name, skewed_difference)
    rng, seen, needed = np.random.default_rng(pilot), 0.0, []
    for turn in range(turns):
        loss, size = world(rng, pilot)
        se = bootstrap.resample(loss, size, np.ones((1, pilot))).se
        needed.append(int(heldout.documents_needed(se, pilot, difference, CONFIDENCE)))
        loss, size = world(rng, needed[-1])
        drawn = bootstrap.draw_documents(needed[-1], RESAMPLES // 2, turn)
        found = bootstrap.resample(sign * loss + difference * size, size, drawn)
        seen += (found.estimate(CONFIDENCE).low > 0) / turns
    return {"differences": name, "pilot": pilot, "difference": difference,
            "needed": float(np.median(needed)), "power": float(seen)}  # fmt: skip


def show(title: str, rows: list[Row]) -> None:
    """Print a Markdown table, shares in percent."""
    print(f"\n{title}\n\n| {' | '.join(key.replace('_', ' ') for key in rows[0])} |")
    print(f"|{'--:|' * len(rows[0])}")
    for row in rows:
        cells = [
            value if isinstance(value, str) else f"{value:{'.1%' if name in SHARES else '.4g'}}"
            for name, value in row.items()
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a Markdown table, and append it to the ledger when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--ledger", action="store_true")
    options = parser.parse_args()
    half = options.turns // 2
    found: dict[str, list[Row]] = {
        "intervals": [interval(world, n, options.turns) for n in DOCUMENTS for world in WORLDS],
        "plateau": [plateau(n, rough, half) for n in (8, 30) for rough in (0.0, 0.01)],
        "gains": [
            gains(n, rough, folds, options.turns)
            for n in (10, 40) for rough in (0.0, 0.01, 0.05) for folds in (1, 2, 5, 10)
        ],
        "groups": [groups(n, options.turns) for n in (6, 12, 24)],
        "power": [
            power(name, pilot, difference, half)
            for name in ("normal", "heavy tails", "skewed for it", "skewed against it")
            for pilot in (10, 40) for difference in (0.014, 0.008)
        ],
    }  # fmt: skip
    for title, table in found.items():
        show(title, table)
    if options.ledger:
        import ledger  # beside this script, which tests load by its path

        ledger.append("coverage", turns=options.turns, resamples=RESAMPLES, **found)


if __name__ == "__main__":
    main()
