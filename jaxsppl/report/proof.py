"""What a file says of its own certainty: the plateau, and the proof on held-out documents.

Stored numbers are looked up; no score is computed. Neither xarray nor matplotlib is imported.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.choice import FEW_UNITS
from jaxsppl.plural import plural
from jaxsppl.report.aligned import aligned, chance, fixed, signed, wrapped
from jaxsppl.report.surface import Surface, effective_order, point_at, value_text

CHOSEN = "chosen"


@dataclass(frozen=True)
class Line:
    """A setting or sampler on the held-out documents.

    Attributes
    ----------
    name : str
    nll, nll_low, nll_high : float
        With its interval [nat/token].
    ood : float
        [1].
    gain, gain_low, gain_high : float
        What the chosen settings gain on it; of a sampler, what it gains on the reference
        [nat/token].
    win : float
        Probability that the gain is above 0 [1].
    documents_needed : float
        To see a difference of `Proof.detect` to the chosen settings; NaN for samplers.
    """

    name: str
    nll: float
    nll_low: float
    nll_high: float
    ood: float
    gain: float
    gain_low: float
    gain_high: float
    win: float
    documents_needed: float


@dataclass(frozen=True)
class Plateau:
    """The points that cannot be told from the best.

    Attributes
    ----------
    points, of : int
        How many, and how many the grid has.
    nearest_neutral, lowest_ood : mapping of str to float
        Two of them: the one the fewest steps of the axes from neutral, and the one that loses
        the fewest tokens.
    """

    points: int
    of: int
    nearest_neutral: Mapping[str, float]
    lowest_ood: Mapping[str, float]


@dataclass(frozen=True)
class Proof:
    """What is known about one pair beyond its scores.

    Attributes
    ----------
    split : str
        "folds" or "test".
    confidence : float
        Of every interval and of the plateau [1].
    detect : float
        Difference that `documents_needed` is about [nat/token].
    objective : str
        What was chosen by, in words.
    n_document, n_group : int
        Documents; groups of them, 0 where every document is drawn by itself.
    n_choosing, n_proven, n_tried : int
        Units that chose (the fewest at a time); those that proved; points tried, or starts of a
        search.
    chosen : tuple of mapping of str to float
        Settings chosen without each fold.
    settings : tuple of Line
        The chosen ones first.
    samplers : tuple of Line
        Each the best of its own points, then the references; () when none were compared.
    sampler_points : int
        Points that each sampler tried.
    plateau : Plateau or None
        None for a search, which has no grid.
    """

    split: str
    confidence: float
    detect: float
    objective: str
    n_document: int
    n_group: int
    n_choosing: int
    n_proven: int
    n_tried: int
    chosen: tuple[Mapping[str, float], ...]
    settings: tuple[Line, ...]
    samplers: tuple[Line, ...]
    sampler_points: int
    plateau: Plateau | None

    @property
    def unit(self) -> str:
        """Return what is drawn and held out whole."""
        return "group" if self.n_group else "document"

    @property
    def n_unit(self) -> int:
        """Return how many of these there are."""
        return self.n_group or self.n_document

    def setting(self, name: str) -> Line | None:
        """Return a setting by its name, None when the harvest could not serve it."""
        found = next((line for line in self.settings if line.name == name), None)
        return None if found is None or np.isnan(found.nll) else found


def proof_of(contents: schema.Contents, surface: Surface) -> Proof | None:
    """Return what a sweep file knows about one pair, None when it knows nothing.

    Parameters
    ----------
    contents : Contents
        A checked sweep file.
    surface : Surface
        The pair, at one epsilon.

    Returns
    -------
    Proof or None
    """
    if surface.plateau is None:
        return None
    plateau = _plateau(surface, surface.plateau)
    return _proof(contents, surface.model, surface.dataset, plateau)


def optimum_proof(contents: schema.Contents, model: str, dataset: str) -> Proof | None:
    """Return what an optimum file knows about one pair, None when it knows nothing.

    Parameters
    ----------
    contents : Contents
        A checked optimum file.
    model, dataset : str

    Returns
    -------
    Proof or None
    """
    return _proof(contents, model, dataset, None)


def _proof(
    contents: schema.Contents, model: str, dataset: str, plateau: Plateau | None
) -> Proof | None:
    """Return the proof of one pair."""
    if not {"heldout_nll", "n_proven"} <= set(contents.variables):
        return None
    at = tuple(
        contents.array(dim).tolist().index(name)
        for dim, name in (("model", model), ("dataset", dataset))
    )
    counts = {
        name: int(contents.array(name)[at])
        for name in ("n_document", "n_group", "n_choosing", "n_proven", "n_tried")
        if name in contents.variables
    }
    if not counts["n_proven"]:
        return None
    rules = json.loads(str(contents.attrs.get("decide_json", "{}")))
    searched = [str(name) for name in contents.array("searched").tolist()]
    chosen = contents.array("chosen_value")[at]
    # A file from before there were groups lacks their number.
    missing = {"n_group": 0, "n_tried": contents.sizes.get("start", 0)}
    return Proof(
        split=str(rules.get("split", "")),
        confidence=float(rules.get("confidence", np.nan)),
        detect=float(rules.get("detect", np.nan)),
        objective=str(rules.get("words", "")),
        **missing | counts,
        chosen=tuple(
            dict(zip(searched, row.tolist(), strict=True))
            for row in chosen[~np.isnan(chosen).any(axis=1)]
        ),
        settings=_lines(contents, at, "heldout", "setting"),
        samplers=_lines(contents, at, "sampler", "sampler"),
        sampler_points=int(contents.attrs.get("sampler_points", 0)),
        plateau=plateau,
    )


def _lines(
    contents: schema.Contents, at: tuple[int, ...], prefix: str, dim: str
) -> tuple[Line, ...]:
    """Return the settings or samplers of one pair that have a score."""
    if f"{prefix}_nll" not in contents.variables:
        return ()

    def values(name: str) -> schema.Array:
        """Return one variable of this pair."""
        return contents.array(f"{prefix}_{name}")[at]

    needed = contents.variables.get("documents_needed")
    ends = {name: values(f"{name}_interval") for name in ("nll", "gain")}
    return tuple(
        Line(
            name=str(name),
            nll_low=float(ends["nll"][row, 0]),
            nll_high=float(ends["nll"][row, 1]),
            gain_low=float(ends["gain"][row, 0]),
            gain_high=float(ends["gain"][row, 1]),
            documents_needed=float(needed[1][at][row]) if dim == "setting" and needed else np.nan,
            **{key: float(values(key)[row]) for key in ("nll", "ood", "gain", "win")},
        )
        for row, name in enumerate(contents.array(dim).tolist())
        if np.isfinite(values("nll")[row])
    )


def _plateau(surface: Surface, inside: schema.Array) -> Plateau:
    """Return the plateau of one pair."""
    steps = np.zeros(inside.shape)
    for axis, (name, values) in enumerate(surface.axes.items()):
        shape = [-1 if other == axis else 1 for other in range(inside.ndim)]
        steps = steps + _steps(name, values).reshape(shape)
    nll = surface.nll

    def least(cost: schema.Array) -> Mapping[str, float]:
        """Return the plateau's point of the smallest cost, of equal ones the smaller nll."""
        flat = np.flatnonzero(inside)
        best = flat[np.lexsort((nll.ravel()[flat], cost.ravel()[flat]))[0]]
        index = tuple(int(i) for i in np.unravel_index(best, nll.shape))
        return {k: v for k, v in point_at(surface, index, "").values.items() if k != "epsilon"}

    return Plateau(int(inside.sum()), inside.size, least(steps), least(surface.ood))


