"""Nodes and binned sums: intervals are spread without loss, and the product is the law."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betainc, betaincc

from jaxsppl.sampling import binned, draw, nodes, stages
from jaxsppl.sampling.beta import log_beta_mass
from jaxsppl.sampling.candidates import candidates
from jaxsppl.sampling.draw import Interval
from jaxsppl.sampling.precision import float64

ALPHA, BETA = np.array([0.4, 1.0, 2.5, 8.0]), np.array([2.0, 1.0, 0.5, 9.0])
LAYOUT_EPSILON = np.array([0.01])


def made_intervals(count: int) -> Interval:
    """Sorted tokens' intervals of all families, wide and narrow, near both ends."""
    rng = np.random.default_rng(3)
    weight = np.sort(rng.exponential(size=(count, 12)) ** rng.uniform(1, 9, (count, 1)), axis=1)
    weight = weight[:, ::-1]
    stop = rng.integers(1, 13, count)
    weight = np.where(np.arange(12) < stop[:, None], weight, 0.0)
    place = rng.integers(0, stop)
    total = weight.sum(axis=1)
    rank = np.arange(12)
    before = np.where(rank < place[:, None], weight, 0).sum(axis=1) / total
    after = np.where(rank > place[:, None], weight, 0).sum(axis=1) / total
    own = weight[np.arange(count), place] / total
    # And some that no draw here can lift to epsilon, or that were cut.
    before[:40], own[:40], after[:40] = 0.3, 1e-5, 0.7 - 1e-5
    own[:10] = 0.0
    return Interval(jnp.asarray(before), jnp.asarray(own), jnp.asarray(after))


def test_nodes_are_intervals_with_scipys_masses() -> None:
    with float64():
        grid = nodes.layout(ALPHA, BETA, LAYOUT_EPSILON, 1.0)
        place = nodes.node_intervals(grid)
        before, own, after = (np.asarray(part) for part in place)
        assert before.size == grid.n_node
        np.testing.assert_allclose(before + own + after, 1.0, rtol=1e-12)
        some = np.random.default_rng(0).choice(grid.n_node, 400, replace=False)
        wide = [i for i in some if own[i] > 1e-3]
        for a, b in zip(ALPHA, BETA, strict=True):
            mass = np.exp(np.asarray(nodes.node_values(grid, jnp.asarray(a), jnp.asarray(b))))
            for i in wide:
                low, high = before[i], before[i] + own[i]
                # From the side where the end is known exactly: high rounds to 1 before after is 0.
                behind = betainc(b, a, after[i])
                expected = (
                    betaincc(a, b, low) - behind
                    if high > 0.5
                    else (betainc(a, b, high) - betainc(a, b, low))
                )
                assert mass[i] == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_weights_sum_to_one_and_give_back_a_smooth_function() -> None:
    with float64():
        grid = nodes.layout(ALPHA, BETA, LAYOUT_EPSILON, 1.0)
        place = made_intervals(3000)
        found = nodes.spread(place, grid)
        weight, node, cut = (np.asarray(x) for x in (found.weight, found.node, found.cut))
        only = (np.asarray(place.before) <= 0) & (np.asarray(place.after) <= 0)
        live = (cut == 0) & ~only
        total = weight.sum(axis=(1, 2))
        np.testing.assert_allclose(total[live], 1.0, atol=2e-5)
        assert (total[~live] == 0).all()
        assert live.sum() > 1500 and only.sum() > 10 and (cut == 1).sum() > 10
        assert (node >= 0).all() and (node + nodes.WINDOW <= grid.n_node).all()
        for a, b in zip(ALPHA, BETA, strict=True):
            # Clipped far below epsilon, so that the only kink is where no weight depends on it.
            values = np.maximum(
                np.asarray(nodes.node_values(grid, jnp.asarray(a), jnp.asarray(b))), -40.0
            )
            given = (weight * values[node[..., None] + np.arange(nodes.WINDOW)]).sum(axis=(1, 2))
            truth = np.asarray(log_beta_mass(*place, jnp.asarray(a), jnp.asarray(b)))
            smooth = live & (truth > -30)
            assert np.abs(given - truth)[smooth].max() < 2e-3
            assert np.abs(given - truth)[smooth].mean() < 2e-5


def test_what_no_draw_can_lift_above_epsilon_is_cut() -> None:
    with float64():
        grid = nodes.layout(ALPHA, BETA, LAYOUT_EPSILON, 1.0)
        place = made_intervals(3000)
        cut = np.asarray(nodes.spread(place, grid).cut) == 1
        for a, b in zip(ALPHA, BETA, strict=True):
            mass = np.exp(np.asarray(log_beta_mass(*place, jnp.asarray(a), jnp.asarray(b))))
            assert (mass[cut] < LAYOUT_EPSILON[0]).all()


