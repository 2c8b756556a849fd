"""Kill harvests and sweeps at random moments, and see that nothing wrong is ever left behind.

    python scripts/kills.py [--kills 20] [--seed 0]

Starts a real llama.cpp server with the demo's model. Each run is a `jaxsppl` process of its own,
killed with SIGKILL; after each kill a result file is either absent or whole and equal to the one of
an undisturbed run, and the next run goes on from there.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jaxsppl
from jaxsppl import schema, store
from jaxsppl.harvest.demo_model import demo_model
from jaxsppl.harvest.local import LocalServer

GRID = [
    "--set",
    "grid.temperature=[0.5,0.8,1.0,1.3]",
    "--set",
    "grid.min_p=[0,0.05]",
    "--set",
    "grid.alpha=[0.7,1,1.4]",
]


def disturb(
    words: Sequence[str], result: Path, expected: str, kills: int, rng: random.Random
) -> None:
    """Run a command until it has been killed often enough, and check its file after each kill."""
    command = [sys.executable, "-m", "jaxsppl", *words]
    result.unlink(missing_ok=True)
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    length = time.monotonic() - started
    if digest(result) != expected:
        sys.exit(f"{words[0]}: two undisturbed runs differ")
    result.unlink()
    done = finished = 0
    while done < kills:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(rng.uniform(0.0, length))
            finished += 1
            result.unlink(missing_ok=True)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            done += 1
        if result.exists() and digest(result) != expected:
            sys.exit(f"{words[0]}: after {done} kills '{result}' is whole but wrong")
    subprocess.run(command, check=True, capture_output=True)
    if digest(result) != expected:
        sys.exit(f"{words[0]}: the resumed result differs")
    print(f"{words[0]}: {done} kills, {finished} runs that ended first; identical, never wrong")


def digest(path: Path) -> str:
    """Return the digest of a file that has to be readable and whole."""
    contents = store.read_contents(path)
    if int(contents.attrs.get("complete", 0)) != 1:
        sys.exit(f"{path}: it opens and is not complete")
    return schema.digest(contents)


def main() -> None:
    """Disturb a harvest, then a sweep of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name, LocalServer(demo_model(), slots=1) as server:
        folder = Path(name)
        os.chdir(folder)
        jaxsppl.prepare(
            "python:prose", folder / "texts", name="prose", limit=8, continuation_chars=120,
            minimum_chars=60, prefix_chars=80,
        )  # fmt: skip
        harvest = [
            "harvest",
            "texts",
            "--server",
            server.url,
            "--out",
            "out",
            "--alternatives",
            "20",
        ]
        subprocess.run([sys.executable, "-m", "jaxsppl", *harvest], check=True, capture_output=True)
        (file,) = Path("out").glob("*.harvest.nc")
        disturb(harvest, file, digest(file), arguments.kills, rng)
        Path("grid.toml").write_text('name = "grid"\n')
        sweep = ["sweep", "grid.toml", "--input", str(file), "--out", "grid.sweep.nc", *GRID]
        subprocess.run([sys.executable, "-m", "jaxsppl", *sweep], check=True, capture_output=True)
        target = Path("grid.sweep.nc")
        disturb(sweep, target, digest(target), arguments.kills, rng)


if __name__ == "__main__":
    main()
