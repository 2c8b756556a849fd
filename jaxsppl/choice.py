"""What "best" means, and how a choice is proven; the sweep, the report and the config share it."""

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from jaxsppl import parameters
from jaxsppl.errors import ConfigError
from jaxsppl.schema import Array

# Units (documents or groups) below which an interval may hold the truth less often than it says:
# `docs/statistics.md` has how often.
FEW_UNITS = 10


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

    def check(self, where: str = "") -> None:
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

    @property
    def is_limited(self) -> bool:
        """Whether only some points are allowed."""
        return self.ood_max is not None or self.nll_max is not None

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


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a choice is proven; `[decide]` of a config.

    Attributes
    ----------
    split : {"folds", "test"}
        Each fold of the documents is held out in its turn; or one part is, once.
    fraction : float
        Share of the documents that "test" holds out.
    folds : int
        Number of folds.
    seed : int
        Of the split and the resamples.
    resamples : int
        Of the bootstrap.
    confidence : float
        Of every interval and of the plateau.
    detect : float
        Difference that the numbers of documents needed are about [nat/token].
    samplers : dict of str to list of str, or None
        Parameters that each compared sampler may move; by default each truncation with
        temperature, and the Beta draw.
    cluster : {"group", "document"}
        What is drawn and held out whole: the groups of the documents where a harvest has them; or
        every document by itself.
    """

    split: Literal["folds", "test"] = "folds"
    fraction: float = 0.5
    folds: int = 5
    seed: int = 0
    resamples: int = 2000
    confidence: float = 0.95
    detect: float = 0.01
    samplers: dict[str, list[str]] | None = None
    cluster: Literal["group", "document"] = "group"

    def check(self, where: str = "") -> None:
        """Raise a ConfigError for a value that is not allowed."""
        rules = {
            "split": (self.split in ("folds", "test"), "'folds' or 'test'"),
            "fraction": (0 < self.fraction < 1, "a share above 0 and below 1"),
            "folds": (self.folds >= 2, "at least 2"),
            "resamples": (100 <= self.resamples <= 100_000, "from 100 to 100000"),
            "confidence": (0.5 <= self.confidence < 1, "from 0.5 to below 1"),
            "detect": (self.detect > 0, "above 0"),
            "cluster": (self.cluster in ("group", "document"), "'group' or 'document'"),
        }
        for name, (allowed, words) in rules.items():
            if not allowed:
                value = getattr(self, name)
                raise ConfigError(f"{where}{name}: {value!r} is not allowed; it is {words}")
        parameters.check_whole(self.seed, f"{where}seed")


def recipe(rules: Rules, choice: Choice) -> str:
    """Return what decides the numbers of a proof, as JSON text: it is kept in the file.

    Parameters
    ----------
    rules : Rules
    choice : Choice

    Returns
    -------
    str
    """
    own = {name: getattr(rules, name) for name in Rules.__struct_fields__}
    return msgspec.json.encode({**own, "choice": choice, "words": choice.words()}).decode()
