"""What tables and figures say of certainty: held-out gains, plateau, front, compromise."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt
from small_sweep import sweep as bowl
from uneven import uneven

import jaxsppl
from jaxsppl import cli, config, results, store
from jaxsppl.choice import Choice, Rules
from jaxsppl.report import table
from jaxsppl.report.aligned import chance
from jaxsppl.report.plots import figures
from jaxsppl.report.proof import chosen_words
from jaxsppl.report.rows import SweepSummary

GRID = {"temperature": [0.5, 0.8, 1.0, 1.3], "min_p": [0.0, 0.05, 0.1], "top_k": [0, 4, 8]}


@pytest.fixture(scope="module")
def decided() -> xr.Dataset:
    harvests = [uneven(dataset="prose"), uneven(dataset="code", seed=1)]
    return jaxsppl.decide(jaxsppl.sweep(harvests, GRID), harvests, Rules(folds=3, resamples=300))


@pytest.fixture
def file(decided: xr.Dataset, tmp_path: Path) -> Path:
    return jaxsppl.save(decided, tmp_path / "x.sweep.nc")


def summary(path: Path) -> SweepSummary:
    described = table.describe(path)
    assert isinstance(described, SweepSummary)
    return described


def test_the_proof_is_that_of_the_file(decided: xr.Dataset, file: Path) -> None:
    row = summary(file).rows[1]
    assert row.dataset == "code"
    proof = row.proof
    assert proof is not None
    there = decided.isel(model=0).sel(dataset="code")
    neutral = proof.setting("neutral")
    assert neutral is not None
    expected = there.sel(setting="neutral")
    assert neutral.gain == float(expected.heldout_gain)
    assert [neutral.gain_low, neutral.gain_high] == expected.heldout_gain_interval.values.tolist()
    assert neutral.win == float(expected.heldout_win)
    assert (proof.n_choosing, proof.n_proven, proof.n_tried) == (6, 9, 36)
    assert proof.objective == "least nll"
    assert proof.setting("llama.cpp default") is None  # 16 alternatives serve no top_k 40
    assert {line.name for line in proof.samplers} == {"min_p", "top_k", "neutral"}
    assert proof.sampler_points == 12


def test_the_conservative_points_of_the_plateau(decided: xr.Dataset, file: Path) -> None:
    proof = summary(file).rows[0].proof
    assert proof is not None
    there = decided.isel(model=0, dataset=0)
    inside = there.plateau.astype(bool)
    assert proof.plateau.points == int(inside.sum())
    assert proof.plateau.of == 36
    lowest = there.ood.where(inside).min()
    assert float(there.ood.sel(proof.plateau.lowest_ood)) == float(lowest)
    # Steps as shares of an axis; a top_k of 0 is off and lies beyond the largest.
    steps = {
        "temperature": [2 / 3, 1 / 3, 0, 1 / 3], "min_p": [0, 0.5, 1], "top_k": [0, 1, 0.5],
    }  # fmt: skip
    away = sum(xr.DataArray(v, dims=k, coords={k: GRID[k]}) for k, v in steps.items())
    assert isinstance(away, xr.DataArray)
    nearest = float(away.sel(proof.plateau.nearest_neutral))
    assert nearest == pytest.approx(float(away.where(inside).min()))


def test_the_table_prints_gains_of_held_out_documents_only(file: Path) -> None:
    text = table.render(summary(file))
    assert "Held out: chosen (least nll) among 36 points in turn on 6 of 9 documents" in text
    assert "proven on the others," in text
    assert "best of 12" in text
    assert "Plateau: " in text
    assert "held-out gain" in text.splitlines()[0]
    assert "no gain is proven" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_without_a_proof_no_gain_is_printed(tmp_path: Path) -> None:
    path = store.write_dataset(bowl(), tmp_path / "x.sweep.nc")
    text = table.render(summary(path))
    assert "gain on" not in text
    assert "held-out gain" not in text
    assert "no gain is proven: add [decide]" in text
    assert summary(path).rows[0].proof is None
    assert summary(path).macro == ()


def test_the_unit_is_named_and_few_are_warned_of(decided: xr.Dataset, tmp_path: Path) -> None:
    group = ("document", np.array(list("abcabcdde")))
    grouped = uneven(dataset="prose").assign_coords(group=group)
    found = jaxsppl.decide(jaxsppl.sweep(grouped, GRID), grouped, Rules(folds=3, resamples=300))
    text = table.render(summary(jaxsppl.save(found, tmp_path / "g.sweep.nc")))
    assert "unit: group, 5 of them with 9 documents" in text
    assert "only 5 groups: an interval from fewer than 10 may hold the truth less" in text
    assert "groups\n" in text
    text = table.render(summary(jaxsppl.save(decided, tmp_path / "d.sweep.nc")))
    assert "only 9 documents: an interval from fewer than 10" in text
    assert "unit: group" not in text


def test_nothing_is_certain_from_resamples(decided: xr.Dataset, tmp_path: Path) -> None:
    assert [chance(p) for p in (0.5, 0.9994, 0.9996, 1.0, 0.0004, 0.0)] == [
        "50.0", "99.9", ">99.95", ">99.95", "<0.05", "<0.05",
    ]  # fmt: skip
    assert ((decided.heldout_win.dropna("setting") * (1 - decided.heldout_win)) > 0).all()
    text = table.render(summary(jaxsppl.save(decided, tmp_path / "d.sweep.nc")))
    assert " 100.0 " not in text
    assert "of 100.0 %" not in text


def test_the_mean_over_datasets(decided: xr.Dataset, file: Path) -> None:
    macro = {one.setting: one for one in summary(file).macro}
    assert set(macro) == {"neutral", "vLLM default"}
    found = macro["neutral"]
    assert found.n_dataset == 2
    gains = decided.heldout_gain.sel(setting="neutral").values
    assert found.gain == pytest.approx(gains.mean())
    assert found.low < found.gain < found.high


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([{"temperature": 1.0, "top_k": 0.0}] * 2, "temperature 1, top_k off"),
        (
            [{"temperature": 1.0, "top_k": 20.0}, {"temperature": 0.9, "top_k": 20.0}],
            "temperature 0.9 to 1, top_k 20 (the folds differ)",
        ),
    ],
)
def test_what_the_folds_chose(chosen: list[dict[str, float]], words: str) -> None:
    assert chosen_words(chosen) == words


def test_the_front_and_the_compromise(tmp_path: Path) -> None:
    choice = {"ood_weight": 0.0, "ood_max": 0.08, "nll_max": None}
    path = store.write_dataset(
        bowl(choice_json=json.dumps(choice), datasets=("prose",)), tmp_path / "x.sweep.nc"
    )
    row = summary(path).rows[0]
    # In the bowl ood falls as nll rises: every nll of the grid is on the front.
    assert [point.nll for point in row.front] == sorted(point.nll for point in row.front)
    assert [point.ood for point in row.front] == sorted(
        (point.ood for point in row.front), reverse=True
    )
    assert row.front[0].nll == pytest.approx(2.0)
    assert len(row.front) <= 12
    found = row.setting("compromise")
    assert found is not None
    assert found.ood == pytest.approx(0.08)
    assert found.nll == pytest.approx(2.2)
    text = table.render(summary(path), front=True)
    assert "No point beats these in both nll and ood\n" in text
    assert "compromise: least nll with ood <= 0.08" in text
    assert "No point beats" not in table.render(summary(path))


def test_a_long_front_is_thinned_and_says_so(tmp_path: Path) -> None:
    grid = {"temperature": [k / 20 for k in range(41)]}  # 21 levels of nll
    many = bowl(grid, models=[f"m{k}" for k in range(9)], datasets=("prose",))
    many["ood"] = (7 - many["nll"]) / 10
    path = store.write_dataset(many.isel(model=[0]), tmp_path / "x.sweep.nc")
    row = summary(path).rows[0]
    assert (len(row.front), row.points_on_front) == (12, 21)
    assert [row.front[0].nll, row.front[-1].nll] == pytest.approx([2.0, 4.0])
    assert "(12 of 21 such points)" in table.render(summary(path), front=True)
    path = store.write_dataset(many, tmp_path / "many.sweep.nc")
    assert table.render(summary(path), front=True).count("(12 of 21 such points)") == 9


def test_a_limit_that_no_point_keeps_is_said(tmp_path: Path) -> None:
    choice = {"ood_weight": 0.0, "ood_max": None, "nll_max": 0.5}
    path = store.write_dataset(bowl(choice_json=json.dumps(choice)), tmp_path / "x.sweep.nc")
    first = summary(path).rows[0]
    assert first.setting("compromise") is None
    assert any("no point has nll <= 0.5; the smallest is 2" in note for note in first.notes)
    assert first.runnable() is not None


def test_figures_show_the_plateau(decided: xr.Dataset, file: Path) -> None:
    inside = decided.isel(model=0, dataset=0).plateau.astype(bool)
    best = dict(
        zip(decided.parameter.values, decided.best_value.values[0, 0].tolist(), strict=True)
    )
    (curve,) = figures(file, kind="curve", x="temperature")
    bands = [line for line in curve.axes[0].get_lines() if line.get_label() == "plateau"]
    assert len(bands) == 2
    shown = np.isfinite(np.asarray(bands[0].get_ydata(), float))
    held = inside.sel({name: best[name] for name in ("min_p", "top_k")})
    assert shown.tolist() == held.values.tolist()
    (heat,) = figures(file, kind="heat", x="temperature", y="min_p")
    dots: Any = heat.axes[0].collections[1]
    assert len(dots.get_offsets()) == int(inside.sel(top_k=best["top_k"]).sum())
    plt.close("all")


def test_a_config_with_decide_is_swept_proven_and_current(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("prose", 0), ("code", 1)):
        jaxsppl.save(uneven(dataset=name, seed=seed), tmp_path / f"{name}.harvest.nc")
    preset = tmp_path / "generation_config.json"
    preset.write_text('{"do_sample": true, "temperature": 0.6, "top_k": 8, "top_p": 0.9}')
    toml = tmp_path / "mine.toml"
    toml.write_text(
        f"[grid]\ntemperature = [0.6, 1.0]\nmin_p = [0, 0.1]\n[objective]\nood_weight = 0.5\n"
        f'[decide]\nfolds = 3\nresamples = 200\npresets = {{ "its own" = "{preset.as_posix()}" }}\n'
        f'[run]\nout = "{tmp_path.as_posix()}"\ninput = ["{tmp_path.as_posix()}/*.harvest.nc"]\n'
    )
    assert cli.main(["run", str(toml)]) == 0
    out = capsys.readouterr().out
    assert "held-out gain" in out
    assert "its own" in out
    assert "least nll + 0.5 ood" in out
    with (tmp_path / "mine.proof.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["dataset"] == "code"]
    assert [line["name"] for line in lines] == ["chosen", "neutral", "vLLM default", "its own"]
    there = store.read_sweep(tmp_path / "mine.sweep.nc").sel(dataset="code", setting="its own")
    assert float(lines[-1]["gain_low"]) == float(there.heldout_gain_interval[0, 0])
    assert (lines[0]["tried"], lines[0]["n_choosing"], lines[0]["n_proven"]) == ("4", "6", "9")
    path, files = tmp_path / "mine.sweep.nc", sorted(tmp_path.glob("*.harvest.nc"))

    def current(*overrides: str) -> bool:
        settings = config.load(toml, overrides, {})
        return results.sweep_is_current(path, settings, settings.order(), files)

    assert current()
    assert current("run.memory_mib=2048")
    assert not current("decide.folds=4")
    assert not current("objective.ood_weight=0.4")
    before = store.read_sweep(path)
    assert cli.main(["run", str(toml), "--set", "decide.folds=4"]) == 0
    again = store.read_sweep(path)
    assert (before.sizes["fold"], again.sizes["fold"]) == (3, 4)
    assert again.nll.equals(before.nll)
    assert current("decide.folds=4")
    preset.write_text('{"do_sample": true, "temperature": 0.7}')
    assert not current("decide.folds=4")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("decide.fold=3", "decide.fold: there is no such key; did you mean 'folds'"),
        ("decide.folds=1", "decide.folds: 1 is not allowed; it is at least 2"),
        ("decide.split=half", "decide.split: 'half' is not allowed; allowed: 'folds', 'test'"),
        ("objective.ood_max=3", "objective.ood_max: 3.0 is not allowed"),
        ("objective.nll_max=-1", "objective.nll_max: -1.0 is not allowed"),
    ],
)
def test_a_config_refuses(override: str, words: str, tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("[grid]\ntemperature = [1.0]\n")
    with pytest.raises(jaxsppl.JaxspplError, match=words):
        config.load(toml, [override], {})
    assert config.load(toml, [], {}).decide is None
    assert config.load(toml, [], {}).objective.choice() == Choice()
