"""The stages of a sampling chain by name, and how a chain is applied.

Each stage narrows the interval of kept ranks or reshapes the logits without changing their order,
so a chain reduces a position to its bounds, a floor for the unseen tokens and one inverse
temperature. The exception is xtc, which tosses a coin: both sides are carried on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import cuts, inner, reshape
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.kept import Kept, everything, is_open


class Stage(NamedTuple):
    """A stage of the chain.

    Attributes
    ----------
    parameters : tuple of str
        The parameters that it takes, in order.
    apply : callable
        (kept, block, *values) -> kept; for one that branches, a list of (weight, kept).
    independent : bool
        Whether it cuts at a rank and a floor that do not depend on what other stages have cut
        off the end (only on `start`, `inverse` and the logits); of several such cuts the
        shortest holds, which lets the engine compute each value of each of them once.
    modifiers : tuple of str
        Further parameters, which have defaults. With one of them it is not `independent`.
    branches : bool
        Whether it tosses a coin, so that what is left is a mixture and no single interval.
    needs : str
        What it must know of all candidates, beyond the sums that the model of the tail brackets:
        "" for nothing; "all" for each of them; "entropy", "logit_std", "min_logprob" for a
        statistic that a harvest may carry; "number" for how many there are; "threshold" for those
        above `xtc_threshold`; "top 100".
    closes : bool
        Whether it leaves listed tokens only, where it is on.
    source : str
        The program or paper that defines it.
    """

    parameters: tuple[str, ...]
    apply: Callable[..., Any]
    independent: bool = False
    modifiers: tuple[str, ...] = ()
    branches: bool = False
    needs: str = ""
    closes: bool = False
    source: str = ""


class Branch(NamedTuple):
    """One outcome of the coins of a chain: () its weight, and what it leaves."""

    weight: Array
    kept: Kept


_LLAMA, _HF = "llama.cpp src/llama-sampler.cpp", "transformers generation/logits_process.py"

STAGES: dict[str, Stage] = {
    "temperature": Stage(
        ("temperature",), reshape.temperature, independent=True,
        modifiers=("dynatemp_range", "dynatemp_exponent"), source=_LLAMA,
    ),
    "smoothing": Stage(
        ("smoothing_factor",), reshape.smoothing, modifiers=("smoothing_curve",), needs="all",
        closes=True,
        source="text-generation-webui modules/sampler_hijack.py",
    ),
    "skew": Stage(("skew",), reshape.skew, source="exllamav2"),
    "top_k": Stage(("top_k",), cuts.top_k, independent=True, closes=True, source=_LLAMA),
    "top_k@transformers": Stage(("top_k",), cuts.top_k_with_ties, closes=True, source=_HF),
    "top_p": Stage(("top_p",), cuts.top_p, source="arXiv:1904.09751"),
    "top_p@sglang": Stage(("top_p",), cuts.top_p_joint, source="SGLang 0.5.23"),
    "min_p": Stage(("min_p",), cuts.min_p, independent=True, source="arXiv:2407.01082"),
    "typical_p": Stage(
        ("typical_p",), inner.typical_p, needs="all", closes=True, source="arXiv:2202.00666"
    ),
    "typical_p@transformers": Stage(
        ("typical_p",), inner.typical_p_with_ties, needs="all", closes=True, source=_HF
    ),
    "top_n_sigma": Stage(
        ("top_n_sigma",), cuts.top_n_sigma, needs="logit_std", source="arXiv:2411.07641"
    ),
    "xtc": Stage(
        ("xtc_probability",), inner.xtc, modifiers=("xtc_threshold",), branches=True,
        needs="threshold", source="llama.cpp pull request 9742",
    ),
    "epsilon_cutoff": Stage(("epsilon_cutoff",), cuts.epsilon_cutoff, source="arXiv:2210.15191"),
    "eta_cutoff": Stage(
        ("eta_cutoff",), cuts.eta_cutoff, needs="entropy", source="arXiv:2210.15191"
    ),
    "top_h": Stage(
        ("top_h",), cuts.top_h, needs="top 100", closes=True, source="arXiv:2509.02510"
    ),
    "p_less": Stage(("p_less",), cuts.p_less, source="arXiv:2509.23234"),
    "p_less_norm": Stage(
        ("p_less_norm",), cuts.p_less_norm, needs="number", source="arXiv:2509.23234"
    ),
    "min_k": Stage(
        ("min_k",), cuts.min_k, needs="min_logprob", closes=True, source="arXiv:2604.11012"
    ),
    "tfs": Stage(
        ("tfs",), cuts.tfs, needs="all", closes=True, source="text-generation-webui"
    ),
    "top_a": Stage(("top_a",), cuts.top_a, source="text-generation-webui"),
}  # fmt: skip


def given(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a stage takes; without any it does nothing.

    Parameters
    ----------
    name : str
        The stage.
    values : mapping of str to Array
        Values by parameter.

    Returns
    -------
    dict of str to Array
    """
    stage = STAGES[name]
    names = (*stage.parameters, *stage.modifiers)
    return {parameter: values[parameter] for parameter in names if parameter in values}


