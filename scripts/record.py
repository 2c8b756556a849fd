"""Append what a sweep file says to the ledger: python scripts/record.py FILE.sweep.nc [WHAT]."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from jaxsppl import __version__
from jaxsppl.report.table import describe, to_data

LEDGER = Path(__file__).parent / "benchmarks.jsonl"


def main() -> None:
    """Write one line: where and when, and the rows of the file's table."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    data = to_data(describe(path))
    data.pop("path", None)
    entry = {
        "what": sys.argv[2] if len(sys.argv) > 2 else path.name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.machine(),
        "n_cpu": os.cpu_count(),
        "python": platform.python_version(),
        "jaxsppl": __version__,
        "sweep": data,
    }
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(entry, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
