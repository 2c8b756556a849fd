"""What a search minimises, as numbers: nll, ood, or their sum, and a limit on one of the two.

The limit is kept by an augmented Lagrangian (Hestenes 1969, Powell 1969): a multiplier that rises
while the limit is passed, and a square term that keeps each search well-posed.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsppl import schema
from jaxsppl.choice import Choice

# Of the square term: of the order of what ood and nll cost each other, for each unit passed.
_STIFF_OOD, _STIFF_NLL = 100.0, 10.0


class Goal(NamedTuple):
    """A goal of each of several searches; arrays are (start,), or () inside one search.

    Attributes
    ----------
    nll, ood : array
        Their weights in what is minimised.
    held_nll, held_ood, limit : array
        Their weights in what must not pass the limit, and the limit; inf where there is none.
    multiplier, stiffness : array
        Of the augmented Lagrangian.
    """

    nll: Any
    ood: Any
    held_nll: Any
    held_ood: Any
    limit: Any
    multiplier: Any
    stiffness: Any

    def take(self, index: schema.Array) -> "Goal":
        """Return the goals of some searches."""
        return Goal(*(leaf[index] for leaf in self))

    def excess(self, nll: Any, ood: Any) -> Any:
        """Return by how much the limit is passed, negative inside; -inf where there is none."""
        return self.held_nll * nll + self.held_ood * ood - self.limit

    def plain(self, nll: Any, ood: Any) -> Any:
        """Return what is minimised, without the limit."""
        return self.nll * nll + self.ood * ood

    def combined(self, nll: Array, ood: Array) -> tuple[Array, Array, Array]:
        """Return the augmented Lagrangian and its derivatives in nll and ood."""
        push = jnp.maximum(self.multiplier + self.stiffness * self.excess(nll, ood), 0.0)
        value = self.plain(nll, ood) + (push**2 - self.multiplier**2) / (2 * self.stiffness)
        return value, self.nll + push * self.held_nll, self.ood + push * self.held_ood

    def raised(self, nll: schema.Array, ood: schema.Array, margin: float) -> "Goal":
        """Return goals whose multipliers have learned from where searches ended.

        Parameters
        ----------
        nll, ood : array
            (start,) ends.
        margin : float
            How far inside the limit an end should lie.

        Returns
        -------
        Goal
        """
        step = self.stiffness * (self.excess(nll, ood) + margin)
        return self._replace(multiplier=np.maximum(self.multiplier + step, 0.0))


def goals_of(choice: Choice, n_start: int) -> Goal:
    """Return the goals of some searches that know nothing yet.

    Parameters
    ----------
    choice : Choice
        What is best.
    n_start : int

    Returns
    -------
    Goal
    """
    least_ood = choice.nll_max is not None
    limit = choice.nll_max if least_ood else choice.ood_max
    numbers = Goal(
        nll=0.0 if least_ood else 1.0,
        ood=1.0 if least_ood else choice.ood_weight,
        held_nll=float(least_ood),
        held_ood=float(choice.ood_max is not None),
        limit=np.inf if limit is None else limit,
        multiplier=0.0,
        stiffness=_STIFF_NLL if least_ood else _STIFF_OOD,
    )
    return Goal(*(np.full(n_start, number) for number in numbers))
