"""What samplers need of the whole vocabulary, computed where the whole vocabulary is at hand."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

# Inverse temperatures in sixteenths: 0, 1/16 .. 2, then in quarters to 4. The steps are fine enough
# for interpolation (between them log_partition is smooth), and integers let powers be products.
SIXTEENTHS = (*range(33), *range(36, 65, 4))
INVERSE_TEMPERATURE: Float64 = np.asarray(SIXTEENTHS) / 16


@dataclass(frozen=True)
class Statistics:
    """Whole-vocabulary statistics, one row per scored token (n).

    Attributes
    ----------
    log_partition : float64 (n, inverse temperature)
        log sum_j exp(logprob_j * inverse_temperature) at `INVERSE_TEMPERATURE` [nat].
    entropy, logit_std, min_logprob : float32 (n,)
        Entropy, population deviation of the logits, smallest log-probability [nat]. Tokens of
        probability 0 do not count.
    """

    log_partition: Float64
    entropy: Float32
    logit_std: Float32
    min_logprob: Float32


NAMES = tuple(field.name for field in fields(Statistics))


def statistics(logprob: npt.NDArray[np.floating]) -> Statistics:
    """Compute the statistics of whole distributions.

    Parameters
    ----------
    logprob : array (n, vocabulary)
        Log-probabilities of every token [nat]; -inf for a token that cannot come.

    Returns
    -------
    Statistics
    """
    n_row = len(logprob)
    log_partition = np.empty((n_row, len(SIXTEENTHS)))
    entropy, deviation, smallest = np.empty((3, n_row))
    for i, row in enumerate(logprob):
        possible = row[row > -np.inf].astype(np.float64)
        log_partition[i] = np.log(power_sums(possible))
        entropy[i] = -(np.exp(possible) @ possible)
        deviation[i] = possible.std()
        smallest[i] = possible.min()
    return Statistics(
        log_partition,
        entropy.astype(np.float32),
        deviation.astype(np.float32),
        smallest.astype(np.float32),
    )


def power_sums(logprob: Float64) -> Float64:
    """Return sum_j exp(logprob_j * inverse_temperature) at `INVERSE_TEMPERATURE`.

    Parameters
    ----------
    logprob : float64 (n,)
        Finite log-probabilities [nat].

    Returns
    -------
    float64 (inverse temperature,)
    """
    sixteenth = np.exp(logprob / 16)
    factors = {1: sixteenth, 4: np.exp(logprob / 4)}
    power = np.ones_like(logprob)
    sums = [float(logprob.size)]
    for step in np.diff(SIXTEENTHS):
        power *= factors[int(step)]
        sums.append(float(power.sum()))
    return np.asarray(sums)


def joined(parts: Iterable[Statistics]) -> Statistics:
    """Return the statistics of several passages as one.

    Parameters
    ----------
    parts : iterable of Statistics

    Returns
    -------
    Statistics
    """
    listed = list(parts)
    return Statistics(*(np.concatenate([getattr(part, name) for part in listed]) for name in NAMES))
