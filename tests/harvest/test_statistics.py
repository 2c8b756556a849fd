"""Whole-vocabulary statistics: against SciPy, in the journal, in the file, and its laws."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxsppl import schema, store
from jaxsppl.errors import SchemaError
from jaxsppl.harvest.protocol import ScoredPassage
from jaxsppl.harvest.records import assemble, from_record, to_record
from jaxsppl.harvest.statistics import INVERSE_TEMPERATURE, NAMES, joined, statistics

N_VOCAB = 23


class Named:
    document = "doc"
    prefix = "a"
    continuation = "b"


def law(seed: int = 0, n: int = 5) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, 4, (n, N_VOCAB))
    return scipy.special.log_softmax(logits, axis=1)


def scored(rows: np.ndarray) -> ScoredPassage:
    """The likeliest tokens themselves as the text."""
    order = np.argsort(-rows, axis=1)[:, :4].astype(np.int32)
    top = np.take_along_axis(rows, order, 1).astype(np.float32)
    n = len(rows)
    return ScoredPassage(
        token_id=order[:, 0],
        token_logprob=top[:, 0],
        token_rank=np.ones(n, np.int32),
        token_bytes=np.ones(n, np.int32),
        top_token_id=order,
        top_logprob=top,
        context_tokens=1,
        statistics=statistics(rows),
    )


def harvest() -> xr.Dataset:
    attrs = {"n_vocab": N_VOCAB}
    return assemble([Named()], {"doc": scored(law())}, model="m", dataset="d", attrs=attrs)


@given(arrays.arrays(np.float64, (3, 17), elements=st.floats(-60, 60)), st.integers(0, 16))
def test_they_are_those_of_scipy(logits: np.ndarray, impossible: int) -> None:
    logits[1, :impossible] = -np.inf
    rows = scipy.special.log_softmax(logits, axis=1)
    found = statistics(rows)
    for i, row in enumerate(rows):
        possible = row[np.isfinite(row)]
        right = [scipy.special.logsumexp(possible * b) for b in INVERSE_TEMPERATURE]
        np.testing.assert_allclose(found.log_partition[i], right, rtol=1e-12, atol=1e-12)
        assert found.entropy[i] == pytest.approx(scipy.stats.entropy(np.exp(possible)), rel=1e-5)
        assert found.logit_std[i] == pytest.approx(np.std(possible), rel=1e-6, abs=1e-6)
        assert found.min_logprob[i] == np.float32(possible.min())


def test_the_inverse_temperatures_hold_those_that_matter() -> None:
    inverse = INVERSE_TEMPERATURE.tolist()
    assert inverse == sorted(set(inverse))
    assert {0.0, 0.5, 1.0, 2.0, 4.0} < set(inverse)
    assert max(np.diff(inverse)) <= 0.25


def test_a_record_and_a_file_give_them_back_bit_for_bit(tmp_path: Path) -> None:
    part = scored(law())
    again = from_record(to_record("doc", part), 4)
    assert again is not None
    assert part.statistics is not None
    assert again[1].statistics is not None
    store.write_dataset(harvest(), tmp_path / "a.harvest.nc")
    read = store.open_harvest(tmp_path / "a.harvest.nc")
    assert isinstance(read, xr.Dataset)
    for name in NAMES:
        right = getattr(part.statistics, name)
        np.testing.assert_array_equal(getattr(again[1].statistics, name), right)
        np.testing.assert_array_equal(read[name], right)
        assert read[name].dtype == right.dtype
    assert read.log_partition.dims == ("token", "inverse_temperature")
    np.testing.assert_array_equal(read.inverse_temperature, INVERSE_TEMPERATURE)
    assert harvest().log_partition.attrs["units"] == "nat"


def test_a_record_whose_statistics_are_torn_is_not_used() -> None:
    record = to_record("doc", scored(law()))
    assert from_record({**record, "entropy": record["entropy"][:4]}, 4) is None
    whole = {key: value for key, value in record.items() if key != "entropy"}
    assert from_record(whole, 4) is None


def test_a_file_has_them_only_when_every_passage_does() -> None:
    class Other(Named):
        document = "other"

    bare = dataclasses.replace(scored(law(1)), statistics=None)
    mixed = {"doc": scored(law()), "other": bare}
    attrs = {"n_vocab": N_VOCAB}
    found = assemble([Named(), Other()], mixed, model="m", dataset="d", attrs=attrs)
    assert not set(NAMES) & set(found)
    mixed["other"] = scored(law(1))
    found = assemble([Named(), Other()], mixed, model="m", dataset="d", attrs=attrs)
    right = joined([statistics(law()), statistics(law(1))])
    np.testing.assert_array_equal(found.log_partition, right.log_partition)


SPOILERS: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "NaN": (lambda d: d.assign(entropy=d.entropy * np.nan), "entropy is not a possible"),
    "above log V": (lambda d: d.assign(entropy=d.entropy * 0 + 3.2), "entropy is not a possible"),
    "negative": (lambda d: d.assign(logit_std=-d.logit_std), "logit_std is not a possible"),
    "not the least": (
        lambda d: d.assign(min_logprob=d.token_logprob + 0.1),
        "min_logprob is not a possible",
    ),
    "of another law": (
        lambda d: d.assign(log_partition=d.log_partition + 0.01),
        "at inverse temperature 1 is not 0",
    ),
    "rising": (
        lambda d: d.assign(log_partition=d.log_partition - d.log_partition**2),
        "does not fall",
    ),
    "infinite": (lambda d: d.assign(log_partition=d.log_partition - np.inf), "not finite"),
    "axis backwards": (
        lambda d: d.assign_coords(inverse_temperature=-d.inverse_temperature),
        "does not ascend",
    ),
    "no axis": (lambda d: d.drop_vars("inverse_temperature"), "has no inverse_temperature"),
    "transposed": (
        lambda d: d.assign(log_partition=d.log_partition.transpose()),
        "'log_partition' has dims",
    ),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_a_file_that_breaks_their_laws_is_refused(name: str) -> None:
    spoil, words = SPOILERS[name]
    schema.check_harvest(store.contents_of(harvest()), "file")
    with pytest.raises(SchemaError, match=words):
        schema.check_harvest(store.contents_of(spoil(harvest())), "file")
