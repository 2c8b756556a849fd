"""What each program means by a name: its order and its comparisons, through the public API."""

import numpy as np
import pytest
from law_rows import Array, each_actual, harvest_of

import jaxsppl
from jaxsppl.config import build
from jaxsppl.errors import ConfigError
from jaxsppl.parameters import check_order, default_order

BASE = [0.5, 0.25, 0.12, 0.08, 0.05]


def law(dialect: str, chain: tuple[str, ...] | None = None, **values: float) -> Array:
    """What a program gives each token of the distribution."""
    harvest = harvest_of(*each_actual(BASE))
    return jaxsppl.token_probabilities(harvest, chain=chain, dialect=dialect, **values).values


@pytest.mark.parametrize(
    ("dialect", "order"),
    [
        (
            "llama.cpp",
            "top_n_sigma top_k typical_p top_p min_p xtc temperature",
        ),
        ("vllm", "temperature min_p top_k top_p"),
        (
            "transformers",
            "temperature top_h top_k@transformers top_p min_p typical_p@transformers "
            "epsilon_cutoff eta_cutoff",
        ),
        ("sglang", "temperature top_k top_p@sglang min_p"),
    ],
)
def test_default_orders(dialect: str, order: str) -> None:
    names = order.split()
    used = [name.partition("@")[0] for name in names]
    used = ["xtc_probability" if name == "xtc" else name for name in used]
    for one in (used, used[::-1]):
        assert default_order([*one, "alpha", "epsilon"], dialect) == tuple(names)
    assert default_order(used[:1], dialect) == tuple(names[:1])


@pytest.mark.parametrize(
    ("dialect", "values", "expected"),
    [
        # Temperature comes last in llama.cpp and first elsewhere.
        ("llama.cpp", {"temperature": 2, "min_p": 0.45}, [2**0.5, 1, 0, 0, 0]),
        ("vllm", {"temperature": 2, "min_p": 0.5}, [2**0.5, 1, 0, 0, 0]),
        ("llama.cpp", {"temperature": 2, "min_p": 0.3}, [2**0.5, 1, 0, 0, 0]),
        ("vllm", {"temperature": 2, "min_p": 0.3}, np.sqrt(BASE)),
        ("sglang", {"top_k": 3, "top_p": 0.76}, [0.5, 0.25, 0.12, 0, 0]),
        ("vllm", {"top_k": 3, "top_p": 0.76}, [0.5, 0.25, 0, 0, 0]),
        ("transformers", {"top_k": 3, "top_p": 0.76}, [0.5, 0.25, 0, 0, 0]),
        # What equality means to typical_p and top_p is in the vectors: a harvest is rounded.
        ("transformers", {"typical_p": 0.7}, [0.5, 0.25, 0, 0, 0]),
    ],
)
def test_the_same_settings_are_another_law(
    dialect: str, values: dict[str, float], expected: list[float]
) -> None:
    share = np.asarray(expected) / np.sum(expected)
    # A harvest is in single precision.
    assert np.abs(law(dialect, **values) - share).max() < 1e-6


def test_ties_at_the_k_th_place() -> None:
    harvest = harvest_of(*each_actual([0.4, 0.2, 0.2, 0.1, 0.1]))
    exact = jaxsppl.token_probabilities(harvest, top_k=2).values
    tied = jaxsppl.token_probabilities(harvest, top_k=2, dialect="transformers").values
    assert (np.count_nonzero(exact), np.count_nonzero(tied)) == (2, 3)


def test_a_chain_by_hand_keeps_the_dialects_meaning() -> None:
    chain = ("top_k", "top_p", "temperature", "top_p")
    found = law("sglang", chain, top_k=3, top_p=0.76, temperature=1.5)
    three = np.asarray(BASE[:3]) ** (1 / 1.5)
    assert np.abs(found[:3] - three / three.sum()).max() < 1e-6
    named = ("top_k", "top_p@sglang", "temperature", "top_p@sglang")
    assert check_order(chain, ["top_p"], dialect="sglang") == named
    assert np.array_equal(found, law("llama.cpp", named, top_k=3, top_p=0.76, temperature=1.5))


def test_a_config_names_its_dialect() -> None:
    raw = {"grid": {"top_p": [0.9], "temperature": [1, 2]}, "chain": {"dialect": "sglang"}}
    assert build(raw).order() == ("temperature", "top_p@sglang")
    raw["chain"] = {"dialect": "sglang", "orders": {"last": ["top_p", "temperature"]}}
    assert build(raw).orders() == {"last": ("top_p@sglang", "temperature")}
    with pytest.raises(ConfigError, match=r"chain\.dialect: 'ollama' is not allowed"):
        build({"chain": {"dialect": "ollama"}})
    with pytest.raises(ConfigError, match="vllm has no 'xtc'"):
        build({"chain": {"dialect": "vllm"}, "grid": {"xtc_probability": [0.5]}})
    with pytest.raises(ConfigError, match="no effect without 'xtc_probability'"):
        build({"grid": {"xtc_threshold": [0.1, 0.2]}})
    with pytest.raises(ConfigError, match="'skew' bends the draw itself"):
        build({"chain": {"order": ["skew", "min_p"]}, "grid": {"skew": [0.5], "min_p": [0]}})
    with pytest.raises(ConfigError, match=r"'p_less' is a number above 1, or 0 \(off\)"):
        build({"grid": {"p_less": [0.5]}})


def test_the_result_says_which_law_it_is() -> None:
    harvest = harvest_of(*each_actual(BASE))
    result = jaxsppl.sweep(
        harvest, {"top_p": [0.75, 1.0], "top_k": [3]}, dialect="sglang", audit_points=2
    )
    assert result.attrs["chain"] == "top_k,top_p@sglang"
    three = np.log(np.asarray(BASE[:3]) / sum(BASE[:3]))
    expected = -(three.sum() + 2 * np.log(0.01)) / 5
    assert abs(result.nll.values[0, 0, 0, 0] - expected) < 1e-6