def is_independent(name: str, used: Sequence[str]) -> bool:
    """Return whether a stage cuts independently of others when these parameters are used."""
    stage = STAGES[name]
    return stage.independent and not set(stage.modifiers) & set(used)


def keeps_interval(chain: Sequence[str], used: Sequence[str]) -> bool:
    """Return whether a chain leaves one interval of ranks when these parameters are used.

    Parameters
    ----------
    chain : sequence of str
        Names of stages.
    used : sequence of str
        Parameters that are swept or fixed.

    Returns
    -------
    bool
        False with xtc: the law is then a mixture, and its logarithm no function of an interval.
    """
    values = dict.fromkeys(used)
    return not any(STAGES[name].branches and given(name, values) for name in chain)


def step(name: str, kept: Kept, block: Candidates, values: Mapping[str, Array]) -> Kept:
    """Apply one stage that does not branch.

    Parameters
    ----------
    name : str
        The stage.
    kept : Kept
        What the stages before it have left.
    block : Candidates
        The positions.
    values : mapping of str to Array
        () value of each parameter; where none is the stage's, it does nothing.

    Returns
    -------
    Kept
    """
    taken = given(name, values)
    if not taken:
        return kept
    after = STAGES[name].apply(kept, block, **taken)
    if block.tail is None or STAGES[name].needs != "all":
        return after
    # Plans refuse this; where one slips through, the result is no number rather than a wrong one.
    unknown = is_open(kept, block) & ~is_open(after, block)
    return after._replace(inverse=jnp.where(unknown, jnp.nan, after.inverse))


def run_branches(
    block: Candidates, chain: Sequence[str], values: Mapping[str, Array], kept: Kept | None = None
) -> list[Branch]:
    """Apply the stages in order, following both sides of every coin.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter; one that is missing is neutral.
    kept : Kept, optional
        What earlier stages have left; everything by default.

    Returns
    -------
    list of Branch
        One without a coin; the weights sum to 1.
    """
    start = everything(block) if kept is None else kept
    branches = [Branch(jnp.ones((), block.actual.dtype), start)]
    for name in chain:
        stage, taken = STAGES[name], given(name, values)
        if not stage.branches or not taken:
            branches = [b._replace(kept=step(name, b.kept, block, values)) for b in branches]
            continue
        branches = [
            Branch(branch.weight * weight, left)
            for branch in branches
            for weight, left in stage.apply(branch.kept, block, **taken)
        ]
    return branches


def run_chain(block: Candidates, chain: Sequence[str], values: Mapping[str, Array]) -> Kept:
    """Apply the stages of a chain that keeps one interval.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter; one that is missing is neutral and its stage does nothing.

    Returns
    -------
    Kept

    Raises
    ------
    ValueError
        When the chain branches; see `keeps_interval`.
    """
    branches = run_branches(block, chain, values)
    if len(branches) > 1:
        raise ValueError(f"the chain {chain} tosses a coin and keeps no single interval")
    return branches[0].kept
