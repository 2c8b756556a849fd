"""The whole law over the listed alternatives, stage by stage, whatever the actual token is."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import factored, stages
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import Candidates, candidates
from jaxsppl.sampling.kept import one_scenario
from jaxsppl.sampling.tail import with_tail

DRAW = "draw"


class Step(NamedTuple):
    """What a chain has made of the positions after one of its stages.

    Attributes
    ----------
    name : str
        The stage; "" before the first, "draw" after the last.
    probability : Array
        (token, rank) what plain sampling would give each alternative now; after "draw", what the
        whole pipeline gives it. 0 where it was cut.
    share : Array
        (branch,) probabilities of the outcomes of the coins so far.
    start, stop : Array
        (branch, token) the ranks start, ..., stop - 1 are kept in each outcome.
    """

    name: str
    probability: Array
    share: Array
    start: Array
    stop: Array


def positions(top_logprob: Array, n_vocab: int | None = None) -> Candidates:
    """Return a block whose law is asked for, without actual tokens.

    Parameters
    ----------
    top_logprob : array
        (token, rank) descending log-probabilities [nat]; -inf = absent.
    n_vocab : int, optional
        Size of the vocabulary, to model the unseen tail; without it only the alternatives exist.

    Returns
    -------
    Candidates
        The likeliest token stands for the actual one.
    """
    first = jnp.asarray(top_logprob)[:, 0]
    block = candidates(top_logprob, first, jnp.ones(first.shape, int))
    return block if n_vocab is None else with_tail(block, n_vocab)


def law(block: Candidates, chain: Sequence[str], values: Mapping[str, Array]) -> Array:
    """Return what a pipeline gives each alternative.

    Parameters
    ----------
    block : Candidates
        From `positions`, in float64.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter, `alpha` and `beta` included; missing ones are neutral.

    Returns
    -------
    Array
        (token, rank) probability by the estimate of the unseen tail; 0 where it is cut or absent.
    """
    order = tuple(chain)

    def at(rank: Array) -> Array:
        actual = block._replace(
            actual=block.logprob[:, rank], rank=jnp.broadcast_to(rank, block.rank.shape)
        )
        return factored.probabilities(actual, order, values)[tails.ESTIMATE]

    n_rank = block.logprob.shape[-1]
    probability = jax.vmap(at)(jnp.arange(n_rank)).T
    return jnp.where(jnp.arange(n_rank) < block.listed[:, None], probability, 0.0)


def trace(block: Candidates, chain: Sequence[str], values: Mapping[str, Array]) -> list[Step]:
    """Follow the law through a chain.

    Parameters
    ----------
    block : Candidates
        From `positions`, in float64.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter, `alpha` and `beta` included; missing ones are neutral.

    Returns
    -------
    list of Step
        Before the first stage, after each, and after the draw.
    """
    plain = {name: value for name, value in values.items() if name not in ("alpha", "beta")}
    steps: list[Step] = []
    for number in range(len(chain) + 1):
        part = tuple(chain[:number])
        branches = stages.run_branches(block, part, values)
        kept = [one_scenario(branch.kept, tails.ESTIMATE) for branch in branches]
        steps.append(
            Step(
                part[-1] if part else "",
                law(block, part, plain),
                jnp.stack([branch.weight for branch in branches]),
                jnp.stack([one.start for one in kept]),
                jnp.stack([one.stop for one in kept]),
            )
        )
    return [*steps, steps[-1]._replace(name=DRAW, probability=law(block, chain, values))]
