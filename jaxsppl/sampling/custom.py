"""Samplers of users: a pure JAX function over sorted log-probabilities becomes a stage."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsppl.errors import ConfigError
from jaxsppl.parameters import PARAMETERS, USER_STAGES, Parameter
from jaxsppl.sampling import direct_steps
from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import ABSENT, Candidates
from jaxsppl.sampling.cuts import cut_after
from jaxsppl.sampling.direct_steps import State
from jaxsppl.sampling.kept import Kept, is_listed, kept_sum, logits, scaled
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.stages import STAGES, Stage

# (rank,) log-probabilities and the values of the parameters -> how many are kept, or new logits.
Rule = Callable[..., Any]

_CHECKED: set[str] = set()
_RULES: dict[str, tuple[Rule, bool]] = {}


def stage(
    name: str,
    *,
    neutral: float,
    lower: float = 0.0,
    upper: float = 1.0,
    usual: Sequence[float] = (),
    modifiers: Mapping[str, float] | None = None,
    reshapes: bool = False,
    summary: str = "",
    source: str = "",
) -> Callable[[Rule], Rule]:
    """Make a sampler of a pure JAX function; the name becomes a stage and an axis.

    Parameters
    ----------
    name : str
        Of the stage and of its parameter, for configs, files and plots.
    neutral : float
        Value at which it changes nothing; the function is not used there.
    lower, upper : float
        Range of the parameter.
    usual : sequence of float
        Values for an enumeration by `optimize`.
    modifiers : mapping of str to float, optional
        Further parameters with their defaults; axes too, of any finite value.
    reshapes : bool
        The function returns new logits instead of a cut.
    summary, source : str
        One line for help texts; the paper or program.

    Returns
    -------
    callable
        A decorator that returns the function itself. It is called as ``f(logprob, value,
        **modifiers)`` with the log-probabilities of the candidates that the stages before have
        left: (rank,), descending, summing to 1, -inf behind the last. It returns how many of them
        are kept, or a (rank,) mask that is true for these; with `reshapes`, (rank,) new logits,
        which descend too.

    Raises
    ------
    ConfigError
        When the name is taken or no name, or a number is not allowed.

    Examples
    --------
    >>> import jaxsppl, jax.numpy as jnp
    >>> @jaxsppl.stage("least", neutral=0.0)
    ... def least(logprob, value):
    ...     return (jnp.exp(logprob) >= value).sum()
    """
    _check_name(name)
    extra = dict(modifiers or {})
    for one in extra:
        _check_name(one)

    def register(rule: Rule) -> Rule:
        main = Parameter(
            name, name, neutral, lower, upper, summary or f"of {rule.__name__}",
            usual=tuple(float(value) for value in usual),
        )  # fmt: skip
        main.check([neutral, *(value for value in main.usual if value != neutral)], name)
        others = [
            Parameter(one, name, float(value), -1e9, 1e9, f"of '{name}'", switch=name)
            for one, value in extra.items()
        ]
        PARAMETERS.update({one.name: one for one in (main, *others)})
        USER_STAGES[name] = _digest(rule)
        STAGES[name] = Stage(
            (name,), _fast(rule, main, extra, reshapes), modifiers=tuple(extra), needs="all",
            closes=True, source=source,
        )  # fmt: skip
        direct_steps.STEPS[name] = _direct(rule, main, extra, reshapes)
        direct_steps.PARAMETERS_OF[name] = (name, *extra)
        _RULES[name] = (rule, reshapes)
        _CHECKED.discard(name)
        # Programs that were compiled with another function of that name are no longer right.
        jax.clear_caches()
        return rule

    return register


def _check_name(name: str) -> None:
    """Refuse a name that is no name, or that stands for something else."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"stage: {name!r} is no name; use letters, digits and _")
    known = PARAMETERS.get(name)
    if known is not None and known.stage not in USER_STAGES:
        raise ConfigError(f"stage: '{name}' is a parameter of jaxsppl; choose another name")


