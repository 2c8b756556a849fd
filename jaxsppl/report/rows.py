"""What a sweep says, as frozen rows: for each model and dataset the best setting beside the usual.

Differences, exponentials and minima of stored scores are taken here; no score is computed. Neither
xarray nor matplotlib is imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxsppl import schema
from jaxsppl.choice import Choice
from jaxsppl.errors import ConfigError
from jaxsppl.report.chosen import best_runnable
from jaxsppl.report.export import llama_server_flags, obstacles
from jaxsppl.report.front import FrontPoint, compromise, front_of
from jaxsppl.report.macro import Macro, macro_of
from jaxsppl.report.notes import NEAR_BEST, file_notes, row_notes
from jaxsppl.report.proof import Proof, proof_of
from jaxsppl.report.surface import (
    DEFAULT,
    NEUTRAL,
    Point,
    Surface,
    at_one_epsilon,
    bits_per_byte,
    split_chain,
    surfaces,
)

BEST_LLAMA_CPP = "best for llama.cpp"


@dataclass(frozen=True)
class Setting:
    """One line of the table: a setting, its score and how far it is below the usual ones.

    Attributes
    ----------
    name : str
        "neutral", "llama.cpp default", "best", "best for llama.cpp"; "compromise" is the best
        where the objective is more than nll.
    chain : tuple of str
        Stages in the order in which they are applied.
    values : mapping of str to float
        Every parameter of the table, neutral ones included.
    nll, nll_lower, nll_upper : float or None
        Negative log-likelihood and the brackets of the unseen tail [nat/token].
    sampling_perplexity : float
        exp(nll) [1].
    ood : float
        Share of tokens whose probability is below epsilon [1].
    below_neutral, below_default : float or None
        How much lower nll is on this text [nat/token]; None when there is nothing to compare with.
        The best was chosen on the same text, so this is no gain: `jaxsppl.report.proof` has that.
    """

    name: str
    chain: tuple[str, ...]
    values: Mapping[str, float]
    nll: float
    nll_lower: float | None
    nll_upper: float | None
    sampling_perplexity: float
    ood: float
    below_neutral: float | None
    below_default: float | None

    def is_open(self) -> bool:
        """Return whether the unseen tail moves nll by what a table shows."""
        if self.nll_lower is None or self.nll_upper is None:
            return False
        return self.nll_upper - self.nll_lower > 5e-5


@dataclass(frozen=True)
class Row:
    """One model on one dataset.

    Attributes
    ----------
    model, dataset : str
        The pair.
    n_token, n_byte : int
        Scored tokens and their UTF-8 bytes.
    perplexity : float or None
        Plain perplexity exp(-mean log-probability) [1].
    bits_per_byte : float or None
        Of the model itself [bit/byte]; comparable across tokenizers.
    settings : tuple of Setting
        Baselines first, the best ones last.
    flags : str or None
        For llama-server, of the best point that it can run.
    points_near_best : int
        Grid points within 0.001 nat/token of the best.
    runs : str
        Name of the setting that `flags` stand for, "" without any.
    proof : Proof or None
        The plateau, and what held-out documents say.
    front : tuple of FrontPoint
        Some of the points that no other beats in both nll and ood.
    points_on_front : int
        How many such points there are.
    notes : tuple of str
        What to keep in mind.
    """

    model: str
    dataset: str
    n_token: int
    n_byte: int
    perplexity: float | None
    bits_per_byte: float | None
    settings: tuple[Setting, ...]
    flags: str | None
    points_near_best: int
    runs: str
    proof: Proof | None
    front: tuple[FrontPoint, ...]
    points_on_front: int
    notes: tuple[str, ...]

    def setting(self, name: str) -> Setting | None:
        """Return a setting by its name."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def is_bounded(self) -> bool:
        """Return whether the unseen tail leaves the nll of any setting open."""
        return any(setting.is_open() for setting in self.settings)

    def runnable(self) -> Setting | None:
        """Return the best setting that llama.cpp can run: the one that `flags` stands for."""
        return self.setting(self.runs)


