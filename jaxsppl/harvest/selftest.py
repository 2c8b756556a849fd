"""The first passage, scored again in other ways: what must not change the numbers does not.

A server that fails is refused, whatever its name is: its values would be those of a sampler, of
another text, or stale.
"""

import logging
from dataclasses import asdict, dataclass

import numpy as np

from jaxsppl.errors import ServerError
from jaxsppl.harvest.protocol import How, Passage, PassageError, ScoredPassage, Scorer

log = logging.getLogger("jaxsppl.harvest")

# Characters of the continuation that are scored again; few where each token is dear.
LENGTH, FEW = 240, 16
# Half the temperature moves a typical log-probability by a third of a nat and more. Arithmetic that
# depends on the batch moves single ones by tenths on some builds, so the median decides.
OTHER_TEMPERATURE = 0.5
MOST = 0.1


@dataclass(frozen=True)
class _Text:
    """The beginning of a passage."""

    document: str
    prefix: str
    continuation: str


@dataclass(frozen=True)
class Proof:
    """What the self-test found, for the harvest file; differences are the largest ones [nat].

    Attributes
    ----------
    document : str
        The passage whose beginning was scored.
    n_token : int
    temperature_difference, cache_difference : float
        Between two temperatures of the sampling; between without and with the server's cache.
    largest_sum : float
        Of the probabilities of the alternatives of a token.
    """

    document: str
    n_token: int
    temperature_difference: float
    cache_difference: float
    largest_sum: float

    def as_dict(self) -> dict[str, str | int | float]:
        """Return plain JSON values."""
        return asdict(self)


async def prove(scorer: Scorer, passage: Passage, slot: int, length: int = LENGTH) -> Proof | None:
    """Score the beginning of a passage in several ways and compare.

    Parameters
    ----------
    scorer : Scorer
    passage : Passage
        One that has been scored.
    slot : int
    length : int
        Characters of the continuation to score.

    Returns
    -------
    Proof or None
        None where nothing can be varied.

    Raises
    ------
    ServerError
        When the values depend on what they must not depend on.
    PassageError
        When this passage cannot show it.
    Unavailable
        When the server does not answer, after retries.
    """
    text = _Text(passage.document, passage.prefix, passage.continuation[:length])
    plain = await scorer.score_as(text, slot, How())
    if plain is None:
        return None
    try:
        hot = await scorer.score_as(text, slot, How(temperature=OTHER_TEMPERATURE))
        cached = await scorer.score_as(text, slot, How(cache=True))
    except PassageError as error:
        raise ServerError(
            f"{scorer.label}: asked again for the same text, it answers otherwise: {error}"
        ) from error
    temperature = _differences(plain, hot)
    cache = _differences(plain, cached)
    stretch = _stretch(plain, hot)
    if np.median(temperature) > MOST or abs(stretch - 1) > MOST:
        raise ServerError(
            f"{scorer.label}: its log-probabilities change with the temperature of the sampling, by"
            f" {np.median(temperature):.2f} nat at the median token and by the factor {stretch:.2f}"
            " between alternatives: they are processed values, not the model's; start it so that "
            "it reports raw ones (vLLM: --logprobs-mode raw_logprobs, SGLang: "
            "SGLANG_RETURN_ORIGINAL_LOGPROB=1)"
        )
    if np.median(cache) > MOST:
        raise ServerError(
            f"{scorer.label}: the same request gives values that differ by {np.median(cache):.2f} "
            "nat at the median token once its cache is filled: they are stale; start it without a "
            "prefix cache"
        )
    proof = Proof(
        passage.document,
        int(plain.token_id.size),
        round(float(temperature.max()), 6),
        round(float(cache.max()), 6),
        round(float(np.exp(plain.top_logprob.astype(np.float64)).sum(axis=1).max()), 6),
    )
    if max(proof.temperature_difference, proof.cache_difference) > MOST:
        log.warning(
            "%s: the same text gave values up to %.2f nat apart (temperature %.2f, cache %.2f); "
            "its arithmetic depends on how requests are batched",
            scorer.label,
            max(proof.temperature_difference, proof.cache_difference),
            proof.temperature_difference,
            proof.cache_difference,
        )
    return proof


def _stretch(one: ScoredPassage, other: ScoredPassage | None) -> float:
    """Return the factor by which log-probabilities of alternatives lie further apart.

    A temperature stretches all of them alike, also where one token has nearly all probability and
    its own value hardly moves.
    """
    if other is None:
        return 1.0
    gaps = [each.top_logprob[:, :1].astype(np.float64) - each.top_logprob for each in (one, other)]
    known = np.isfinite(gaps[0]) & np.isfinite(gaps[1])
    first, second = (np.where(known, gap, 0.0) for gap in gaps)
    total = float((first * first).sum())
    return float((first * second).sum()) / total if total else 1.0


def _differences(one: ScoredPassage, other: ScoredPassage | None) -> "np.ndarray[tuple[int]]":
    """Return by how much the log-probability of each token differs [nat]."""
    if other is None or other.token_id.tolist() != one.token_id.tolist():
        return np.asarray([np.inf])
    return np.abs(one.token_logprob.astype(np.float64) - other.token_logprob)