def _digest(rule: Rule) -> str:
    """Return a digest of a function's source, so that results know which it was."""
    try:
        text = inspect.getsource(rule)
    except (OSError, TypeError):
        text = repr(rule.__code__.co_code) if hasattr(rule, "__code__") else repr(rule)
    return hashlib.sha256(text.encode()).hexdigest()


def _along_rows(rule: Rule, rows: Array, arguments: Sequence[Any], extra: Mapping[str, Any]) -> Any:
    """Call a rule for each row of (..., rank) log-probabilities."""

    def one(row: Array) -> Any:
        return rule(row, *arguments, **extra)

    flat = jax.vmap(one)(rows.reshape(-1, rows.shape[-1]))
    return flat.reshape(*rows.shape[:-1], *flat.shape[1:])


def _count(result: Array, rows: Array) -> Array:
    """Return how many candidates of each row a result keeps, at least one."""
    number = jnp.isfinite(rows).sum(axis=-1)
    if result.ndim == rows.ndim:
        result = jnp.cumprod(result.astype(number.dtype), axis=-1).sum(axis=-1)
    return jnp.clip(result.astype(number.dtype), 1, number)


def _fast(rule: Rule, main: Parameter, extra: Mapping[str, float], reshapes: bool) -> Any:
    """Return the stage on bounds of ranks."""

    def apply(kept: Kept, block: Candidates, *values: Array, **named: Array) -> Kept:
        value = named.pop(main.name, None) if not values else values[0]
        value = jnp.asarray(main.neutral if value is None else value)
        on = value != main.neutral
        scale = scaled(kept, block)
        scale = scale - jnp.log(kept_sum(kept, jnp.exp(scale)))[..., None]
        n_rank = scale.shape[-1]
        # The candidates are moved to the front, and what is new back to their ranks.
        place = jnp.minimum(kept.start[..., None] + jnp.arange(n_rank), n_rank - 1)
        is_kept = is_listed(kept, block)
        first = jnp.arange(n_rank) < (kept.stop - kept.start)[..., None]
        shape = jnp.broadcast_shapes(scale.shape, place.shape)
        moved = jnp.take_along_axis(
            jnp.broadcast_to(scale, shape), jnp.broadcast_to(place, shape), axis=-1
        )
        rows = jnp.where(first, moved, -jnp.inf)
        result = _along_rows(rule, rows, (value,), {**extra, **named})
        if not reshapes:
            return cut_after(kept, _count(result, rows), on)
        back = jnp.maximum(jnp.arange(n_rank) - kept.start[..., None], 0)
        result = jnp.take_along_axis(result, jnp.broadcast_to(back, shape), axis=-1)
        shaped = jnp.where(is_kept, result, jnp.where(jnp.cumsum(is_kept, axis=-1) > 0, ABSENT, 0))
        return kept._replace(
            floor=jnp.where(on, tails.NONE, kept.floor),
            logit=jnp.where(on, shaped, logits(kept, block)),
            inverse=jnp.where(on, 1.0, kept.inverse),
        )

    return apply


def _direct(rule: Rule, main: Parameter, extra: Mapping[str, float], reshapes: bool) -> Any:
    """Return the stage on masks: the kept tokens sorted to the front by the mask itself."""

    def apply(state: State, **named: Array) -> State:
        value = jnp.asarray(named.pop(main.name, main.neutral))
        on = value != main.neutral
        order = jnp.argsort(~state.keep, axis=-1, stable=True)
        kept_first = jnp.take_along_axis(jnp.where(state.keep, state.logits, -jnp.inf), order, -1)
        rows = jax.nn.log_softmax(kept_first, axis=-1)
        result = _along_rows(rule, rows, (value,), {**extra, **named})
        if not reshapes:
            keep = jnp.cumsum(state.keep, axis=-1) <= _count(result, rows)[:, None]
            return direct_steps.after_cut(state, keep, tails.NONE, on)
        back = jnp.take_along_axis(result, jnp.argsort(order, axis=-1), axis=-1)
        new = jnp.where(state.keep, back, ABSENT)
        return replace(
            state,
            logits=jnp.where(on, new, state.logits),
            floor=jnp.where(on, tails.NONE, state.floor),
            inverse=jnp.where(on, 1.0, state.inverse),
            reshaped=True,
        )

    return apply


