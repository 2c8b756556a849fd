"""Held-out gains over all datasets of a model, every dataset weighing the same."""

import json
from dataclasses import dataclass

import numpy as np

from jaxsppl import schema
from jaxsppl.report.aligned import chance, signed, wrapped
from jaxsppl.report.proof import CHOSEN, interval


@dataclass(frozen=True)
class Macro:
    """A model's held-out gain on a setting, every dataset weighing the same.

    Attributes
    ----------
    model, setting : str
    gain, low, high : float
        Mean over the datasets with its interval [nat/token].
    win : float
        Probability that it is above 0 [1].
    n_dataset : int
    confidence : float
        Of the interval [1].
    """

    model: str
    setting: str
    gain: float
    low: float
    high: float
    win: float
    n_dataset: int
    confidence: float


def macro_of(contents: schema.Contents) -> tuple[Macro, ...]:
    """Return the gains over the datasets of each model that has several.

    Parameters
    ----------
    contents : Contents
        A checked sweep file.

    Returns
    -------
    tuple of Macro
    """
    if "macro_gain" not in contents.variables:
        return ()
    gain, win = contents.array("macro_gain"), contents.array("macro_win")
    ends = contents.array("macro_gain_interval")
    confidence = float(json.loads(str(contents.attrs["decide_json"]))["confidence"])
    proven = (contents.array("n_proven") > 0).sum(axis=1)
    return tuple(
        Macro(
            str(contents.array("model")[i]),
            str(setting),
            float(gain[i, j]),
            float(ends[i, j, 0]),
            float(ends[i, j, 1]),
            float(win[i, j]),
            int(proven[i]),
            confidence,
        )
        for i in np.flatnonzero(proven > 1)
        for j, setting in enumerate(contents.array("setting").tolist())
        if setting != CHOSEN and np.isfinite(gain[i, j])
    )


def macro_text(macro: Macro) -> str:
    """Return a gain over datasets in words.

    Parameters
    ----------
    macro : Macro

    Returns
    -------
    str
    """
    ends = interval(macro.low, macro.high, signed)
    return wrapped(
        f"Mean of {macro.n_dataset} datasets, {macro.model}: held-out gain on {macro.setting} "
        f"{signed(macro.gain)} ({100 * macro.confidence:g} % {ends}), better with a probability "
        f"of {chance(macro.win)} %"
    )
