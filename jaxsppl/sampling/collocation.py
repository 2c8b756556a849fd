"""A few draws between which the log mass of every node is interpolated.

The log mass of a fixed interval is a smooth function of log alpha and log beta; only the clip at
epsilon has a kink, and that is taken afterwards. So its values at a few Chebyshev points along each
axis give those at any number of draws, and the error falls geometrically with the points.
"""

import numpy as np
from numpy.polynomial import chebyshev

from jaxsppl import schema


def points(axis: schema.Array, step: float) -> schema.Array:
    """Return where along an axis of the draw the nodes are evaluated.

    Parameters
    ----------
    axis : array
        (value,) of alpha or beta.
    step : float
        Mean distance of the points in the parameter's logarithm.

    Returns
    -------
    array
        (point,) Chebyshev points in the logarithm, or the axis itself where that is shorter or is
        one value repeated.
    """
    low, high = np.log(axis.min()), np.log(axis.max())
    number = 2 + int(np.ceil((high - low) / step))
    if axis.size <= number or low == high:
        return axis
    return np.exp(0.5 * (low + high) + 0.5 * (high - low) * chebyshev.chebpts1(number))


def weights(axis: schema.Array, step: float) -> schema.Array:
    """Return the weights of the values at `points` in the value at each place of the axis.

    Parameters
    ----------
    axis, step
        As for `points`.

    Returns
    -------
    array
        (value, point); each row sums to 1.
    """
    number = points(axis, step).size
    if axis.size == number:
        return np.eye(number)
    logs = np.log(axis)
    place = 2 * (logs - logs.min()) / (logs.max() - logs.min()) - 1
    at_points = chebyshev.chebvander(chebyshev.chebpts1(number), number - 1)
    return np.linalg.solve(at_points.T, chebyshev.chebvander(place, number - 1).T).T
