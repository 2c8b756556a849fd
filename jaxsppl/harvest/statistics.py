"""What samplers need of the whole vocabulary, computed where the whole vocabulary is at hand."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

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


def statistics(logprob: Any, xp: Any = np) -> Statistics:
    """Compute the statistics of whole distributions.

    Parameters
    ----------
    logprob : float64 array (n, vocabulary)
        Log-probabilities of every token [nat]; -inf for a token that cannot come.
    xp : module
        The array's own library, numpy or torch, which then does the work.

    Returns
    -------
    Statistics
        In numpy arrays.
    """
    possible = logprob > -np.inf
    count = possible.sum(-1)
    shown = xp.where(possible, logprob, 0.0)
    entropy = -(xp.exp(logprob) * shown).sum(-1)
    mean = shown.sum(-1) / count
    square = xp.where(possible, (shown - mean[:, None]) ** 2, 0.0).sum(-1)
    smallest = xp.amin(xp.where(possible, logprob, np.inf), -1)
    whole = (xp.log(power_sums(logprob, xp)), entropy, xp.sqrt(square / count), smallest)
    found = [np.asarray(values if xp is np else values.cpu()) for values in whole]
    return Statistics(found[0], *(values.astype(np.float32) for values in found[1:]))


def power_sums(logprob: Any, xp: Any = np) -> Any:
    """Return sum_j exp(logprob_j * inverse_temperature) at `INVERSE_TEMPERATURE`.

    Parameters
    ----------
    logprob : float64 array (..., vocabulary)
        Log-probabilities [nat].
    xp : module
        The array's own library, numpy or torch.

    Returns
    -------
    array (..., inverse temperature)
    """
    factors = {1: xp.exp(logprob / 16), 4: xp.exp(logprob / 4)}
    power = xp.ones_like(logprob)
    sums = [xp.where(logprob > -np.inf, power, 0.0).sum(-1)]
    for step in np.diff(SIXTEENTHS):
        power *= factors[int(step)]
        sums.append(power.sum(-1))
    return xp.stack(sums, -1)


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
