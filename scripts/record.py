"""Append what a sweep file says to the ledger.

    python scripts/record.py FILE.sweep.nc WHAT [SECONDS]

SECONDS is what the command that made it took, by a clock.
"""

import sys
from pathlib import Path

import ledger

from jaxsppl.report.table import describe, to_data


def main() -> None:
    """Write one line: where and when, and the rows of the file's table."""
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    path, what, *seconds = sys.argv[1:]
    data = to_data(describe(Path(path)))
    data.pop("path", None)
    took = {"seconds": float(seconds[0])} if seconds else {}
    ledger.append(what, **took, sweep=data)


if __name__ == "__main__":
    main()
