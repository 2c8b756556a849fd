"""What a reader must keep in mind beside the numbers: ends of axes, the unseen tail, tokenizers."""

import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.report.export import obstacles
from jaxsppl.report.surface import (
    DEFAULT,
    Point,
    Surface,
    best_of_slice,
    effective_order,
    value_text,
)

# Widths [nat/token] below which nobody would change a setting.
TAIL_MATTERS = 0.005
NEAR_BEST = 0.001


def row_notes(surface: Surface, runnable: Point | None, near: int) -> list[str]:
    """Return what to keep in mind about the best point of one pair.

    Parameters
    ----------
    surface : Surface
    runnable : Point or None
        The best point that llama.cpp can run.
    near : int
        Grid points within `NEAR_BEST` of the best.

    Returns
    -------
    list of str
    """
    best, default = surface.best, surface.baseline(DEFAULT)
    notes = _end_notes(surface)
    if runnable is None:
        blocked = ", ".join(obstacles(best.values, surface.chain))
        notes.append(
            f"llama.cpp cannot run the best point ({blocked}) and the grid has no point that it "
            "can: add 1 to the axes of alpha and beta"
        )
    if default is not None and default.nll < best.nll:
        notes.append(
            f"no point of this grid is as good as the {DEFAULT}: sweep its truncations as well"
        )
    if best.nll_lower is not None and best.nll_upper is not None:
        width = best.nll_upper - best.nll_lower
        if width > TAIL_MATTERS:
            notes.append(
                f"the unseen tail leaves the best nll open by {width:.2g} nat/token: harvest with "
                "more --alternatives, or sweep truncations that cut the tail"
            )
        if (
            default is not None
            and default.nll_lower is not None
            and best.nll <= default.nll
            and best.nll_upper >= default.nll_lower
        ):
            notes.append(f"the brackets of best and {DEFAULT} overlap: the tail may decide")
    if near > 1:
        notes.append(
            f"{near:,} of {surface.nll.size:,} points lie within {NEAR_BEST:g} nat/token of best"
        )
    gaps = int(np.isnan(surface.nll).sum())
    if gaps:
        notes.append(f"{gaps:,} of {surface.nll.size:,} points have no score and were left out")
    return notes


def _end_notes(surface: Surface) -> list[str]:
    """Say which axes the best point lies at the end of, where more could lie beyond."""
    notes: list[str] = []
    at = surface.index(surface.best.values)
    for place, (name, axis) in enumerate(surface.axes.items()):
        if len(axis) < 2 or name == "epsilon":
            continue
        order = effective_order(name, axis)
        rank = order.index(at[place])
        value = float(axis[at[place]])
        if rank not in (0, len(order) - 1) or _natural_end(name, value):
            continue
        beside = list(at)
        beside[place] = order[1 if rank == 0 else -2]
        if surface.nll[tuple(beside)] - surface.nll[at] > 1e-6:
            notes.append(f"{name} is at the end of its axis ({value_text(name, value)}): widen it")
    return notes


def _natural_end(name: str, value: float) -> bool:
    """Return whether no stricter or looser value of a parameter exists beyond this one."""
    known = parameters.PARAMETERS.get(name)
    if known is None:
        return False
    return value in (known.lower, known.upper) or (name == "top_k" and value == 1)


def file_notes(contents: schema.Contents, whole: list[Surface], held: list[Surface]) -> list[str]:
    """Return what to keep in mind about the whole file.

    Parameters
    ----------
    contents : Contents
    whole, held : list of Surface
        The pairs with all their axes, and at the epsilon that is shown.

    Returns
    -------
    list of str
    """
    notes: list[str] = []
    absent = int((contents.array("n_token") <= 0).sum())
    if absent:
        notes.append(f"{absent} of {contents.array('n_token').size} pairs were not harvested")
    by_dataset: dict[str, list[Surface]] = {}
    for surface in held:
        by_dataset.setdefault(surface.dataset, []).append(surface)
    if any(len({s.n_token for s in group}) > 1 for group in by_dataset.values()):
        notes.append(
            "the models cut the text into different tokens: nll and perplexity per token do not "
            "rank them, compare bits per byte"
        )
    for dataset, group in by_dataset.items():
        if len({s.n_byte for s in group}) > 1:
            notes.append(
                f"the models were not scored on the same bytes of '{dataset}': compare with care"
            )
    notes += _epsilon_notes(whole, held)
    return notes


def _epsilon_notes(whole: list[Surface], held: list[Surface]) -> list[str]:
    """Say which epsilon is shown when it is an axis, and whether the best setting depends on it."""
    if not held or "epsilon" not in whole[0].axes:
        return []
    shown = held[0].epsilon
    notes = [f"epsilon is an axis: shown at {shown:g}, scores at different epsilon do not compare"]
    if len(held[0].baselines) < len(whole[0].baselines):
        notes.append(f"the baselines were scored at another epsilon than {shown:g}: no gains")
    for surface, here in zip(whole, held, strict=True):
        best = {k: v for k, v in here.best.values.items() if k != "epsilon"}
        for epsilon in surface.axes["epsilon"]:
            there = best_of_slice(surface, {"epsilon": float(epsilon)}, "best")
            if there is not None and any(there.values[k] != v for k, v in best.items()):
                moved = ", ".join(f"{k} {there.values[k]:g}" for k in best)
                notes.append(
                    f"{surface.model} on {surface.dataset}: the best setting moves with epsilon "
                    f"(at {epsilon:g}: {moved})"
                )
                break
    return notes
