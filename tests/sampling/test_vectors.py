"""Every sampler against numbers that the real programs gave for one distribution.

Values of llama.cpp's samplers come from calls of libllama; the others from the programs' own rules
(transformers, vLLM, SGLang, text-generation-webui, exllamav2) and the papers'. Six digits each.
"""

import numpy as np
import pytest
from law_rows import BOTH, Array, Way, block_of, each_actual

from jaxsppl.sampling.precision import float64

BASE = [0.5, 0.25, 0.12, 0.08, 0.05]
SIZE = 8
Chain = list[tuple[str, dict[str, float]]]


def one(name: str, value: float, **more: float) -> tuple[str, dict[str, float]]:
    """A stage whose first parameter has its name."""
    return name, {name.partition("@")[0]: value, **more}


def xtc(probability: float, threshold: float) -> tuple[str, dict[str, float]]:
    return "xtc", {"xtc_probability": probability, "xtc_threshold": threshold}


def warm(value: float, span: float = 0.0, exponent: float = 1.0) -> tuple[str, dict[str, float]]:
    dynamic = {"dynatemp_range": span, "dynatemp_exponent": exponent} if span else {}
    return "temperature", {"temperature": value, **dynamic}


def smooth(factor: float, curve: float) -> tuple[str, dict[str, float]]:
    return "smoothing", {"smoothing_factor": factor, "smoothing_curve": curve}


def first(n: int) -> list[float]:
    """The first n tokens, renormalised."""
    return [p / sum(BASE[:n]) if i < n else 0.0 for i, p in enumerate(BASE)]


