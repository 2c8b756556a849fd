"""Presets on a sweep: exact scores, refusals, and where tables and figures show them."""

import json
from pathlib import Path

import numpy as np
import pytest
from small import harvest

import jaxsppl
from jaxsppl import cli, store
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.placing import place_presets
from jaxsppl.report.plots import figures

GRID = {"temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1]}


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    store.write_dataset(harvest(), tmp_path / "x.harvest.nc")
    result = jaxsppl.sweep(tmp_path / "x.harvest.nc", GRID)
    return store.write_dataset(result, tmp_path / "x.sweep.nc")


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    path = tmp_path / "hot.json"
    path.write_text(json.dumps({"temp": 1.3, "min_p": 0.03, "samplers": ["min_p", "temperature"]}))
    return path


def test_the_score_is_the_definitions(swept: Path, preset: Path, tmp_path: Path) -> None:
    out = tmp_path / "placed.sweep.nc"
    placed = place_presets(swept, [preset], out=out)
    chances = jaxsppl.token_probabilities(
        tmp_path / "x.harvest.nc", chain=("min_p", "temperature"), temperature=1.3, min_p=0.03
    )
    expected = -np.log(np.maximum(chances.values, 0.01)).mean()
    row = placed.summary.rows[0]
    setting, best = row.setting("hot"), row.setting("best")
    assert setting is not None
    assert best is not None
    assert setting.nll == pytest.approx(expected, abs=1e-12)
    assert placed.above_best(row, "hot") == pytest.approx(expected - best.nll)
    written = jaxsppl.open_sweep(out)
    assert written["baseline"].values.tolist() == ["neutral", "llama.cpp default", "hot"]
    before = jaxsppl.open_sweep(swept)
    np.testing.assert_array_equal(written["nll"], before["nll"])
    np.testing.assert_array_equal(
        written["baseline_nll"].values[..., :2], before["baseline_nll"].values
    )
    # again: it replaces itself
    again = place_presets(out, [preset]).summary.rows[0]
    assert [one.name for one in again.settings] == [one.name for one in row.settings]
    assert again.setting("hot").nll == setting.nll


@pytest.mark.parametrize("kind", ["curve", "heat", "groups", "tradeoff"])
def test_every_figure_names_it(swept: Path, preset: Path, tmp_path: Path, kind: str) -> None:
    place_presets(swept, [preset], out=tmp_path / "placed.sweep.nc")
    (figure,) = figures(tmp_path / "placed.sweep.nc", kind=kind)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "hot" in labels


def test_harvests_that_changed_are_refused(swept: Path, preset: Path, tmp_path: Path) -> None:
    store.write_dataset(harvest(seed=1), tmp_path / "x.harvest.nc")
    with pytest.raises(ConfigError, match="has changed; name it with --input"):
        place_presets(swept, [preset])
    store.write_dataset(harvest(), tmp_path / "moved.harvest.nc")
    placed = place_presets(swept, [preset], inputs=[str(tmp_path / "moved.harvest.nc")])
    assert placed.summary.rows[0].setting("hot") is not None


def test_harvests_that_moved_along_are_found(swept: Path, preset: Path, tmp_path: Path) -> None:
    there = tmp_path / "moved"
    there.mkdir()
    (tmp_path / "x.harvest.nc").rename(there / "x.harvest.nc")
    with pytest.raises(ConfigError, match="name it with --input"):
        place_presets(swept, [preset])
    moved = swept.rename(there / "x.sweep.nc")
    assert place_presets(moved, [preset]).problems == ()


def test_a_preset_that_the_harvest_cannot_serve(swept: Path, preset: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text('{"temp": 1, "top_k": 50}')  # 20 alternatives of 200
    with pytest.raises(PlanError, match="top_k 50"):
        place_presets(swept, [tmp_path / "wide.json"])
    placed = place_presets(swept, [tmp_path / "wide.json", preset])
    assert [one.name for one in placed.presets] == ["hot"]
    assert placed.problems[0].startswith("wide: top_k 50 is above the 20 harvested")


def test_the_command(
    swept: Path, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = tmp_path / "other"
    twin.mkdir()
    (twin / "hot.json").write_text('{"temp": 0.7}')
    (tmp_path / "bad.json").write_text("{")
    files = [str(preset), str(twin / "hot.json"), str(tmp_path / "bad.json")]
    assert cli.main(["import-preset", *files, "--on", str(swept)]) == 1
    out, err = capsys.readouterr()
    assert "above best" in out
    assert "other/hot" in out
    assert "bad.json: it is not valid JSON" in err
    assert cli.main(["import-preset", files[0], "--on", str(swept), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["scores"][0]["preset"] == "hot"
    assert cli.main(["import-preset", files[2], "--on", str(swept)]) == 2


def test_the_way_round(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = tmp_path / "mine.json"
    command = ["export", str(swept), "--format", "llama-server-json", "--out", str(best)]
    assert cli.main(command) == 0
    row = place_presets(swept, [best]).summary.rows[0]
    mine, found = row.setting("mine"), row.setting("best")
    assert mine is not None
    assert found is not None
    assert mine.nll == pytest.approx(found.nll, abs=1e-9)
    assert "+0.0000 against the best" in capsys.readouterr().err
