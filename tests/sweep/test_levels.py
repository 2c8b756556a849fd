"""The three levels give the same numbers: random chains and grids, and odd harvests."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import xarray as xr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from law_rows import descending, harvest_of
from made_up import made, rows

import jaxsppl
from jaxsppl.sweep.data import token_arrays
from jaxsppl.sweep.engine import Means, grid_means
from jaxsppl.sweep.plan import Axis, make_plan

TOKENS = 400


def hundredths(first: int, last: int) -> st.SearchStrategy[float]:
    """Settings as people give them."""
    return st.integers(first, last).map(lambda number: number / 100)


# Two values each, so that a program is compiled once a chain.
VALUES = {
    "temperature": hundredths(30, 250),
    "top_k": st.integers(1, 14).map(float),
    "top_p": hundredths(30, 99),
    "min_p": hundredths(1, 50),
    "top_a": hundredths(5, 90),
    "epsilon_cutoff": hundredths(1, 10),
    "skew": hundredths(-60, 60),
}
DRAWS = {
    "alpha": (0.2, 0.7, 1.0, 5.0, 20.0),
    "beta": (0.2, 0.7, 1.0, 5.0, 20.0),
}


def evaluated(
    harvest: xr.Dataset, axes: Sequence[Axis], chain: Sequence[str], tail: str
) -> list[Means]:
    """The grid by each level, without the help of an audit."""
    tokens = token_arrays(harvest)
    found: list[Means] = []
    for level in ("binned", "factored", "direct"):
        plan = make_plan(
            [tokens], axes, chain=chain, epsilon=0.01, tail=tail, level=level, memory_mib=1024
        )
        assert plan.level == level
        found.append(grid_means(plan, tokens, lambda _: None))
    return found


@given(data=st.data(), tail=st.sampled_from(["drop", "bound"]))
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
def test_random_chains(data: st.DataObject, tail: str) -> None:
    chosen = data.draw(st.permutations(list(VALUES)))[: data.draw(st.integers(1, 4))]
    chain = sorted(chosen, key=lambda name: name == "skew")  # it bends the draw, so it comes last
    axes = [
        Axis(name, tuple(data.draw(st.lists(VALUES[name], min_size=2, max_size=2, unique=True))))
        for name in chain
    ]
    axes += [Axis(name, values[::2]) for name, values in DRAWS.items()]
    harvest = harvest_of(*rows(3, n_token=TOKENS), 16)
    binned, factored, direct = evaluated(harvest, axes, chain, tail)
    for name in ("nll", "lower", "upper", "ood"):
        exact = getattr(direct, name)
        np.testing.assert_allclose(getattr(factored, name), exact, atol=1e-9)
    # Errors of single tokens at the kink of epsilon average out with their number; so few tokens
    # under draws as sharp as alpha = beta = 20 are far from the tolerance of a real text.
    for name in ("nll", "lower", "upper"):
        np.testing.assert_allclose(getattr(binned, name), getattr(direct, name), atol=1e-3)
    np.testing.assert_allclose(binned.ood, direct.ood, atol=10 / TOKENS)


def tied() -> xr.Dataset:
    """Every alternative as likely as any other."""
    return harvest_of(np.full((30, 16), -np.log(16)), np.arange(30) % 16, 16)


def outside() -> xr.Dataset:
    """No actual token among the alternatives."""
    logprob, _ = rows(2)
    return harvest_of(logprob, np.full(30, 180), 16)


def one_alternative() -> xr.Dataset:
    return made(n_rank=1)


def one_token() -> xr.Dataset:
    return harvest_of(*rows(5, n_token=1), 16)


def short() -> xr.Dataset:
    """Servers may give fewer alternatives than asked for."""
    harvest = made()
    top = harvest.top_logprob.values.copy()
    rank = harvest.token_rank.values
    for token in range(0, 30, 3):
        top[token, max(int(rank[token]), 2 + token % 5) :] = -np.inf
    harvest["top_logprob"] = (("token", "rank"), top)
    identity = harvest.top_token_id.values.copy()
    identity[~np.isfinite(top)] = -1
    harvest["top_token_id"] = (("token", "rank"), identity)
    harvest.attrs.pop("digest", None)
    return harvest


def certain() -> xr.Dataset:
    """One token has nearly all of the mass, as greedy models show it."""
    logits = np.tile([0.0, *np.linspace(-30, -90, 15)], (30, 1))
    return harvest_of(descending(logits), np.arange(30) % 3, 16)


@pytest.mark.parametrize("tail", ["drop", "bound"])
@pytest.mark.parametrize(
    "make", [tied, outside, one_alternative, one_token, short, certain], ids=lambda f: f.__name__
)
def test_odd_harvests(make: Callable[[], xr.Dataset], tail: str) -> None:
    harvest = make()
    grid = {
        "temperature": [0.0, 0.7, 2.5],
        "top_k": [0.0, 1.0, 3.0] if harvest.sizes["rank"] > 1 else [0.0, 1.0],
        "min_p": [0.0, 0.2],
        **{name: list(values) for name, values in DRAWS.items()},
    }
    # Every point is audited: what passes is within the tolerance everywhere.
    results = {
        level: jaxsppl.sweep(harvest, grid, level=level, tail=tail, audit_points=450)
        for level in ("binned", "factored")
    }
    exact = results["factored"]
    assert np.isfinite(exact.nll).all()
    assert exact.attrs["audit_nll"] < 1e-10
    assert exact.attrs["audit_points"] == exact.nll.size
    assert results["binned"].attrs["audit_nll"] <= 1e-4
    assert float(np.abs(results["binned"].nll - exact.nll).max()) <= 1e-4
