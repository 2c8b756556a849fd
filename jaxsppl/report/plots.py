"""Figures of sweep files: which kind, of which pairs, into which file."""

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from jaxsppl import schema, store
from jaxsppl.atomic import atomic_path
from jaxsppl.errors import ConfigError, MissingFileError, SchemaError, suggest
from jaxsppl.report import style
from jaxsppl.report.curve import curve_figure
from jaxsppl.report.groups import groups_figure
from jaxsppl.report.heat import heat_figure
from jaxsppl.report.proof import Proof, proof_of
from jaxsppl.report.shootout import shootout_figure
from jaxsppl.report.surface import Surface, at_one_epsilon, restrict, surfaces
from jaxsppl.report.tradeoff import tradeoff_figure

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    Sources: TypeAlias = (
        str | os.PathLike[str] | xr.Dataset | Iterable[str | os.PathLike[str] | xr.Dataset]
    )

KINDS = ("curve", "groups", "heat", "shootout", "tradeoff")
_NOTHING = "no sweep was given; name at least one NAME.sweep.nc"
SUFFIXES = (".png", ".svg", ".pdf")
# How many pairs one figure of a kind can show and stay readable.
_ROOM = {"curve": len(style.LINES), "groups": 24, "heat": 4, "tradeoff": 4}


def plot(
    sources: "Sources",
    out: str | os.PathLike[str],
    *,
    kind: str = "auto",
    x: str | None = None,
    y: str | None = None,
    select: Mapping[str, float | str] | None = None,
    dpi: float = 150,
) -> list[Path]:
    """Draw sweep files.

    Parameters
    ----------
    sources : str, path, xarray.Dataset, or an iterable of these
        Sweep files; a name may be a glob.
    out : str or path
        The picture: .png, .svg or .pdf. Pairs that do not fit into one figure go to
        ``NAME-2.png`` and so on.
    kind : {"auto", "curve", "groups", "heat", "shootout", "tradeoff"}
        ``curve``: nll and ood along `x`; ``groups``: nll and ood of every model and dataset, for
        neutral, llama.cpp's default and best; ``heat``: nll over `x` and `y`; ``shootout``:
        samplers, each in a file of its own, by their held-out gain; ``tradeoff``: nll against
        ood. ``auto`` takes heat when `y` is given, groups when nothing is swept, or curve.
    x, y : str, optional
        Axes; by default temperature, then the others in the order of the file. In a trade-off `x`
        colours the dots.
    select : mapping, optional
        Axis to the value at which it is held, and ``model`` or ``dataset`` to a name.
    dpi : float
        Dots per inch of a PNG; the figures are 9 inches wide.

    Returns
    -------
    list of Path
        The files, written atomically.

    Raises
    ------
    ConfigError
        For an unknown kind, suffix, axis or value; the message lists the near names.
    SchemaError
        When a source is no sweep file.

    Examples
    --------
    >>> import jaxsppl
    >>> jaxsppl.plot("out/demo.sweep.nc", "curve.png")  # doctest: +SKIP
    """
    target = Path(out)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"'{target}': a figure is written as {', '.join(SUFFIXES)}; {suggest(suffix, SUFFIXES)}"
        )
    if not 10 <= dpi <= 1200:
        raise ConfigError(f"dpi {dpi:g} is not allowed; give 10 to 1200")
    paths: list[Path] = []
    made = figures(sources, kind=kind, x=x, y=y, select=select)
    for number, figure in enumerate(made, start=1):
        name = target if number == 1 else target.with_stem(f"{target.stem}-{number}")
        paths.append(_save(figure, name, suffix.removeprefix("."), dpi))
    return paths


def figures(
    sources: "Sources",
    *,
    kind: str = "auto",
    x: str | None = None,
    y: str | None = None,
    select: Mapping[str, float | str] | None = None,
) -> "list[Figure]":
    """Return the figures that `plot` writes, for use in a notebook or another document.

    Parameters
    ----------
    sources, kind, x, y, select
        As in `plot`.

    Returns
    -------
    list of Figure
        Not known to pyplot: nothing has to be closed.

    Raises
    ------
    ConfigError, SchemaError
        As in `plot`.
    """
    if kind not in ("auto", *KINDS):
        raise ConfigError(f"kind '{kind}': there is no such figure; {suggest(kind, KINDS)}")
    if kind == "shootout":
        return _shootouts(sources, (x, y), dict(select or {}))
    pairs = _selected(_read(sources), dict(select or {}))
    swept = _swept(pairs)
    if kind == "auto":
        kind = "heat" if y is not None else "curve" if swept else "groups"
    axes = _axes(kind, pairs, swept, (x, y))
    build: dict[str, Callable[[Sequence[Surface]], Figure]] = {
        "curve": lambda some: curve_figure(some, axes[0]),
        "groups": groups_figure,
        "heat": lambda some: heat_figure(some, axes[0], axes[1]),
        "tradeoff": lambda some: tradeoff_figure(some, *axes),
    }
    room = _ROOM[kind]
    return [build[kind](pairs[at : at + room]) for at in range(0, len(pairs), room)]


