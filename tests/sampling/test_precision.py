"""The 64-bit block switches precision inside and leaves the process as it was."""

import jax
import jax.numpy as jnp
import pytest

from jaxsppl.sampling.precision import float64


def test_float64_inside_and_unchanged_outside() -> None:
    before = jnp.asarray(1.0).dtype
    flag = jax.config.jax_enable_x64
    with float64():
        assert jnp.asarray(1.0).dtype == jnp.float64
        with float64():
            assert jax.jit(lambda x: x + 1)(jnp.asarray(1.0)).dtype == jnp.float64
        assert jnp.asarray(1.0).dtype == jnp.float64
    assert jnp.asarray(1.0).dtype == before
    assert jax.config.jax_enable_x64 == flag


def test_precision_is_restored_after_an_error() -> None:
    flag = jax.config.jax_enable_x64
    with pytest.raises(ZeroDivisionError), float64():
        _ = 1 // 0
    assert jax.config.jax_enable_x64 == flag


def test_both_homes_of_the_manager_work(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax.experimental

    # Older JAX has the manager only in jax.experimental.
    if hasattr(jax, "enable_x64"):
        manager = jax.enable_x64
        monkeypatch.delattr(jax, "enable_x64")
        if not hasattr(jax.experimental, "enable_x64"):
            monkeypatch.setattr(jax.experimental, "enable_x64", manager, raising=False)
    with float64():
        assert jnp.asarray(1.0).dtype == jnp.float64
