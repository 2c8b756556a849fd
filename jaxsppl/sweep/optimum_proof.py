"""The held-out proof of an optimum: found again without each fold, scored on the fold."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsppl import schema
from jaxsppl.choice import Rules
from jaxsppl.schema import Array
from jaxsppl.sweep import heldout
from jaxsppl.sweep.baselines import BASELINES, VLLM, Baseline, baseline_sums
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.decided_file import Scored, scores
from jaxsppl.sweep.documents import Documents, point_sums
from jaxsppl.sweep.heldout import CHOSEN, Split

# What every optimum is compared with.
USUAL: dict[str, Baseline] = {**BASELINES, "vLLM default": VLLM}
_LOG = logging.getLogger("jaxsppl.sweep")


@dataclass(frozen=True)
class Proven:
    """The proof of one optimum.

    Attributes
    ----------
    documents : Documents
        Or groups of them: what is held out whole.
    split : Split
    points : mapping of int to mapping of str to float
        What was found without a fold, by fold.
    settings : Scored
        The found settings first, then the baselines.
    """

    documents: Documents
    split: Split
    points: Mapping[int, Mapping[str, float]]
    settings: Scored


def prove(
    tokens: TokenArrays,
    documents: Documents,
    rules: Rules,
    find: Callable[[TokenArrays], Mapping[str, float]],
    baselines: Mapping[str, Baseline],
    *,
    chain: Sequence[str],
    tail: str,
) -> Proven | None:
    """Search without each fold of the documents, and score what was found on the fold.

    Parameters
    ----------
    tokens : TokenArrays
        One harvest, or a pool.
    documents : Documents
        Its documents, or groups of them: what is held out whole.
    rules : Rules
        The split.
    find : callable
        Returns the best parameters on some tokens, `epsilon` among them.
    baselines : mapping of str to Baseline
        What the found settings are compared with.
    chain : sequence of str
        Order of the stages.
    tail : str
        "bound" or "drop".

    Returns
    -------
    Proven or None
        None for a single document, which proves nothing.
    """
    if len(documents) < 2:
        _LOG.warning("%s: it is a single %s, which proves nothing", tokens.label, documents.unit)
        return None
    split = heldout.make_split(
        documents, split=rules.split, fraction=rules.fraction, folds=rules.folds, seed=rules.seed
    )
    fold_of = split.document_fold[documents.index]
    points = {fold: find(tokens.take(np.flatnonzero(fold_of != fold))) for fold in split.proven}

    def score(fold: int) -> tuple[Array, Array]:
        """Score what was found without a fold on each document."""
        return point_sums(tokens, documents, points[fold], chain=chain, tail=tail)

    rows = {CHOSEN: heldout.held_out_sums(split, {fold: fold for fold in points}, score)}
    epsilon = next(iter(points.values()))["epsilon"]
    for name, baseline in baselines.items():
        rows[name] = baseline_sums(tokens, documents, baseline, epsilon=epsilon, tail=tail)
    where = np.isin(split.document_fold, split.proven)
    loss, ood = (np.stack([row[i] for row in rows.values()])[:, where] for i in (0, 1))
    return Proven(
        documents, split, points, Scored(tuple(rows), loss, ood, documents.n_token[where])
    )


def labelled_proof(
    found: Mapping[tuple[str, str], Proven],
    models: Sequence[str],
    datasets: Sequence[str],
    over: Sequence[str],
    baselines: Mapping[str, Baseline],
    rules: Rules,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the proofs as variables, coordinates and attributes of an optimum file.

    Parameters
    ----------
    found : mapping of (model, dataset) to Proven
    models, datasets, over : sequence of str
        Coordinates; `over` are the optimized parameters.
    baselines : mapping of str to Baseline
    rules : Rules

    Returns
    -------
    tuple of dict
        Named as in a sweep file that holds a proof, without the plateau.
    """
    pair = ("model", "dataset")
    shape = (len(models), len(datasets))
    n_fold = max(len(one.points) for one in found.values())
    chosen = np.full((*shape, n_fold, len(over)), np.nan)
    names = ("n_document", "n_group", "n_choosing", "n_proven")
    counts = {name: np.zeros(shape, np.int64) for name in names}
    for (model, dataset), one in found.items():
        at = models.index(model), datasets.index(dataset)
        of = (one.documents, one.documents, one.split, one.split)
        for name, holder in zip(names, of, strict=True):
            counts[name][at] = getattr(holder, name)
        for row, point in enumerate(one.points.values()):
            chosen[(*at, row)] = [point[name] for name in over]
    settings = {labels: one.settings for labels, one in found.items()}
    scored, _ = scores(settings, models, datasets, (CHOSEN, *baselines), CHOSEN, "setting", rules)
    variables = {
        **scored,
        **{name: (pair, array) for name, array in counts.items()},
        "chosen_value": ((*pair, "fold", "searched"), chosen),
    }
    coords = {
        "setting": [CHOSEN, *baselines],
        "end": ["low", "high"],
        "fold": np.arange(n_fold),
        "searched": list(over),
    }
    described = {
        name: {"chain": list(one.chain), "settings": dict(one.settings)}
        for name, one in baselines.items()
    }
    attrs = {"settings_json": json.dumps(described)}
    words = {
        name: (*of, dict(zip(("units", "long_name"), schema.SWEEP_VARIABLES[name], strict=True)))
        for name, of in variables.items()
    }
    return words, coords, attrs
