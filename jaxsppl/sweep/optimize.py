"""The best settings of harvests, from many starts: harvests in, a labelled optimum dataset out."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jaxsppl import parameters, schema, store
from jaxsppl.choice import Choice, Rules
from jaxsppl.errors import AuditError, ConfigError, suggest
from jaxsppl.sampling.precision import float64
from jaxsppl.sweep import curvature, descent, limits, resident, search
from jaxsppl.sweep import starts as starting
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.data import TokenArrays, check_tail, token_arrays, usable_top_k
from jaxsppl.sweep.documents import Documents, documents_of, joined
from jaxsppl.sweep.engine import direct_means, usable_point
from jaxsppl.sweep.needs import check_needs
from jaxsppl.sweep.optimum_file import Found, labelled
from jaxsppl.sweep.optimum_proof import USUAL, Proven, prove
from jaxsppl.sweep.search import Ends, Problem
from jaxsppl.sweep.starts import Space

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.store import Harvests

POOLED = "pooled"
# Largest component of the projected gradient of a start that is called converged [nat/token].
_TOLERANCE = 1e-6
# Batches of documents that standard errors are made of, at most: each costs an evaluation.
_CLUSTERS = 32
# The search and the definition compute the same sums in another order.
_AUDIT = 1e-9
_MAX_SEED = 2**32 - 1

_LOG = logging.getLogger("jaxsppl.sweep")


def optimize(
    harvests: "Harvests",
    *,
    over: Sequence[str] = ("temperature", "alpha", "beta"),
    fixed: Mapping[str, float] | None = None,
    chain: Sequence[str] | None = None,
    dialect: str = parameters.DEFAULT_DIALECT,
    epsilon: float = 0.01,
    tail: str = "bound",
    choice: Choice | None = None,
    starts: int = 32,
    seed: int = 0,
    pooled: bool = False,
    method: str = "lbfgs",
    max_steps: int = 200,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    rules: Rules | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    memory_mib: int = 1024,
    progress: Callable[[int, int], None] | None = None,
) -> "xr.Dataset":
    """Find the best parameters, those of the smallest nll by default, from many starts.

    Parameters
    ----------
    harvests : dataset, path, glob, or an iterable of these
        As for `jaxsppl.open_harvest`; each is optimized for itself.
    over : sequence of str
        Parameters that are optimized: temperature, dynatemp, smoothing, skew, xtc_probability,
        alpha and beta by gradient, the others by enumeration of `values`.
    fixed : mapping of str to float, optional
        Parameters that are held; those that are not named are neutral.
    chain : sequence of str, optional
        Stages, first applied first; the dialect's order of what is used by default.
    dialect : {"llama.cpp", "vllm", "transformers", "sglang"}
        Whose order and whose meaning of a name.
    epsilon : float
        Smallest probability that counts as itself.
    tail : {"bound", "drop"}
        Whether the unseen tail is modelled, or taken for absent.
    choice : Choice, optional
        What is best: the smallest nll by default; a sum with ood; or the least of one of the two
        within a limit on the other.
    starts : int
        Number of starts: neutral, the best points of a coarse grid, and a Latin hypercube. With
        enumerated parameters they are shared out over the combinations, at least two to each.
    seed : int
        Decides where the hypercube's starts lie.
    pooled : bool
        Whether to optimize all datasets of each model together too, every token weighing the same;
        the result is labelled as the dataset "pooled".
    method : {"lbfgs", "adam"}
        L-BFGS with a line search; or Adam, which seldom meets the tolerance.
    max_steps : int
        Most evaluations of a start on all tokens.
    bounds : mapping of str to (float, float), optional
        Limits of parameters that are searched by gradient; their own by default, as temperature
        from 0.05 to 5, alpha and beta from 0.05 to 50.
    values : mapping of str to sequence of float, optional
        Values of the enumerated parameters instead of the built-in ones.
    rules : Rules, optional
        Prove the optimum: search again without each fold of the documents, and score what is
        found on that fold, beside neutral and the defaults of llama.cpp and vLLM.
    baselines : mapping of str to Baseline, optional
        Further settings to prove it beside.
    memory_mib : int
        Memory that the computation may take [MiB].
    progress : callable, optional
        Called with the number of harvests done and in all.

    Returns
    -------
    xarray.Dataset
        The optimum file of the design, section 4: `initial`, `optimum`, `nll`, `ood`, `status` and
        `n_step` of every start; `best_value`, `best_nll`, `best_ood` and their errors. With
        `rules` also what `jaxsppl.decide` gives of held-out documents.

    Raises
    ------
    ConfigError
        For an argument that is not allowed, or a limit that no start can keep.
    SchemaError
        When a harvest is not what its schema says.
    PlanError
        When a harvest cannot serve a stage, be pooled, or does not fit the memory.
    AuditError
        When the search and the direct definition disagree at the best point.
    """
    _check_numbers(starts, seed, max_steps, memory_mib)
    check_tail(tail)
    choice = choice or Choice()
    choice.check()
    if rules is not None:
        rules.check()
    parameters.parameter("epsilon").check([epsilon], "epsilon")
    if method not in descent.METHODS:
        raise ConfigError(f"method: '{method}' is not there; {suggest(method, descent.METHODS)}")
    opened = [(token_arrays(one), documents_of(one)) for one in store.harvests(harvests)]
    space = starting.make_space(over, fixed, bounds, values, min(one.n_rank for one, _ in opened))
    used = [*space.over, *space.fixed]
    order = parameters.default_order(used, dialect) if chain is None else chain
    stages = parameters.check_order(order, used, dialect=dialect)
    if pooled:
        opened += _pools(opened)
    tokens = [one for one, _ in opened]
    for one in tokens:
        box = dict(zip(space.smooth, map(list, space.bounds), strict=True))
        check_needs(one, stages, usable_top_k(one, _axes(space), tail) | box, tail)
    problem = Problem(
        chain=stages,
        smooth=space.smooth,
        listed=space.listed,
        fixed={**space.fixed, "epsilon": epsilon},
        lower=space.lower,
        upper=space.upper,
        choice=choice,
        method=method,
        max_steps=max_steps,
        tolerance=_TOLERANCE,
    )
    size = resident.block_size(tokens, memory_mib)
    n_block = max(-(-one.n_token // size) for one in tokens)
    finder = _Finder(problem, space, size, n_block, tail, starts, seed)
    named = {**USUAL, **(baselines or {})}
    results: list[Found] = []
    for one, documents in opened:
        units = documents.clustered((rules or Rules()).cluster)
        found = replace(finder.on(one, units.index % _CLUSTERS), units=units)
        if rules is not None:
            found = replace(found, proof=_proof(found, units, rules, finder, named))
        results.append(found)
        if progress is not None:
            progress(len(results), len(opened))
    return labelled(results, problem, space, tail, seed, rules, named)


def _check_numbers(starts: int, seed: int, max_steps: int, memory_mib: int) -> None:
    """Check the whole numbers among the arguments."""
    limits = {
        "starts": (starts, 1, 100_000),
        "seed": (seed, 0, _MAX_SEED),
        "max_steps": (max_steps, 1, 1_000_000),
        "memory_mib": (memory_mib, 1, 2**31),
    }
    for name, (value, low, high) in limits.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ConfigError(f"{name}: {value!r} is not a whole number")
        if not low <= value <= high:
            raise ConfigError(f"{name}: {value} is not allowed; it is from {low} to {high}")


def _pools(
    opened: Sequence[tuple[TokenArrays, Documents]],
) -> list[tuple[TokenArrays, Documents]]:
    """Return the pooled harvests of each model."""
    if any(one.dataset == POOLED for one, _ in opened):
        raise ConfigError(f"pooled: a dataset is called '{POOLED}' already; rename it")
    pools: list[tuple[TokenArrays, Documents]] = []
    for model in dict.fromkeys(one.model for one, _ in opened):
        parts = [(one, documents) for one, documents in opened if one.model == model]
        tokens = resident.pool([one for one, _ in parts], POOLED)
        pools.append((tokens, joined([documents for _, documents in parts])))
    return pools


def _axes(space: Space) -> dict[str, list[float]]:
    """Return the values of every parameter that is not smooth."""
    columns = {
        name: sorted({combination[index] for combination in space.combinations})
        for index, name in enumerate(space.listed)
    }
    return {**columns, **{name: [value] for name, value in space.fixed.items()}}


@dataclass(frozen=True)
class _Finder:
    """A search that any tokens can be given to."""

    problem: Problem
    space: Space
    size: int
    n_block: int
    tail: str
    starts: int
    seed: int

    def on(self, tokens: TokenArrays, cluster: schema.Array | None = None) -> Found:
        """Search on a harvest or a part of one; errors are asked for with (token,) clusters."""
        # A stream of its own for each harvest, whatever the others are.
        rng = np.random.default_rng([self.seed, *tokens.label.encode()])
        problem = replace(self.problem, fixed=usable_point(tokens, self.problem.fixed, self.tail))
        space = self.space
        with float64():
            data = resident.make_resident(tokens, self.size, self.n_block, self.tail)
            places, chosen = _starts(problem, data, space, self.starts, rng, tokens)
            ends = limits.climb(problem, data, places, chosen, tokens.n_token)
            best = _best(problem, ends, tokens)
            errors = curvature.unknown(problem)
            if cluster is not None and not problem.choice.is_limited:
                errors = curvature.standard_errors(
                    problem, data, ends.place[best], chosen[best], cluster
                )
        optimum = space.values(ends.place, chosen)
        point = {**problem.fixed, **dict(zip(space.over, optimum[best].tolist(), strict=True))}
        exact = direct_means(tokens, [point], chain=problem.chain, tail=self.tail, block=512)[0]
        if not abs(float(exact.nll) - ends.nll[best]) <= _AUDIT:
            raise AuditError(
                f"{tokens.label}: the nll {ends.nll[best]:.12g} of the best start differs from the "
                f"direct definition's {float(exact.nll):.12g}; please report it"
            )
        _LOG.info("%s: best %s", tokens.label, point)
        initial = space.values(places, chosen)
        return Found(tokens, initial, optimum, point, ends, best, exact, errors)


def _proof(
    found: Found,
    units: Documents,
    rules: Rules,
    finder: _Finder,
    baselines: Mapping[str, Baseline],
) -> Proven | None:
    """Prove what was found by searching without each fold."""
    return prove(
        found.tokens,
        units,
        rules,
        lambda part: finder.on(part).point,
        baselines,
        chain=finder.problem.chain,
        tail=finder.tail,
    )


def _best(problem: Problem, ends: Ends, tokens: TokenArrays) -> int:
    """Return the best start."""
    values = np.where(np.isnan(ends.value), np.inf, ends.value)
    best = int(np.argmin(values))
    if problem.choice.is_limited and np.isinf(values[best]):
        least = np.nanmin(ends.nll if problem.choice.nll_max is not None else ends.ood)
        raise ConfigError(
            f"{tokens.label}: {problem.choice.words()}: no start comes within this limit; the "
            f"smallest that one ended at is {least:.4g}"
        )
    return best


def _starts(
    problem: Problem,
    data: resident.Resident,
    space: Space,
    starts: int,
    rng: np.random.Generator,
    tokens: TokenArrays,
) -> tuple[schema.Array, schema.Array]:
    """Return the coordinates of the starts, and their values of the enumerated parameters."""
    each = space.n_start(starts) // len(space.combinations)
    rows = np.asarray(space.combinations, np.float64).reshape(len(space.combinations), -1)
    if "top_k" in space.listed:  # a top_k of the whole vocabulary is off
        column = rows[:, space.listed.index("top_k")]
        column[column >= tokens.n_vocab] = 0.0
    grid = starting.coarse_grid(space)
    places: list[schema.Array] = []
    for row in rows:
        around = search.run(
            problem, data, grid, np.repeat(row[None], len(grid), axis=0), n_block=1, max_steps=1
        )
        places.append(starting.starting_places(space, around.value, each, rng))
    return np.concatenate(places), np.repeat(rows, each, axis=0)
