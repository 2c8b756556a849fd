"""What stages must know of the whole vocabulary, and whether a harvest can tell it.

A harvest lists the K likeliest tokens. Cuts whose place follows from sums over the rest are taken
with brackets of the tail; a stage that needs each token, or a statistic of all of them, is exact or
it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxsppl.errors import PlanError
from jaxsppl.parameters import PARAMETERS
from jaxsppl.sampling.custom import check_laws
from jaxsppl.sampling.cuts import TOP_H
from jaxsppl.sampling.stages import STAGES, given
from jaxsppl.sweep.data import TokenArrays

_WORDS = {
    "all": "each token",
    "entropy": "the entropy",
    "logit_std": "the deviation of the logits",
    "min_logprob": "the smallest logit",
    "number": "the number of candidates",
}


@dataclass
class _Left:
    """What the stages so far may have left, over all points of a grid.

    Attributes
    ----------
    cut : list of str
        Stages that may have cut some of the unseen tokens, but not all.
    warm : bool
        Whether a temperature other than 1 may have been applied.
    heat : float
        The largest product of the temperatures.
    """

    cut: list[str] = field(default_factory=list[str])
    warm: bool = False
    heat: float = 1.0


def check_needs(
    tokens: TokenArrays, chain: Sequence[str], values: Mapping[str, Sequence[float]], tail: str
) -> None:
    """Check that a harvest can serve every stage of a chain, at every point of a grid.

    Stages of users are tried first, once each.

    Parameters
    ----------
    tokens : TokenArrays
        The harvest.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to sequence of float
        Values of each parameter; a top_k of the vocabulary or more as 0.
    tail : str
        With "drop" only the alternatives exist, so all is known.

    Raises
    ------
    PlanError
        When a stage needs more than the harvest holds; it says what harvest would serve.
    ConfigError
        When a stage of the user's breaks a law.
    """
    check_laws(chain)
    if tail == "drop" or tokens.n_rank >= tokens.n_vocab:
        return
    left = _Left()
    for name in chain:
        axes = given(name, values)
        if not axes:
            continue
        places = [
            is_on(one, value) for one in STAGES[name].parameters for value in axes.get(one, [])
        ]
        if name == "temperature":
            if any(is_on("dynatemp_range", value) for value in axes.get("dynatemp_range", [])):
                _check(tokens, name, "dynatemp_range", "entropy", left)
            left.warm |= any(places) or "dynatemp_range" in axes
            hottest = max(axes.get("temperature", [1.0]))
            left.heat *= hottest + max(axes.get("dynatemp_range", [0.0]))
            if hottest == 0 and "dynatemp_range" not in axes:
                return
        elif any(places):
            stage = STAGES[name]
            if stage.needs == "threshold":
                _check_threshold(
                    tokens, axes.get("xtc_threshold", [PARAMETERS["xtc_threshold"].neutral])
                )
            elif stage.needs:
                _check(tokens, name, stage.parameters[0], stage.needs, left)
                if stage.needs == "min_logprob":
                    _check_cliff(tokens, left.heat * max(axes["min_k"]))
            if stage.closes and all(places):
                return
            if not stage.closes and name != "skew":
                left.cut.append(name)


def is_on(name: str, value: float) -> bool:
    """Return whether a value of a stage's first parameter makes it do something.

    Parameters
    ----------
    name : str
        The parameter.
    value : float

    Returns
    -------
    bool
    """
    return value > 0 if name == "top_n_sigma" else value != PARAMETERS[name].neutral


def _check(tokens: TokenArrays, stage: str, parameter: str, needs: str, left: _Left) -> None:
    """Raise a PlanError unless what a stage needs is known."""
    why = ""
    if needs == "top 100":
        if tokens.n_rank >= TOP_H and not any(STAGES[name].branches for name in left.cut):
            return
        _refuse(tokens, parameter, f"the {TOP_H} likeliest tokens", number=TOP_H)
    if needs == "number":
        if not left.cut:
            return
    elif needs != "all" and getattr(tokens, needs) is not None:
        if not left.cut and not (needs == "entropy" and left.warm):
            return
        why = " as it was before anything was cut"
        why += " or divided by a temperature" if needs == "entropy" else ""
    have = f", and the harvest holds it only{why}" if why else ""
    what = f"{_WORDS[needs]} of all candidates at '{stage}'"
    would_serve = needs not in ("all", "number") and not why
    _refuse(tokens, parameter, what, have, by_statistics=would_serve)


def _check_threshold(tokens: TokenArrays, thresholds: Sequence[float]) -> None:
    """Raise a PlanError unless all tokens that can reach the thresholds are listed."""
    least = min(thresholds)
    if least * tokens.n_rank < 1:
        number = tokens.n_vocab if least == 0 else int(np.ceil(1 / least))
        _refuse(tokens, "xtc_threshold", f"all tokens of at least {least:g}", number=number)


def _check_cliff(tokens: TokenArrays, most: float) -> None:
    """Raise a PlanError unless what min_k keeps is listed; `most` is the largest tau times T."""
    top = tokens.top_logprob.astype(np.float64)
    listed = np.isfinite(top)
    falls = np.where(listed[:, 1:], -np.diff(np.where(listed, top, 0.0), axis=1), 0.0)
    steepest = (falls / np.arange(1, tokens.n_rank)).max(axis=1, initial=0.0)
    number = listed.sum(axis=1)
    edge = top[np.arange(len(top)), number - 1]
    lowest = np.zeros(1) if tokens.min_logprob is None else tokens.min_logprob.astype(np.float64)
    is_unknown = (steepest < (edge - lowest) / number) | (most >= number * (top[:, 0] - lowest))
    if is_unknown.any():
        words = f" ({int(is_unknown.sum())} token(s))"
        _refuse(tokens, "min_k", "the steepest fall of the logits", words)


def _refuse(
    tokens: TokenArrays,
    parameter: str,
    what: str,
    more: str = "",
    number: int = 0,
    by_statistics: bool = False,
) -> None:
    """Raise the PlanError; `number` alternatives would do, or all of them."""
    wanted = min(number, tokens.n_vocab) or tokens.n_vocab
    statistics = " or with --statistics, import a KLD file" if by_statistics else ""
    raise PlanError(
        f"{parameter}: it needs {what}{more}; {tokens.label} lists {tokens.n_rank} of "
        f"{tokens.n_vocab}: put a top_k of at most {tokens.n_rank} before it at every point, "
        f"harvest with --alternatives {wanted}{statistics}, or take tail 'drop'"
    )