def _steps(name: str, values: schema.Array) -> schema.Array:
    """Return how far each value of an axis is from the neutral one, in steps; the axis is 1."""
    known = parameters.PARAMETERS.get(name)
    if known is None or name == "epsilon":
        return np.zeros(len(values))
    # In the effective order a neutral top_k of 0 is the last value, not the first.
    rank = np.empty(len(values))
    rank[effective_order(name, values)] = np.arange(len(values))
    home = rank[int(np.argmin(np.abs(values - known.neutral)))]
    return np.abs(rank - home) / max(len(values) - 1, 1)


def proof_text(proof: Proof, markdown: bool = False) -> list[str]:
    """Return the proof of one pair as paragraphs and tables.

    Parameters
    ----------
    proof : Proof
    markdown : bool

    Returns
    -------
    list of str
    """
    percent = f"{100 * proof.confidence:g} %"
    parts = [
        wrapped(f"Held out: {how_words(proof)}.", ""),
        "\n".join(wrapped(f"- {words}") for words in unit_words(proof)),
        _settings(proof, percent, markdown),
        wrapped(f"chosen: {chosen_words(proof.chosen)}"),
    ]
    if proof.samplers:
        parts.append(_samplers(proof, percent, markdown))
    flat = proof.plateau
    if flat is not None:
        parts.append(
            wrapped(
                f"Plateau: {flat.points:,} of {flat.of:,} points cannot be told from the best "
                f"({percent}, all points at once); nearest to neutral: "
                f"{_words(flat.nearest_neutral)}; lowest ood: {_words(flat.lowest_ood)}"
            )
        )
    return [part for part in parts if part]


