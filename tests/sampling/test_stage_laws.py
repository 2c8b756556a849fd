"""Laws that every registered stage keeps; a new stage is covered by being registered."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_rows import BOTH, Array, block_of, descending, fast, slow

from jaxsppl.errors import ConfigError
from jaxsppl.parameters import DIALECTS, PARAMETERS, base_name, stage_names
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.stages import STAGES, Stage

SIZE, V = 12, 60
EVERY = np.arange(SIZE)
BRIEF = settings(max_examples=20, deadline=None, derandomize=True)
KINDS = st.sampled_from(["smooth", "flat", "ties", "all tied", "steep", "one left"])


def row(seed: int, kind: str, size: int = SIZE) -> Array:
    """A descending row of log-probabilities that sum to 1."""
    rng = np.random.default_rng(seed)
    logits = {
        "smooth": rng.normal(0, 2, size),
        "flat": rng.normal(0, 0.05, size),
        "ties": rng.integers(-3, 1, size) * 0.7,
        "all tied": np.zeros(size),
        "steep": -np.arange(size) * rng.uniform(1, 9),
        "one left": np.where(np.arange(size) == 0, 0.0, -np.inf),
    }[kind]
    logits = descending(logits)
    return logits - np.log(np.exp(logits - logits[0]).sum()) - logits[0]


def allowed(name: str, value: float) -> bool:
    """Whether a parameter takes a value."""
    try:
        PARAMETERS[name].check([value], name)
    except ConfigError:
        return False
    return True


def values_of(name: str) -> st.SearchStrategy[float]:
    """Values of one parameter: usual ones, the ends of its range, and any within it."""
    one = PARAMETERS[name]
    ends = [one.neutral, one.lower, min(one.upper, 20.0), *one.usual]
    if one.integer:
        between: Any = st.integers(int(one.lower), int(min(one.upper, 20))).map(float)
    else:
        between = st.floats(one.lower, min(one.upper, 20.0)).map(lambda x: round(x, 4) * 1.00007)
    listed = st.sampled_from([float(x) for x in ends])
    return st.one_of(listed, between).filter(lambda value: allowed(name, value))


def points(stage: Stage) -> st.SearchStrategy[dict[str, float]]:
    """Values of all parameters of a stage."""
    names = (*stage.parameters, *stage.modifiers)
    return st.fixed_dictionaries({name: values_of(name) for name in names})


def neutral(*stages: Stage) -> dict[str, float]:
    """The values at which stages change nothing."""
    names = [name for stage in stages for name in (*stage.parameters, *stage.modifiers)]
    return {name: PARAMETERS[name].neutral for name in names}


# One chain of all stages, so that it is compiled once: all are neutral but the one that is tested.
# What bends the draw stands last, and the coin before it.
ALL = tuple(sorted(STAGES, key=lambda name: (name == "skew", name == "xtc")))
IDLE = neutral(*STAGES.values())


def test_the_registered_stages_are_those_that_have_parameters() -> None:
    assert sorted(STAGES) == stage_names()
    for name, stage in STAGES.items():
        for parameter in (*stage.parameters, *stage.modifiers):
            assert PARAMETERS[parameter].stage == base_name(name)
            assert allowed(parameter, PARAMETERS[parameter].neutral)
            for value in PARAMETERS[parameter].usual:
                assert allowed(parameter, value)
    for dialect in DIALECTS.values():
        assert set(dialect.order) <= set(STAGES)
        assert set(dialect.variants.values()) <= set(STAGES)


@pytest.mark.parametrize("bound", [False, True], ids=["drop", "bound"])
def test_neutral_values_change_nothing(bound: bool) -> None:
    logprob = np.stack([row(seed, "smooth", V if bound else SIZE) for seed in range(SIZE)])
    actual = np.arange(SIZE) * (5 if bound else 1)
    with float64():
        block = block_of(logprob, actual, SIZE, bound=bound)
        for way in BOTH:
            assert np.abs(way(block, ALL, IDLE) - way(block, (), {})).max() < 1e-15


@pytest.mark.parametrize("name", [name for name, stage in STAGES.items() if stage.modifiers])
def test_missing_modifiers_are_neutral(name: str) -> None:
    stage = STAGES[name]
    switch = "dynatemp_range" if name == "temperature" else stage.parameters[0]
    some = {switch: PARAMETERS[switch].usual[-1]}
    with float64():
        block = block_of(np.tile(row(1, "smooth"), (SIZE, 1)), EVERY)
        for way in BOTH:
            found = way(block, (name,), some)
            assert np.array_equal(found, way(block, (name,), neutral(stage) | some))


@pytest.mark.parametrize("name", STAGES)
@BRIEF
@given(data=st.data(), seed=st.integers(0, 10**6), kind=KINDS)
def test_a_law_of_probability_is_left(name: str, data: Any, seed: int, kind: str) -> None:
    values = IDLE | data.draw(points(STAGES[name]))
    logprob = np.tile(row(seed, kind), (SIZE, 1))
    actual = np.minimum(EVERY, np.isfinite(logprob[0]).sum() - 1)
    with float64():
        block = block_of(logprob, actual)
        one, other = fast(block, ALL, values)[0], slow(block, ALL, values)[0]
    assert np.isfinite(one).all()
    assert (one >= 0).all()
    assert abs(one[: actual.max() + 1].sum() - 1) < 1e-11
    assert np.abs(one - other).max() < 1e-10


@pytest.mark.parametrize("name", STAGES)
@BRIEF
@given(data=st.data(), seed=st.integers(0, 10**6), kind=st.sampled_from(["smooth", "ties", "flat"]))
def test_both_ways_agree_after_other_cuts(name: str, data: Any, seed: int, kind: str) -> None:
    values = IDLE | {"top_k": 9.0, "top_p": 0.95, "min_p": 0.01} | data.draw(points(STAGES[name]))
    values["top_k"] = float(min(values["top_k"], SIZE)) or 9.0
    logprob = np.stack([row(seed + i, kind, V) for i in range(SIZE)])
    actual = np.where(EVERY % 3, EVERY, V - 1 - EVERY)
    # What an open tail would leave unknown is known after top_k.
    chain = ("top_k", "top_p", *ALL)
    with float64():
        block = block_of(logprob, actual, SIZE, bound=True)
        one, other = fast(block, chain, values), slow(block, chain, values)
    assert np.abs(one - other).max() < 1e-10
    assert ((one >= 0) & (one <= 1 + 1e-12)).all()


@pytest.mark.parametrize("name", STAGES)
def test_a_single_alternative_stays(name: str) -> None:
    stage = STAGES[name]
    some = {one: (PARAMETERS[one].usual or (0.7,))[-1] for one in stage.parameters}
    with float64():
        block = block_of(np.zeros((3, 1)), np.zeros(3, int))
        for way in BOTH:
            assert np.abs(way(block, ALL, IDLE | some) - 1).max() < 1e-15


OPEN = tuple(name for name in ALL if not STAGES[name].needs)


@pytest.mark.parametrize("name", OPEN)
@BRIEF
@given(data=st.data(), seed=st.integers(0, 10**6), warm=st.floats(0.3, 2))
def test_both_ways_agree_on_the_unseen_tail(name: str, data: Any, seed: int, warm: float) -> None:
    idle = neutral(*(STAGES[one] for one in OPEN)) | {"temperature": warm, "min_p": 1e-3}
    values = idle | data.draw(points(STAGES[name])) | {"dynatemp_range": 0.0}
    values["top_k"] = float(min(values["top_k"], SIZE))
    logprob = np.stack([row(seed + i, "smooth", V) for i in range(SIZE)])
    actual = np.where(EVERY % 3, EVERY, V - 1 - EVERY)
    with float64():
        block = block_of(logprob, actual, SIZE, bound=True)
        one, other = fast(block, OPEN, values), slow(block, OPEN, values)
    assert np.abs(one - other).max() < 1e-10
