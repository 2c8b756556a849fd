"""The model's distribution at each position: the listed alternatives and the unseen tail."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

# Stands for -inf. It stays finite, so that no product or derivative turns into NaN, and its
# exponential is exactly 0 at every temperature that is allowed.
ABSENT = -1e30

# A limit that is hit exactly in decimal (p = .5, .3 and top_p = .8) is missed by the rounding of
# sums in binary; so much below a limit, relative to it, still counts as on it.
TIE = 1e-12


class Tail(NamedTuple):
    """The unseen tokens of each position, by the model of `jaxsppl.sampling.tail`.

    Attributes
    ----------
    mass : Array
        (token,) probability that is neither listed nor the actual token's; slightly negative
        where the server's rounded probabilities sum to more than 1.
    slack : Array
        () largest rounding error of that sum.
    number : Array
        (token,) number of unseen tokens besides the actual one.
    edge : Array
        (token,) log-probability of the last listed token [nat]; no unseen one is above it.
    spread : Array
        (token,) standard deviation of the logits over the vocabulary that the model implies [nat].
    cell_count : Array
        (cell,) unseen tokens in each cell of ranks.
    cell_drop : Array
        (cell,) fall of the log-probability from the edge to the cell's middle, per `spread`.
    cell_end : Array
        (cell,) the same at the cell's far end.
    inverse : Array or None
        (node,) inverse temperatures at which the sum over the unseen tokens is known.
    log_sum : Array or None
        (2, token, node) its logarithm there [nat], at least and at most.
    """

    mass: Array
    slack: Array
    number: Array
    edge: Array
    spread: Array
    cell_count: Array
    cell_drop: Array
    cell_end: Array
    inverse: Array | None = None
    log_sum: Array | None = None


class Candidates(NamedTuple):
    """A block of positions.

    Attributes
    ----------
    logprob : Array
        (token, rank) log-probability of the listed alternatives [nat], descending, `ABSENT` where
        the server gave fewer.
    listed : Array
        (token,) how many are listed.
    actual : Array
        (token,) log-probability of the actual token [nat].
    rank : Array
        (token,) 0-based place of the actual token; the number of ranks when it is outside.
    weight : Array
        (token,) 1, or 0 for padding.
    tail : Tail or None
        None when only the alternatives exist (``tail="drop"``).
    entropy, logit_std, min_logprob : Array or None
        (token,) of the whole vocabulary, where the harvest carries them: entropy, population
        standard deviation of the logits, least log-probability [nat].
    """

    logprob: Array
    listed: Array
    actual: Array
    rank: Array
    weight: Array
    tail: Tail | None
    entropy: Array | None = None
    logit_std: Array | None = None
    min_logprob: Array | None = None

    @property
    def inside(self) -> Array:
        """(token,) whether the actual token is among the alternatives."""
        return self.rank < self.logprob.shape[-1]

    @property
    def scenarios(self) -> int:
        """Number of tails that are evaluated: estimate, lower and upper bracket, or one."""
        return 1 if self.tail is None else 3


def candidates(
    top_logprob: Any, token_logprob: Any, token_rank: Any, weight: Any | None = None
) -> Candidates:
    """Build a block from a harvest's arrays, without a tail.

    Parameters
    ----------
    top_logprob : array
        (token, rank) descending log-probabilities [nat]; -inf = absent.
    token_logprob : array
        (token,) log-probability of the actual token [nat].
    token_rank : array of int
        (token,) its 1-based rank; 0 = outside.
    weight : array, optional
        (token,) 1 or 0; ones by default.

    Returns
    -------
    Candidates
        In the floating type that is in force (call it inside `float64()`).
    """
    top = jnp.asarray(top_logprob, float)
    finite = jnp.isfinite(top)
    rank = jnp.asarray(token_rank)
    inside = rank > 0
    logprob = jnp.where(finite, top, ABSENT)
    place = jnp.where(inside, rank - 1, top.shape[-1])
    # Inside, the listed value is taken for both, so that prefix sums and own mass agree exactly.
    shown = jnp.take_along_axis(
        logprob, jnp.minimum(place, top.shape[-1] - 1)[:, None], axis=-1
    ).squeeze(-1)
    return Candidates(
        logprob=logprob,
        listed=finite.sum(axis=-1),
        actual=jnp.where(inside, shown, jnp.asarray(token_logprob, float)),
        rank=place,
        weight=jnp.ones(place.shape) if weight is None else jnp.asarray(weight, float),
        tail=None,
    )
