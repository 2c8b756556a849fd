"""The objective: epsilon-clipped negative log-likelihood and the out-of-distribution share."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Score(NamedTuple):
    """Sums over the tokens of a block; divide by the number of tokens for the mean.

    Attributes
    ----------
    loss : Array
        (scenario,) sum of -log(max(probability, epsilon)) [nat]: by the estimate of the unseen
        tail and, where there is one, by its lower and its upper bracket.
    ood : Array
        () how many tokens have a probability below epsilon, by the estimate.
    """

    loss: Array
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
    return Score(loss.sum(axis=-1), ((probability[0] < epsilon) * weight).sum())
