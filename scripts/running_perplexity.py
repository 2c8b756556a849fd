"""Print the running perplexities of a file of `llama-perplexity --kl-divergence-base`.

    python scripts/running_perplexity.py FILE [EXPECTED ...]

The program prints the same figures, one a chunk, while it writes the file. With some of them as
EXPECTED the script fails when one differs by more than 0.01.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from jaxsppl import store
from jaxsppl.harvest.kld import import_kld


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("expected", type=float, nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        import_kld(given.file, Path(folder) / "a.harvest.nc", alternatives=1)
        harvest = store.read_harvest(Path(folder) / "a.harvest.nc")
    loss = -harvest["token_logprob"].values.astype(np.float64)
    ends = np.flatnonzero(np.diff(harvest["document_index"].values, append=-1)) + 1
    running = np.exp(loss.cumsum()[ends - 1] / ends)
    print(" ".join(f"{value:.4f}" for value in running))
    if len(given.expected) > len(running):
        print(f"only {len(running)} chunks for {len(given.expected)} expected figures")
        return 1
    worst = np.abs(running[: len(given.expected)] - given.expected).max(initial=0)
    if given.expected:
        print(f"largest difference {worst:.4f}")
    return int(worst > 0.01)


if __name__ == "__main__":
    sys.exit(main())
