"""The checks of sweep and optimum files, and what `check` says of each kind of file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr
from small import harvest, optimum_file, sweep_file

from jaxsppl import schema, store
from jaxsppl.check import check
from jaxsppl.errors import ConfigError, SchemaError, TextError


def test_check_says_what_a_file_is(tmp_path: Path) -> None:
    store.write_dataset(harvest(), tmp_path / "a.harvest.nc")
    store.write_dataset(sweep_file(), tmp_path / "a.sweep.nc")
    store.write_dataset(optimum_file(), tmp_path / "a.optimum.nc")
    config = tmp_path / "a.toml"
    config.write_text("[grid]\ntemperature = [0.5, 1]\nmin_p = [0, 0.1, 0.2]\n")
    whole = {file.name: check(file) for file in sorted(tmp_path.iterdir())}
    said = {name: words.partition("; SHA-256")[0] for name, words in whole.items()}
    digest = store.read_contents(tmp_path / "a.sweep.nc").attrs["digest"]
    assert whole["a.sweep.nc"].endswith(f"; SHA-256 of the values {digest}")
    assert said == {
        "a.harvest.nc": "harvest of 'tiny' on 'noise', 40 tokens of 3 documents, 20 alternatives",
        "a.sweep.nc": "sweep over temperature, min_p: 12 points, 3 harvests",
        "a.optimum.nc": "optimum over temperature, alpha from 3 starts",
        "a.toml": "config 'a': 6 points over temperature, min_p; order (min_p, temperature)",
    }
    assert check(tmp_path) == "3 result files"


def test_check_reads_a_folder_of_passages(tmp_path: Path) -> None:
    (tmp_path / "0.prefix.txt").write_text("Once upon a")
    (tmp_path / "0.continuation.txt").write_text(" time")
    assert check(tmp_path).startswith("1 passage of")
    (tmp_path / "0.continuation.txt").unlink()
    with pytest.raises(SchemaError, match="missing"):
        check(tmp_path)


def test_check_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    xr.Dataset({"a": 1}).to_netcdf(tmp_path / "foreign.nc")
    with pytest.raises(SchemaError, match="no attribute 'schema'"):
        check(tmp_path / "foreign.nc")
    xr.Dataset(attrs={"schema": "jaxsppl-sweep/9"}).to_netcdf(tmp_path / "new.nc")
    with pytest.raises(SchemaError, match=r"did you mean 'jaxsppl-sweep/1'"):
        check(tmp_path / "new.nc")
    with pytest.raises(SchemaError, match="no such file"):
        check(tmp_path / "missing.nc")
    (tmp_path / "spaced.toml").write_text('texts.datasets."my code" = "python:code"')
    with pytest.raises(ConfigError, match="for example 'my-code'"):
        check(tmp_path / "spaced.toml")
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        check(tmp_path / "missing.toml")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TextError):
        check(empty)


WRONG: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "no nll": (lambda d: d.drop_vars("nll"), "'nll' is missing"),
    "no ood": (lambda d: d.drop_vars("ood"), "'ood' is missing"),
    "transposed": (lambda d: d.transpose("dataset", "model", ...), "expected model, dataset"),
    "one transposed": (lambda d: d.assign(ood=d.ood.transpose(..., "model")), "'ood' has dims"),
    "no coordinate": (lambda d: d.drop_vars("min_p"), "coordinate 'min_p' is missing"),
    "value twice": (lambda d: d.assign_coords(min_p=[0.0, 0.0, 0.1]), "value twice"),
    "no point": (lambda d: d.isel(min_p=slice(0, 0)), "empty"),
    "NaN where harvested": (lambda d: d.assign(nll=d.nll.where(d.min_p > 0)), "nll is negative"),
    "negative": (lambda d: d.assign(nll=-d.nll), "nll is negative"),
    "share above 1": (lambda d: d.assign(ood=d.ood + 1), "ood is outside"),
    "text": (lambda d: d.assign(ood=d.ood.astype(str)), "expected numbers"),
    "tokens of an empty pair": (lambda d: d.assign(n_token=d.n_token + 1), "disagree"),
    "tokens by model only": (lambda d: d.assign(n_token=d.n_token[:, 0]), "'n_token' has dims"),
    "another file": (lambda d: d.assign_attrs(schema=schema.HARVEST), "its schema is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_sweep_is_refused(tmp_path: Path, case: str) -> None:
    change, words = WRONG[case]
    file = tmp_path / "a.sweep.nc"
    store.write_dataset(change(sweep_file()), file)
    with pytest.raises(SchemaError, match=words):
        store.read_sweep(file)


def test_a_whole_sweep_is_read(tmp_path: Path) -> None:
    store.write_dataset(sweep_file(), tmp_path / "a.sweep.nc")
    xr.testing.assert_equal(store.read_sweep(tmp_path / "a.sweep.nc"), sweep_file())


@pytest.mark.parametrize("name", ["initial", "optimum", "nll", "ood", "status", "n_step"])
def test_an_optimum_needs_every_variable(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.optimum.nc"
    store.write_dataset(optimum_file().drop_vars(name), file)
    with pytest.raises(SchemaError, match=f"'{name}' is missing"):
        check(file)
    store.write_dataset(optimum_file().transpose(..., "model"), file)
    with pytest.raises(SchemaError, match="has dims"):
        check(file)
