"""Users' samplers: they equal the built-in ones that they repeat, and break no law unnoticed."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from law_rows import BOTH, Array, block_of, descending, harvest_of

import jaxsppl
from jaxsppl.config import load
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.parameters import PARAMETERS, USER_STAGES, default_order
from jaxsppl.sampling.custom import check_laws
from jaxsppl.sampling.direct_steps import STEPS
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.stages import STAGES

SIZE, V = 10, 40


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Nothing that a test registers is left for another."""
    tables: list[dict[str, Any]] = [PARAMETERS, STAGES, STEPS, USER_STAGES]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


def rows(seed: int) -> Array:
    logprob = descending(np.random.default_rng(seed).normal(0, 2, (SIZE, V)))
    return logprob - np.log(np.exp(logprob).sum(axis=1, keepdims=True))


def register(name: str = "mine", **more: Any) -> Any:
    """A sampler that keeps what reaches a share of the largest."""

    @jaxsppl.stage(name, neutral=0.0, usual=(0.0, 0.1), **more)
    def mine(logprob: Any, value: Any) -> Any:
        return (logprob >= logprob[0] + jnp.log(value)).sum()

    return mine


def test_a_cut_equals_the_built_in_one_anywhere_in_a_chain() -> None:
    register()
    values = {"top_k": 8.0, "typical_p": 0.9, "temperature": 1.7}
    before = ("top_k", "typical_p", "temperature")
    with float64():
        block = block_of(rows(0), np.arange(SIZE), SIZE, bound=True)
        for way in BOTH:
            found = way(block, (*before, "mine"), values | {"mine": 0.3})
            expected = way(block, (*before, "min_p"), values | {"min_p": 0.3})
            assert (expected > 0).any()
            assert np.abs(found - expected).max() < 1e-12
            # At the neutral value not even the unseen tail is touched.
            assert np.array_equal(way(block, ("mine",), {"mine": 0.0}), way(block, (), {}))


def test_a_mask_is_as_good_as_a_number() -> None:
    @jaxsppl.stage("p_less_mine", neutral=0.0, usual=(2.0,), upper=9.0)
    def above(logprob: Any, value: Any) -> Any:
        p = jnp.exp(logprob)
        order = jnp.maximum(value, 1.5)
        return (value == 0) | (p >= (p**order).sum() ** (1 / (order - 1)))

    with float64():
        block = block_of(rows(1)[:, :SIZE], np.arange(SIZE))
        for way in BOTH:
            found = way(block, ("p_less_mine", "min_p"), {"p_less_mine": 2.0, "min_p": 0.01})
            expected = way(block, ("p_less", "min_p"), {"p_less": 2.0, "min_p": 0.01})
            assert np.abs(found - expected).max() < 1e-12


def test_a_reshaping_stage_equals_the_built_in_one() -> None:
    @jaxsppl.stage("bend", neutral=0.0, reshapes=True, modifiers={"bend_curve": 1.0})
    def bend(logprob: Any, value: Any, bend_curve: Any = 1.0) -> Any:
        d = jnp.where(jnp.isfinite(logprob), logprob - logprob[0], 0.0)
        k, s = (3 - bend_curve) / 2, (bend_curve - 1) / 2
        return jnp.where(value > 0, -k * value * d**2 + s * value * d**3, logprob)

    with float64():
        block = block_of(rows(2), np.arange(SIZE), SIZE, bound=True)
        chain = ("top_k", "typical_p", "NAME", "top_p", "temperature")
        values = {"top_k": 9.0, "typical_p": 0.8, "top_p": 0.9, "temperature": 0.7}
        for way in BOTH:
            found = way(
                block,
                [name.replace("NAME", "bend") for name in chain],
                values | {"bend": 0.4, "bend_curve": 2.0},
            )
            expected = way(
                block,
                [name.replace("NAME", "smoothing") for name in chain],
                values | {"smoothing_factor": 0.4, "smoothing_curve": 2.0},
            )
            assert np.abs(found - expected).max() < 1e-12


