"""The loss of each token with its derivatives in the smooth parameters, forward and at one point.

The sums over ranks are masked sums and not differences of prefix sums: one fused pass over the
ranks, five times as fast where a single point is wanted. The derivative goes forward, one direction
through the ranks for each parameter of the chain and none for alpha and beta, which enter after
them; the reverse mode would keep and scatter (token, rank) arrays. The parameters of truncations
have no place here: their derivative is zero almost everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsppl.sampling import kept as left
from jaxsppl.sampling import stages
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.beta import log_beta_mass
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.draw import Interval, skewed
from jaxsppl.sampling.kept import Kept

# Parameters of the draw, which come after the chain.
_DRAW = ("alpha", "beta")


class Losses(NamedTuple):
    """The tokens of a block at one point.

    Attributes
    ----------
    loss : Array
        (token,) -log(max(probability, epsilon)) [nat].
    slope : Array
        (parameter, token) its derivative in each smooth parameter; 0 where epsilon counts.
    is_ood : Array
        (token,) whether the probability is below epsilon.
    """

    loss: Array
    slope: Array
    is_ood: Array


class Shares(NamedTuple):
    """Being out of distribution, with its edge blurred so that it has a derivative.

    Attributes
    ----------
    share : Array
        (token,) from 0 to 1.
    slope : Array
        (parameter, token) its derivative in each smooth parameter.
    """

    share: Array
    slope: Array


class Masses(NamedTuple):
    """Kept mass before, on and after the actual token, all in one unit."""

    before: Array
    own: Array
    after: Array


class Branches(NamedTuple):
    """The outcomes of the coins that a chain tosses; one where it tosses none.

    Attributes
    ----------
    masses : Masses
        (branch, token) each.
    weight : Array
        (branch,), of sum 1.
    """

    masses: Masses
    weight: Array


class Chances(NamedTuple):
    """What the draw gives the tokens.

    Attributes
    ----------
    log_mass : Array
        (token,) log-probability; 0 where the token was cut.
    slope : Array
        (parameter, token) its derivatives.
    is_kept : Array
        (token,) whether it was kept.
    """

    log_mass: Array
    slope: Array
    is_kept: Array


def split_chain(chain: Sequence[str], over: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split a chain at the first stage that depends on a smooth parameter or tosses a coin.

    Parameters
    ----------
    chain : sequence of str
        Names of stages, first applied first.
    over : sequence of str
        The smooth parameters that vary.

    Returns
    -------
    tuple
        The stages before it, whose outcome can be kept, and the rest.
    """
    names = tuple(chain)
    varies = [
        stages.STAGES[name].branches or stages.given(name, dict.fromkeys(over)) for name in names
    ]
    at = next((place for place, one in enumerate(varies) if one), len(names))
    return names[:at], names[at:]


def apply_stages(
    kept: Kept, block: Candidates, chain: Sequence[str], values: Mapping[str, Array]
) -> Kept:
    """Apply stages that toss no coin to what is left.

    Parameters
    ----------
    kept : Kept
        What the stages before have left.
    block : Candidates
        The positions.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter; a stage whose parameters are missing does nothing.

    Returns
    -------
    Kept
        Under the estimate of the tail, without scenario axes.
    """
    for name in chain:
        kept = stages.step(name, kept, block, values)
    return left.one_scenario(kept, tails.ESTIMATE)


def masses(kept: Kept, block: Candidates) -> Masses:
    """Return where the actual token lies among the kept ones.

    Parameters
    ----------
    kept : Kept
        What the chain has left, without scenario axes.
    block : Candidates
        The positions.

    Returns
    -------
    Masses
        Not normalised; `own` is 0 where the token was cut.
    """
    top = left.top_logprob(kept, block)
    weight = left.weights(kept, block)
    rank = jnp.arange(weight.shape[-1])
    listed = (rank >= kept.start[:, None]) & (rank < kept.stop[:, None])
    place = block.rank[:, None]
    before = jnp.where(listed & (rank < place), weight, 0.0).sum(axis=-1)
    after = jnp.where(listed & (rank > place), weight, 0.0).sum(axis=-1)
    is_kept = block.inside & (block.rank >= kept.start) & (block.rank < kept.stop)
    if kept.logit is None:
        own = jnp.exp(jnp.minimum(kept.inverse * (block.actual - top), 0.0))
    else:
        own = jnp.where(rank == place, weight, 0.0).sum(axis=-1)
    own = jnp.where(is_kept, own, 0.0)
    if block.tail is not None:
        inverse = jnp.broadcast_to(kept.inverse, block.actual.shape)
        outside = left.actual_outside(kept, block)
        rest = tails.tail_sum(block.tail, kept.inverse, kept.floor, top)[tails.ESTIMATE]
        others = jnp.maximum(rest, 0.0)
        likelier = others * tails.share_above(block.tail, inverse, kept.floor, block.actual)
        before = before + jnp.where(outside > 0, likelier, 0.0)
        after = jnp.where(outside > 0, others - likelier, jnp.maximum(after + rest, 0.0))
        own = own + outside
    if kept.skew is None:
        return Masses(before, own, after)
    total = jnp.where(own > 0, before + own + after, 1.0)
    place = Interval(*(part / total for part in (before, own, after)))
    return Masses(*skewed(place, kept.skew))