@pytest.mark.parametrize("order", [("min_p", "temperature"), ("temperature", "min_p")])
def test_the_product_is_the_mean_of_the_tokens(order: tuple[str, ...]) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 3, (512, 40))
    logprob = -np.sort(-(logits - np.log(np.exp(logits).sum(1, keepdims=True))), axis=1)
    rank = rng.integers(0, 25, 512)
    actual = np.where(rank > 0, logprob[np.arange(512), rank - 1], -9.0)
    axes = (jnp.asarray([0.6, 1.0, 1.8]), jnp.asarray([0.0, 0.05, 0.2]))
    names = ("temperature", "min_p")
    with float64():
        block = candidates(logprob, actual, rank)
        grid = nodes.layout(ALPHA, BETA, LAYOUT_EPSILON, 1.0)
        where, which = binned.spread_rows(block, axes, {}, chain=order, names=names, nodes=grid)
        total, cut = binned.accumulate(
            jnp.zeros(9 * grid.n_node, jnp.float32),
            jnp.zeros((9, 1), jnp.float32),
            where,
            which,
            n_node=grid.n_node,
        )
        values = node_values(grid, np.log(LAYOUT_EPSILON))
        is_reached = (np.asarray(total).reshape(9, -1) != 0).any(axis=0)
        is_clipped = np.asarray(values.is_clipped)
        assert (is_reached & is_clipped).any() and (is_reached & ~is_clipped).any()
        loss, below = binned.products(total, cut, values, n_row=9, n_scenario=1)
        for row in range(9):
            at = {"temperature": axes[0][row // 3], "min_p": axes[1][row % 3]}
            place = draw.interval(stages.run_chain(block, order, at), block)
            for column, (a, b) in enumerate(itertools.product(ALPHA, BETA)):
                p = np.asarray(draw.probability(place, jnp.asarray(a), jnp.asarray(b)))[0]
                exact = -np.log(np.maximum(p, 0.01)).sum()
                assert loss[row, 0, column] == pytest.approx(exact, abs=512 * 5e-4)
                assert below[row, column] == pytest.approx((p < 0.01).sum(), abs=5)


def node_values(grid: nodes.Layout, log_epsilon: np.ndarray) -> binned.NodeValues:
    """Of every pair of ALPHA and BETA, none of them interpolated."""
    alpha, beta = (jnp.asarray(axis.ravel()) for axis in np.meshgrid(ALPHA, BETA, indexing="ij"))
    log_mass = binned.log_masses(alpha, beta, nodes=grid).T.reshape(-1, ALPHA.size, BETA.size)
    same = jnp.eye(ALPHA.size, dtype=jnp.float32)
    clip = jnp.asarray(log_epsilon, jnp.float32)
    return binned.with_clipped(
        binned.NodeValues(log_mass, same, same, clip, jnp.ones(grid.n_node, bool))
    )


def test_nodes_that_no_draw_clips_are_found_and_change_nothing() -> None:
    rng = np.random.default_rng(2)
    with float64():
        grid = nodes.layout(ALPHA, BETA, LAYOUT_EPSILON, 1.0)
        values = node_values(grid, np.log([0.01, 0.03]))
        lowest = np.asarray(values.log_mass).min(axis=(1, 2))
        np.testing.assert_array_equal(values.is_clipped, lowest < np.float32(np.log(0.03)))
        some = rng.choice(grid.n_node, 3000, replace=False)
        total = np.zeros((2, grid.n_node), np.float32)
        total[:, some] = rng.uniform(size=(2, 3000))
        cut = jnp.asarray([[3.0], [0.0]], jnp.float32)
        loss, below = binned.products(
            jnp.asarray(total.ravel()), cut, values, n_row=2, n_scenario=1
        )
        every = np.asarray(values.log_mass, np.float64)[..., None]
        clips = np.log([0.01, 0.03])
        expected = np.tensordot(total, -np.maximum(every, clips), 1)
        expected = expected - np.asarray(cut)[..., None, None] * clips
        np.testing.assert_allclose(np.asarray(loss)[:, 0], expected.reshape(2, -1), rtol=1e-5)
        counted = np.tensordot(total, (every < clips).astype(float), 1).reshape(2, -1)
        np.testing.assert_allclose(below, counted + cut, rtol=1e-5)
