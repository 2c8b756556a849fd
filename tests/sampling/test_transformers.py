"""transformers' own warpers against ``dialect="transformers"``, on random scores."""

from typing import Any

import jax
import numpy as np
import pytest
from law_rows import QUICK, Array, arrays, descending

from jaxsppl.parameters import check_order, default_order
from jaxsppl.sampling.law import law, positions
from jaxsppl.sampling.precision import float64

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
warpers: Any = pytest.importorskip("transformers.generation.logits_process")

SIZE, V = 6, 150
WARPERS = {
    "temperature": "TemperatureLogitsWarper",
    "top_h": "TopHLogitsWarper",
    "top_k": "TopKLogitsWarper",
    "top_p": "TopPLogitsWarper",
    "min_p": "MinPLogitsWarper",
    "typical_p": "TypicalLogitsWarper",
    "epsilon_cutoff": "EpsilonLogitsWarper",
    "eta_cutoff": "EtaLogitsWarper",
}
ORDER = default_order(WARPERS, "transformers")
NEUTRAL = {
    "temperature": 1.0,
    "top_h": 1.0,
    "top_k": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
_law = jax.jit(law, static_argnames="chain", compiler_options=QUICK)


def theirs(scores: Array, order: tuple[str, ...], values: dict[str, float]) -> Array:
    """What the warpers leave of the scores, as probabilities."""
    left = torch.tensor(scores)
    ids = torch.zeros((len(scores), 1), dtype=torch.long)
    for name in order:
        if name in values and values[name] != NEUTRAL[name]:
            value: Any = int(values[name]) if name == "top_k" else values[name]
            left = getattr(warpers, WARPERS[name])(value)(ids, left)
    return torch.softmax(left, dim=-1).numpy()


def ours(scores: Array, chain: tuple[str, ...], values: dict[str, float]) -> Array:
    """The same by the stages; the rows descend already."""
    logprob = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    with float64():
        return np.asarray(_law(positions(logprob), chain=chain, values=arrays(values)))


def scores_of(seed: int) -> Array:
    """Rows from flat to steep, none with two equal scores."""
    rng = np.random.default_rng(seed)
    return descending(rng.normal(0, rng.uniform(0.3, 5, (SIZE, 1)), (SIZE, V)))


def drawn(rng: np.random.Generator) -> dict[str, float]:
    """Random values, each as often neutral as not."""
    values = {
        "temperature": rng.uniform(0.3, 2.5),
        "top_h": rng.uniform(0.2, 0.99),
        "top_k": float(rng.integers(1, V)),
        "top_p": rng.uniform(0.3, 0.99),
        "min_p": rng.uniform(0.001, 0.3),
        "typical_p": rng.uniform(0.2, 0.99),
        "epsilon_cutoff": rng.uniform(1e-4, 0.02),
        "eta_cutoff": rng.uniform(1e-4, 0.3),
    }
    return {name: value if rng.random() < 0.5 else NEUTRAL[name] for name, value in values.items()}


def test_each_warper_alone() -> None:
    rng = np.random.default_rng(0)
    for name in WARPERS:
        for seed in range(8):
            values = {**NEUTRAL, name: 0.0}
            while values[name] in (0.0, NEUTRAL[name]):
                values[name] = drawn(rng)[name]
            scores = scores_of(seed)
            found, expected = ours(scores, ORDER, values), theirs(scores, tuple(WARPERS), values)
            assert (expected > 0).sum() < expected.size or name == "temperature"
            assert np.abs(found - expected).max() < 1e-6, (name, values[name], seed)


@pytest.mark.parametrize("order", [tuple(WARPERS), tuple(reversed(WARPERS))], ids=["own", "back"])
def test_chains_of_all_warpers(order: tuple[str, ...]) -> None:
    chain = check_order(order, WARPERS, dialect="transformers")
    for seed in range(40):
        values = drawn(np.random.default_rng(seed))
        scores = scores_of(100 + seed)
        difference = np.abs(ours(scores, chain, values) - theirs(scores, order, values))
        assert difference.max() < 1e-6, (seed, values)


def test_ties_are_kept_as_the_warpers_keep_them() -> None:
    scores = np.log([[0.3, 0.2, 0.2, 0.2, 0.1], [0.4, 0.4, 0.1, 0.05, 0.05]])
    for k in (1.0, 2.0, 3.0, 4.0):
        values = {**NEUTRAL, "top_k": k}
        difference = ours(scores, ORDER, values) - theirs(scores, tuple(WARPERS), values)
        assert np.abs(difference).max() < 1e-6
