"""Level `factored`: every point of a grid, exact for each token, in float64.

The chain is written for one point. Nested `vmap`s over the axes let each intermediate depend only
on the axes that it needs: exponentials on temperature, bounds on the truncations, the Beta mass on
everything. So the work is factored without a plan by hand, for any order of the chain.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
from jax import Array

from jaxsppl.sampling import draw, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.objective import Score, score


def point(block: Candidates, chain: tuple[str, ...], values: Mapping[str, Array]) -> Score:
    """Score one point of the grid on a block.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : tuple of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter; `epsilon` among them.

    Returns
    -------
    Score
        Sums over the block's tokens.
    """
    return score(probabilities(block, chain, values), block.weight, values["epsilon"])


def probabilities(block: Candidates, chain: tuple[str, ...], values: Mapping[str, Array]) -> Array:
    """Return what the sampling pipeline gives each actual token.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : tuple of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter, `alpha` and `beta` included; missing ones are neutral.

    Returns
    -------
    Array
        (scenario, token) probability; over the coins of the chain, their mean.
    """
    draws = values.get("alpha"), values.get("beta")
    parts = [
        branch.weight * draw.probability(draw.interval(branch.kept, block), *draws)
        for branch in stages.run_branches(block, chain, values)
    ]
    return sum(parts[1:], start=parts[0])


@partial(jax.jit, static_argnames=("chain", "names"))
def grid(
    block: Candidates,
    axes: tuple[Array, ...],
    fixed: Mapping[str, Array],
    *,
    chain: tuple[str, ...],
    names: tuple[str, ...],
) -> Score:
    """Score a dense grid on a block.

    Parameters
    ----------
    block : Candidates
        The positions.
    axes : tuple of Array
        Values of each axis.
    fixed : mapping of str to Array
        () parameters that are no axis.
    chain : tuple of str
        Names of stages, first applied first.
    names : tuple of str
        Parameter of each axis.

    Returns
    -------
    Score
        Sums over the block's tokens, each of the shape of the grid.
    """

    def at(*values: Array) -> Score:
        return point(block, chain, {**fixed, **dict(zip(names, values, strict=True))})

    function: Callable[..., Score] = at
    for index in reversed(range(len(names))):
        along = [0 if position == index else None for position in range(len(names))]
        function = jax.vmap(function, in_axes=along)
    return function(*axes)
