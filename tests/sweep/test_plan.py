"""Plans: chunks that fit the memory, refusals with the numbers, orders, and words."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made

import jaxsppl
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.sweep.data import token_arrays
from jaxsppl.sweep.plan import Axis, make_plan

TOKENS = token_arrays(made())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.sampled_from([4, 64, 1024]),
    st.sampled_from(["drop", "bound"]),
    st.sampled_from(["factored", "direct"]),
)
def test_chunks_cover_the_grid_and_fit(
    sizes: list[int], memory_mib: int, tail: str, level: str
) -> None:
    names = ("temperature", "min_p", "top_p", "alpha")
    axes = [Axis(n, tuple(np.linspace(0.1, 1, k))) for n, k in zip(names, sizes, strict=False)]
    try:
        plan = make_plan(
            [TOKENS],
            axes,
            chain=None,
            epsilon=0.01,
            tail=tail,
            level=level,
            memory_mib=memory_mib,
        )
    except PlanError as error:
        assert f"{math.prod(sizes):,} points" in str(error)
        assert f"{memory_mib} MiB" in str(error)
        return
    assert plan.n_point == math.prod(sizes)
    lengths = {axis.name: len(axis.values) for axis in axes}
    assert sorted(plan.order) == sorted(lengths)
    pieces = [math.ceil(lengths[n] / c) for n, c in zip(plan.order, plan.chunk, strict=True)]
    assert math.prod(pieces) == plan.n_chunk
    assert all(1 <= c <= lengths[n] for n, c in zip(plan.order, plan.chunk, strict=True))
    smallest = math.prod(plan.chunk) == 1
    assert smallest or plan.result_bytes + plan.work_bytes <= memory_mib * 2**20


def test_many_temperatures_do_not_multiply_the_ranks() -> None:
    # Weights of all ranks at 4,000 temperatures at once would take gigabytes.
    harvest = made(n_vocab=200, n_rank=100)
    plan = jaxsppl.explain(harvest, {"temperature": np.linspace(0, 2.5, 4000)}, memory_mib=64)
    weights = 8 * plan.block * 100 * plan.chunk[plan.order.index("temperature")]
    assert 3 * weights < 64 * 2**20


@pytest.mark.parametrize("memory_mib", [64, 1024])
def test_1e8_points_are_refused_with_the_numbers(memory_mib: int) -> None:
    grid = {
        "temperature": np.linspace(0, 2, 1000),
        "min_p": np.linspace(0, 1, 1000),
        "alpha": np.linspace(0.5, 2, 100),
    }
    for verb in (jaxsppl.sweep, jaxsppl.explain):
        with pytest.raises(PlanError, match=r"100,000,000 points.*MiB.*temperature with 1000"):
            verb(made(), grid, memory_mib=memory_mib)


def test_1e8_points_are_planned_where_there_is_room() -> None:
    grid = {
        "temperature": np.linspace(0, 2, 1000),
        "min_p": np.linspace(0, 1, 1000),
        "top_p": np.linspace(0.5, 1, 100),
    }
    plan = jaxsppl.explain(made(), grid, tail="drop", memory_mib=8192)
    assert plan.n_point == 10**8
    assert plan.work_bytes < 8192 * 2**20
    assert plan.seconds > 10


def test_a_long_axis_is_checked_in_no_time_and_a_repeat_found_in_it() -> None:
    values = np.linspace(0, 2, 200_001)
    assert jaxsppl.explain(made(), {"temperature": values}).n_point == 200_001
    with pytest.raises(ConfigError, match=r"2\.0 is given twice"):
        jaxsppl.explain(made(), {"temperature": [*values, 2.0]})


def test_the_chain_is_llama_cpps_order_of_what_is_swept() -> None:
    grid = {"temperature": [1.0], "top_p": [0.9], "top_k": [3], "beta": [2.0]}
    assert jaxsppl.explain(made(), grid).chain == ("top_k", "top_p", "temperature")
    assert jaxsppl.explain(made(), {"alpha": [1.0]}).chain == ()


def test_plans_are_json_and_words() -> None:
    plan = jaxsppl.explain(made(), {"temperature": [0.5, 1.0], "alpha": [0.5, 1.0, 2.0]})
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["n_point"] == 6
    text = plan.text()
    for word in ("points    6", "temperature", "30 tokens", plan.level, "MiB"):
        assert word in text


def test_explain_refuses_what_sweep_refuses() -> None:
    for verb in (jaxsppl.sweep, jaxsppl.explain):
        with pytest.raises(PlanError, match=r"top_k 50 is above the 16 .*--alternatives 50"):
            verb(made(), {"top_k": [0, 50]})
