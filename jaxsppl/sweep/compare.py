"""Models and settings side by side on the same documents, with paired intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsppl import parameters, store
from jaxsppl.choice import Rules
from jaxsppl.errors import ConfigError, suggest
from jaxsppl.sampling.law import law
from jaxsppl.sampling.precision import float64
from jaxsppl.schema import Array
from jaxsppl.sweep import bootstrap
from jaxsppl.sweep.baselines import BASELINES, VLLM, Baseline
from jaxsppl.sweep.bootstrap import Resampled
from jaxsppl.sweep.compared import PLAIN, UNITS, Compared, Pair, labelled
from jaxsppl.sweep.data import TokenArrays, blocks, check_tail, token_arrays
from jaxsppl.sweep.divergence import places, plain_divergence, sampler_divergence
from jaxsppl.sweep.documents import Documents, documents_of, point_sums
from jaxsppl.sweep.engine import usable_point

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.store import Harvests

KNOWN: dict[str, Baseline] = {**BASELINES, "vLLM default": VLLM}
_BLOCK = 256
_law = jax.jit(law, static_argnames="chain")


@dataclass(frozen=True)
class _Model:
    """One model on the shared documents of a dataset, or their groups, in one order for all models.

    Attributes
    ----------
    tokens : TokenArrays
    documents : Documents
    token_id, top_token_id : array
        Ids of the actual tokens and of the alternatives.
    """

    tokens: TokenArrays
    documents: Documents
    token_id: Array
    top_token_id: Array

    def weight(self, unit: str) -> Array:
        """Return what the losses of the documents are divided by: tokens, or bits of text."""
        if unit == "token":
            return self.documents.n_token
        size = self.documents.n_byte if unit == "byte" else self.documents.n_char
        return size * np.log(2.0)

    def same_tokens(self, other: "_Model") -> bool:
        """Return whether both cut the documents into the same tokens of the same vocabulary."""
        return self.tokens.n_vocab == other.tokens.n_vocab and np.array_equal(
            self.token_id, other.token_id
        )


def compare(
    harvests: "Harvests",
    settings: Mapping[str, Baseline | Mapping[str, float]] | Sequence[str] = (
        "neutral",
        "llama.cpp default",
    ),
    *,
    reference: str | None = None,
    unit: str = "auto",
    epsilon: float = 0.01,
    tail: str = "bound",
    rules: Rules | None = None,
    characters: Mapping[str, int] | None = None,
) -> "xr.Dataset":
    """Compare models and settings on the documents that all models were harvested on.

    Parameters
    ----------
    harvests : dataset, path, glob, or an iterable of these
        One or several models on the same texts.
    settings : mapping or sequence of str
        By name: parameters (in llama.cpp's order) or a `Baseline`; or names of known settings.
        Beside them the model itself, nothing clipped, is always compared. The first is the one
        that the others are compared with.
    reference : str, optional
        The model that the others are compared with; the first by default.
    unit : {"auto", "token", "byte", "character"}
        Of differences: nat/token, or bits of text; tokens where all models have one tokenizer,
        else bytes.
    epsilon, tail
        As in `jaxsppl.sweep`.
    rules : Rules, optional
        Its seed, resamples, confidence, and whether groups of documents are drawn whole.
    characters : mapping of str to int, optional
        Characters of each document by the SHA-256 of its bytes.

    Returns
    -------
    xarray.Dataset
        Dims ``model, setting, dataset``; the dataset "mean of datasets" follows where there are
        several. `nll` [nat/token of the model], `bits_per_byte`, `bits_per_character`;
        `to_model` and `to_setting`, differences to the reference model under the same setting and
        to the first setting of the same model, with `_interval` and `_win`, the probability of
        being lower; divergences from the reference model where the tokenizer is the same.

    Raises
    ------
    ConfigError
        For an unknown model, setting or unit; when models share no document of a dataset, or
        models of different tokenizers are to be compared by token.

    Notes
    -----
    `docs/statistics.md` says what is counted.
    """
    rules = rules or Rules()
    rules.check()
    check_tail(tail)
    parameters.parameter("epsilon").check([epsilon], "epsilon")
    if unit not in ("auto", *UNITS):
        raise ConfigError(f"unit: '{unit}' is not allowed; {suggest(unit, ('auto', *UNITS))}")
    chosen = _settings(settings)
    opened = store.harvests(harvests)
    models = [*dict.fromkeys(str(one["model"].values) for one in opened)]
    datasets = [*dict.fromkeys(str(one["dataset"].values) for one in opened)]
    first = models[0] if reference is None else reference
    if first not in models:
        raise ConfigError(f"reference: there is no model '{first}'; {suggest(first, models)}")
    grouped = {
        dataset: _shared([one for one in opened if str(one["dataset"].values) == dataset],
                         first, dataset, characters or {}, rules.cluster)
        for dataset in datasets
    }  # fmt: skip
    unit = _unit(unit, grouped, first)
    found: dict[str, Compared] = {}
    for number, (dataset, members) in enumerate(grouped.items()):
        units = members[first].documents
        drawn = bootstrap.draw_documents(len(units), rules.resamples, [rules.seed, number])
        sums = {model: _sums(member, chosen, epsilon, tail) for model, member in members.items()}
        laws = {
            model: {name: _laws(member.tokens, one, tail) for name, one in chosen.items()}
            for model, member in members.items()
            if len(members) > 1 and member.same_tokens(members[first])
        }
        found[dataset] = Compared(
            n_document=units.n_document,
            n_group=units.n_group,
            alone={
                (model, name): Pair(
                    {u: bootstrap.resample(loss, member.weight(u), drawn) for u in UNITS},
                    float(ood.sum() / member.documents.n_token.sum()),
                )
                for model, member in members.items()
                for name, (loss, ood) in sums[model].items()
            },
            to_model=_differences(members, sums, unit, drawn, first, None),
            to_setting=_differences(members, sums, unit, drawn, None, next(iter(chosen))),
            divergence={
                model: _divergence(
                    members[first], members[model], laws[first], laws[model], epsilon, drawn
                )
                for model in laws
                if model != first
            },
        )
    members = [member.tokens for group in grouped.values() for member in group.values()]
    return labelled(
        found,
        models,
        [PLAIN, *chosen],
        first,
        unit,
        epsilon,
        tail,
        rules,
        chosen,
        [
            {
                "model": one.model,
                "dataset": one.dataset,
                "fingerprint": one.fingerprint,
                "source": one.source,
            }
            for one in members
        ],
        min(one.top_logprob.shape[1] for one in members),
    )


def _settings(
    settings: Mapping[str, Baseline | Mapping[str, float]] | Sequence[str],
) -> dict[str, Baseline]:
    """Return checked settings by name."""
    if not isinstance(settings, Mapping):
        for name in settings:
            if name not in KNOWN:
                raise ConfigError(f"setting '{name}': it is not known; {suggest(name, KNOWN)}")
        settings = {name: KNOWN[name] for name in settings}
    if not settings:
        raise ConfigError("settings: none is given; name at least one, as 'neutral'")
    chosen: dict[str, Baseline] = {}
    for name, given in settings.items():
        if name == PLAIN:
            raise ConfigError(f"setting '{name}': the name is taken; give it another one")
        asked = given.settings if isinstance(given, Baseline) else given
        values = {
            key: parameters.parameter(key, f"setting '{name}'").check([value], f"{name}.{key}")[0]
            for key, value in asked.items()
        }
        if "epsilon" in values:
            raise ConfigError(f"setting '{name}': epsilon is how one scores; give it for all")
        chain = given.chain if isinstance(given, Baseline) else parameters.default_order(values)
        chosen[name] = Baseline(parameters.check_order(chain, values, f"setting '{name}'"), values)
    return chosen


def _shared(
    opened: Sequence["xr.Dataset"],
    first: str,
    dataset: str,
    characters: Mapping[str, int],
    cluster: str,
) -> dict[str, _Model]:
    """Return the models of one dataset on the documents that all of them have."""
    of = {str(one["model"].values): one for one in opened}
    if first not in of:
        raise ConfigError(
            f"reference: model '{first}' was not harvested on '{dataset}'; name another"
        )
    everyone = {model: documents_of(one) for model, one in of.items()}
    common = set.intersection(*(set(one.names) for one in everyone.values()))
    order = [digest for digest in everyone[first].names if digest in common]
    if not order:
        raise ConfigError(
            f"the models {', '.join(of)} share no document of '{dataset}'; harvest them on the "
            "same passages"
        )
    # Of whichever model's file names a group: the texts are the same.
    group = {
        name: group
        for one in everyone.values()
        for name, group in zip(one.names, one.group, strict=True)
        if group
    }
    about = {digest: (group.get(digest, ""), characters.get(digest, np.nan)) for digest in order}
    return {model: _on(one, everyone[model], about, cluster) for model, one in of.items()}


def _on(
    harvest: "xr.Dataset",
    documents: Documents,
    about: Mapping[str, tuple[str, float]],
    cluster: str,
) -> _Model:
    """Return a model on some documents, given with their groups and characters, in that order."""
    rows = [documents.names.index(digest) for digest in about]
    turn = np.full(len(documents), -1)
    turn[rows] = np.arange(len(rows))
    index = turn[documents.index]
    # Stable: the tokens of a document stay in their order.
    where = np.argsort(index, kind="stable")[int((index < 0).sum()) :]
    group, n_char = zip(*about.values(), strict=True)
    kept = Documents(
        names=tuple(about),
        index=index[where],
        n_token=documents.n_token[rows],
        n_byte=documents.n_byte[rows],
        n_char=np.asarray(n_char, np.float64),
        group=group,
        n_document=len(about),
    )
    return _Model(
        token_arrays(harvest).take(where),
        kept.clustered(cluster),
        harvest["token_id"].values[where],
        harvest["top_token_id"].values[where],
    )


def _unit(unit: str, grouped: Mapping[str, Mapping[str, _Model]], first: str) -> str:
    """Return the unit of differences, or refuse it."""
    other = next(
        (
            (model, dataset)
            for dataset, members in grouped.items()
            for model, member in members.items()
            if not member.same_tokens(members[first])
        ),
        None,
    )
    if unit == "auto":
        return "token" if other is None else "byte"
    if unit == "token" and other is not None:
        model, dataset = other
        one, two = (grouped[dataset][name].tokens.n_vocab for name in (first, model))
        raise ConfigError(
            f"models '{first}' and '{model}' cut '{dataset}' into different tokens (vocabularies "
            f"of {one:,} and {two:,}): their nll per token are means over different things; "
            "compare bits per byte (unit byte)"
        )
    unknown = any(
        np.isnan(m.documents.n_char).any() for ms in grouped.values() for m in ms.values()
    )
    if unit == "character" and unknown:
        raise ConfigError(
            "unit: the characters of some documents are not known; name the folders of passages "
            "(--texts), or compare by byte"
        )
    return unit


def _sums(
    member: _Model, settings: Mapping[str, Baseline], epsilon: float, tail: str
) -> dict[str, tuple[Array, Array]]:
    """Return (document,) losses and counts of the model itself and of each setting."""
    own = -member.tokens.token_logprob.astype(np.float64)
    unclipped = member.documents.sums(own), member.documents.sums((own > -np.log(epsilon)) * 1.0)
    return {PLAIN: unclipped} | {
        name: point_sums(
            member.tokens,
            member.documents,
            {**one.settings, "epsilon": epsilon},
            chain=one.chain,
            tail=tail,
        )
        for name, one in settings.items()
    }


def _differences(
    members: Mapping[str, _Model],
    sums: Mapping[str, Mapping[str, tuple[Array, Array]]],
    unit: str,
    drawn: Array,
    model: str | None,
    setting: str | None,
) -> dict[tuple[str, str], Resampled]:
    """Return each nll less that of the reference: another model's, or another setting's."""
    found: dict[tuple[str, str], Resampled] = {}
    for one, member in members.items():
        for name, (loss, _) in sums[one].items():
            if setting is not None and name == PLAIN:
                continue  # unclipped and clipped losses do not compare
            other, beside = model or one, setting or name
            found[one, name] = bootstrap.resample_difference(
                (loss, member.weight(unit)),
                (sums[other][beside][0], members[other].weight(unit)),
                drawn,
            )
    return found


def _divergence(
    first: _Model,
    other: _Model,
    laws: Mapping[str, Array],
    other_laws: Mapping[str, Array],
    epsilon: float,
    drawn: Array,
) -> dict[str, Any]:
    """Return how far a model is from the reference: means by document, and values by token."""
    place = places(first.top_token_id, other.top_token_id)
    smallest = other.tokens.min_logprob
    plain = plain_divergence(first.tokens.top_logprob, other.tokens.top_logprob, place, smallest)
    by_token: dict[str, Array] = {
        "kl_lower": plain.kl_lower,
        "kl_upper": plain.kl_upper,
        "same_top": plain.same_top,
        "unshared": plain.unshared,
    }
    for name, p in laws.items():
        clipped, overlap = sampler_divergence(p, other_laws[name], place, epsilon)
        by_token |= {f"clipped_kl {name}": clipped, f"overlap {name}": overlap}
    change = np.abs(other.tokens.token_logprob.astype(np.float64) - first.tokens.token_logprob)
    weight = first.documents.n_token
    means = {
        name: bootstrap.resample(first.documents.sums(values), weight, drawn)
        for name, values in by_token.items()
        if np.isfinite(values).all()
    }
    return {"means": means, "kl": plain.kl_lower, "change": change}


def _laws(tokens: TokenArrays, setting: Baseline, tail: str) -> Array:
    """Return (token, rank) probabilities of the alternatives under a setting."""
    # Whichever the actual token was: the likeliest stands for it.
    asked = replace(
        tokens,
        token_logprob=tokens.top_logprob[:, 0],
        token_rank=np.ones_like(tokens.token_rank),
    )
    point = usable_point(tokens, setting.settings, tail)
    with float64():
        values = {name: jnp.asarray(value) for name, value in point.items()}
        parts = [
            np.asarray(_law(block, setting.chain, values)) for block in blocks(asked, _BLOCK, tail)
        ]
    return np.concatenate(parts)[: tokens.n_token]