def masses_along(
    kept: Kept,
    block: Candidates,
    chain: Sequence[str],
    values: Mapping[str, Array],
    over: Sequence[str],
) -> tuple[Branches, Branches]:
    """Return each token's masses, and their derivatives in the parameters of the chain.

    Parameters
    ----------
    kept : Kept
        What the stages before `chain` have left.
    block : Candidates
        The positions.
    chain : sequence of str
        The rest of the chain.
    values : mapping of str to Array
        () value of each parameter.
    over : sequence of str
        The smooth parameters that vary.

    Returns
    -------
    tuple of Branches
        The branches; and their derivatives, with a last axis for `over`: 0 for alpha and beta,
        which come later.
    """
    names = [name for name in over if name not in _DRAW]
    places = np.asarray([over.index(name) for name in names], int)

    def at(varied: Array) -> tuple[Branches, Branches]:
        changed = {name: varied[index] for index, name in enumerate(names)}
        branches = stages.run_branches(block, chain, {**values, **changed}, kept)
        each = [masses(left.one_scenario(b.kept, tails.ESTIMATE), block) for b in branches]
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *each)
        result = Branches(stacked, jnp.stack([branch.weight for branch in branches]))
        return result, result

    def widen(leaf: Array) -> Array:
        """Put the derivatives where `over` has their parameters."""
        wide = jnp.zeros((*leaf.shape[:-1], len(over)), leaf.dtype)
        return wide.at[..., places].set(leaf)

    along, place = jax.jacfwd(at, has_aux=True)(jnp.asarray([values[name] for name in names]))
    return place, jax.tree.map(widen, along)


def losses(chances: Chances, values: Mapping[str, Array]) -> Losses:
    """Return loss and derivatives of each token.

    Parameters
    ----------
    chances : Chances
        From `log_probabilities`.
    values : mapping of str to Array
        `epsilon`, and a `softness` if the kink there shall be round: the greater of two logarithms
        then becomes softness * log sum exp(. / softness) [nat].

    Returns
    -------
    Losses
    """
    log_epsilon = jnp.log(values["epsilon"])
    above = jnp.where(chances.is_kept, chances.log_mass - log_epsilon, -jnp.inf)
    width = values.get("softness", jnp.zeros(()))
    is_soft = width > 0
    scaled = above / jnp.where(is_soft, width, 1.0)
    rounding = jnp.where(is_soft, width * jnp.log1p(jnp.exp(-jnp.abs(scaled))), 0.0)
    share = jnp.where(is_soft, jax.nn.sigmoid(scaled), above > 0)
    loss = -(log_epsilon + jnp.maximum(above, 0.0) + rounding)
    slope = jnp.where(share > 0, -chances.slope * share, 0.0)
    return Losses(loss, slope, above < 0)


def blurred_shares(chances: Chances, values: Mapping[str, Array], width: Array) -> Shares:
    """Return how far each token is out of distribution: sigmoid(log(epsilon / p) / width).

    Parameters
    ----------
    chances : Chances
        From `log_probabilities`.
    values : mapping of str to Array
        `epsilon`.
    width : Array
        () of the edge [nat], above 0.

    Returns
    -------
    Shares
    """
    above = chances.log_mass - jnp.log(values["epsilon"])
    share = jnp.where(chances.is_kept, jax.nn.sigmoid(-above / width), 1.0)
    return Shares(share, -share * (1.0 - share) / width * chances.slope)


def log_probabilities(
    place: Branches, along: Branches, values: Mapping[str, Array], over: Sequence[str]
) -> Chances:
    """Return what the draw gives each token.

    Parameters
    ----------
    place, along : Branches
        From `masses_along`.
    values : mapping of str to Array
        () value of each parameter; alpha and beta that are missing are 1.
    over : sequence of str
        The smooth parameters to differentiate in, in this order.

    Returns
    -------
    Chances
    """
    some = place.masses.own > 0
    # A token that was cut gets a harmless interval, so that no NaN hides behind a `where`.
    harmless = Masses(jnp.zeros(()), jnp.ones(()), jnp.zeros(()))
    safe = jax.tree.map(lambda part, other: jnp.where(some, part, other), place.masses, harmless)
    change = jax.tree.map(lambda part: jnp.where(some[..., None], part, 0.0), along.masses)
    log_mass, slope = _log_probability(safe, change, values, over)
    if len(place.weight) == 1:
        return Chances(log_mass[0], slope[:, 0], some[0])
    mass = jnp.where(some, jnp.exp(log_mass), 0.0)
    total = place.weight @ mass
    is_kept = total > 0
    change = along.weight.T @ mass + (slope * (place.weight[:, None] * mass)).sum(axis=1)
    total = jnp.where(is_kept, total, 1.0)
    return Chances(jnp.log(total), jnp.where(is_kept, change / total, 0.0), is_kept)


def _log_probability(
    place: Masses, along: Masses, values: Mapping[str, Array], over: Sequence[str]
) -> tuple[Array, Array]:
    """Return (branch, token) log-probabilities, and (parameter, branch, token) derivatives."""
    along = Masses(*(jnp.moveaxis(part, -1, 0) for part in along))
    if "alpha" not in values and "beta" not in values:
        total = place.before + place.own + place.after
        change = along.before + along.own + along.after
        return jnp.log(place.own / total), along.own / place.own - change / total
    one = jnp.ones(())
    shapes = [values.get(name, one) for name in _DRAW]
    log_mass, linear = jax.linearize(log_beta_mass, *place, *shapes)
    is_own = [jnp.asarray([float(name == shape) for name in over]) for shape in _DRAW]
    return log_mass, jax.vmap(linear)(*along, *is_own)
