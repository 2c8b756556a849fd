"""From a sweep to a decision: how sure its numbers are, what a choice is worth on other text."""

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from jaxsppl import store
from jaxsppl.choice import Choice, Rules
from jaxsppl.errors import AuditError, ConfigError, PlanError
from jaxsppl.schema import Array
from jaxsppl.sweep import heldout
from jaxsppl.sweep.baselines import BASELINES, VLLM, Baseline, baseline_sums
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.decided_file import DIMS, REFERENCE, Decided, Grid, Scored, labelled
from jaxsppl.sweep.documents import Documents, documents_of, grid_sums, point_sums
from jaxsppl.sweep.heldout import CHOSEN, Split
from jaxsppl.sweep.plan import Axis
from jaxsppl.sweep.plateau import Uncertainty, uncertainty
from jaxsppl.sweep.samplers import default_samplers, tried_points

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.store import Harvests

_LOG = logging.getLogger("jaxsppl.sweep")


def decide(
    result: "xr.Dataset",
    harvests: "Harvests",
    rules: Rules | None = None,
    choice: Choice | None = None,
    *,
    level: str = "auto",
    memory_mib: int = 1024,
    progress: Callable[[int, int], None] | None = None,
) -> "xr.Dataset":
    """Add to a sweep how sure it is, and prove its choice on documents that did not choose.

    Parameters
    ----------
    result : xarray.Dataset
        As `jaxsppl.sweep` gives it; settings that were placed on it are scored too.
    harvests : dataset, path, glob, or an iterable of these
        Those that it was made from.
    rules : Rules, optional
        Split, resamples and confidence.
    choice : Choice, optional
        What is best; the smallest nll by default.
    level, memory_mib
        As in `jaxsppl.sweep`.
    progress : callable, optional
        Called with the number of harvests done and in all.

    Returns
    -------
    xarray.Dataset
        The sweep with, for each grid point, `nll_se`, `nll_delta` and `nll_delta_se` above the best
        point [nat/token], and `plateau`, 1 where it cannot be told from the best; and for the
        chosen settings and the baselines on held-out documents `heldout_nll`, `heldout_ood`, their
        intervals and what choosing gained.

    Raises
    ------
    ConfigError
        When a rule is not allowed or the harvests are not those of the sweep.
    PlanError
        When the sums of the grid do not fit the memory.
    AuditError
        When the documents' sums and the sweep disagree.

    Notes
    -----
    The document is the unit, or the group of documents where the harvest has groups
    (`Rules.cluster`): `docs/statistics.md` states the method and its measured coverage.
    """
    result = result.drop_dims(DIMS, errors="ignore")  # an earlier proof, by other rules
    rules, choice = rules or Rules(), choice or Choice()
    rules.check()
    choice.check()
    opened = {_pair(harvest): harvest for harvest in store.harvests(harvests)}
    _check_same(result, opened)
    grid = _grid_of(result)
    tried = tried_points(
        grid.searched,
        default_samplers(grid.searched) if rules.samplers is None else rules.samplers,
        rules.seed,
    )
    baselines = _baselines(result)
    found: dict[tuple[str, str], Decided] = {}
    for number, (pair, harvest) in enumerate(opened.items()):
        nll = result["nll"].sel(model=pair[0], dataset=pair[1]).values
        found[pair] = _one(
            grid, harvest, grid.rows(nll), rules, choice, tried, baselines, level, memory_mib
        )
        if progress is not None:
            progress(number + 1, len(opened))
    return labelled(result, grid, found, rules, choice, baselines, tried)


def _pair(harvest: "xr.Dataset") -> tuple[str, str]:
    """Return the labels of a harvest."""
    return str(harvest["model"].values), str(harvest["dataset"].values)


def _baselines(result: "xr.Dataset") -> dict[str, Baseline]:
    """Return the named settings of a sweep, and vLLM's."""
    described = json.loads(str(result.attrs.get("baselines_json", "{}")))
    named = {
        str(name): Baseline(tuple(one["chain"]), {k: float(v) for k, v in one["settings"].items()})
        for name, one in described.items()
    }
    return {**BASELINES, "vLLM default": VLLM, **named}


def _check_same(result: "xr.Dataset", opened: Mapping[tuple[str, str], "xr.Dataset"]) -> None:
    """Refuse harvests that a sweep was not made from."""
    made_from = {
        (str(entry["model"]), str(entry["dataset"])): str(entry["fingerprint"])
        for entry in json.loads(str(result.attrs.get("harvests_json", "[]")))
    }
    given = {pair: token_arrays(harvest).fingerprint for pair, harvest in opened.items()}
    if made_from != given:
        names = ", ".join(f"{model} on {dataset}" for model, dataset in made_from) or "nothing"
        raise ConfigError(
            f"the harvests are not those that the sweep was made from ({names}); give these, or "
            "sweep again"
        )