@dataclass(frozen=True)
class SweepSummary:
    """A whole sweep file.

    Attributes
    ----------
    file : str
        Its name.
    chain : tuple of str
        Stages in the order in which they are applied.
    epsilon : float
        Probabilities below count as it.
    tail : str
        "bound" or "drop".
    level : str
        Engine that computed the grid.
    audit_points, audit_nll : int, float or None
        Points recomputed by the direct definition, and the largest difference [nat/token].
    axes : mapping of str to tuple of float
        Values of each swept parameter.
    parameters : tuple of str
        Parameters that the settings of this file state.
    points : int
        Grid points of each pair.
    rows : tuple of Row
    objective : str
        What the compromise is chosen by, "" where the smallest nll is best.
    decided : bool
        Whether a proof on held-out documents was asked for.
    macro : tuple of Macro
        Held-out gains over all datasets of a model; () for one dataset.
    notes : tuple of str
        What holds for the whole file.
    """

    file: str
    chain: tuple[str, ...]
    epsilon: float
    tail: str
    level: str
    audit_points: int | None
    audit_nll: float | None
    axes: Mapping[str, tuple[float, ...]]
    parameters: tuple[str, ...]
    points: int
    rows: tuple[Row, ...]
    objective: str
    decided: bool
    macro: tuple[Macro, ...]
    notes: tuple[str, ...]
    kind: str = "sweep"


def summarise_sweep(contents: schema.Contents, file: str) -> SweepSummary:
    """Summarise a checked sweep file.

    Parameters
    ----------
    contents : Contents
    file : str
        Its name.

    Returns
    -------
    SweepSummary
    """
    whole = surfaces(contents, file)
    held = [at_one_epsilon(surface) for surface in whole]
    axes = {
        name: tuple(float(value) for value in contents.array(name))
        for name in contents.variables["nll"][0][2:]
    }
    stated = [name for name in axes if name != "epsilon"]
    for surface in held:
        for point in surface.baselines:
            stated += [name for name in point.values if name not in (*stated, "epsilon")]
    attrs = contents.attrs
    choice = held[0].choice if held else Choice()
    return SweepSummary(
        file=file,
        chain=split_chain(attrs.get("chain", "")),
        epsilon=held[0].epsilon if held else float(attrs.get("epsilon", math.nan)),
        tail=str(attrs.get("tail", "drop")),
        level=str(attrs.get("level", "")),
        audit_points=int(attrs["audit_points"]) if "audit_points" in attrs else None,
        audit_nll=float(attrs["audit_nll"]) if "audit_nll" in attrs else None,
        axes=axes,
        parameters=tuple(stated),
        points=math.prod(len(values) for values in axes.values()),
        rows=tuple(_row(contents, surface, stated) for surface in held),
        objective="" if choice.is_plain else choice.words(),
        decided="decide_json" in attrs,
        macro=macro_of(contents),
        notes=tuple(file_notes(contents, whole, held)),
    )


def _row(contents: schema.Contents, surface: Surface, stated: list[str]) -> Row:
    """Return the settings of one pair."""
    points = [*surface.baselines, surface.best]
    runnable = best_runnable(surface)
    if runnable is not None and runnable is not surface.best:
        points.append(runnable)
    with np.errstate(invalid="ignore"):
        near = int((surface.nll <= surface.best.nll + NEAR_BEST).sum())
    notes = row_notes(surface, runnable, near)
    if not surface.choice.is_plain:
        try:
            points.append(compromise(surface))
            runnable = points[-1] if not obstacles(points[-1].values, surface.chain) else runnable
        except ConfigError as error:
            notes.append(f"{surface.choice.words()}: {error}")
    neutral, default = surface.baseline(NEUTRAL), surface.baseline(DEFAULT)
    front, points_on_front = front_of(surface)
    flags = None if runnable is None else llama_server_flags(runnable.values, surface.chain)
    return Row(
        model=surface.model,
        dataset=surface.dataset,
        n_token=surface.n_token,
        n_byte=surface.n_byte,
        perplexity=_exp(surface.plain_nll),
        bits_per_byte=bits_per_byte(surface.plain_nll, surface.n_token, surface.n_byte),
        settings=tuple(_setting(point, stated, neutral, default) for point in points),
        flags=flags,
        points_near_best=near,
        runs="" if runnable is None else runnable.name,
        proof=proof_of(contents, surface),
        front=front,
        points_on_front=points_on_front,
        notes=tuple(notes),
    )


def _setting(
    point: Point, stated: list[str], neutral: Point | None, default: Point | None
) -> Setting:
    """Return one line, with the differences to the usual settings."""
    values = {name: value for name in stated if (value := point.value(name)) is not None}
    return Setting(
        name=point.name,
        chain=point.chain,
        values=values,
        nll=point.nll,
        nll_lower=point.nll_lower,
        nll_upper=point.nll_upper,
        sampling_perplexity=math.exp(point.nll),
        ood=point.ood,
        below_neutral=None if neutral is None else neutral.nll - point.nll,
        below_default=None if default is None else default.nll - point.nll,
    )


def _exp(value: float) -> float | None:
    """Return exp, None for a value that is not there."""
    return None if math.isnan(value) else math.exp(min(value, 700.0))
