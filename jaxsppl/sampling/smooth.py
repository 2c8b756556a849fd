"""The loss of each token with its derivatives in the smooth parameters, forward and at one point.

The sums over ranks are masked sums and not differences of prefix sums: one fused pass over the
ranks, five times as fast where a single point is wanted. The derivative goes forward, one direction
for the temperature through the ranks and none for alpha and beta, which enter after them; the
reverse mode would keep and scatter (token, rank) arrays. The parameters of truncations have no
place here: their derivative is zero almost everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import kept as left
from jaxsppl.sampling import stages
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.beta import log_beta_mass
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.draw import Interval, skewed
from jaxsppl.sampling.kept import Kept

SMOOTH = ("temperature", "alpha", "beta")


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


class Masses(NamedTuple):
    """Kept mass before, on and after the actual token, all in one unit.

    (token,), or (branch, token) where the chain tosses a coin.
    """

    before: Array
    own: Array
    after: Array


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
        stages.STAGES[name].branches or set(stages.STAGES[name].parameters) & set(over)
        for name in names
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
) -> tuple[Masses, Masses, Array | None]:
    """Return each token's masses, and their derivatives in the temperature.

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
    tuple
        Masses; their derivatives, zeros unless the temperature varies; and (branch,) the weights
        of the branches, None where there is one.
    """

    def at(temperature: Array | None) -> tuple[Masses, Array]:
        changed = {} if temperature is None else {"temperature": temperature}
        branches = stages.run_branches(block, chain, {**values, **changed}, kept)
        places = [masses(left.one_scenario(b.kept, tails.ESTIMATE), block) for b in branches]
        if len(places) == 1:
            return places[0], jnp.ones(1)
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *places)
        return stacked, jnp.stack([branch.weight for branch in branches])

    if "temperature" not in over:
        place, share = at(None)
        along = Masses(*(jnp.zeros_like(part) for part in place))
    else:
        temperature = values["temperature"]
        place, along, share = jax.jvp(
            at, (temperature,), (jnp.ones_like(temperature),), has_aux=True
        )
    return place, along, share if place.own.ndim > 1 else None


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


def log_probabilities(
    place: Masses,
    along: Masses,
    share: Array | None,
    values: Mapping[str, Array],
    over: Sequence[str],
) -> Chances:
    """Return what the draw gives each token.

    Parameters
    ----------
    place, along, share
        From `masses_along`.
    values : mapping of str to Array
        () value of each parameter; alpha and beta that are missing are 1.
    over : sequence of str
        The smooth parameters to differentiate in, in this order.

    Returns
    -------
    Chances
    """
    some = place.own > 0
    # A token that was cut gets a harmless interval, so that no NaN hides behind a `where`.
    safe = Masses(*(jnp.where(some, p, n) for p, n in zip(place, (0.0, 1.0, 0.0), strict=True)))
    along = Masses(*(jnp.where(some, part, 0.0) for part in along))
    log_mass, slopes = _log_probability(safe, along, values, over)
    slope = jnp.stack(slopes) if slopes else jnp.zeros((0, *log_mass.shape))
    if share is None:
        return Chances(log_mass, slope, some)
    part = jnp.where(some, share[:, None] * jnp.exp(log_mass), 0.0)
    total = part.sum(axis=0)
    is_kept = total > 0
    total = jnp.where(is_kept, total, 1.0)
    return Chances(jnp.log(total), (slope * part).sum(axis=-2) / total, is_kept)


def _log_probability(
    place: Masses, along: Masses, values: Mapping[str, Array], over: Sequence[str]
) -> tuple[Array, list[Array]]:
    """Return the log-probability that the draw gives each token, and its derivatives."""
    zero = jnp.zeros_like(place.own)
    if "alpha" not in values and "beta" not in values:
        total = place.before + place.own + place.after
        slope = along.own / place.own - (along.before + along.own + along.after) / total
        return jnp.log(place.own / total), [slope for _ in over]
    one, none = jnp.ones(()), jnp.zeros(())
    log_mass, linear = jax.linearize(
        log_beta_mass, *place, values.get("alpha", one), values.get("beta", one)
    )
    directions = {
        "temperature": (*along, none, none),
        "alpha": (zero, zero, zero, one, none),
        "beta": (zero, zero, zero, none, one),
    }
    return log_mass, [linear(*directions[name]) for name in over]