def check_laws(chain: Sequence[str]) -> None:
    """Check the user's stages of a chain, once each, before they are used.

    Parameters
    ----------
    chain : sequence of str
        Names of stages.

    Raises
    ------
    ConfigError
        When a function fails, gives another shape, NaN, no token or a set that is no beginning of
        the ranks, changes something at its neutral value, or turns the order around.
    """
    for name in dict.fromkeys(chain):
        if name in _RULES and name not in _CHECKED:
            _check(name)
            _CHECKED.add(name)


def _check(name: str) -> None:
    """Try a rule on made-up rows, at every kind of value."""
    rule, reshapes = _RULES[name]
    main = PARAMETERS[name]
    extra = {one: PARAMETERS[one].neutral for one in STAGES[name].modifiers}
    span = [main.lower, min(main.upper, 1e3)]
    middle = [span[0] + part * (span[1] - span[0]) for part in (0.03, 0.3, 0.7)]
    rng = np.random.default_rng(0)
    rows = -np.sort(-rng.normal(0, [[0.05], [1.0], [3.0], [9.0], [0.0], [1.0]], (6, 16)), axis=1)
    rows[5, 1:] = -np.inf
    rows[1, 10:] = -np.inf
    with float64():
        given = jax.nn.log_softmax(jnp.asarray(rows), axis=-1)
        for value in dict.fromkeys([main.neutral, *span, *middle, *main.usual]):
            where = f"stage '{name}' at {name} = {value:g}"
            try:
                result = np.asarray(_along_rows(rule, given, (jnp.asarray(value),), extra))
            except Exception as error:
                # whatever a user's function raises
                why = " ".join(str(error).split())[:300]
                raise ConfigError(
                    f"{where}: the function fails: {type(error).__name__}: {why}"
                ) from error
            _check_result(result, np.asarray(given), where, value == main.neutral, reshapes)


def _check_result(
    result: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
    where: str,
    is_neutral: bool,
    reshapes: bool,
) -> None:
    """Raise a ConfigError when a result breaks a law."""
    is_there = np.isfinite(rows)
    number = is_there.sum(axis=1)
    if reshapes:
        if result.shape != rows.shape:
            raise ConfigError(f"{where}: it gives shape {result.shape[1:]}, not one logit a rank")
        if not np.isfinite(result[is_there]).all():
            raise ConfigError(f"{where}: a candidate's new logit is not finite")
        shown = np.where(is_there, result, -np.inf)
        with np.errstate(invalid="ignore"):  # -inf minus -inf behind the candidates
            if (np.diff(shown, axis=1) > 1e-9).any():
                raise ConfigError(f"{where}: the new logits do not descend with the rank")
        change = np.where(is_there, result - np.where(is_there, rows, 0.0), 0.0)
        moved = np.where(is_there, change - change[:, :1], 0.0)
        if is_neutral and np.abs(moved).max() > 1e-9:
            raise ConfigError(f"{where}: it is neutral, but it changes probabilities")
        return
    if result.shape not in (number.shape, rows.shape):
        raise ConfigError(
            f"{where}: it gives shape {result.shape[1:]}; give one number, or a mask of the ranks"
        )
    if result.ndim == 1 and not np.isfinite(result.astype(np.float64)).all():
        raise ConfigError(f"{where}: the number of kept tokens is not finite")
    kept = result
    if result.ndim == 2:
        mask = (result != 0) & is_there
        if (np.diff(mask.astype(int), axis=1) > 0).any():
            raise ConfigError(f"{where}: the kept tokens are no beginning of the ranks")
        kept = mask.sum(axis=1)
    if (kept < 1).any():
        raise ConfigError(f"{where}: it keeps no token; keep at least the likeliest")
    if is_neutral and (np.minimum(kept, number) != number).any():
        raise ConfigError(f"{where}: it is neutral, but it cuts tokens")
