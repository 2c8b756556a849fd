"""Named settings that a sweep is compared with, scored by the definition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl.errors import PlanError
from jaxsppl.schema import Array
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.documents import Documents, point_sums
from jaxsppl.sweep.engine import Means, direct_means


@dataclass(frozen=True)
class Baseline:
    """A named setting: the order of its chain and its parameters."""

    chain: tuple[str, ...]
    settings: Mapping[str, float]


# llama.cpp's defaults: `common/common.h` of b11434, as the server reports them.
BASELINES: dict[str, Baseline] = {
    "neutral": Baseline((), {}),
    "llama.cpp default": Baseline(
        ("top_k", "top_p", "min_p", "temperature"),
        {"top_k": 40.0, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
    ),
}

# vLLM's SamplingParams without a model's generation_config.json: its own order, nothing cut.
VLLM = Baseline(
    ("temperature", "min_p", "top_k", "top_p"),
    {"temperature": 1.0, "min_p": 0.0, "top_k": 0.0, "top_p": 1.0},
)


def baseline_means(
    tokens: TokenArrays, baselines: Sequence[Baseline], *, epsilon: float, tail: str, block: int
) -> list[Means]:
    """Score named settings.

    Parameters
    ----------
    tokens : TokenArrays
        One harvest.
    baselines : sequence of Baseline
        The settings.
    epsilon : float
        Smallest probability that counts as itself.
    tail : str
        "bound" or "drop".
    block : int
        Tokens that are computed at once.

    Returns
    -------
    list of Means
        Of scalars; NaN where the harvest has too few alternatives for the setting.
    """
    results: list[Means] = []
    unknown = np.asarray(np.nan)
    for baseline in baselines:
        point = {"epsilon": epsilon, **baseline.settings}
        try:
            results += direct_means(tokens, [point], chain=baseline.chain, tail=tail, block=block)
        except PlanError:
            results.append(Means(unknown, unknown, unknown, unknown))
    return results


def baseline_sums(
    tokens: TokenArrays, documents: Documents, baseline: Baseline, *, epsilon: float, tail: str
) -> tuple[Array, Array]:
    """Score a named setting on each document.

    Parameters
    ----------
    tokens : TokenArrays
    documents : Documents
        Of the same harvest.
    baseline : Baseline
        The setting.
    epsilon, tail
        As in `baseline_means`.

    Returns
    -------
    loss, ood : array
        (document,) summed losses [nat] and counts; NaN where the harvest has too few alternatives.
    """
    point = {**baseline.settings, "epsilon": epsilon}
    try:
        return point_sums(tokens, documents, point, chain=baseline.chain, tail=tail)
    except PlanError:
        unknown = np.full(len(documents), np.nan)
        return unknown, unknown
