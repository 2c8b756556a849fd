"""The audit: it finds a wrong grid, says which point is best, and NaN is never the best."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up import K, made, rows, scored

import jaxsppl
from jaxsppl.errors import AuditError
from jaxsppl.sweep import engine, parts
from jaxsppl.sweep.audit import audit, point_at
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.engine import Means, Sums
from jaxsppl.sweep.plan import Axis, Plan, make_plan

AXES = (Axis("temperature", (0.5, 1.0, 1.5)), Axis("min_p", (0.0, 0.1)))


def computed() -> tuple[Plan, TokenArrays, Means]:
    """A small sweep before its audit."""
    tokens = token_arrays(made())
    plan = make_plan(
        [tokens],
        AXES,
        chain=None,
        epsilon=0.01,
        tail="drop",
        level="factored",
        memory_mib=64,
    )
    return plan, tokens, engine.grid_means(plan, tokens, lambda _: None)


def test_a_right_grid_passes_and_the_best_point_is_the_least() -> None:
    plan, tokens, means = computed()
    checked = audit(plan, tokens, means, 100, np.random.default_rng(0))
    assert checked.n_point == 6
    assert checked.nll < 1e-12
    assert checked.ood == 0.0
    logprob, actual = rows(0)
    by_point = {
        index: scored(logprob[:, :K], actual, point_at(plan, index), ("min_p", "temperature"))
        for index in range(6)
    }
    best = min(by_point, key=lambda index: by_point[index][0])
    assert checked.best == point_at(plan, best)
    assert checked.best_nll == pytest.approx(by_point[best][0], abs=1e-12)
    assert checked.best_ood == pytest.approx(by_point[best][1], abs=1e-12)


@pytest.mark.parametrize("name", ["nll", "lower", "upper", "ood"])
@pytest.mark.parametrize("wrong", [1e-3, -1e-3, np.nan])
def test_one_wrong_number_is_found(name: str, wrong: float) -> None:
    plan, tokens, means = computed()
    changed = np.array(getattr(means, name))
    changed[2, 1] += wrong
    checked = audit(plan, tokens, replace(means, **{name: changed}), 100, np.random.default_rng(0))
    found = checked.ood if name == "ood" else checked.nll
    assert found == pytest.approx(np.inf if np.isnan(wrong) else 1e-3, rel=1e-6)


def test_nan_and_a_false_minimum_do_not_win_unseen() -> None:
    plan, tokens, means = computed()
    nll = np.array(means.nll)
    nll[0, 0] = np.nan
    # Without a single random point the best one is still recomputed.
    checked = audit(plan, tokens, replace(means, nll=nll), 0, np.random.default_rng(0))
    assert checked.n_point == 1
    assert checked.best != point_at(plan, 0)
    nll[1, 1] = 0.5
    lying = audit(plan, tokens, replace(means, nll=nll), 0, np.random.default_rng(0))
    assert lying.best == {"temperature": 1.0, "min_p": 0.1}
    assert lying.nll > 0.1
    assert lying.best_nll > 0.6


def test_places_count_rows_first() -> None:
    plan, _, _ = computed()
    found = [tuple(point_at(plan, index).values()) for index in range(6)]
    expected = [(t, m) for t in (0.5, 1.0, 1.5) for m in (0.0, 0.1)]
    assert found == expected


def test_a_sweep_with_wrong_numbers_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = parts.grid_sums

    def wrong(plan: Plan, tokens: TokenArrays, *others: Any) -> Sums:
        """The grid, off by a thousandth of a nat."""
        sums = exact(plan, tokens, *others)
        return replace(sums, loss=sums.loss + 1e-3 * tokens.n_token)

    monkeypatch.setattr(parts, "grid_sums", wrong)
    with pytest.raises(AuditError, match=r"0\.001 nat.*tolerance 0\.0001"):
        jaxsppl.sweep(made(), {"temperature": [0.5, 1.0, 1.5]}, tail="drop", level="factored")
    lenient = jaxsppl.sweep(
        made(), {"temperature": [0.5, 1.0, 1.5]}, tail="drop", level="factored", tolerance=1e-2
    )
    assert lenient.attrs["audit_nll"] == pytest.approx(1e-3, rel=1e-6)
