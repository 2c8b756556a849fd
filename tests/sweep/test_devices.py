"""Tokens over several devices: the numbers of one device, whatever the level and the tail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxsppl

CHILD = Path(__file__).parent / "sweep_child.py"
TESTS = Path(__file__).parents[1]


def swept(target: Path, level: str, tail: str, devices: int) -> None:
    """Sweep in a new process that has so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    paths = os.pathsep.join(map(str, (TESTS / "sweep", TESTS)))
    done = subprocess.run(
        [sys.executable, str(CHILD), str(target), level, tail],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"devices": devices}


@pytest.mark.parametrize(("level", "tail"), [("binned", "bound"), ("factored", "drop")])
def test_four_devices_give_what_one_gives(tmp_path: Path, level: str, tail: str) -> None:
    one, four = tmp_path / "one.sweep.nc", tmp_path / "four.sweep.nc"
    swept(one, level, tail, 1)
    swept(four, level, tail, 4)
    for name in ("nll", "ood"):
        first, other = (jaxsppl.open_sweep(path)[name].values for path in (one, four))
        np.testing.assert_allclose(other, first, atol=1e-6)
