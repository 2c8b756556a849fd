"""How well an optimum is determined: the curvature there, standard errors and correlations."""

from dataclasses import dataclass

import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.sweep import levels
from jaxsppl.sweep.resident import Resident
from jaxsppl.sweep.search import Ends, Problem


@dataclass(frozen=True)
class Errors:
    """Errors of the smooth parameters at an optimum; NaN where the curvature does not give them.

    Attributes
    ----------
    std_error : array
        (smooth,) standard errors of the parameters.
    correlation : array
        (smooth, smooth) correlations.
    """

    std_error: schema.Array
    correlation: schema.Array


def standard_errors(
    problem: Problem, resident: Resident, best: Ends, chosen: schema.Array, n_token: int
) -> Errors:
    """Return errors at one optimum, tokens taken as independent.

    The covariance is H^-1 J H^-1 / n with H the curvature of the mean and J the mean outer product
    of the tokens' gradients (Huber 1967): it does not assume that the model is the truth.

    Parameters
    ----------
    problem : Problem
    resident : Resident
        The tokens.
    best : Ends
        One end.
    chosen : array
        (1, listed) values of the enumerated parameters.
    n_token : int
        Scored tokens.

    Returns
    -------
    Errors
        NaN when the optimum lies at a limit or is not a minimum.
    """
    place = best.place[0]
    size = place.size
    nothing = Errors(np.full(size, np.nan), np.full((size, size), np.nan))
    measured = levels.curvature_at(problem, resident, place, chosen[0])
    if measured is None or not measured.free.all():
        return nothing
    curve = measured.matrix
    if np.linalg.eigvalsh(curve)[0] <= 0:
        return nothing
    inverse = np.linalg.inv(curve)
    covariance = inverse @ best.outer[0] @ inverse / n_token
    deviation = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / np.outer(deviation, deviation)
    scale = np.where(parameters.by_log(problem.smooth), np.exp(place), 1.0)
    return Errors(scale * deviation, correlation)
