"""CSV files: what is written reads back as the same numbers."""

import csv
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small_sweep import sweep
from test_table import optimum, summary

from jaxsppl import store
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.report import csvfile


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_settings(tmp_path: Path) -> None:
    described = summary(sweep(), tmp_path)
    lines = read(csvfile.write_settings(described, tmp_path / "new" / "x.csv"))
    assert len(lines) == 8
    best = lines[2]
    assert (best["model"], best["dataset"], best["setting"]) == ("alpaca", "prose", "best")
    assert float(best["nll"]) == 2.0
    assert float(best["alpha"]) == 2.0
    assert float(best["below_default"]) == pytest.approx(0.125)
    assert best["chain"] == "top_k,min_p,temperature"
    assert best["llama_server_flags"] == ""
    assert lines[3]["llama_server_flags"] == described.rows[0].flags


def test_settings_without_brackets_are_empty_cells(tmp_path: Path) -> None:
    described = summary(sweep(bounded=False), tmp_path)
    lines = read(csvfile.write_settings(described, tmp_path / "x.csv"))
    assert {line["nll_lower"] for line in lines} == {""}


def test_grid_round_trip(tmp_path: Path) -> None:
    made = sweep(models=("a", "b"), missing=[("a", "code")])
    made["nll"][...] = made["nll"].values + np.pi / 1e3
    contents = store.contents_of(made)
    lines = read(csvfile.write_grid(contents, tmp_path / "x.csv"))
    assert len(lines) == 3 * 135
    for line in lines[:: len(lines) // 50]:
        where = {n: float(line[n]) for n in ("temperature", "min_p", "top_k", "alpha")}
        point = made.sel(model=line["model"], dataset=line["dataset"], **where)
        for name in ("nll", "nll_lower", "nll_upper", "ood"):
            assert float(line[name]) == float(point[name])
    assert {(line["model"], line["dataset"]) for line in lines} == {
        ("a", "prose"),
        ("b", "prose"),
        ("b", "code"),
    }


def test_a_grid_too_large_for_a_spreadsheet_is_refused(tmp_path: Path) -> None:
    contents = store.contents_of(sweep())
    target = tmp_path / "x.csv"
    with pytest.raises(PlanError, match="270 rows, at most 269"):
        csvfile.write_grid(contents, target, most_rows=269)
    assert not target.exists()
    assert csvfile.write_grid(contents, target, most_rows=270).exists()


def test_a_name_with_commas_and_quotes_survives(tmp_path: Path) -> None:
    name = 'ollama://a,"b":7b\nx'
    contents = store.contents_of(sweep({"temperature": (1.0,)}, models=(name,)))
    assert read(csvfile.write_grid(contents, tmp_path / "x.csv"))[0]["model"] == name


def test_optimum(tmp_path: Path) -> None:
    lines = read(csvfile.write_optimum(store.contents_of(optimum()), tmp_path / "x.csv"))
    assert [line["best"] for line in lines] == ["0", "0", "1", "0"]
    assert [line["nll"] for line in lines] == ["2.5", "", "2.0", "2.00000001"]
    assert lines[2]["optimum_temperature"] == "4.0"
    assert lines[2]["initial_alpha"] == "15.0"
    assert lines[1]["status"] == "not finite"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    csvfile.write_grid(store.contents_of(sweep()), target)
    before = target.read_bytes()
    broken = store.contents_of(sweep().assign(nll_upper=xr.DataArray(np.zeros((1, 2, 3)))))
    with pytest.raises(ValueError, match="shorter"):
        csvfile.write_grid(broken, target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_folder_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        csvfile.write_grid(store.contents_of(sweep()), tmp_path / "taken" / "x.csv")
