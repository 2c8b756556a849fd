"""What the files hold: dimensions, variables, units, and the checks of each file.

No input or output happens here, and neither jax nor xarray is imported: `jaxsppl check` answers at
once. A file is seen as `Contents`, which `jaxsppl.store` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxsppl.contents import Array, Contents, digest
from jaxsppl.errors import SchemaError

HARVEST = "jaxsppl-harvest/1"
SWEEP = "jaxsppl-sweep/1"
OPTIMUM = "jaxsppl-optimum/1"
COMPARISON = "jaxsppl-comparison/1"

# llama-server sums float32 probabilities one after another; the sum over the vocabulary is off by
# up to 6e-4 (measured), so a sum of the listed ones may exceed 1 by that much and not more.
MASS_TOLERANCE = 1e-3
# Tokens that are checked at once: a check takes several times their memory.
_AT_ONCE = 65_536


@dataclass(frozen=True)
class Variable:
    """What the schema says of one variable: dims, NumPy kind and type, unit, meaning."""

    dims: tuple[str, ...]
    dtype: str
    units: str
    long_name: str
    required: bool = True


HARVEST_VARIABLES: dict[str, Variable] = {
    "top_logprob": Variable(
        ("token", "rank"), "f4", "nat", "log-probability of the alternatives, descending"
    ),
    "top_token_id": Variable(
        ("token", "rank"), "i4", "1", "token id of the alternatives, -1 = absent"
    ),
    "token_id": Variable(("token",), "i4", "1", "id of the actual token"),
    "token_logprob": Variable(
        ("token",), "f4", "nat", "log-probability of the actual token under the full vocabulary"
    ),
    "token_rank": Variable(
        ("token",),
        "i4",
        "1",
        "1-based rank of the actual token among the alternatives, 0 = outside",
    ),
    "token_bytes": Variable(("token",), "i4", "byte", "UTF-8 length of the token's piece"),
    "document_index": Variable(("token",), "i4", "1", "document of the token"),
    "context_tokens": Variable(
        ("document",), "i4", "1", "tokens of context before the first scored one"
    ),
    "document_sha256": Variable(("document",), "U", "", "SHA-256 of the continuation's bytes"),
    "rank": Variable(("rank",), "i4", "1", "1-based rank"),
    "document": Variable(("document",), "U", "", "name of the document"),
    "group": Variable(("document",), "U", "", "group of the document", False),
    "model": Variable((), "U", "", "name of the model"),
    "dataset": Variable((), "U", "", "name of the dataset"),
    "log_partition": Variable(
        ("token", "inverse_temperature"),
        "f8",
        "nat",
        "log sum exp(logprob * inverse_temperature)",
        False,
    ),
    "inverse_temperature": Variable(("inverse_temperature",), "f8", "1", "1 / temperature", False),
    "entropy": Variable(("token",), "f4", "nat", "entropy over the full vocabulary", False),
    "logit_std": Variable(("token",), "f4", "nat", "population deviation of the logits", False),
    "min_logprob": Variable(("token",), "f4", "nat", "smallest log-probability", False),
}

HARVEST_COORDS = ("document", "rank", "group", "model", "dataset", "inverse_temperature")

SWEEP_VARIABLES: dict[str, tuple[str, str]] = {
    "nll": ("nat/token", "epsilon-clipped negative log-likelihood under the sampling chain"),
    "nll_lower": ("nat/token", "nll at the favourable bracket of the unseen tail"),
    "nll_upper": ("nat/token", "nll at the unfavourable bracket of the unseen tail"),
    "ood": ("1", "share of tokens whose probability is below epsilon"),
    "n_token": ("1", "scored tokens"),
    "n_byte": ("byte", "UTF-8 bytes of the scored tokens"),
    "plain_nll": ("nat/token", "negative log-likelihood under the model itself, nothing clipped"),
    "best_nll": ("nat/token", "nll of the best grid point, by the direct definition"),
    "best_ood": ("1", "out-of-distribution share of the best grid point"),
    "best_value": ("1", "parameter values of the best grid point"),
    "baseline_nll": ("nat/token", "nll of a named setting, by the direct definition"),
    "baseline_nll_lower": ("nat/token", "its favourable bracket"),
    "baseline_nll_upper": ("nat/token", "its unfavourable bracket"),
    "baseline_ood": ("1", "out-of-distribution share of a named setting"),
    "nll_se": ("nat/token", "standard error of nll, documents being the unit"),
    "nll_delta": ("nat/token", "nll above the best grid point of the same epsilon"),
    "nll_delta_se": ("nat/token", "standard error of that paired difference"),
    "plateau": ("1", "1 where a point cannot be told from the best, familywise"),
    "plateau_critical": ("1", "standard errors above the best at which the plateau ends"),
    "n_document": ("1", "documents with scored tokens"),
    "n_group": ("1", "groups of documents that are drawn whole, 0 where documents are the unit"),
    "n_choosing": ("1", "fewest units that chose the settings for a held-out part"),
    "n_proven": ("1", "held-out units that the chosen settings were scored on"),
    "n_tried": ("1", "grid points that were chosen from"),
    "chosen_value": ("1", "parameter values chosen without the documents of a fold"),
    "heldout_nll": ("nat/token", "nll on held-out documents"),
    "heldout_nll_interval": ("nat/token", "its interval"),
    "heldout_ood": ("1", "out-of-distribution share on held-out documents"),
    "heldout_gain": ("nat/token", "how much lower the nll of the chosen settings is, held out"),
    "heldout_gain_se": ("nat/token", "standard error of that paired gain"),
    "heldout_gain_interval": ("nat/token", "interval of that paired gain"),
    "heldout_win": ("1", "probability that the chosen settings are better"),
    "documents_needed": ("1", "units that would show such a difference with a power of 80 %"),
    "sampler_nll": ("nat/token", "nll on held-out documents of the best of one sampler"),
    "sampler_nll_interval": ("nat/token", "its interval"),
    "sampler_ood": ("1", "out-of-distribution share of it"),
    "sampler_gain": ("nat/token", "how much lower its nll is than that of the reference, held out"),
    "sampler_gain_se": ("nat/token", "standard error of that paired gain"),
    "sampler_gain_interval": ("nat/token", "interval of that paired gain"),
    "sampler_win": ("1", "probability that it is better than the reference"),
    "macro_gain": ("nat/token", "mean held-out gain over datasets, each weighing the same"),
    "macro_gain_interval": ("nat/token", "interval of the mean gain"),
    "macro_win": ("1", "probability that the mean gain is above 0"),
}
_OF_GRID = (
    "nll",
    "ood",
    "nll_lower",
    "nll_upper",
    "nll_se",
    "nll_delta",
    "nll_delta_se",
    "plateau",
)


def check_kind(contents: Contents, name: str, schema: str) -> None:
    """Check that the file is of that schema, complete and unchanged since it was written.

    Parameters
    ----------
    contents : Contents
        The file.
    name : str
        Its name, for the message.
    schema : str
        Expected value of the attribute `schema`.

    Raises
    ------
    SchemaError
        When it is another kind of file, is not complete, or its values were changed.
    """
    found = contents.attrs.get("schema")
    if found != schema:
        raise SchemaError(
            f"{name}: its schema is {found!r}, expected '{schema}'; is it another file?"
        )
    if str(contents.attrs.get("complete", 1)) != "1":
        raise SchemaError(
            f"{name}: it is marked as not complete; run the command that made it again"
        )
    expected = contents.attrs.get("digest")
    if expected is not None and digest(contents) != expected:
        raise SchemaError(
            f"{name}: its values are not those that were written (digest); make it again"
        )


def check_harvest(contents: Contents, name: str) -> None:
    """Check a harvest file against section 3 of the design, shapes first, then the values.

    Parameters
    ----------
    contents : Contents
        The file.
    name : str
        Its name, for the message.

    Raises
    ------
    SchemaError
        Saying the first thing that is wrong.
    """
    check_kind(contents, name, HARVEST)
    here = {
        variable: spec
        for variable, spec in HARVEST_VARIABLES.items()
        if spec.required or variable in contents.variables
    }
    _check_dims(contents, name, {variable: spec.dims for variable, spec in here.items()})
    for variable, spec in here.items():
        values = contents.array(variable)
        kind = "OU" if spec.dtype == "U" else {"f": "f", "i": "iu"}[spec.dtype[0]]
        if values.dtype.kind not in kind:
            raise SchemaError(f"{name}: '{variable}' holds {values.dtype}, expected {spec.dtype}")
    if contents.sizes["token"] == 0 or contents.sizes["document"] == 0:
        raise SchemaError(f"{name}: it holds no tokens; harvest at least one passage")
    for first in range(0, contents.sizes["token"], _AT_ONCE):
        # With the token before, so that the order across parts is seen too.
        begin = max(first - 1, 0)
        _check_tokens(_tokens(contents, slice(begin, first + _AT_ONCE)), name, begin)
    names = [str(value) for value in contents.array("document").tolist()]
    if len(set(names)) != len(names):
        raise SchemaError(f"{name}: two documents have the same name")


def _check_dims(
    contents: Contents, name: str, expected: Mapping[str, tuple[str, ...] | None]
) -> None:
    """Check that variables are there, with these dimensions where they are known beforehand."""
    for variable, dims in expected.items():
        if variable not in contents.variables:
            raise SchemaError(f"{name}: variable '{variable}' is missing")
        found = contents.variables[variable][0]
        if dims is not None and found != dims:
            raise SchemaError(f"{name}: '{variable}' has dims {found}, expected {dims}")


def _tokens(contents: Contents, where: slice) -> Contents:
    """Return some of the tokens, with all that does not depend on them."""
    variables = {
        name: (dims, values[where] if dims[:1] == ("token",) else values)
        for name, (dims, values) in contents.variables.items()
    }
    return replace(contents, variables=variables)


def _check_tokens(contents: Contents, name: str, begin: int) -> None:
    """Check the laws between the variables of some tokens, the first of which is `begin`."""
    top = contents.array("top_logprob").astype(np.float64)
    ids = contents.array("top_token_id")
    actual = contents.array("token_logprob").astype(np.float64)
    rank = contents.array("token_rank")
    n_token, n_rank = top.shape
    n_vocab = int(contents.attrs.get("n_vocab", 0))
    position = np.arange(n_token)
    listed = ids >= 0
    shown = np.where(listed, top, 0.0)
    inside = rank > 0
    column = np.clip(rank, 1, n_rank) - 1
    document = contents.array("document_index")
    with np.errstate(invalid="ignore", over="ignore"):
        mass = np.where(listed, np.exp(np.minimum(top, 1.0)), 0.0).sum(axis=1)
        # -inf minus -inf is NaN between two absent places, which compares as in order
        order = (np.diff(top, axis=1) > 0).any(axis=1)
    rules: list[tuple[str, Any]] = [
        ("n_vocab is not a number above 1", n_vocab < 2),
        ("there are more alternatives than n_vocab", bool(n_rank > n_vocab)),
        ("rank is not 1, 2, 3, ...", contents.array("rank").tolist() != [*range(1, n_rank + 1)]),
        ("top_logprob is NaN", np.isnan(top).any(axis=1)),
        ("no alternative is listed", ~listed[:, 0]),
        ("top_logprob of a listed token is not finite", (listed & ~np.isfinite(top)).any(axis=1)),
        ("top_logprob of an absent place is not -inf", (~listed & (top != -np.inf)).any(axis=1)),
        ("a log-probability is above 0", (shown > MASS_TOLERANCE).any(axis=1)),
        ("top_logprob does not descend", order),
        ("the alternatives' probabilities sum to more than 1", mass > 1 + MASS_TOLERANCE),
        ("top_token_id is not below n_vocab", (ids >= n_vocab).any(axis=1)),
        ("top_token_id is below -1", (ids < -1).any(axis=1)),
        ("a token id is listed twice", _repeats(ids, listed)),
        ("token_logprob is not a finite number at most 0",
         ~(actual <= MASS_TOLERANCE) | np.isinf(actual)),
        ("token_id is not in 0 .. n_vocab-1", (contents.array("token_id") < 0)
         | (contents.array("token_id") >= n_vocab)),
        ("token_rank is not in 0 .. K", (rank < 0) | (rank > n_rank)),
        ("token_id is not the alternative at token_rank",
         inside & (ids[position, column] != contents.array("token_id"))),
        ("token_rank is 0 though token_id is among the alternatives",
         ~inside & (ids == contents.array("token_id")[:, None]).any(axis=1)),
        ("token_logprob is not the alternative's at token_rank",
         inside & ~(np.abs(top[position, column] - actual) <= MASS_TOLERANCE)),
        ("token_logprob outside the alternatives is above the last of them",
         ~inside & (actual > shown.min(axis=1, initial=0.0, where=listed) + MASS_TOLERANCE)),
        ("token_bytes is negative", contents.array("token_bytes") < 0),
        ("document_index is not in 0 .. documents-1",
         (document < 0) | (document >= contents.sizes["document"])),
        ("document_index does not ascend", np.concatenate([[False], np.diff(document) < 0])),
        ("context_tokens is negative", bool((contents.array("context_tokens") < 0).any())),
        *_statistics_rules(contents, actual),
    ]  # fmt: skip
    for sentence, wrong in rules:
        if np.any(wrong):
            where = f" at token {begin + int(np.argmax(wrong))}" if np.ndim(wrong) else ""
            # What a cut along rank or document leaves behind; files are guarded by a digest.
            cut = sentence.startswith(("rank is", "token_rank is not", "document_index is"))
            remedy = "cut it along token only or" if cut else "the file is damaged,"
            raise SchemaError(f"{name}: {sentence}{where}; {remedy} harvest it again")


def _statistics_rules(contents: Contents, actual: Array) -> list[tuple[str, Any]]:
    """Return the laws of the optional statistics that are there."""
    rules: list[tuple[str, Any]] = []
    n_vocab = int(contents.attrs.get("n_vocab", 0))
    most = float(np.log(max(n_vocab, 1))) + MASS_TOLERANCE
    for name, lowest, highest in (
        ("entropy", -MASS_TOLERANCE, most),
        ("logit_std", 0.0, np.inf),
        ("min_logprob", -np.inf, np.minimum(actual, -most) + 2 * MASS_TOLERANCE),
    ):
        if name in contents.variables:
            values = contents.array(name).astype(np.float64)
            # the comparison is false for NaN
            wrong = ~((values >= lowest) & (values <= highest)) | np.isinf(values)
            rules.append((f"{name} is not a possible number", wrong))
    if "log_partition" not in contents.variables:
        return rules
    if "inverse_temperature" not in contents.variables:
        return [*rules, ("log_partition has no inverse_temperature", True)]
    inverse = contents.array("inverse_temperature")
    values = contents.array("log_partition")
    ascends = bool((inverse >= 0).all() and (np.diff(inverse) > 0).all())
    with np.errstate(invalid="ignore"):
        slope = np.diff(values, axis=1)
        one = np.abs(values[:, inverse == 1]) > MASS_TOLERANCE
        # every term falls as the inverse temperature grows, and at 0 there are n_vocab of them
        falls = (slope <= 1e-9).all(axis=1) & (values[:, 0] <= most)
    return [
        *rules,
        ("inverse_temperature does not ascend from 0 or more", not ascends),
        ("log_partition is not finite", ~np.isfinite(values).all(axis=1)),
        ("log_partition at inverse temperature 1 is not 0", one.any(axis=1)),
        ("log_partition does not fall with inverse_temperature", ~falls),
    ]


def _repeats(ids: Array, listed: Array) -> Array:
    """Return for each token whether one id stands twice among its alternatives."""
    ordered = np.sort(np.where(listed, ids, -np.arange(1, ids.shape[1] + 1)), axis=1)
    return (np.diff(ordered, axis=1) == 0).any(axis=1)


def check_sweep(contents: Contents, name: str) -> None:
    """Check a sweep file against section 4 of the design.

    Parameters
    ----------
    contents : Contents
        The file.
    name : str
        Its name, for the message.

    Raises
    ------
    SchemaError
        Saying the first thing that is wrong.
    """
    check_kind(contents, name, SWEEP)
    pair = ("model", "dataset")
    _check_dims(contents, name, dict.fromkeys(("nll", "ood", "n_token", "n_byte")))
    dims = contents.variables["nll"][0]
    if dims[:2] != pair:
        raise SchemaError(
            f"{name}: 'nll' has dims {dims}, expected model, dataset, then the parameters"
        )
    _check_coordinates(contents, name, dims)
    for variable in SWEEP_VARIABLES:
        if variable not in contents.variables:
            continue
        found, values = contents.variables[variable]
        expected = dims if variable in _OF_GRID else pair
        expected = pair[:1] if variable.startswith("macro_") else expected
        if found[: len(expected)] != expected:
            raise SchemaError(f"{name}: '{variable}' has dims {found}, expected {expected}")
        if values.dtype.kind not in "fiu":
            raise SchemaError(f"{name}: '{variable}' holds {values.dtype}, expected numbers")
    kept = contents.array("n_token").ravel() > 0
    nll = contents.array("nll").reshape(kept.size, -1)
    ood = contents.array("ood").reshape(kept.size, -1)
    if (np.isnan(nll).all(axis=1) != ~kept).any():
        raise SchemaError(f"{name}: n_token and nll disagree on which pairs were harvested")
    if not ((nll[kept] >= 0).all() and ((ood[kept] >= 0) & (ood[kept] <= 1)).all()):
        raise SchemaError(
            f"{name}: nll is negative or ood is outside 0 .. 1; the file is damaged, make it again"
        )


def _check_coordinates(contents: Contents, name: str, dims: tuple[str, ...]) -> None:
    """Check that each dimension has a coordinate of its own, whose labels differ."""
    for axis in dims:
        if axis not in contents.variables:
            raise SchemaError(f"{name}: coordinate '{axis}' is missing")
        found, values = contents.variables[axis]
        if found != (axis,):
            raise SchemaError(f"{name}: coordinate '{axis}' has dims {found}, expected ({axis!r},)")
        labels = values.tolist()
        if len(set(labels)) != len(labels) or not labels:
            raise SchemaError(f"{name}: coordinate '{axis}' is empty or holds a value twice")


def check_optimum(contents: Contents, name: str) -> None:
    """Check an optimum file against section 4 of the design.

    Parameters
    ----------
    contents : Contents
        The file.
    name : str
        Its name, for the message.

    Raises
    ------
    SchemaError
        Saying the first thing that is wrong.
    """
    check_kind(contents, name, OPTIMUM)
    start = ("model", "dataset", "start")
    expected = {
        "initial": (*start, "parameter"),
        "optimum": (*start, "parameter"),
        "nll": start,
        "ood": start,
        "status": start,
        "n_step": start,
    }
    _check_dims(contents, name, expected)
    _check_coordinates(contents, name, ("model", "dataset", "parameter"))


def check_comparison(contents: Contents, name: str) -> None:
    """Check a file of `jaxsppl compare`.

    Parameters
    ----------
    contents : Contents
        The file.
    name : str
        Its name, for the message.

    Raises
    ------
    SchemaError
        Saying the first thing that is wrong.
    """
    check_kind(contents, name, COMPARISON)
    dims = ("model", "setting", "dataset")
    expected: dict[str, tuple[str, ...]]
    expected = dict.fromkeys(("nll", "bits_per_byte", "to_model"), dims)
    expected |= dict.fromkeys(("n_document", "n_group"), dims[2:])
    _check_dims(contents, name, expected)
    _check_coordinates(contents, name, dims)
