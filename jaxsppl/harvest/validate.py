"""From what a server says of each position to arrays: the rules that every reply must keep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl.harvest.protocol import PassageError, ScoredPassage
from jaxsppl.harvest.statistics import Statistics, joined
from jaxsppl.schema import MASS_TOLERANCE

# Servers send the lowest float32 for a probability that underflowed to zero.
SENTINEL = -1e30
# Natural logarithm of the smallest positive float32: what underflowed is at or below it.
UNDERFLOW = float(np.log(np.finfo(np.float32).smallest_subnormal))
# What servers write for the logarithm of zero, because JSON has no infinity, or as a floor.
MINUS_INFINITY = (-9999.0, -1000.0)
FLOOR = -100.0
LOWEST = -3.4028235e38
# A softmax in float32 can exceed log 1 = 0 by rounding, never by this much.
POSITIVE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Position:
    """What a server says of one position: the actual token, and the alternatives as they came.

    `censored` says that the actual token's log-probability is at or below the value; `statistics`
    are of the whole vocabulary, where the server showed it.
    """

    token_id: int
    logprob: float
    top_ids: Sequence[int]
    top_logprobs: Sequence[float]
    censored: bool = False
    statistics: Statistics | None = None


def listed_position(
    i: int,
    target: int,
    logprob: float | None,
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    *,
    alternatives: int,
) -> Position:
    """Return one position of a server that lists alternatives in any order, floored in its way.

    Parameters
    ----------
    i : int
        Place, for messages.
    target : int
        Id of the actual token.
    logprob : float or None
        Its log-probability [nat].
    ids, logprobs : sequence
        The alternatives; one more than asked is the actual token, added at the end of its list.
        None and the known sentinels stand for no probability.
    alternatives : int
        How many were asked for.

    Returns
    -------
    Position
        Alternatives by falling log-probability.

    Raises
    ------
    PassageError
        When the actual token has no value, or the list is shorter or longer than asked.
    """
    if logprob is None:
        raise PassageError(f"token {i}: the server sent null for the token itself")
    pairs = [(token, floored(value)) for token, value in zip(ids, logprobs, strict=True)]
    if len(pairs) == alternatives + 1:
        pairs = [pair for pair in pairs if pair[0] != target]
    if len(pairs) < alternatives:
        raise PassageError(
            f"token {i}: {len(pairs)} alternatives came for {alternatives}; the server clamps its "
            f"lists, ask for fewer with --alternatives"
        )
    if logprob == FLOOR:
        pairs = [pair for pair in pairs if pair[0] != target]
    pairs.sort(key=lambda pair: -pair[1])
    return Position(
        target,
        logprob if logprob == FLOOR else floored(logprob),
        [token for token, _ in pairs],
        [value for _, value in pairs],
        logprob == FLOOR,
    )


def floored(value: float | None) -> float:
    """Return a value with what stands for no probability made the lowest float32.

    Parameters
    ----------
    value : float or None
        Log-probability, or a sentinel: null, -9999, -1000, -100, -3.4e38.

    Returns
    -------
    float
    """
    return LOWEST if value is None or value in MINUS_INFINITY or value == FLOOR else value


def scored_passage(
    positions: Sequence[Position],
    targets: Sequence[int],
    token_bytes: Sequence[int],
    *,
    alternatives: int,
    n_vocab: int,
    context_tokens: int,
    merged: int,
) -> ScoredPassage:
    """Check the positions of one passage and return them as arrays.

    Parameters
    ----------
    positions : sequence of Position
        One for each scored token.
    targets : sequence of int
        The text's own token ids.
    token_bytes : sequence of int
        UTF-8 length of each [byte].
    alternatives : int
        K; the arrays are exactly that wide.
    n_vocab : int
        Size of the vocabulary.
    context_tokens, merged : int
        Passed on.

    Returns
    -------
    ScoredPassage

    Raises
    ------
    PassageError
        Saying which rule is broken and where.
    """
    if len(positions) != len(targets):
        raise PassageError(f"{len(positions)} positions came for {len(targets)} tokens")
    shape = (len(targets), alternatives)
    top_id = np.full(shape, -1, np.int32)
    top = np.full(shape, -np.inf, np.float64)
    logprob = np.empty(shape[0], np.float64)
    rank = np.zeros(shape[0], np.int32)
    for i, (position, target) in enumerate(zip(positions, targets, strict=True)):
        if position.token_id != target:
            raise PassageError(f"token {i}: id {position.token_id} came for id {target}")
        n = len(position.top_ids)
        if not 0 < n <= alternatives:
            raise PassageError(f"token {i}: {n} alternatives came, expected {alternatives}")
        try:
            row_ids = np.asarray(position.top_ids, np.int64)
        except OverflowError:
            raise PassageError(f"token {i}: an alternative's id is no 64-bit number") from None
        row = np.asarray(position.top_logprobs, np.float64)
        rank[i], logprob[i] = _check_row(i, target, position.logprob, row_ids, row, n_vocab)
        listed = row > SENTINEL
        top_id[i, :n][listed] = row_ids[listed]
        top[i, :n][listed] = np.minimum(row[listed], 0.0)
    known = [position.statistics for position in positions if position.statistics is not None]
    underflowed = logprob <= SENTINEL
    censored = underflowed | np.asarray([position.censored for position in positions])
    logprob = np.minimum(np.where(underflowed, UNDERFLOW, logprob), 0.0)
    return ScoredPassage(
        token_id=np.asarray(targets, np.int32),
        token_logprob=logprob.astype(np.float32),
        token_rank=rank,
        token_bytes=np.asarray(token_bytes, np.int32),
        top_token_id=top_id,
        top_logprob=top.astype(np.float32),
        context_tokens=context_tokens,
        merged=merged,
        censored=int(censored.sum()),
        statistics=joined(known) if len(known) == len(positions) else None,
    )


def _check_row(
    i: int,
    target: int,
    logprob: float,
    ids: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    row: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    n_vocab: int,
) -> tuple[int, float]:
    """Check one position; return the actual token's rank and log-probability."""
    if np.isnan(row).any() or np.isnan(logprob):
        raise PassageError(f"token {i}: a log-probability is NaN")
    largest = max(float(row.max()), logprob)
    if largest > POSITIVE_TOLERANCE:
        raise PassageError(
            f"token {i}: log-probability {largest:.6g} is above 0; the server sends something else"
        )
    if row[0] <= SENTINEL:
        raise PassageError(f"token {i}: no alternative has a probability")
    if (np.diff(row) > 0).any():
        raise PassageError(f"token {i}: the alternatives are not in falling order")
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise PassageError(
            f"token {i}: an alternative's id is not in 0 .. {n_vocab - 1} (padding of the list, or"
            " of the vocabulary?)"
        )
    if np.unique(ids).size != ids.size:
        raise PassageError(f"token {i}: an id stands twice among the alternatives")
    mass = float(np.exp(row).sum())
    if mass > 1 + MASS_TOLERANCE:
        raise PassageError(
            f"token {i}: the alternatives' probabilities sum to {mass:.4f}; "
            "are they taken after sampling?"
        )
    place = np.flatnonzero(ids == target)
    if place.size == 0:
        if logprob > row[-1] + MASS_TOLERANCE:
            raise PassageError(
                f"token {i}: the actual token is likelier than the last alternative, yet not listed"
            )
        return 0, logprob
    listed = float(row[place[0]])
    if abs(listed - logprob) > MASS_TOLERANCE and max(listed, logprob) > SENTINEL:
        raise PassageError(
            f"token {i}: the actual token has two log-probabilities, {logprob:.6g} and {listed:.6g}"
        )
    return (int(place[0]) + 1 if listed > SENTINEL else 0), logprob
