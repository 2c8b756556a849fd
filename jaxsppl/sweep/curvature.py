"""How well an optimum is determined: the curvature there, standard errors and correlations."""

from dataclasses import dataclass

import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.sweep import levels, search
from jaxsppl.sweep.resident import Resident
from jaxsppl.sweep.search import Problem


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


def unknown(problem: Problem) -> Errors:
    """Return what is known of errors where nothing is."""
    size = len(problem.smooth)
    return Errors(np.full(size, np.nan), np.full((size, size), np.nan))


def standard_errors(
    problem: Problem,
    resident: Resident,
    place: schema.Array,
    chosen: schema.Array,
    cluster: schema.Array,
) -> Errors:
    """Return errors at one optimum, clusters of tokens taken as independent.

    The covariance is H^-1 J H^-1 with H the curvature of the mean over tokens and J the sum over
    clusters of the squared share that each has in its gradient (Liang and Zeger 1986): neither
    the model nor the independence of tokens is assumed.

    Parameters
    ----------
    problem : Problem
        Without a limit: the errors of settings that a limit ties are not of this kind.
    resident : Resident
        The tokens.
    place : array
        (smooth,) coordinates.
    chosen : array
        (listed,) values of the enumerated parameters.
    cluster : array
        (token,) number of each token's cluster, documents or batches of them.

    Returns
    -------
    Errors
        NaN when the optimum lies at a limit or is not a minimum, or for a single cluster.
    """
    nothing = unknown(problem)
    sizes = np.bincount(cluster)
    measured = levels.curvature_at(problem, resident, place, chosen)
    if measured is None or not measured.free.all() or len(sizes) < 2:
        return nothing
    curve = measured.matrix
    if np.linalg.eigvalsh(curve)[0] <= 0:
        return nothing
    slopes = np.concatenate([
        search.run(
            problem, resident.part(cluster == one), place[None], chosen[None], max_steps=1
        ).slope
        for one in range(len(sizes))
    ])  # fmt: skip
    shares = slopes * (sizes / sizes.sum())[:, None]
    # The clusters' shares sum to the gradient, 0 but for the kinks: they have one degree less.
    shares = shares - shares.mean(axis=0)
    spread = shares.T @ shares * len(sizes) / (len(sizes) - 1)
    inverse = np.linalg.inv(curve)
    covariance = inverse @ spread @ inverse
    deviation = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / np.outer(deviation, deviation)
    scale = np.where(parameters.by_log(problem.smooth), np.exp(place), 1.0)
    return Errors(scale * deviation, correlation)