def _shootouts(
    sources: "Sources", asked: tuple[str | None, str | None], select: dict[str, float | str]
) -> "list[Figure]":
    """Return a figure for each model."""
    if any(name is not None for name in asked):
        raise ConfigError("kind 'shootout' has no x and no y; leave them out")
    extra = [name for name in select if name not in ("model", "dataset")]
    if extra:
        raise ConfigError(f"select {extra[0]}: kind 'shootout' ranks whole files; leave it out")
    proven: dict[str, list[tuple[Surface, Proof]]] = {}
    for contents, name in _contents(sources):
        for surface in surfaces(contents, name):
            held = at_one_epsilon(surface)
            proof = proof_of(contents, held)
            if proof is None:
                raise ConfigError(
                    f"{name}: it is not proven on held-out documents; add [decide] to its config "
                    "and sweep again"
                )
            proven.setdefault(surface.model, []).append((held, proof))
    if not proven:
        raise SchemaError(_NOTHING)
    chosen = {
        (s.model, s.dataset)
        for s in _selected([s for some in proven.values() for s, _ in some], select)
    }
    kept = {
        model: [one for one in some if (one[0].model, one[0].dataset) in chosen]
        for model, some in proven.items()
    }
    return [shootout_figure(some) for some in kept.values() if some]


def _read(sources: "Sources") -> list[Surface]:
    """Return every harvested pair of every source."""
    pairs = [pair for contents, name in _contents(sources) for pair in surfaces(contents, name)]
    if not pairs:
        raise SchemaError(_NOTHING)
    return pairs


def _contents(sources: "Sources") -> list[tuple[schema.Contents, str]]:
    """Return every source, checked, with its name."""
    import xarray as xr

    single = isinstance(sources, (str, os.PathLike, xr.Dataset))
    entries = [sources] if single else list(sources)
    found: list[tuple[schema.Contents, str]] = []
    for entry in entries:
        if isinstance(entry, xr.Dataset):
            found.append((store.contents_of(entry), str(entry.attrs.get("source", "dataset"))))
        else:
            found += [(store.read_contents(path), path.as_posix()) for path in _files(entry)]
    for contents, name in found:
        schema.check_sweep(contents, name)
    return found


def _files(entry: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a path or a glob, sorted."""
    if Path(entry).exists():
        return [Path(entry)]
    found = sorted(Path(name) for name in glob.glob(os.fspath(entry), recursive=True))  # noqa: PTH207
    if not found:
        raise MissingFileError(f"no sweep file matches '{entry}'; sweep first or name the files")
    return found


def _selected(pairs: list[Surface], select: dict[str, float | str]) -> list[Surface]:
    """Keep the chosen models and datasets and hold the chosen axes."""
    for key in ("model", "dataset"):
        if key not in select:
            continue
        wanted = str(select.pop(key))
        known = [str(getattr(pair, key)) for pair in pairs]
        if wanted not in known:
            raise ConfigError(
                f"select {key}: there is no '{wanted}'; {suggest(wanted, set(known))}"
            )
        pairs = [pair for pair, name in zip(pairs, known, strict=True) if name == wanted]
    held: dict[str, float] = {}
    for name, value in select.items():
        try:
            held[name] = float(value)
        except ValueError as error:
            raise ConfigError(f"select {name}: '{value}' is not a number") from error
    return [restrict(pair, held) for pair in pairs]


def _swept(pairs: Sequence[Surface]) -> list[str]:
    """Return the axes with several values in every pair, temperature first and epsilon last."""
    common = [name for name in pairs[0].swept() if all(name in p.swept() for p in pairs)]
    return sorted(common, key=lambda name: (name == "epsilon") - (name == "temperature"))


def _axes(
    kind: str, pairs: Sequence[Surface], swept: list[str], asked: tuple[str | None, str | None]
) -> tuple[str, ...]:
    """Return the axes that a kind needs: the asked ones, then the next that are swept."""
    needed = {"curve": 1, "heat": 2}.get(kind, 0)
    given = [name for name in asked if name is not None]
    known = [name for name in pairs[0].axes if all(name in pair.axes for pair in pairs)]
    for name in given:
        if name not in known:
            raise ConfigError(
                f"axis '{name}': no such axis is in every file; {suggest(name, known)}"
            )
    if asked[0] is not None and asked[0] == asked[1]:
        raise ConfigError(f"x and y are both '{asked[0]}'; name two axes")
    takes = {"curve": ("x",), "heat": ("x", "y"), "tradeoff": ("x",)}.get(kind, ())
    for letter, name in zip("xy", asked, strict=True):
        if name is not None and letter not in takes:
            raise ConfigError(f"kind '{kind}' has no {letter}, '{name}' would have no effect")
    if kind == "tradeoff":
        return tuple(given[:1])
    if kind == "groups":
        return ()
    others = [name for name in swept if name not in given]
    first = asked[0] if asked[0] is not None else next(iter(others), None)
    others = [name for name in others if name != first]
    second = asked[1] if asked[1] is not None else next(iter(others), None)
    chosen = [name for name in (first, second)[:needed] if name is not None]
    if len(chosen) < needed:
        raise ConfigError(
            f"kind '{kind}' needs {needed} swept axes, the sweep has {len(swept)} "
            f"({', '.join(swept) or 'none'}); use kind groups, or sweep more"
        )
    return tuple(chosen)


def _save(figure: "Figure", path: Path, form: str, dpi: float) -> Path:
    """Write one figure atomically; without a date, so that it is the same each time."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=form, dpi=dpi, metadata=dates.get(form))
    return path
