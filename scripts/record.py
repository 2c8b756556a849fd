"""Append what a sweep file says to the ledger: python scripts/record.py FILE.sweep.nc [WHAT]."""

import sys
from pathlib import Path

import ledger

from jaxsppl.report.table import describe, to_data


def main() -> None:
    """Write one line: where and when, and the rows of the file's table."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    data = to_data(describe(path))
    data.pop("path", None)
    ledger.append(sys.argv[2] if len(sys.argv) > 2 else path.name, sweep=data)


if __name__ == "__main__":
    main()