def how_words(proof: Proof) -> str:
    """Return what was chosen by, from what, on which documents, and on which it is proven.

    Parameters
    ----------
    proof : Proof

    Returns
    -------
    str
    """
    searched = proof.plateau is None
    among = f"from {proof.n_tried} starts" if searched else f"among {proof.n_tried:,} points"
    how = (
        f"in turn on {proof.n_choosing} of {proof.n_unit} {proof.unit}s, proven on the others, "
        f"{proof.n_proven} in all"
        if proof.split == "folds"
        else f"on {proof.n_choosing} {proof.unit}s, proven on {proof.n_proven} others"
    )
    return f"chosen ({proof.objective}) {among} {how}"


def unproven_words(decided: bool) -> str:
    """Return why a file proves no gain, and what to do.

    Parameters
    ----------
    decided : bool
        Whether a proof was asked for.

    Returns
    -------
    str
    """
    if decided:
        return "no gain is proven: that takes at least two documents, or two groups of them"
    return "no gain is proven: add [decide] to the config, or --set decide.folds=5"


def unit_words(proof: Proof) -> list[str]:
    """Return what is drawn whole, where that are groups, and a warning where few prove.

    Parameters
    ----------
    proof : Proof

    Returns
    -------
    list of str
    """
    words = f"unit: group, {proof.n_group} of them with {plural(proof.n_document, 'document')}"
    return [*([words] if proof.n_group else []), *few_words(proof.n_proven, proof.unit)]


def few_words(count: int, unit: str) -> list[str]:
    """Return a warning where there are too few units to trust an interval.

    Parameters
    ----------
    count : int
    unit : {"document", "group"}

    Returns
    -------
    list of str
    """
    if count >= FEW_UNITS:
        return []
    return [
        f"only {plural(count, unit)}: an interval from fewer than {FEW_UNITS} may hold the truth "
        "less often than it says"
    ]


def _settings(proof: Proof, percent: str, markdown: bool) -> str:
    """Return the chosen settings beside the baselines."""
    head = [
        ("held out", ""), ("nll", "nat/token"), (percent, "interval"), ("ood", "%"),
        ("gain by", "choosing"), (percent, "interval"), ("chosen is", "better, %"),
        (f"{proof.unit}s", f"for {proof.detect:g}"),
    ]  # fmt: skip
    cells = [
        [
            line.name,
            fixed(line.nll),
            interval(line.nll_low, line.nll_high, fixed),
            fixed(100 * line.ood, 2),
            *(["", "", "", ""] if line.name == CHOSEN else _gain(line)),
        ]
        for line in proof.settings
    ]
    return aligned(head, cells, 1, markdown)


def _gain(line: Line) -> list[str]:
    """Return the cells of a gain."""
    return [
        signed(line.gain),
        interval(line.gain_low, line.gain_high, signed),
        chance(line.win),
        fixed(line.documents_needed, 0),
    ]


def _samplers(proof: Proof, percent: str, markdown: bool) -> str:
    """Return the compared samplers."""
    reference = next((line.name for line in proof.samplers if line.gain == 0), "")
    head = [
        (f"best of {proof.sampler_points}", "points each"), ("nll", "nat/token"),
        (percent, "interval"), ("ood", "%"), ("gain on", reference), (percent, "interval"),
        ("is", "better, %"),
    ]  # fmt: skip
    cells = [
        [
            line.name,
            fixed(line.nll),
            interval(line.nll_low, line.nll_high, fixed),
            fixed(100 * line.ood, 2),
            *(["", "", ""] if line.name == reference else _gain(line)[:3]),
        ]
        for line in proof.samplers
    ]
    return aligned(head, cells, 1, markdown)


def interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """Write the ends of an interval."""
    return f"{write(low)} .. {write(high)}"


def chosen_words(chosen: Sequence[Mapping[str, float]]) -> str:
    """Return what the folds chose: one value where they agree, else the range."""
    words: list[str] = []
    for name in chosen[0] if chosen else ():
        values = sorted({point[name] for point in chosen})
        low, high = (value_text(name, value) for value in (values[0], values[-1]))
        words.append(f"{name} {low}" if len(values) == 1 else f"{name} {low} to {high}")
    alike = len({tuple(point.values()) for point in chosen}) == 1
    return ", ".join(words) + ("" if alike else " (the folds differ)")


def _words(point: Mapping[str, float]) -> str:
    """Return a point in words."""
    return ", ".join(f"{name} {value_text(name, value)}" for name, value in point.items())
