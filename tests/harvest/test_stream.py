"""A file that is written part by part is the file that is written at once."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from test_validate import N_VOCAB, position, scored

from jaxsppl import schema, store
from jaxsppl.errors import ConfigError
from jaxsppl.harvest import records
from jaxsppl.harvest.stream import write_parts


class Passage:
    def __init__(self, number: int, group: str) -> None:
        self.document = f"doc-{number} \u00e9"
        self.prefix = "p"
        self.continuation = f"text {number}"
        self.group = group


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=80),
    k=st.integers(1, 9),
    grouped=st.booleans(),
)
def test_parts_make_the_whole(
    counts: list[int], k: int, grouped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    passages = [Passage(i, "g" if grouped and i == 0 else "") for i in range(len(counts))]
    found = {
        passage.document: scored([position(7 * i + j, 2.0, j, k) for j in range(n)], k)
        for i, (passage, n) in enumerate(zip(passages, counts, strict=True))
    }
    attrs = {"schema": schema.HARVEST, "n_vocab": N_VOCAB, "n_boundary_merged": 0, "n_censored": 0}
    whole = records.assemble(passages, found, model="m", dataset="d", attrs=attrs)
    at_once = store.write_dataset(whole, folder / "whole.nc")
    parts = records.parts(passages, lambda p: found[p.document], model="m", dataset="d")
    sizes = {"token": sum(counts), "document": len(counts)}
    by_parts = write_parts(parts, sizes, attrs, folder / "parts.nc")
    one, other = store.read_contents(at_once), store.read_contents(by_parts)
    assert one.attrs == other.attrs
    assert one.sizes == other.sizes
    for name, (dims, values) in one.variables.items():
        assert other.variables[name][0] == dims
        assert other.variables[name][1].dtype == values.dtype
        np.testing.assert_array_equal(other.variables[name][1], values)
    schema.check_harvest(other, "parts")
    with xr.open_dataset(at_once) as first, xr.open_dataset(by_parts) as second:
        assert first.identical(second)
        assert set(first.coords) == set(second.coords)
        for name in first.variables:
            assert first[name].encoding.get("zlib") == second[name].encoding.get("zlib"), name


def test_a_failure_midway_leaves_nothing(tmp_path: Path) -> None:
    def parts():
        yield records.assemble(
            [Passage(0, "")], {"doc-0 \u00e9": scored([position(1, 1.0, 2, 3)], 3)},
            model="m", dataset="d", attrs={},
        )  # fmt: skip
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="No space left"):
        write_parts(parts(), {"token": 5, "document": 3}, {}, tmp_path / "out.nc")
    assert not list(tmp_path.iterdir())
