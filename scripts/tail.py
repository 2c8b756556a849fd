"""How well the unseen tail is modelled: the estimate and its brackets against whole vocabularies.

Takes a harvest whose alternatives are the whole vocabulary, or makes one with the demo's model:

    python scripts/tail.py [FULL.harvest.nc] [--ledger]

For each K the harvest is cut to its K likeliest tokens, and the log-partition at each temperature
is compared with the true one: of the model, of a power law, and whether the brackets hold.
"""

import argparse
import tempfile
from pathlib import Path

import jax.numpy as jnp
import ledger
import numpy as np
import numpy.typing as npt

import jaxsppl
from jaxsppl.harvest.demo_model import demo_model
from jaxsppl.harvest.local import LocalServer
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import candidates
from jaxsppl.sampling.precision import float64

Array = npt.NDArray[np.float64]
KEPT = (20, 100, 1000)
TEMPERATURES = (0.3, 0.7, 1.5, 2.0, 2.5)


def full_vocabulary(folder: Path, n_vocab: int = 49152) -> Path:
    """Harvest a few short passages with the whole vocabulary as alternatives."""
    jaxsppl.prepare(
        "python:prose",
        folder / "texts",
        name="prose",
        limit=6,
        continuation_chars=60,
        minimum_chars=20,
    )
    with LocalServer(demo_model(), slots=1, context=1024) as server:
        done = jaxsppl.harvest(
            jaxsppl.load_passages(folder / "texts"),
            [server.url],
            folder,
            dataset="prose",
            alternatives=n_vocab,
            timeout_s=1200.0,
        )
    return Path(str(done[0].path))


def power_law(logprob: Array, n_vocab: int, inverse: float) -> Array:
    """Return (token,) sum p^b over the unseen by p_j = p_K (j/K)^-s, with s from the mass."""
    n_rank = logprob.shape[1]
    mass = np.maximum(1.0 - np.exp(logprob).sum(axis=1), 1e-9)
    ends = np.geomspace(n_rank + 0.5, n_vocab + 0.5, 400)
    number, rank = np.diff(ends), np.sqrt(ends[1:] * ends[:-1])
    fall = np.log(rank / n_rank)
    low, high = np.zeros(len(mass)), np.full(len(mass), 200.0)
    for _ in range(60):
        slope = 0.5 * (low + high)
        total = (np.exp(logprob[:, -1:] - slope[:, None] * fall) * number).sum(axis=1)
        low, high = np.where(total > mass, slope, low), np.where(total > mass, high, slope)
    return (np.exp(inverse * (logprob[:, -1:] - slope[:, None] * fall)) * number).sum(axis=1)


def main() -> None:
    """Print the table and append it to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harvest", nargs="?", type=Path)
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.harvest or full_vocabulary(Path(folder))
        harvest = jaxsppl.open_harvest(path)
        full = harvest["top_logprob"].values.astype(np.float64)
    n_token, n_vocab = full.shape
    print(f"{n_token} positions, vocabulary {n_vocab}; error of the log-partition [nat], mean")
    print("    K     T   power law   estimate   width of brackets   outside")
    rows: list[dict[str, float]] = []
    for kept in KEPT:
        cut = full[:, :kept]
        with float64():
            # The actual token is taken inside: only the partition function is asked for.
            block = tails.with_tail(candidates(cut, cut[:, 0], np.ones(n_token, np.int32)), n_vocab)
            for temperature in TEMPERATURES:
                inverse = 1.0 / temperature
                top = cut[:, 0]
                sums = tails.tail_sum(
                    block.tail,
                    jnp.asarray(inverse),
                    jnp.full(n_token, tails.ALL),
                    jnp.asarray(top),
                )
                known = np.exp(inverse * (cut - top[:, None])).sum(axis=1)
                truth = np.log(np.exp(inverse * (full - top[:, None])).sum(axis=1))
                estimate, lower, upper = (np.log(known + np.asarray(part)) for part in sums)
                scaled = power_law(cut, n_vocab, inverse) * np.exp(-inverse * top)
                row = {
                    "kept": kept,
                    "temperature": temperature,
                    "power_law": float((np.log(known + scaled) - truth).mean()),
                    "estimate": float((estimate - truth).mean()),
                    "width": float((upper - lower).mean()),
                    "outside": int(((truth < lower - 1e-9) | (truth > upper + 1e-9)).sum()),
                }
                rows.append(row)
                print(
                    f"{kept:5} {temperature:5}   {row['power_law']:+9.4f}  {row['estimate']:+9.4f}"
                    f"   {row['width']:17.4f}   {row['outside']:7}"
                )
    if arguments.ledger:
        model = str(harvest["model"].values)
        ledger.append("tail", "jax", model=model, n_token=n_token, n_vocab=n_vocab, rows=rows)


if __name__ == "__main__":
    main()
