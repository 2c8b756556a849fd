"""Searches whose goal counts ood: their ends by the share itself, and inside a limit.

A search by gradient sees the share of tokens below epsilon with a blurred edge, and passes a limit
as far as its multiplier lets it. Here the edge is sharpened, the multipliers learn from the share
itself, and each start is credited with the best end that keeps the limit.
"""

from dataclasses import replace

import numpy as np

from jaxsppl import schema
from jaxsppl.sweep import descent, levels, search
from jaxsppl.sweep.goals import goals_of
from jaxsppl.sweep.resident import Resident
from jaxsppl.sweep.search import Ends, Problem

# Edges of the searches that follow [nat]; a limit takes several rounds at each.
_EDGES, _ROUNDS = (search.EDGE, 0.015, 0.005, 0.001), 4
# Ends nearer than this, in each coordinate, go on as one.
_SAME_PLACE, _SAME_VALUE = 1e-3, 1e-6


def climb(
    problem: Problem,
    resident: Resident,
    places: schema.Array,
    chosen: schema.Array,
    n_token: int,
) -> Ends:
    """Search from every start, whatever the goal is.

    Parameters
    ----------
    problem : Problem
    resident : Resident
        The tokens.
    places : array
        (start, smooth) coordinates.
    chosen : array
        (start, listed) values of the enumerated parameters.
    n_token : int
        Scored tokens.

    Returns
    -------
    Ends
        `value` is the goal itself; inf, "beyond the limit", for a start that never came inside.
    """
    ends = levels.climb(problem, resident, places, chosen)
    if problem.choice.is_plain:
        return ends
    first, group = search.same_place(ends.place, ends.value, chosen, _SAME_PLACE, _SAME_VALUE)
    steps = ends.n_step
    ends, chosen = ends.take(first), chosen[first]
    goals = goals_of(problem.choice, len(first))
    best = _credited(ends, problem)
    limited = problem.choice.is_limited
    # Half a token inside, so that the multiplier rises until the last one is.
    margin = 0.5 / n_token if problem.choice.nll_max is None else 0.0
    extra = np.zeros(len(first), np.int64)
    for edge in np.repeat(_EDGES, _ROUNDS) if limited else _EDGES[1:]:
        if limited:
            goals = goals.raised(ends.nll, ends.ood, margin)
        ends = search.run(
            problem, resident, ends.place, chosen, edge=edge, goals=goals, memory=ends.memory
        )
        extra += ends.n_step
        found = _credited(ends, problem)
        best = best.where(found.value < best.value, found)
    steps = steps + extra[group]
    return replace(best.take(group), n_step=steps)


def _credited(ends: Ends, problem: Problem) -> Ends:
    """Return ends with the goal itself as their value, inf beyond the limit."""
    goals = goals_of(problem.choice, len(ends.nll))
    beyond = goals.excess(ends.nll, ends.ood) > 0
    status = np.where(beyond & (ends.status != descent.NOT_FINITE), descent.BEYOND, ends.status)
    return replace(
        ends, value=np.where(beyond, np.inf, goals.plain(ends.nll, ends.ood)), status=status
    )
