"""The law over all alternatives, stage by stage."""

import numpy as np
from law_rows import arrays, block_of, descending, fast

from jaxsppl.sampling.law import DRAW, law, positions, trace
from jaxsppl.sampling.precision import float64

BASE = np.log([[0.5, 0.25, 0.12, 0.08, 0.05]])


def test_a_trace_shows_what_each_stage_cuts() -> None:
    chain = ("top_k", "xtc", "temperature")
    values = {"top_k": 4.0, "xtc_probability": 0.25, "xtc_threshold": 0.2, "temperature": 0.7}
    with float64():
        steps = [
            step._replace(probability=np.asarray(step.probability))
            for step in trace(positions(BASE), chain, arrays(values))
        ]
    assert [step.name for step in steps] == ["", *chain, DRAW]
    assert np.abs(steps[0].probability - np.exp(BASE)).max() < 1e-15
    four = np.exp(BASE[0, :4]) / 0.95
    assert np.abs(steps[1].probability[0] - [*four, 0]).max() < 1e-14
    assert steps[2].share.tolist() == [0.75, 0.25]
    # The coin's other side leaves out the likeliest.
    assert (steps[2].start.tolist(), steps[2].stop.tolist()) == ([[0], [1]], [[4], [4]])
    on = np.array([0, 0.646487, 0.226564, 0.126950, 0])
    off = np.array([*four ** (1 / 0.7) / (four ** (1 / 0.7)).sum(), 0])
    assert np.abs(steps[3].probability[0] - (0.75 * off + 0.25 * on)).max() < 1e-6
    assert np.array_equal(steps[3].probability, steps[4].probability)


def test_it_is_what_each_token_would_get_were_it_the_actual_one() -> None:
    rng = np.random.default_rng(0)
    logprob = descending(rng.normal(0, 2, (3, 60)))
    logprob -= np.log(np.exp(logprob).sum(axis=1, keepdims=True))
    chain = ("min_p", "temperature", "top_p", "skew")
    values = {"min_p": 0.01, "temperature": 1.3, "top_p": 0.9, "skew": 0.2, "alpha": 0.8}
    with float64():
        found = law(positions(logprob[:, :12], 60), chain, arrays(values))
        for rank in range(12):
            block = block_of(logprob, np.full(3, rank), 12, bound=True)
            assert np.abs(fast(block, chain, values)[0] - found[:, rank]).max() < 1e-13


def test_absent_alternatives_have_no_probability() -> None:
    logprob = np.log(
        [[0.6, 0.4, 0.0, 0.0]], where=[[True, True, False, False]], out=np.full((1, 4), -np.inf)
    )
    with float64():
        found = np.asarray(law(positions(logprob), ("temperature",), arrays({"temperature": 2.0})))
    assert abs(found.sum() - 1) < 1e-15
    assert (found[0, 2:] == 0).all()
