"""The figures of README and docs name lines of the ledger that are there."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def newest(*names: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/ledger.py"), *names],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_line_that_a_page_names_is_in_the_ledger() -> None:
    text = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r'\bline\s+"([^"]+)"', text))
    assert {"engine", "harvest"} <= named
    done = newest(*named)
    assert done.returncode == 0, done.stderr


def test_of_a_name_the_newest_line_is_told() -> None:
    lines = (ROOT / "scripts/benchmarks.jsonl").read_text(encoding="utf-8").splitlines()
    engines = [entry for entry in map(json.loads, lines) if entry["what"] == "engine"]
    assert len(engines) > 1
    assert json.loads(newest("engine").stdout) == engines[-1]
    assert "'nothing' is not in the ledger; it has tail" in newest("nothing").stderr