def _grid_of(result: "xr.Dataset") -> Grid:
    """Return the grid of a sweep."""
    names = [str(name) for name in result["nll"].dims[2:]]
    axes = tuple(Axis(name, tuple(result[name].values.tolist())) for name in names)
    values = {axis.name: axis.values for axis in axes}
    usual = float(result.attrs.get("baseline_epsilon", result.attrs.get("epsilon", np.nan)))
    epsilons = values.get("epsilon", (usual,))
    chain = str(result.attrs["chain"])
    return Grid(
        axes=axes,
        chain=tuple(chain.split(",")) if chain else (),
        epsilons=epsilons,
        shown=int(np.argmin(np.abs(np.log(np.asarray(epsilons) / usual)))),
        tail=str(result.attrs["tail"]),
        tolerance=float(result.attrs.get("tolerance", 1e-4)),
    )


def _one(
    grid: Grid,
    harvest: "xr.Dataset",
    nll: Array,
    rules: Rules,
    choice: Choice,
    tried: Mapping[str, Array],
    baselines: Mapping[str, Baseline],
    level: str,
    memory_mib: int,
) -> Decided:
    """Decide for one harvest."""
    tokens = token_arrays(harvest)
    documents = documents_of(harvest).clustered(rules.cluster)
    if len(documents) < 2:
        _LOG.warning("%s: it is a single %s, which proves nothing", tokens.label, documents.unit)
        return Decided(documents.n_document, documents.n_group, nll.shape[1])
    split = heldout.make_split(
        documents, split=rules.split, fraction=rules.fraction, folds=rules.folds, seed=rules.seed
    )
    unsure = _sums(grid, tokens, documents, split, nll, rules, level, memory_mib)

    @cache
    def score(place: int) -> tuple[Array, Array]:
        """Score a place of the grid on each document."""
        return point_sums(tokens, documents, grid.point(place), chain=grid.chain, tail=grid.tail)

    loss, ood = unsure.loss[:, grid.shown], unsure.ood[:, grid.shown]

    def best_of(among: Array | None) -> dict[int, int]:
        """Choose for each held-out fold."""
        try:
            return heldout.choose(loss, ood, unsure.weight, split.proven, choice, among)
        except ConfigError as error:
            raise ConfigError(f"{tokens.label}: {error}") from error

    chosen = best_of(None)
    rows = {CHOSEN: heldout.held_out_sums(split, chosen, score)}
    for name, baseline in baselines.items():
        rows[name] = baseline_sums(
            tokens, documents, baseline, epsilon=grid.epsilons[grid.shown], tail=grid.tail
        )
    by_sampler = {
        name: heldout.held_out_sums(split, best_of(places), score) for name, places in tried.items()
    }
    if by_sampler:
        by_sampler |= {name: rows[name] for name in REFERENCE}
    where = np.isin(split.document_fold, split.proven)

    def scored(sums: Mapping[str, tuple[Array, Array]]) -> Scored:
        """Keep the proving documents."""
        of_loss = np.stack([one for one, _ in sums.values()])[:, where]
        of_ood = np.stack([one for _, one in sums.values()])[:, where]
        return Scored(tuple(sums), of_loss, of_ood, documents.n_token[where])

    return Decided(
        n_document=documents.n_document,
        n_group=documents.n_group,
        n_tried=nll.shape[1],
        unsure=unsure,
        settings=scored(rows),
        samplers=scored(by_sampler) if by_sampler else None,
        split=split,
        chosen=chosen,
    )


def _sums(
    grid: Grid,
    tokens: TokenArrays,
    documents: Documents,
    split: Split,
    nll: Array,
    rules: Rules,
    level: str,
    memory_mib: int,
) -> Uncertainty:
    """Score the grid on each batch of documents; exactly where the fast way differs too much."""
    weight = np.bincount(split.batch, documents.n_token, len(split.fold))
    # Sums of each fold, four more, and those of the batches for the points near the best.
    held = 8 * nll.size * (2 * int(split.fold.max()) + 14)
    if held > memory_mib * 2**20 // 2:
        raise PlanError(
            f"the documents' sums of {nll.size:,} points take {held / 2**20:,.0f} MiB of the "
            f"{memory_mib} MiB allowed; thin an axis, take fewer folds or raise memory_mib to "
            f"{2 * held // 2**20 + 1}"
        )
    for how in (level, "factored"):
        batches = grid_sums(
            tokens,
            split.batch[documents.index],
            grid.axes,
            chain=grid.chain,
            epsilon=grid.epsilons[grid.shown],
            tail=grid.tail,
            level=how,
            memory_mib=memory_mib - held // 2**20,
        )
        found = uncertainty(
            nll,
            ((grid.rows(loss), grid.rows(ood)) for loss, ood in batches),
            weight,
            split.fold,
            resamples=rules.resamples,
            confidence=rules.confidence,
            seed=rules.seed,
        )
        off = np.nanmax(np.abs(found.loss.sum(axis=0) / weight.sum() - nll))
        # Both may be off by the tolerance, in either direction.
        if off <= 2 * grid.tolerance:
            return found
        _LOG.info("%s: sums by document are off by %.2g nat; again, exactly", tokens.label, off)
    raise AuditError(
        f"{tokens.label}: the documents' sums differ from the sweep by {off:.2g} nat; sweep again"
    )