def test_an_axis_of_a_sweep_from_a_file_that_the_config_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sampler.py").write_text(
        "import jax.numpy as jnp\nimport jaxsppl\n\n"
        "@jaxsppl.stage('from_file', neutral=0.0)\n"
        "def from_file(logprob, value):\n"
        "    return (logprob >= logprob[0] + jnp.log(value)).sum()\n"
    )
    config = tmp_path / "own.toml"
    config.write_text(
        "[chain]\nmodules = ['sampler.py']\n[grid]\nfrom_file = [0, 0.1, 0.4]\ntop_k = [5, 9]\n"
        "temperature = [0.6, 1.2]\nalpha = [0.7, 1]\n"
    )
    with caplog.at_level(logging.WARNING, "jaxsppl"):
        settings = load(config)
    assert str(tmp_path / "sampler.py") in caplog.text
    assert settings.order() == ("top_k", "from_file", "temperature")
    assert default_order(["from_file", "xtc_probability"]) == ("from_file", "xtc")
    harvest = harvest_of(rows(3), np.arange(SIZE), SIZE)
    grid = {name: list(axis) for name, axis in settings.grid.items()}
    found = jaxsppl.sweep(harvest, grid, chain=settings.order())
    assert set(found.nll.dims[2:]) == {"from_file", "top_k", "temperature", "alpha"}
    renamed = {"min_p" if name == "from_file" else name: axis for name, axis in grid.items()}
    expected = jaxsppl.sweep(harvest, renamed, chain=("top_k", "min_p", "temperature"))
    assert np.abs(found.nll.values - expected.nll.values).max() < 1e-10
    assert "from_file" in found.attrs["user_stages_json"]


def test_all_candidates_must_be_known() -> None:
    register()
    harvest = harvest_of(rows(4), np.arange(SIZE), SIZE)
    with pytest.raises(PlanError, match=r"mine: it needs each token .* put a top_k of at most 10"):
        jaxsppl.sweep(harvest, {"mine": [0.0, 0.2]})
    jaxsppl.sweep(harvest, {"mine": [0.0, 0.2]}, tail="drop", audit_points=2)


@pytest.mark.parametrize(
    ("rule", "reshapes", "message"),
    [
        (lambda p, v: jnp.where(v > 0, 0, p.size), False, "keeps no token"),
        (lambda p, v: jnp.where(v > 0, jnp.nan, p.size), False, "not finite"),
        (lambda p, v: jnp.arange(p.size) != 1, False, "no beginning of the ranks"),
        (lambda p, v: 1, False, "neutral, but it cuts"),
        (lambda p, v: p[:3], False, "gives shape"),
        (lambda p, v: p.nothing, False, "the function fails: AttributeError"),
        (lambda p, v: p * (1 + v) * 2, True, "neutral, but it changes"),
        (lambda p, v: jnp.where(v > 0, -p, p), True, "do not descend"),
        (lambda p, v: jnp.log(p + 1.0), True, "not finite"),
        (lambda p, v: p.sum(), True, "not one logit a rank"),
    ],
)
def test_a_broken_law_is_named(rule: Any, reshapes: bool, message: str) -> None:
    def wrong(logprob: Any, value: Any) -> Any:
        return jnp.asarray(rule(logprob, value))

    jaxsppl.stage("wrong", neutral=0.0, reshapes=reshapes)(wrong)
    with pytest.raises(ConfigError, match=message) as caught:
        check_laws(("wrong",))
    assert "stage 'wrong' at wrong = " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_stand_for_something_else_are_refused() -> None:
    for name in ("min_p", "alpha", "dynatemp_range", "two words"):
        with pytest.raises(ConfigError, match=name):
            register(name)
    with pytest.raises(ConfigError, match="min_p"):
        register("fine", modifiers={"min_p": 1.0})


def test_another_function_of_the_same_name_takes_effect() -> None:
    block_rows = rows(5)[:, :SIZE]
    with float64():
        block = block_of(block_rows, np.arange(SIZE))
        kept: list[int] = []
        for number in (2, 3):

            def first(logprob: Any, value: Any, number: int = number) -> Any:
                return jnp.where(value > 0, number, logprob.size)

            jaxsppl.stage("again", neutral=0.0)(first)
            kept.append(int((BOTH[0](block, ("again",), {"again": 0.5}) > 0).sum()))
    assert kept == [2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name\n", "line 1: ModuleNotFoundError"),
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError"),
        ("def f(:\n", "line 1: invalid syntax"),
        ("import jaxsppl\njaxsppl.stage('min_p', neutral=0.0)\n", "choose another name"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    (tmp_path / "a.toml").write_text("[chain]\nmodules = ['bad.py']\n[grid]\nmin_p = [0]\n")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text("[chain]\nmodules = ['none.py']\n")
    with pytest.raises(ConfigError, match=r"none\.py: No such file"):
        load(tmp_path / "a.toml")
