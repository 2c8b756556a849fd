"""Losses and derivatives at one point, against the direct definition and its differences."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_rows import QUICK, block_of, descending

from jaxsppl import parameters
from jaxsppl.parameters import is_smooth
from jaxsppl.sampling import direct, smooth, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.precision import float64

CHAINS = [
    ("temperature",),
    ("top_k", "min_p", "temperature"),
    ("temperature", "min_p", "top_p"),
    ("top_p", "temperature"),
    ("top_k", "xtc", "temperature", "skew"),
    ("top_k", "smoothing", "temperature", "top_a"),
    ("xtc", "temperature", "xtc"),
]
POINT = {"temperature": 1.4, "alpha": 0.8, "beta": 1.9, "epsilon": 1e-4}
CUTS = {"top_k": 9.0, "min_p": 0.02, "top_p": 0.93, "skew": 0.2, "top_a": 0.02}
MORE = {
    "xtc": {"xtc_probability": 0.3, "xtc_threshold": 0.15},
    "smoothing": {"smoothing_factor": 0.05, "dynatemp_range": 0.4, "dynatemp_exponent": 1.5},
}


def block(bound: bool) -> Candidates:
    """Positions of a made-up model, some of whose actual tokens are not listed."""
    rng = np.random.default_rng(1)
    logit = rng.normal(0, 2.0, (60, 80))
    logprob = descending(logit - np.log(np.exp(logit).sum(axis=1, keepdims=True)))
    actual = np.minimum(rng.geometric(0.12, 60) - 1, 79)
    return block_of(logprob, actual, 12, bound=bound)


@partial(jax.jit, static_argnames=("chain", "names"), compiler_options=QUICK)
def _smooth(
    part: Candidates, chain: tuple[str, ...], values: Any, names: tuple[str, ...]
) -> tuple[smooth.Losses, smooth.Chances]:
    """What a search evaluates."""
    ahead, rest = smooth.split_chain(chain, names)
    kept = smooth.apply_stages(stages.everything(part), part, ahead, values)
    masses = smooth.masses_along(kept, part, rest, values, names)
    chances = smooth.log_probabilities(*masses, values, names)
    return smooth.losses(chances, values), chances


def over(values: dict[str, Any]) -> tuple[str, ...]:
    """Those of some parameters that have a derivative."""
    return tuple(name for name in parameters.PARAMETERS if name in values and is_smooth(name))


def by_smooth(part: Candidates, chain: tuple[str, ...], values: dict[str, Any]) -> smooth.Losses:
    """The same from plain numbers."""
    numbers = {name: jnp.asarray(value) for name, value in values.items()}
    return _smooth(part, chain, numbers, over(values))[0]


@pytest.mark.parametrize(
    ("chain", "bound"),
    [*((chain, False) for chain in CHAINS[1:]), *((c, True) for c in CHAINS[:3])],
)
def test_losses_and_slopes_are_the_direct_definitions(chain: tuple[str, ...], bound: bool) -> None:
    values = {**POINT, **{name: CUTS[name] for name in chain if name in CUTS}}
    for name in chain:
        values |= MORE.get(name, {})
    with float64():
        part = block(bound)
        at = jax.jit(
            lambda point: direct.probabilities(part, chain, point)[0], compiler_options=QUICK
        )
        loss = {}
        for name in ("", *over(values)):
            for sign in (1, -1) if name else (0,):
                point = {k: jnp.asarray(v) for k, v in values.items()}
                if name:
                    point[name] = point[name] + sign * 1e-6
                loss[name, sign] = np.asarray(-jnp.log(jnp.maximum(at(point), values["epsilon"])))
        found = by_smooth(part, chain, values)
    np.testing.assert_allclose(found.loss, loss["", 0], rtol=1e-11, atol=1e-13)
    assert (np.asarray(found.is_ood) == (loss["", 0] >= -np.log(values["epsilon"]))).all()
    assert set(over(values)) >= set(POINT) - {"epsilon"}
    for index, name in enumerate(over(values)):
        expected = (loss[name, 1] - loss[name, -1]) / 2e-6
        # A cut that moves between the two sides is a jump and no slope.
        steady = np.abs(loss[name, 1] - loss[name, -1]) < 1e-3
        assert steady.mean() > 0.9
        np.testing.assert_allclose(
            np.asarray(found.slope)[index][steady], expected[steady], rtol=2e-4, atol=2e-6
        )


def test_softness_rounds_the_kink_and_goes_to_it() -> None:
    with float64():
        part = block(False)
        values = {**POINT, "epsilon": 0.05, "softness": 0.0}
        hard = by_smooth(part, ("temperature",), values)
        below = np.asarray(hard.is_ood)
        assert 0.1 < below.mean() < 0.9
        # The rounding lowers the loss by at most width * log 2.
        for width in (1.0, 0.1):
            soft = by_smooth(part, ("temperature",), {**values, "softness": width})
            drop = np.asarray(hard.loss) - np.asarray(soft.loss)
            assert (drop >= -1e-15).all()
            assert (drop <= width * np.log(2) + 1e-12).all()
            moved = np.asarray(soft.slope)
            assert np.abs(moved[:, below]).max() > 0
            step = {**values, "softness": width, "beta": values["beta"] + 1e-6}
            ahead = by_smooth(part, ("temperature",), step)
            np.testing.assert_allclose(
                (np.asarray(ahead.loss) - np.asarray(soft.loss)) / 1e-6, moved[-1], atol=2e-5
            )


def test_blurred_shares_go_to_the_share_and_have_its_derivative() -> None:
    with float64():
        part = block(False)
        values = {**POINT, "epsilon": 0.05}
        names = over(values)

        def at(**changed: float) -> smooth.Chances:
            numbers = {name: jnp.asarray(v) for name, v in {**values, **changed}.items()}
            return _smooth(part, ("top_k", "temperature"), {**numbers, "top_k": 9.0}, names)[1]

        hard = np.asarray(smooth.losses(at(), values).is_ood)
        sharp = smooth.blurred_shares(at(), values, jnp.asarray(1e-9))
        np.testing.assert_allclose(sharp.share, hard, atol=1e-12)
        assert (np.asarray(part.rank) >= 9).any()
        width = jnp.asarray(0.3)
        soft = smooth.blurred_shares(at(), values, width)
        for index, name in enumerate(names):
            ahead, back = (
                smooth.blurred_shares(at(**{name: values[name] + step}), values, width).share
                for step in (1e-5, -1e-5)
            )
            np.testing.assert_allclose(soft.slope[index], (ahead - back) / 2e-5, atol=1e-8)


def test_cut_tokens_have_no_slope_and_no_nan() -> None:
    with float64():
        part = block(False)
        values = {**POINT, "top_k": 1.0}
        found = by_smooth(part, ("top_k", "temperature"), values)
    cut = np.asarray(part.rank) > 0
    assert cut.any()
    np.testing.assert_allclose(np.asarray(found.loss)[cut], -np.log(POINT["epsilon"]))
    np.testing.assert_array_equal(np.asarray(found.slope)[:, cut], 0)
    assert np.isfinite(found.slope).all()
    np.testing.assert_allclose(np.asarray(found.loss)[~cut], 0, atol=1e-15)
