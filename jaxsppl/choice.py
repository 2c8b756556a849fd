"""What "best" means: the smallest nll, or a compromise with the out-of-distribution share.

Arrays in, an index out; the sweep chooses by it on some of the documents, the report on all.
"""

import math
from dataclasses import dataclass

import numpy as np

from jaxsppl.errors import ConfigError
from jaxsppl.schema import Array


@dataclass(frozen=True)
class Choice:
    """Which grid point is taken.

    Attributes
    ----------
    ood_weight : float
        The smallest nll + weight x ood is best [nat/token].
    ood_max : float or None
        Only points whose ood is at most this are allowed [1].
    nll_max : float or None
        The smallest ood is best, among points whose nll is at most this [nat/token].
    """

    ood_weight: float = 0.0
    ood_max: float | None = None
    nll_max: float | None = None

    def check(self, where: str) -> None:
        """Raise a ConfigError for numbers that are not allowed, or for two objectives at once."""
        if not (self.ood_weight >= 0 and math.isfinite(self.ood_weight)):
            raise ConfigError(
                f"{where}ood_weight: {self.ood_weight} is not allowed; it is a number of at least 0"
            )
        if self.ood_max is not None and not 0 <= self.ood_max <= 1:
            raise ConfigError(
                f"{where}ood_max: {self.ood_max} is not allowed; it is a share from 0 to 1"
            )
        if self.nll_max is not None and not self.nll_max > 0:
            raise ConfigError(
                f"{where}nll_max: {self.nll_max} is not allowed; it is a number above 0"
            )
        if self.nll_max is not None and (self.ood_weight or self.ood_max is not None):
            raise ConfigError(
                f"{where}nll_max: it makes ood the objective; leave out ood_weight and ood_max"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the smallest nll is best, and nothing else matters."""
        return not self.ood_weight and self.ood_max is None and self.nll_max is None

    def words(self) -> str:
        """Return the objective in words."""
        if self.nll_max is not None:
            return f"least ood with nll <= {self.nll_max:g}"
        goal = f"least nll + {self.ood_weight:g} ood" if self.ood_weight else "least nll"
        return goal if self.ood_max is None else f"{goal} with ood <= {self.ood_max:g}"

    def index(self, nll: Array, ood: Array) -> int:
        """Return the best point.

        Parameters
        ----------
        nll, ood : array
            Of one shape [nat/token], [1]; NaN never wins.

        Returns
        -------
        int
            Its place in row-major order.

        Raises
        ------
        ConfigError
            When no point keeps the limit; the message says what the grid has.
        """
        nll, ood = nll.ravel(), ood.ravel()
        goal = nll + self.ood_weight * ood
        if self.nll_max is not None:
            # Of equal shares the smaller nll: counts are often equal.
            order = np.lexsort((nll, ood))
            allowed = order[nll[order] <= self.nll_max]
            if not len(allowed):
                raise ConfigError(
                    f"no point has nll <= {self.nll_max:g}; the smallest is {np.nanmin(nll):.4g}"
                )
            return int(allowed[0])
        if self.ood_max is not None:
            if not (ood <= self.ood_max).any():
                raise ConfigError(
                    f"no point has ood <= {self.ood_max:g}; the smallest is {np.nanmin(ood):.4g}"
                )
            goal = np.where(ood <= self.ood_max, goal, np.inf)
        return int(np.argmin(np.where(np.isnan(goal), np.inf, goal)))
