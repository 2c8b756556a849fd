"""Scored passages as journal records and back, and the harvest file made of them."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl import schema
from jaxsppl.harvest.protocol import Passage, ScoredPassage
from jaxsppl.harvest.statistics import INVERSE_TEMPERATURE, NAMES, Statistics, joined

if TYPE_CHECKING:
    import xarray as xr

_ARRAYS: dict[str, str] = {
    "token_id": "<i4",
    "token_logprob": "<f4",
    "token_rank": "<i4",
    "token_bytes": "<i4",
    "top_token_id": "<i4",
    "top_logprob": "<f4",
}
_STATISTICS = {name: "<f8" if name == "log_partition" else "<f4" for name in NAMES}
# Passages that are put together at once; a few megabytes.
PART = 32
_NUMBERS = ("context_tokens", "merged", "censored")


def to_record(document: str, scored: ScoredPassage) -> dict[str, Any]:
    """Return a scored passage as JSON values, bit for bit.

    Parameters
    ----------
    document : str
    scored : ScoredPassage

    Returns
    -------
    dict
    """
    record: dict[str, Any] = {"document": document, "n_token": int(scored.token_id.size)}
    for name in _NUMBERS:
        record[name] = int(getattr(scored, name))
    for name, kind in _ARRAYS.items():
        record[name] = _text(getattr(scored, name), kind)
    if scored.texts is not None:
        record["texts"] = scored.texts
    if scored.statistics is not None:
        for name, kind in _STATISTICS.items():
            record[name] = _text(getattr(scored.statistics, name), kind)
    return record


def _text(values: Any, kind: str) -> str:
    """Return the bytes of an array as text."""
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")


def _array(text: str, kind: str, shape: tuple[int, ...]) -> Any:
    """Return the array that `_text` wrote."""
    data = np.frombuffer(base64.b64decode(text, validate=True), kind)
    return data.astype(kind[1:]).reshape(shape)


def from_record(record: Mapping[str, Any], alternatives: int) -> tuple[str, ScoredPassage] | None:
    """Return document and arrays of a record, or None when it is not whole.

    Parameters
    ----------
    record : mapping
        From the journal.
    alternatives : int
        K.

    Returns
    -------
    (str, ScoredPassage) or None
    """
    try:
        n_token = int(record["n_token"])
        arrays: dict[str, Any] = {}
        for name, kind in _ARRAYS.items():
            shape = (n_token, alternatives) if name.startswith("top_") else (n_token,)
            arrays[name] = _array(record[name], kind, shape)
        if "log_partition" in record:
            shapes = {"log_partition": (n_token, INVERSE_TEMPERATURE.size)}
            arrays["statistics"] = Statistics(
                **{
                    name: _array(record[name], kind, shapes.get(name, (n_token,)))
                    for name, kind in _STATISTICS.items()
                }
            )
        if "texts" in record:
            arrays["texts"] = tuple(map(str, record["texts"]))
        numbers: dict[str, Any] = {name: int(record[name]) for name in _NUMBERS}
        return str(record["document"]), ScoredPassage(**arrays, **numbers)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None


def texts_digest(passages: Sequence[Passage]) -> str:
    """Return the SHA-256 over names and texts of all passages, in their order.

    Parameters
    ----------
    passages : sequence of Passage

    Returns
    -------
    str
        Hexadecimal.
    """
    total = hashlib.sha256()
    for passage in passages:
        group = str(getattr(passage, "group", ""))
        texts = (passage.document, passage.prefix, passage.continuation)
        for text in (*texts, group) if group else texts:
            data = text.encode("utf-8", "surrogatepass")
            total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def assemble(
    passages: Sequence[Passage],
    scored: Mapping[str, ScoredPassage],
    *,
    model: str,
    dataset: str,
    attrs: Mapping[str, str | int | float],
    grouped: bool | None = None,
    numbers: dict[str, int] | None = None,
) -> "xr.Dataset":
    """Put the scored passages into one harvest, in the order of the passages.

    Parameters
    ----------
    passages : sequence of Passage
    scored : mapping of str to ScoredPassage
        By document; those that are missing have failed.
    model, dataset : str
    attrs : mapping
        Further attributes.
    grouped : bool, optional
        Whether the groups of the passages are kept; by default where one has a group.
    numbers : dict, optional
        Ids of the texts so far, where a server knows tokens by their text only; is added to.

    Returns
    -------
    xarray.Dataset
        Section 3 of the design; log-probabilities in nat.
    """
    import xarray as xr

    done = [passage for passage in passages if passage.document in scored]
    parts = _numbered(
        [scored[passage.document] for passage in done], {} if numbers is None else numbers
    )
    counts = [part.token_id.size for part in parts]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS
    }
    arrays["document_index"] = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    arrays["context_tokens"] = np.asarray([part.context_tokens for part in parts], np.int32)
    arrays["document_sha256"] = np.asarray(
        [hashlib.sha256(passage.continuation.encode()).hexdigest() for passage in done]
    )
    arrays["document"] = np.asarray([passage.document for passage in done])
    arrays["rank"] = np.arange(1, parts[0].top_logprob.shape[1] + 1, dtype=np.int32)
    arrays["model"], arrays["dataset"] = np.asarray(model), np.asarray(dataset)
    groups = [str(getattr(passage, "group", "")) for passage in done]
    if any(groups) if grouped is None else grouped:
        arrays["group"] = np.asarray(groups)
    known = [part.statistics for part in parts if part.statistics is not None]
    if len(known) == len(parts):
        whole = joined(known)
        arrays |= {name: getattr(whole, name) for name in NAMES}
        arrays["inverse_temperature"] = INVERSE_TEMPERATURE
    variables = {name: _variable(name, values) for name, values in arrays.items()}
    coords = {name: variables.pop(name) for name in schema.HARVEST_COORDS if name in variables}
    return xr.Dataset(
        variables,
        coords=coords,
        attrs={
            "schema": schema.HARVEST,
            **attrs,
            "n_boundary_merged": sum(part.merged for part in parts),
            "n_censored": sum(part.censored for part in parts),
        },
    )


def parts(
    passages: Sequence[Passage],
    load: Callable[[Passage], ScoredPassage],
    *,
    model: str,
    dataset: str,
) -> "Generator[xr.Dataset]":
    """Put scored passages together part by part, so that only one part is in memory.

    Parameters
    ----------
    passages : sequence of Passage
        Those that are scored, in the order of the file.
    load : callable
        Returns a scored passage.
    model, dataset : str

    Yields
    ------
    xarray.Dataset
        Of `PART` passages, with the document's place in the whole file.
    """
    grouped = any(getattr(passage, "group", "") for passage in passages)
    numbers: dict[str, int] = {}
    for start in range(0, len(passages), PART):
        some = passages[start : start + PART]
        part = assemble(
            some,
            {passage.document: load(passage) for passage in some},
            model=model,
            dataset=dataset,
            attrs={},
            grouped=grouped,
            numbers=numbers,
        )
        part.variables["document_index"].values[:] += start
        yield part


def _numbered(parts: Sequence[ScoredPassage], numbers: dict[str, int]) -> list[ScoredPassage]:
    """Return passages whose ids stand for texts with ids that are the same in all of them."""
    found: list[ScoredPassage] = []
    for part in parts:
        if part.texts is not None:
            places = [numbers.setdefault(text, len(numbers)) for text in part.texts]
            table = np.asarray([*places, -1], np.int32)  # the last one stands for absent
            ids = {name: table[getattr(part, name)] for name in ("token_id", "top_token_id")}
            found.append(replace(part, **ids, texts=None))
        else:
            found.append(part)
    return found


def _variable(name: str, values: Any) -> "xr.Variable":
    """Return one variable with its dims, unit and meaning."""
    import xarray as xr

    spec = schema.HARVEST_VARIABLES[name]
    notes = {"long_name": spec.long_name} | ({"units": spec.units} if spec.units else {})
    return xr.Variable(spec.dims, values, notes)


def failures_json(failures: Sequence[tuple[str, str]]) -> str:
    """Return failures as one JSON attribute.

    Parameters
    ----------
    failures : sequence of (str, str)

    Returns
    -------
    str
    """
    return json.dumps([list(pair) for pair in failures], ensure_ascii=False)
