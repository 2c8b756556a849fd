"""The labelled surface of the sweep: harvests and a grid in, an xarray dataset out."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxsppl import parameters, schema, store
from jaxsppl.errors import AuditError, ConfigError
from jaxsppl.sweep import engine
from jaxsppl.sweep.audit import Audit, audit
from jaxsppl.sweep.baselines import BASELINES, baseline_means
from jaxsppl.sweep.data import TokenArrays, check_tail, token_arrays, usable_top_k
from jaxsppl.sweep.needs import check_needs
from jaxsppl.sweep.parts import Finished
from jaxsppl.sweep.plan import Axis, Plan, Progress, make_plan
from jaxsppl.sweep.scale import evaluator

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.store import Harvests

_LOG = logging.getLogger("jaxsppl.sweep")

# A sweep that is expected to take less keeps no parts on disk.
_SHORT_SECONDS = 5.0


def sweep(
    harvests: "Harvests",
    grid: Mapping[str, Sequence[float]],
    *,
    chain: Sequence[str] | None = None,
    dialect: str = parameters.DEFAULT_DIALECT,
    epsilon: float = 0.01,
    tail: str = "bound",
    level: str = "auto",
    memory_mib: int = 1024,
    tolerance: float = 1e-4,
    audit_points: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
    unfinished: str | os.PathLike[str] | None = None,
    dask: str | None = None,
) -> "xr.Dataset":
    """Evaluate every combination of sampling parameters on harvests.

    Parameters
    ----------
    harvests : dataset, path, glob, or an iterable of these
        As for `jaxsppl.open_harvest`.
    grid : mapping of str to sequence of float
        Values of each swept parameter; a parameter that is not named is neutral.
    chain : sequence of str, optional
        Stages, first applied first; the dialect's order of what is swept by default.
    dialect : {"llama.cpp", "vllm", "transformers", "sglang"}
        Whose order and whose meaning of a name: SGLang's top_p, for example, counts mass that
        top_k has cut, and transformers' typical_p stops a token earlier.
    epsilon : float
        Smallest probability that counts as itself; an axis of that name overrides it.
    tail : {"bound", "drop"}
        Whether the unseen tail is modelled and bracketed, or taken for absent.
    level : {"auto", "binned", "factored", "direct"}
        How it is computed; the numbers are the same within `tolerance`.
    memory_mib : int
        Memory that the computation and its result may take [MiB].
    tolerance : float
        Largest difference from the direct definition that the audit lets pass [nat/token].
    audit_points : int
        Random points that are recomputed directly, beside the best ones.
    seed : int
        Of the audit's draw.
    progress : callable, optional
        Called with the (token, point) pairs done and in all.
    unfinished : path, optional
        Folder in which finished parts are kept; a sweep that was stopped goes on from them. Remove
        it when the result is saved.
    dask : str, optional
        Where to compute: ``"tcp://host:port"`` of a scheduler, the path of a scheduler file, or
        ``"local:N"`` for N processes here. This process by default.

    Returns
    -------
    xarray.Dataset
        Dims ``model, dataset`` and one per swept parameter; `nll` [nat/token], `ood` [1], with
        ``tail="bound"`` also `nll_lower` and `nll_upper`; `n_token`, `n_byte`, `plain_nll`, the
        best point and the named baselines. Pairs without a harvest are NaN with `n_token` 0.

    Raises
    ------
    ConfigError
        For a parameter, value or stage that is not allowed.
    SchemaError
        When a harvest breaks its schema.
    PlanError
        When the result does not fit the memory, a top_k exceeds the harvested alternatives, or a
        stage needs more of the vocabulary than the harvest holds.
    AuditError
        When the result differs from the direct definition by more than `tolerance`.

    Notes
    -----
    With probability p_i of the actual token under the pipeline, ``nll = -mean log max(p_i,
    epsilon)`` and ``ood = mean [p_i < epsilon]``. The brackets of `nll` take, token by token, the
    least and the greatest loss over the estimate and both extreme tails; under plain sampling
    these bound the truth.

    Examples
    --------
    >>> import jaxsppl
    >>> result = jaxsppl.sweep(
    ...     "out/*.harvest.nc", {"temperature": [0.7, 1.0, 1.3], "min_p": [0.0, 0.05]}
    ... )  # doctest: +SKIP
    >>> result.nll.sel(model="smollm2", dataset="prose", min_p=0.05)  # doctest: +SKIP
    """
    tokens = [token_arrays(harvest) for harvest in store.harvests(harvests)]

    def planned(level: str, refine: float) -> Plan:
        return _plan(
            tokens, grid, chain, dialect, epsilon, tail, level, memory_mib, tolerance, refine
        )

    parameters.check_whole(audit_points, "audit_points")
    parameters.check_whole(seed, "seed")
    plan = planned(level, 1.0)
    advance = _counter(plan, progress)
    finished = None
    if unfinished is not None and plan.seconds > _SHORT_SECONDS:
        finished = Finished(Path(unfinished))
    rng = np.random.default_rng(seed)
    each = -(-audit_points // len(tokens))
    refine, results = 1.0, list[_Result]()
    with evaluator(dask, finished) as evaluate:
        for one in tokens:
            while True:
                sums = evaluate(plan, one, advance)
                means = engine.means_of(sums.loss, sums.ood, one.n_token)
                checked = audit(plan, one, means, each, rng)
                if _passes(checked, one, tolerance):
                    break
                if plan.level != "binned":
                    raise AuditError(
                        f"{one.label}: level '{plan.level}' differs from the direct definition by "
                        f"{checked.nll:.2g} nat and {checked.ood:.2g} in the share, more than the "
                        f"tolerance {tolerance:g}; please report it"
                    )
                # Finer nodes cost little; exactness costs more, and always passes.
                refine *= 2.0
                plan = planned("binned" if refine == 2.0 else "factored", refine)
                _LOG.info("%s: the audit objects (%s); again, %s", one.label, checked, plan.why)
            named = baseline_means(
                one, [*BASELINES.values()], epsilon=epsilon, tail=tail, block=plan.block
            )
            results.append(_Result(one, means, checked, named))
    return _labelled(plan, results, tolerance)


class _Result(NamedTuple):
    """What a sweep found on one harvest."""

    tokens: TokenArrays
    means: engine.Means
    checked: Audit
    baselines: list[engine.Means]


def _passes(checked: Audit, tokens: TokenArrays, tolerance: float) -> bool:
    """Return whether an audit is within the tolerance.

    A share is a step function of the same nodes: it is held to ten times the tolerance, or ten
    tokens of a short text.
    """
    return checked.nll <= tolerance and checked.ood <= max(10 * tolerance, 10 / tokens.n_token)


def explain(
    harvests: "Harvests",
    grid: Mapping[str, Sequence[float]],
    *,
    chain: Sequence[str] | None = None,
    dialect: str = parameters.DEFAULT_DIALECT,
    epsilon: float = 0.01,
    tail: str = "bound",
    level: str = "auto",
    memory_mib: int = 1024,
    tolerance: float = 1e-4,
    audit_points: int = 64,
) -> Plan:
    """Say how a sweep would be computed, and compute nothing.

    Parameters
    ----------
    harvests, grid, chain, dialect, epsilon, tail, level, memory_mib, tolerance, audit_points
        As for `sweep`.

    Returns
    -------
    Plan
        Points, tokens, bytes, blocks and expected seconds; `text()` puts it in words.

    Raises
    ------
    ConfigError, SchemaError, PlanError
        As `sweep`.
    """
    del audit_points
    tokens = [token_arrays(harvest) for harvest in store.harvests(harvests)]
    return _plan(tokens, grid, chain, dialect, epsilon, tail, level, memory_mib, tolerance, 1.0)


def token_probabilities(
    harvest: "Harvests",
    *,
    chain: Sequence[str] | None = None,
    dialect: str = parameters.DEFAULT_DIALECT,
    tail: str = "bound",
    **values: float,
) -> "xr.DataArray":
    """Return the probability that a sampling pipeline gives to each actual token.

    Parameters
    ----------
    harvest : dataset or path
        One harvest.
    chain : sequence of str, optional
        Stages, first applied first; the dialect's order of what is given by default.
    dialect : {"llama.cpp", "vllm", "transformers", "sglang"}
        Whose order and whose meaning of a name.
    tail : {"bound", "drop"}
        Whether the unseen tail is modelled, or taken for absent.
    **values : float
        Parameters by name, for example ``temperature=0.8, min_p=0.05, alpha=1.0``; those that
        are missing are neutral.

    Returns
    -------
    xarray.DataArray
        (token,) float64 by the direct definition; 0 where the token is cut. With
        ``tail="bound"`` the coordinates `lower` and `upper` hold the least and the greatest over
        the tail's brackets.

    Raises
    ------
    ConfigError
        For a parameter, value or stage that is not allowed, or more than one harvest.
    PlanError
        When a top_k exceeds the harvested alternatives, or a stage needs more of the vocabulary
        than the harvest holds.
    """
    import xarray as xr

    datasets = store.harvests(harvest)
    if len(datasets) != 1:
        raise ConfigError(f"{len(datasets)} harvests were given; give one")
    check_tail(tail)
    if "epsilon" in values:
        raise ConfigError("epsilon: a probability has none; leave it out")
    point = {
        name: parameters.parameter(name, "token_probabilities").check([value], name)[0]
        for name, value in values.items()
    }
    order = parameters.default_order(point, dialect) if chain is None else chain
    stages = parameters.check_order(order, point, dialect=dialect)
    tokens = token_arrays(datasets[0])
    result = engine.direct_probabilities(tokens, point, chain=stages, tail=tail, block=512)
    coords: dict[str, Any] = {
        name: datasets[0][name] for name in ("model", "dataset", "document_index")
    }
    if tail == "bound":
        coords["lower"] = ("token", result.min(axis=0))
        coords["upper"] = ("token", result.max(axis=0))
    attrs = {"units": "1", "chain": ",".join(stages), "tail": tail, **point}
    return xr.DataArray(result[0], dims="token", coords=coords, name="probability", attrs=attrs)


def _plan(
    tokens: Sequence[TokenArrays],
    grid: Mapping[str, Sequence[float]],
    chain: Sequence[str] | None,
    dialect: str,
    epsilon: float,
    tail: str,
    level: str,
    memory_mib: int,
    tolerance: float,
    refine: float,
) -> Plan:
    """Check the arguments of a sweep and settle how it is computed."""
    parameters.check_positive(tolerance, "tolerance")
    parameters.check_positive(memory_mib, "memory_mib")
    check_tail(tail)
    parameters.parameter("epsilon").check([epsilon], "epsilon")
    if not isinstance(grid, Mapping):
        raise ConfigError(f"grid: {grid!r} is no mapping; give {{'temperature': [0.5, 1]}}")
    if not grid:
        raise ConfigError("the grid is empty; give at least one axis, for example temperature=[1]")
    axes: list[Axis] = []
    for name, values in grid.items():
        parameter = parameters.parameter(name)
        try:
            listed = np.atleast_1d(np.asarray(values)).tolist()
        except ValueError:  # lists of different lengths
            listed = list(values)
        axes.append(Axis(name, tuple(parameter.check(listed, f"grid.{name}"))))
    names = [axis.name for axis in axes]
    order = parameters.default_order(names, dialect) if chain is None else chain
    stages = parameters.check_order(order, names, dialect=dialect)
    for one in tokens:
        usable = usable_top_k(one, {axis.name: axis.values for axis in axes}, tail)
        check_needs(one, stages, usable, tail)
    return make_plan(
        tokens,
        axes,
        chain=stages,
        epsilon=epsilon,
        tail=tail,
        level=level,
        memory_mib=memory_mib,
        # The error of the nodes falls at least with the square of their step.
        refine=refine * max(1.0, (1e-4 / tolerance) ** 0.5),
    )


def _counter(plan: Plan, progress: Progress | None) -> Any:
    """Return what the engine calls after each step."""
    total = plan.n_point * plan.n_token
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done = min(done + n, total)
        if progress is not None:
            progress(done, total)

    return advance


def _labelled(
    plan: Plan,
    results: Sequence[_Result],
    tolerance: float,
) -> "xr.Dataset":
    """Put the results of all pairs under their labels."""
    import jax
    import xarray as xr

    from jaxsppl import __version__

    pair = (len(plan.models), len(plan.datasets))
    shape = tuple(len(axis.values) for axis in plan.axes)
    names = [axis.name for axis in plan.axes]
    extents: dict[tuple[str, ...], tuple[int, ...]] = {
        ("model", "dataset"): (),
        ("model", "dataset", *names): shape,
        ("model", "dataset", "baseline"): (len(BASELINES),),
        ("model", "dataset", "parameter"): (len(names),),
    }
    grid_dims, base_dims = ("model", "dataset", *names), ("model", "dataset", "baseline")
    dims: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("nll", "ood"), grid_dims),
        **dict.fromkeys(("plain_nll", "best_nll", "best_ood"), ("model", "dataset")),
        **dict.fromkeys(("baseline_nll", "baseline_ood"), base_dims),
        "best_value": ("model", "dataset", "parameter"),
    }
    if plan.tail == "bound":
        dims |= dict.fromkeys(("nll_lower", "nll_upper"), grid_dims)
        dims |= dict.fromkeys(("baseline_nll_lower", "baseline_nll_upper"), base_dims)
    arrays = {name: np.full((*pair, *extents[of]), np.nan) for name, of in dims.items()}
    counts = {name: np.zeros(pair, np.int64) for name in ("n_token", "n_byte")}
    for tokens, means, checked, named in results:
        at = plan.models.index(tokens.model), plan.datasets.index(tokens.dataset)
        values: dict[str, Any] = {
            "nll": means.nll,
            "nll_lower": means.lower,
            "nll_upper": means.upper,
            "ood": means.ood,
            "plain_nll": tokens.plain_nll,
            "best_nll": checked.best_nll,
            "best_ood": checked.best_ood,
            "best_value": [checked.best[name] for name in names],
            "baseline_nll": [one.nll for one in named],
            "baseline_nll_lower": [one.lower for one in named],
            "baseline_nll_upper": [one.upper for one in named],
            "baseline_ood": [one.ood for one in named],
        }
        for name, array in arrays.items():
            array[at] = values[name]
        counts["n_token"][at] = tokens.n_token
        counts["n_byte"][at] = tokens.n_byte
    variables: dict[str, Any] = {
        name: (dims.get(name, ("model", "dataset")), array, _words(name))
        for name, array in {**arrays, **counts}.items()
    }
    coords: dict[str, Any] = {
        "model": list(plan.models),
        "dataset": list(plan.datasets),
        **{axis.name: np.asarray(axis.values) for axis in plan.axes},
        "parameter": names,
        "baseline": list(BASELINES),
    }
    attrs: dict[str, Any] = {
        "schema": schema.SWEEP,
        "chain": ",".join(plan.chain),
        "tail": plan.tail,
        "level": plan.level,
        "tolerance": tolerance,
        "audit_points": sum(checked.n_point for _, _, checked, _ in results),
        "audit_nll": max(checked.nll for _, _, checked, _ in results),
        "audit_ood": max(checked.ood for _, _, checked, _ in results),
        "baselines_json": json.dumps(
            {
                name: {"chain": list(one.chain), "settings": dict(one.settings)}
                for name, one in BASELINES.items()
            }
        ),
        "harvests_json": json.dumps(
            [
                {
                    "model": one.model,
                    "dataset": one.dataset,
                    "fingerprint": one.fingerprint,
                    "source": one.source,
                }
                for one, *_ in results
            ]
        ),
        "version": __version__,
        "jax_version": jax.__version__,
    }
    own = parameters.user_stages(plan.chain)
    if own:
        attrs["user_stages_json"] = json.dumps(own)
    # Where epsilon is an axis, the baselines alone have this one.
    attrs["baseline_epsilon" if "epsilon" in names else "epsilon"] = plan.epsilon
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _words(name: str) -> dict[str, str]:
    """Return unit and meaning of a variable."""
    units, long_name = schema.SWEEP_VARIABLES[name]
    return {"units": units, "long_name": long_name}
