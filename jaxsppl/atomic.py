"""Files that appear whole or not at all, and never in the place of something else."""

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path

from jaxsppl.errors import ConfigError

_FILE, NETCDF = "a file", "a NetCDF file"


def check_target(path: Path, kind: str = "") -> None:
    """Refuse to write where something else lies, so that a slip costs no config and no harvest.

    Parameters
    ----------
    path : Path
        The file to be written.
    kind : str
        The schema of the result file that it will be; "" for other files.

    Raises
    ------
    ConfigError
        When a folder, a device, a sweep config, or a file of another kind is there.
    """
    if not path.name:
        raise ConfigError(f"cannot write '{path}': it is a folder; name a file in it")
    found = _kind(path)
    if found in ("", kind) or (found == _FILE and (not kind or path.suffix == ".nc")):
        return
    raise ConfigError(f"cannot write '{path}': {found} is there, which stays; name another file")


def _kind(path: Path) -> str:
    """Return what lies at a path: a result file's schema, other words, or "" for what may go."""
    if not path.exists():
        return ""
    if not path.is_file():
        return "a folder" if path.is_dir() else "a device"
    if path.suffix == ".toml":
        return "a sweep config"
    with path.open("rb") as handle:
        head = handle.read(4)
    if head != b"\x89HDF":
        return _FILE if head else ""
    import netCDF4

    try:
        with netCDF4.Dataset(path) as file:
            return str(getattr(file, "schema", NETCDF))
    except (OSError, RuntimeError):
        return ""  # a result file that is not whole


@contextlib.contextmanager
def atomic_path(path: Path, kind: str = "") -> Generator[Path]:
    """Give a temporary path in the same folder that replaces `path` when the block ends well.

    Parameters
    ----------
    path : Path
        The file to be written; its folder is made when missing.
    kind : str
        As for `check_target`.

    Yields
    ------
    Path
        Where to write. After a failure it is removed and `path` is as it was.

    Raises
    ------
    ConfigError
        When the folder cannot be written, or as `check_target`.
    """
    check_target(path, kind)
    target = path.resolve()  # what a link points to is replaced, not the link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write '{path}': {error.strerror or error}; choose another place for it"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the folder itself may be what is wrong
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some file systems cannot, which is no error."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
