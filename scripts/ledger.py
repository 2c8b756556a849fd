"""The ledger of measurements, scripts/benchmarks.jsonl: lines are appended and never changed.

    python scripts/ledger.py [WHAT...]

prints the newest line of each name: where a name repeats, it is the one that README and docs mean.
"""

import importlib.metadata
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LEDGER = Path(__file__).parent / "benchmarks.jsonl"


def append(what: str, *libraries: str, **figures: Any) -> None:
    """Append what was measured, with when, where, and the versions of jaxsppl and the libraries."""
    entry = {
        "what": what,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.machine(),
        "n_cpu": os.cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in (*libraries, "jaxsppl")},
        **figures,
    }
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(entry, ensure_ascii=False) + "\n")


def newest() -> dict[str, dict[str, Any]]:
    """Return the last entry of each name."""
    lines = LEDGER.read_text(encoding="utf-8").splitlines()
    return {entry["what"]: entry for entry in map(json.loads, lines)}


def main() -> None:
    """Print the newest entries, of the names that are given or of all."""
    entries = newest()
    unknown = [name for name in sys.argv[1:] if name not in entries]
    if unknown:
        sys.exit(f"'{unknown[0]}' is not in the ledger; it has {', '.join(entries)}")
    for name in sys.argv[1:] or entries:
        print(json.dumps(entries[name], ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
