"""One position under a chain: what each stage does to each alternative, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsppl import parameters, store
from jaxsppl.errors import ConfigError
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.kept import Kept, entropy, one_scenario, top_logprob
from jaxsppl.sampling.law import trace
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.stages import STAGES, given, run_branches, step
from jaxsppl.schema import Array
from jaxsppl.sweep.baselines import BASELINES
from jaxsppl.sweep.data import TokenArrays, blocks, check_tail, token_arrays
from jaxsppl.sweep.engine import direct_probabilities, usable_point

if TYPE_CHECKING:
    from jaxsppl.store import Harvests


@dataclass(frozen=True)
class ExplainedStage:
    """A stage that acts.

    Attributes
    ----------
    name : str
    settings : mapping of str to float
        Values of its parameters.
    kept : tuple of (float, int, int)
        Of each outcome of the coins: its probability, the first and the last kept rank (1-based).
    threshold : float or None
        Probability, before this stage, below which it cuts, where it is such a cut [1].
    """

    name: str
    settings: Mapping[str, float]
    kept: tuple[tuple[float, int, int], ...]
    threshold: float | None


@dataclass(frozen=True)
class Alternative:
    """A listed token.

    Attributes
    ----------
    rank, token_id : int
        1-based rank.
    is_actual : bool
        Whether it is the token of the text.
    probability : float
        The model's [1].
    after : tuple of float
        What plain sampling would give it after each stage [1].
    cut_by, why : str
        The stage that cut it and its reason; "" where it is left, or in some outcome of a coin.
    drawn : float
        What the whole pipeline gives it [1].
    """

    rank: int
    token_id: int
    is_actual: bool
    probability: float
    after: tuple[float, ...]
    cut_by: str
    why: str
    drawn: float


@dataclass(frozen=True)
class ExplainedToken:
    """A position of a harvest under a chain.

    Attributes
    ----------
    model, dataset, document : str
    at : int
        Place in the harvest, from 0.
    token_id, rank : int
        Of the actual token; rank 0 = not listed.
    probability : float
        What the model gives it [1].
    drawn, lower, upper : float
        What the pipeline gives it, and its brackets where the unseen tail matters [1].
    chain : tuple of str
    settings : mapping of str to float
    tail : str
    stages : tuple of ExplainedStage
    alternatives : tuple of Alternative
        All listed tokens.
    """

    model: str
    dataset: str
    document: str
    at: int
    token_id: int
    rank: int
    probability: float
    drawn: float
    lower: float
    upper: float
    chain: tuple[str, ...]
    settings: Mapping[str, float]
    tail: str
    stages: tuple[ExplainedStage, ...]
    alternatives: tuple[Alternative, ...]


def explain_token(
    harvest: "Harvests",
    at: int,
    *,
    chain: Sequence[str] | None = None,
    dialect: str = parameters.DEFAULT_DIALECT,
    tail: str = "bound",
    **values: float,
) -> ExplainedToken:
    """Say what a sampling pipeline does to each alternative at one position.

    Parameters
    ----------
    harvest : dataset or path
        One harvest.
    at : int
        Place of the token in it, from 0.
    chain : sequence of str, optional
        Stages, first applied first; the dialect's order of what is given by default.
    dialect : {"llama.cpp", "vllm", "transformers", "sglang"}
        Whose order and whose meaning of a name.
    tail : {"bound", "drop"}
        Whether the unseen tail is modelled, or taken for absent.
    **values : float
        Parameters by name; llama.cpp's default setting when none is given.

    Returns
    -------
    ExplainedToken
        By the estimate of the unseen tail.

    Raises
    ------
    ConfigError
        For a parameter, value, stage or place that is not allowed, or more than one harvest.
    PlanError
        When a stage needs more of the vocabulary than the harvest holds.

    Examples
    --------
    >>> import jaxsppl
    >>> one = jaxsppl.explain_token("prose.harvest.nc", 7, min_p=0.1)  # doctest: +SKIP
    >>> [alternative.cut_by for alternative in one.alternatives]  # doctest: +SKIP
    """
    datasets = store.harvests(harvest)
    if len(datasets) != 1:
        raise ConfigError(f"{len(datasets)} harvests were given; give one")
    check_tail(tail)
    if "epsilon" in values:
        raise ConfigError("epsilon: a probability has none; leave it out")
    if not values and chain is None:
        default = BASELINES["llama.cpp default"]
        values, chain = dict(default.settings), default.chain
    point = {
        name: parameters.parameter(name, "explain-token").check([value], name)[0]
        for name, value in values.items()
    }
    order = parameters.default_order(point, dialect) if chain is None else chain
    stages = parameters.check_order(order, point, dialect=dialect)
    tokens, labelled = token_arrays(datasets[0]), datasets[0]
    parameters.check_whole(at, "at")
    if at >= tokens.n_token:
        raise ConfigError(
            f"at: there is no token {at}; {tokens.label} has {tokens.n_token}, from 0 to "
            f"{tokens.n_token - 1}"
        )
    one = tokens.take(np.array([at]))
    usable = usable_point(one, point, tail, stages)
    drawn = direct_probabilities(one, point, chain=stages, tail=tail, block=1)[:, 0]
    steps, acts = _followed(one, stages, usable, tail)
    ids = labelled["top_token_id"].values[at]
    return ExplainedToken(
        model=tokens.model,
        dataset=tokens.dataset,
        document=str(labelled["document"].values[int(labelled["document_index"].values[at])]),
        at=at,
        token_id=int(labelled["token_id"].values[at]),
        rank=int(one.token_rank[0]),
        probability=float(np.exp(one.token_logprob[0].astype(np.float64))),
        drawn=float(drawn[0]),
        lower=float(drawn.min()),
        upper=float(drawn.max()),
        chain=stages,
        settings=point,
        tail=tail,
        stages=tuple(act.stage for act in acts),
        alternatives=tuple(
            _alternative(one, rank, int(ids[rank]), steps, acts)
            for rank in np.flatnonzero(ids >= 0).tolist()
        ),
    )


@dataclass(frozen=True)
class _Act:
    """A stage with what its words need: the law before it, and the entropy of that [nat]."""

    stage: ExplainedStage
    before: Array
    entropy: float


def _followed(
    tokens: TokenArrays, chain: tuple[str, ...], point: Mapping[str, float], tail: str
) -> tuple[list[Array], list[_Act]]:
    """Return (rank,) probabilities after each acting stage, and drawn; and what these are."""
    # The likeliest token stands for the actual one, which is any of the others then.
    some = replace(tokens, token_logprob=tokens.top_logprob[:, 0], token_rank=np.ones(1, np.int32))
    with float64():
        values = {name: jnp.asarray(value) for name, value in point.items()}
        [block] = blocks(some, 1, tail)
        passed, drawn = jax.tree.map(np.asarray, _passed(block, values, chain))
    acts: list[_Act] = []
    names = [name for name in chain if given(name, point)]
    for name, one in zip(names, passed, strict=True):
        ranks = zip(one.share, one.start, one.stop, strict=True)
        kept = tuple((float(share), int(start) + 1, int(stop)) for share, start, stop in ranks)
        threshold = None if np.isnan(one.threshold) else float(one.threshold)
        stage = ExplainedStage(name, given(name, point), kept, threshold)
        acts.append(_Act(stage, one.before, float(one.entropy)))
    return [*(one.after for one in passed), drawn], acts


class _Passed(NamedTuple):
    """What a stage did: (rank,) the law before and after it, and what `Step` and `_Act` say."""

    before: jax.Array
    after: jax.Array
    share: jax.Array
    start: jax.Array
    stop: jax.Array
    threshold: jax.Array
    entropy: jax.Array


@partial(jax.jit, static_argnames="chain")
def _passed(
    block: Candidates, values: Mapping[str, jax.Array], chain: tuple[str, ...]
) -> tuple[list[_Passed], jax.Array]:
    """Return what each acting stage did, and what the pipeline gives each alternative."""
    steps = trace(block, chain, values)
    found: list[_Passed] = []
    for place, name in enumerate(chain):
        if not given(name, values):
            continue
        law, after = steps[place].probability[0], steps[place + 1]
        left = one_scenario(run_branches(block, chain[:place], values)[0].kept, tails.ESTIMATE)
        found.append(
            _Passed(
                law,
                after.probability[0],
                after.share,
                after.start[:, 0],
                after.stop[:, 0],
                _threshold(block, name, values, left, law),
                entropy(left, block)[0],
            )
        )
    return found, steps[-1].probability[0]


def _threshold(
    block: Candidates, name: str, values: Mapping[str, jax.Array], before: Kept, law: jax.Array
) -> jax.Array:
    """Return the probability below which a stage cuts, NaN where its cut is another one."""
    if STAGES[name].branches or before.logit is not None:
        return jnp.asarray(jnp.nan)
    # Once no unseen token is left, a stage leaves the floor; without a tail it tells its own.
    closed = before.floor[0] == tails.NONE
    alone = before._replace(floor=jnp.full_like(before.floor, tails.ALL))
    own = step(name, alone, block._replace(tail=None), values).floor[0]
    whole = one_scenario(step(name, before, block, values), tails.ESTIMATE).floor[0]
    floor = jnp.where(closed, own, whole)
    same = floor == jnp.where(closed, tails.ALL, before.floor[0])
    distance = before.inverse * (floor - top_logprob(before, block))
    threshold = law[before.start[0]] * jnp.exp(jnp.ravel(distance)[0])
    return jnp.where(same | (floor == tails.NONE), jnp.nan, threshold)


def _alternative(
    tokens: TokenArrays, rank: int, token_id: int, laws: Sequence[Array], acts: Sequence[_Act]
) -> Alternative:
    """Return what became of one token."""
    cut = next((act for act, law in zip(acts, laws, strict=False) if law[rank] == 0), None)
    return Alternative(
        rank=rank + 1,
        token_id=token_id,
        is_actual=rank + 1 == int(tokens.token_rank[0]),
        probability=float(np.exp(tokens.top_logprob[0, rank].astype(np.float64))),
        after=tuple(float(law[rank]) for law in laws[:-1]),
        cut_by="" if cut is None else cut.stage.name,
        why="" if cut is None else _why(rank, cut),
        drawn=float(laws[-1][rank]),
    )


def _why(rank: int, act: _Act) -> str:
    """Return why a stage cut a token."""
    stage, before = act.stage, act.before
    own = float(before[rank])
    base = parameters.base_name(stage.name)
    if stage.threshold is not None and base != "top_p":
        return f"its {100 * own:.3g} % are below the threshold {100 * stage.threshold:.3g} %"
    if base == "top_p":
        mass = float(before[:rank].sum())
        return f"those before it have {100 * mass:.4g} %, which reaches {stage.settings['top_p']:g}"
    if base == "typical_p":
        away = abs(-np.log(own) - act.entropy)
        return (
            f"its surprise is {away:.2f} nat from the entropy {act.entropy:.2f}; nearer ones "
            f"reach {stage.settings['typical_p']:g}"
        )
    _, first, last = stage.kept[-1]
    if rank + 1 < first:
        return f"one of the top choices before rank {first}"
    return f"behind the {last} that it keeps"