HF_TYPICAL = "typical_p@transformers"
VECTORS: list[tuple[Chain, list[float]]] = [
    # 1.4 typical: strict in llama.cpp
    ([one("typical_p", 0.2)], [0, 1, 0, 0, 0]),
    ([one("typical_p", 0.6)], first(2)),
    ([one("typical_p", 0.75)], first(3)),
    ([one("typical_p", 0.9)], first(4)),
    ([one("typical_p", 0.0)], [0, 1, 0, 0, 0]),
    ([one("typical_p", 1.0)], BASE),
    # 1.5
    ([one("top_n_sigma", 0.5)], first(1)),
    ([one("top_n_sigma", 1.0)], first(2)),
    ([one("top_n_sigma", 2.0)], first(3)),
    ([one("top_n_sigma", -1.0)], BASE),
    # 1.6: on, off, and the mixture of both
    ([xtc(1, 0.1)], [0, 0, 0.48, 0.32, 0.20]),
    ([xtc(1, 0.12)], [0, 0, 0.48, 0.32, 0.20]),
    ([xtc(1, 0.2)], [0, 0.5, 0.24, 0.16, 0.1]),
    ([xtc(1, 0.26)], BASE),
    ([xtc(1, 0.5)], BASE),
    ([xtc(1, 0.0)], [0, 0, 0, 0, 1]),
    ([xtc(0.5, 0.1)], [0.25, 0.125, 0.3, 0.2, 0.125]),
    ([xtc(0, 0.1)], BASE),
    # 1.8
    ([warm(1, 0.5, 1)], [0.426951, 0.251260, 0.143320, 0.105104, 0.073365]),
    ([warm(1, 0.5, 2)], [0.459407, 0.251683, 0.133082, 0.093593, 0.062235]),
    ([warm(0.8, 1, 1)], [0.402629, 0.249900, 0.150810, 0.114094, 0.082567]),
    # 1.11 chains
    (
        [one("top_k", 4), one("top_p", 0.9), one("min_p", 0.05), warm(0.8)],
        [0.629552, 0.264694, 0.105754, 0, 0],
    ),
    ([one("top_k", 3), one("top_p", 0.76), warm(1)], first(2)),
    ([one("min_p", 0.2), warm(2)], [0.455165, 0.321850, 0.222984, 0, 0]),
    ([one("min_p", 0.3), warm(2)], [0.585786, 0.414214, 0, 0, 0]),
    ([warm(2), one("min_p", 0.3)], [0.343261, 0.242722, 0.168163, 0.137305, 0.108549]),
    ([one("top_n_sigma", 1.5), warm(1.5)], [0.613512, 0.386488, 0, 0, 0]),
    ([one("typical_p", 0.6), one("top_p", 0.7), warm(1.2)], [0.640520, 0.359480, 0, 0, 0]),
    ([one("top_k", 4), xtc(1, 0.2), warm(0.7)], [0, 0.646487, 0.226564, 0.126950, 0]),
    (
        [one("min_p", 0.1), warm(0.8, 0.5, 1)],
        [0.470254, 0.251473, 0.129611, 0.089872, 0.058789],
    ),
    ([one("top_k", 3), warm(1, 0.5, 1)], [0.511992, 0.308085, 0.179923, 0, 0]),
    # 2 vLLM
    ([warm(2), one("min_p", 0.5)], [0.585786, 0.414214, 0, 0, 0]),
    # 3 transformers
    ([one(HF_TYPICAL, 0.75)], first(2)),
    ([one(HF_TYPICAL, 0.7500001)], first(3)),
    ([one("epsilon_cutoff", 0.1)], first(3)),
    ([one("eta_cutoff", 0.09)], first(3)),
    ([one("eta_cutoff", 0.3)], first(2)),
    ([one("top_h", 0.4)], first(1)),
    ([one("top_h", 0.8)], first(3)),
    # 4 SGLang: the joint filter, and the sequential one
    ([one("top_k", 3), one("top_p@sglang", 0.76)], first(3)),
    ([one("top_k", 3), one("top_p", 0.76)], first(2)),
    ([one("top_p@sglang", 0.75)], first(3)),
    # 5.1 smoothing
    ([smooth(0.3, 1)], [0.335850, 0.290769, 0.182302, 0.122628, 0.068449]),
    ([smooth(0.3, 2)], [0.373984, 0.331024, 0.178168, 0.089773, 0.027051]),
    ([smooth(0.3, 3)], [0.398957, 0.361025, 0.166816, 0.062961, 0.010241]),
    # 5.2 tail free
    ([one("tfs", 0.5)], first(1)),
    ([one("tfs", 0.9)], first(2)),
    ([one("tfs", 0.95)], first(2)),
    ([one("tfs", 0.97)], first(3)),
    # 5.3
    ([one("top_a", 0.5)], first(2)),
    ([one("top_a", 0.4)], first(3)),
    # 5.5
    ([one("skew", 0.5)], [0.318923, 0.303393, 0.172532, 0.124061, 0.081091]),
    # 6
    ([one("p_less", 2)], first(1)),
    ([one("p_less", 3)], first(1)),
    ([one("p_less_norm", 1)], first(2)),
    ([one("min_k", 3)], first(1)),
    ([one("min_k", 5)], first(2)),
]


def sampled(way: Way, chain: Chain) -> Array:
    """(token,) what a chain gives each token of the distribution."""
    names = tuple(name for name, _ in chain)
    values = {name: value for _, stage in chain for name, value in stage.items()}
    logprob, actual = each_actual(BASE, SIZE)
    return way(block_of(logprob, actual), names, values)[0, : len(BASE)]


@pytest.mark.parametrize(("chain", "expected"), VECTORS, ids=[str(v[0]) for v in VECTORS])
def test_published_numbers(chain: Chain, expected: list[float]) -> None:
    with float64():
        for way in BOTH:
            assert np.abs(sampled(way, chain) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("chain", "temperature"),
    [
        # llama.cpp counts what top_n_sigma has masked, but not what top_k has removed.
        ([one("top_n_sigma", 1.0), warm(1, 0.5)], 0.8955),
        ([one("top_k", 2), warm(1, 0.5)], 1.418),
    ],
)
def test_dynamic_temperature_counts_the_candidates(chain: Chain, temperature: float) -> None:
    with float64():
        for way in BOTH:
            found = sampled(way, chain)
            ratio = np.log(found[0] / found[1]) / np.log(BASE[0] / BASE[1])
            assert abs(1 / ratio - temperature) < 5e-4
