"""Compare the laws of random chains of samplers with those that a llama-server reports.

    python scripts/conformance.py --server http://127.0.0.1:8080 [--chains 40] [--places 25]

For your own server and build. Each chain that it samples otherwise is printed, with its parameters
and the largest difference of a probability, and the script then ends with a failure. Nothing else
should use the server meanwhile; --model chooses one of a router's.
"""

import argparse
import sys

from jaxsppl.conformance import NARROW, WIDE, conformance
from jaxsppl.errors import JaxspplError


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True)
    parser.add_argument("--model")
    parser.add_argument("--chains", type=int, default=40)
    parser.add_argument("--places", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        found = conformance(
            given.server,
            chains=given.chains,
            places=given.places,
            seed=given.seed,
            model=given.model,
            progress=lambda done, total: print(f"position {done} of {total}", file=sys.stderr),
        )
    except JaxspplError as error:
        sys.exit(f"conformance: {error}")
    for one in found.disagreements:
        print(one.text())
    print(
        f"build {found.build}: {found.compared} laws compared, {len(found.disagreements)} differ; "
        f"largest difference {found.narrow:.1e} (allowed {NARROW:g}), over thousands of tokens "
        f"{found.wide:.1e} (allowed {WIDE:g}); {found.ties} decided by float32 rounding, "
        f"{found.silent} not told"
    )
    sys.exit(bool(found.disagreements))


if __name__ == "__main__":
    main()
