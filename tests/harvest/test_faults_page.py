"""docs/faults.md says what the tests say."""

import subprocess
import sys
from pathlib import Path

import test_faults

ROOT = Path(__file__).parents[2]


def test_the_page_of_faults_is_current() -> None:
    script = ROOT / "scripts" / "faults.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_are_many_faults() -> None:
    assert len(test_faults.FAULTS) >= 60
