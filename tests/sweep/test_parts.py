"""Parts of a sweep: their sums are the whole's, and those that are finished are found again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made

from jaxsppl import store
from jaxsppl.sweep import parts
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.engine import Sums, grid_sums
from jaxsppl.sweep.plan import Axis, Plan, make_plan

AXES = (
    Axis("beta", (0.6, 1.0, 1.8)),
    Axis("temperature", (0.5, 0.8, 1.0, 1.4, 2.0)),
    Axis("min_p", (0.0, 0.1)),
)


def planned(level: str) -> tuple[Plan, TokenArrays]:
    tokens = token_arrays(made())
    plan = make_plan(
        [tokens], AXES, chain=None, epsilon=0.01, tail="bound", level=level, memory_mib=512
    )
    return plan, tokens


def nothing(_: int) -> None:
    """Take no notice."""


def check_same(one: Sums, other: Sums) -> None:
    np.testing.assert_allclose(one.loss, other.loss, rtol=2e-6)
    np.testing.assert_allclose(one.ood, other.ood, atol=2e-5)


@given(rows=st.integers(1, 5), shard=st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_parts_cover_everything_once(rows: int, shard: int) -> None:
    plan, tokens = planned("factored")
    cut = parts.parts_of(replace(plan, rows=rows, shard=shard), tokens.n_token)
    seen = np.zeros((5, tokens.n_token), int)
    for part in cut:
        seen[part.rows, part.tokens] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("level", ["factored", "binned", "direct"])
def test_the_sums_of_the_parts_are_those_of_the_whole(level: str) -> None:
    plan, tokens = planned(level)
    whole = grid_sums(plan, tokens, nothing)
    seen: list[int] = []
    cut = parts.Here()(replace(plan, rows=2, shard=16), tokens, seen.append)
    check_same(cut, whole)
    assert sum(seen) >= plan.n_point * tokens.n_token


def test_a_sweep_goes_on_from_its_finished_parts(tmp_path: Path) -> None:
    plan, tokens = planned("factored")
    plan = replace(plan, rows=1, shard=16)
    finished = parts.Finished(tmp_path / "parts")

    class Stop(Exception):
        pass

    done = 0

    def stop_at_half(n: int) -> None:
        nonlocal done
        done += n
        if done > plan.n_point * tokens.n_token / 2:
            raise Stop

    with pytest.raises(Stop):
        parts.Here(finished)(plan, tokens, stop_at_half)
    kept = list((tmp_path / "parts").glob("*.npz"))
    assert 0 < len(kept) < 10
    kept[0].write_bytes(kept[0].read_bytes()[:100])  # torn by a crash of the machine
    times = {file: file.stat().st_mtime_ns for file in kept[1:]}
    again = parts.Here(finished)(plan, tokens, nothing)
    assert len(list((tmp_path / "parts").glob("*.npz"))) == 10
    assert {file: file.stat().st_mtime_ns for file in kept[1:]} == times
    check_same(again, grid_sums(plan, tokens, nothing))
    store.remove_arrays(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.02},
        {"chain": ("temperature", "min_p")},
        {"tail": "drop"},
        {"axes": AXES[::-1]},
    ],
)
def test_a_part_of_another_sweep_is_not_taken(tmp_path: Path, change: dict[str, object]) -> None:
    plan, tokens = planned("factored")
    finished = parts.Finished(tmp_path)
    part = parts.parts_of(plan, tokens.n_token)[0]
    finished.put(plan, tokens, part, Sums(np.zeros((3, 3, 5, 2)), np.zeros((3, 5, 2))))
    assert finished.get(plan, tokens, part) is not None
    assert finished.get(replace(plan, **change), tokens, part) is None
    assert finished.get(plan, token_arrays(made(seed=1)), part) is None
