"""The objective: epsilon-clipped negative log-likelihood and the out-of-distribution share."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Score(NamedTuple):
    """Sums over the tokens of a block; divide by the number of tokens for the mean.

    Attributes
    ----------
    nll, lower, upper : Array
        () sum of -log(max(probability, epsilon)) [nat]: by the estimate of the unseen tail, and
        the least and the greatest of its scenarios token by token.
    ood : Array
        () how many tokens have a probability below epsilon, by the estimate.
    """

    nll: Array
    lower: Array
    upper: Array
    ood: Array


def score(probability: Array, weight: Array, epsilon: Array) -> Score:
    """Score the actual tokens.

    Parameters
    ----------
    probability : Array
        (scenario, token) what the pipeline gives each actual token.
    weight : Array
        (token,) 1, or 0 for padding.
    epsilon : Array
        () smallest probability that counts as itself.

    Returns
    -------
    Score
    """
    loss = -jnp.log(jnp.maximum(probability, epsilon)) * weight
    ood = ((probability[0] < epsilon) * weight).sum()
    return Score(loss[0].sum(), loss.min(axis=0).sum(), loss.max(axis=0).sum(), ood)
