"""The rows and the table: values followed by hand, notes, JSON, and what is imported."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small import harvest
from small_sweep import GRID, sweep

from jaxsppl import store
from jaxsppl.errors import SchemaError
from jaxsppl.report import table
from jaxsppl.report.rows import Row, SweepSummary
from jaxsppl.report.summaries import HarvestSummary, OptimumSummary


def summary(dataset: xr.Dataset, folder: Path) -> SweepSummary:
    path = store.write_dataset(dataset, folder / "x.sweep.nc")
    described = table.describe(path)
    assert isinstance(described, SweepSummary)
    return described


def row(dataset: xr.Dataset, folder: Path) -> Row:
    return summary(dataset, folder).rows[0]


def test_numbers_of_a_row(tmp_path: Path) -> None:
    first = row(sweep(), tmp_path)
    assert (first.model, first.dataset, first.n_token, first.n_byte) == (
        "alpaca",
        "prose",
        1000,
        4000,
    )
    assert first.perplexity == pytest.approx(16)
    assert first.bits_per_byte == pytest.approx(1.0)  # log2(16) bits a token of 4 bytes
    names = [setting.name for setting in first.settings]
    assert names == ["neutral", "llama.cpp default", "best", "best for llama.cpp"]
    best = first.setting("best")
    assert best is not None
    assert best.values == {
        "temperature": 1.0,
        "min_p": 0.02,
        "top_k": 10.0,
        "alpha": 2.0,
        "top_p": 1.0,
    }
    assert best.nll == pytest.approx(2.0)
    assert (best.nll_lower, best.nll_upper) == pytest.approx((1.95, 2.1))
    assert best.sampling_perplexity == pytest.approx(math.exp(2))
    assert best.ood == pytest.approx(0.25)
    assert best.below_neutral == pytest.approx(0.5)
    assert best.below_default == pytest.approx(0.125)
    default = first.setting("llama.cpp default")
    assert default is not None
    assert default.values["top_k"] == 40
    assert default.values["alpha"] == 1.0
    assert default.below_neutral == pytest.approx(0.375)


def test_best_that_llama_cpp_can_run_has_alpha_one(tmp_path: Path) -> None:
    first = row(sweep(), tmp_path)
    runnable = first.runnable()
    assert runnable is not None
    assert runnable.name == "best for llama.cpp"
    assert runnable.values["alpha"] == 1.0
    assert runnable.nll == pytest.approx(2.1)  # one step of 0.1 away from the bottom
    assert first.flags == (
        '--samplers "top_k;min_p;temperature" --temp 1 --top-k 10 --top-p 1 --min-p 0.02'
    )


def test_without_alpha_the_best_point_is_the_one_to_run(tmp_path: Path) -> None:
    grid = {name: GRID[name] for name in ("temperature", "min_p")}
    first = row(sweep(grid), tmp_path)
    assert [s.name for s in first.settings] == ["neutral", "llama.cpp default", "best"]
    assert first.runnable() is first.setting("best")
    assert first.flags == '--samplers "min_p;temperature" --temp 1 --top-k 0 --top-p 1 --min-p 0.02'


def test_no_runnable_point_is_said(tmp_path: Path) -> None:
    first = row(sweep({"temperature": (0.5, 1.0), "alpha": (0.5, 2.0)}), tmp_path)
    assert first.flags is None
    assert first.runnable() is None
    assert any("alpha 2" in note and "add 1 to the axes" in note for note in first.notes)


def test_missing_pair_has_no_row_and_is_counted(tmp_path: Path) -> None:
    made = sweep(models=("a", "b"), missing=[("b", "code")])
    described = summary(made, tmp_path)
    assert [(r.model, r.dataset) for r in described.rows] == [
        ("a", "prose"),
        ("a", "code"),
        ("b", "prose"),
    ]
    assert "1 of 4 pairs were not harvested" in described.notes
    # levels 2.0, 2.25, 2.5: the pairs are not mixed up
    nll = [s.nll for r in described.rows if (s := r.setting("best")) is not None]
    assert nll == pytest.approx([2.0, 2.25, 2.5])


def test_one_point_grid(tmp_path: Path) -> None:
    first = row(sweep({"temperature": (0.7,)}), tmp_path)
    best = first.setting("best")
    assert best is not None
    assert best.values["temperature"] == 0.7
    assert first.points_near_best == 1
    assert not any("end of its axis" in note for note in first.notes)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ({"temperature": (1.0, 1.5)}, "temperature is at the end of its axis (1): widen it"),
        ({"temperature": (0.5, 1.0)}, "temperature is at the end of its axis (1): widen it"),
        ({"top_k": (10, 40, 0)}, "top_k is at the end of its axis (10): widen it"),
        ({"top_k": (5, 10)}, "top_k is at the end of its axis (10): widen it"),
        ({"temperature": (0.5, 1.0, 1.5)}, None),
        ({"top_k": (0, 5, 10)}, None),  # 0 is off: it lies beyond 10
        ({"top_p": (1.0, 0.9)}, None),  # the bowl's bottom is 1, and nothing lies beyond
    ],
)
def test_end_of_an_axis(
    grid: dict[str, tuple[float, ...]], expected: str | None, tmp_path: Path
) -> None:
    notes = [note for note in row(sweep(grid), tmp_path).notes if "end of its axis" in note]
    assert notes == ([] if expected is None else [expected])


def test_flat_axis_is_no_end(tmp_path: Path) -> None:
    made = sweep({"temperature": (1.0, 1.5)})
    made["nll"][...] = 2.0
    assert not any("end of its axis" in note for note in row(made, tmp_path).notes)


def test_tail_notes(tmp_path: Path) -> None:
    notes = row(sweep(), tmp_path).notes
    # brackets: best 1.95 .. 2.1, default 2.075 .. 2.175
    assert any("leaves the best nll open by 0.15 nat/token" in note for note in notes)
    assert any("brackets of best and llama.cpp default overlap" in note for note in notes)
    notes = row(sweep(bounded=False), tmp_path).notes
    assert not any("tail" in note for note in notes)


def test_grid_that_does_not_reach_the_default_is_said(tmp_path: Path) -> None:
    made = sweep()
    made["baseline_nll"][...] = 1.0
    made["baseline_nll_lower"][...] = 1.0
    notes = row(made, tmp_path).notes
    assert any("as good as the llama.cpp default" in note for note in notes)
    assert not any("overlap" in note for note in notes)


def test_different_tokenizers_are_not_ranked_by_perplexity(tmp_path: Path) -> None:
    made = sweep(models=("a", "b"))
    assert not any("bits per byte" in note for note in summary(made, tmp_path).notes)
    made["n_token"][1] = 900
    assert any("compare bits per byte" in note for note in summary(made, tmp_path).notes)


def test_epsilon_axis_shows_one_epsilon_and_says_so(tmp_path: Path) -> None:
    grid = {"temperature": (0.5, 1.0, 1.5), "epsilon": (0.001, 0.01, 0.1)}
    made = sweep(grid)
    # a larger epsilon always scores lower: it must not win by that
    made["nll"][...] = made["nll"].values - np.array([0.0, 0.2, 1.9])
    made["nll"][0, 0, 0, 2] = 0.01  # at epsilon 0.1 another temperature is best
    described = summary(made, tmp_path)
    assert described.epsilon == 0.01
    best = described.rows[0].setting("best")
    assert best is not None
    assert best.values["temperature"] == 1.0
    assert best.nll == pytest.approx(float(made["nll"][0, 0, 1, 1]))
    assert "epsilon" not in best.values
    assert best.below_default is not None
    assert any("shown at 0.01" in note for note in described.notes)
    assert any("moves with epsilon (at 0.1: temperature 0.5)" in note for note in described.notes)


def test_baselines_of_another_epsilon_give_no_gain(tmp_path: Path) -> None:
    described = summary(sweep({"temperature": (1.0,), "epsilon": (0.001, 0.1)}), tmp_path)
    assert [s.name for s in described.rows[0].settings] == ["best"]
    best = described.rows[0].setting("best")
    assert best is not None
    assert best.below_default is None
    assert any("no gains" in note for note in described.notes)


def test_best_is_found_without_the_stored_one(tmp_path: Path) -> None:
    made = sweep().drop_vars(["best_value", "best_nll", "best_ood"])
    best = row(made, tmp_path).setting("best")
    assert best is not None
    assert best.nll == pytest.approx(2.0)
    assert best.values["alpha"] == 2.0


def test_stored_best_counts_and_carries_its_brackets(tmp_path: Path) -> None:
    made = sweep()
    made["best_nll"][0, 0] = 2.001  # the direct definition, a little off the grid's value
    best = row(made, tmp_path).setting("best")
    assert best is not None
    assert best.nll == 2.001
    assert (best.nll_lower, best.nll_upper) == pytest.approx((1.951, 2.101))


def test_table_fits_and_says_what_is_needed(tmp_path: Path) -> None:
    text = table.render(summary(sweep(), tmp_path))
    assert max(len(line) for line in text.splitlines()) <= 100
    for expected in (
        "alpaca on prose",
        "1,000 tokens, 4,000 bytes, plain perplexity 16, 1.000 bits per byte",
        "nat/token",
        "best for llama.cpp",
        "llama-server flags (best for llama.cpp):",
        "chain: top_k -> min_p -> temperature",
        "llama.cpp default: top_k -> top_p -> min_p -> temperature",
        "epsilon 0.01; tail bound; 135 points a pair; level factored",
        "audit: 64 points",
    ):
        assert expected in text
    line = next(line for line in text.splitlines() if line.startswith("best   "))
    assert line.split() == [
        "best",
        "2.0000",
        "1.9500",
        "2.1000",
        "7.39",
        "25.00",
        "+0.5000",
        "+0.1250",
    ]
    neutral = [line for line in text.splitlines() if line.startswith("neutral")][1]
    assert neutral.split() == ["neutral", "1", "off", "off", "1", "off"]


def test_markdown_table(tmp_path: Path) -> None:
    made = sweep({"temperature": (0.5, 1.0, 1.5)}, models=("odd|name",), bounded=False)
    lines = table.render(summary(made, tmp_path), markdown=True).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| setting |"))
    assert lines[head].count("|") == lines[head + 1].count("|") == lines[head + 2].count("|")
    assert "nll nat/token" in lines[head]
    assert any(r"odd\|name" in line for line in lines)


def test_many_pairs_are_listed_one_a_line(tmp_path: Path) -> None:
    models = [f"a-model-with-quite-a-long-name-{i:02d}-q4_k_m" for i in range(5)]
    text = table.render(summary(sweep(models=models), tmp_path))
    assert "Best settings" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    # the end of a name tells quantisations apart, so both ends are kept
    assert text.count("04-q4_k_m") == 4


def test_json_has_every_number_and_null_for_none(tmp_path: Path) -> None:
    made = sweep().drop_vars("plain_nll")
    data = json.loads(table.to_json(summary(made, tmp_path)))
    assert data["kind"] == "sweep"
    assert data["axes"]["min_p"] == [0.0, 0.02, 0.1]
    assert data["rows"][0]["perplexity"] is None
    assert data["rows"][0]["settings"][2]["nll"] == 2.0
    assert data["rows"][0]["settings"][2]["values"]["top_k"] == 10.0
    assert data["rows"][0]["flags"].startswith("--samplers")


def test_harvest_summary(tmp_path: Path) -> None:
    made = harvest(n_token=40, n_rank=20, n_vocab=200)
    path = store.write_dataset(made, tmp_path / "x.harvest.nc")
    described = table.describe(path)
    assert isinstance(described, HarvestSummary)
    nll = -made["token_logprob"].values.astype(float).mean()
    assert described.perplexity == pytest.approx(math.exp(nll))
    n_byte = int(made["token_bytes"].sum())
    assert described.bits_per_byte == pytest.approx(40 * nll / n_byte / math.log(2))
    mass = np.exp(made["top_logprob"].values.astype(float)).sum(axis=1).mean()
    assert described.coverage == pytest.approx(mass)
    text = table.render(described)
    assert "40 in 3 documents" in text
    assert "20 of a vocabulary of 200" in text
    assert f"{100 * mass:.2f} %" in text
    assert json.loads(table.to_json(described))["kind"] == "harvest"


def test_harvest_summary_with_statistics_and_groups(tmp_path: Path) -> None:
    made = harvest(n_token=40, n_document=11)
    inverse = np.array([0.5, 1.0, 2.0])
    every = np.outer(np.ones(40), [1.0, 0.0, -1.0])
    made = made.assign(
        log_partition=(("token", "inverse_temperature"), every),
        entropy=("token", np.ones(40, "f4")),
    ).assign_coords(
        inverse_temperature=inverse, group=("document", np.array([*"aab", "", *"cdefghi"]))
    )
    described = table.describe(store.write_dataset(made, tmp_path / "x.harvest.nc"))
    assert isinstance(described, HarvestSummary)
    assert described.groups["a"] == 2
    text = table.render(described)
    assert "entropy, log_partition at inverse temperatures 0.5 to 2" in text
    assert "(none) 1, a 2, b 1, c 1, d 1, e 1, f 1, g 1, and 2 more" in text


def optimum() -> xr.Dataset:
    pair = ("model", "dataset", "start")
    nll = np.array([[[2.5, np.nan, 2.0, 2.0 + 1e-8]]])
    places = np.arange(8.0).reshape(1, 1, 4, 2)
    return xr.Dataset(
        {
            "initial": ((*pair, "parameter"), places + 10),
            "optimum": ((*pair, "parameter"), places),
            "nll": (pair, nll),
            "ood": (pair, np.full((1, 1, 4), 0.25)),
            "status": (
                pair,
                np.array([[["out of steps", "not finite", "converged", "converged"]]]),
            ),
            "n_step": (pair, np.array([[[50, 1, 12, 13]]])),
        },
        coords={
            "model": ["alpaca"],
            "dataset": ["prose"],
            "parameter": ["temperature", "alpha"],
        },
        attrs={"schema": "jaxsppl-optimum/1", "chain": "temperature", "epsilon": 0.01},
    )


def test_optimum_summary(tmp_path: Path) -> None:
    path = store.write_dataset(optimum(), tmp_path / "x.optimum.nc")
    described = table.describe(path)
    assert isinstance(described, OptimumSummary)
    (best,) = described.rows
    assert best.values == {"temperature": 4.0, "alpha": 5.0}
    assert (best.status, best.n_step, best.starts, best.starts_at_best) == ("converged", 12, 4, 2)
    text = table.render(described)
    assert "2.000000" in text
    assert "2/4" in text
    assert "Standard errors" not in text
    pair = ("model", "dataset", "parameter")
    found = optimum().assign(
        std_error=(pair, [[[0.125, np.nan]]]),
        correlation=((*pair, "other_parameter"), [[[[1.0, -0.75], [-0.75, 1.0]]]]),
        n_document=(("model", "dataset"), [[12]]),
    )
    text = table.render(table.describe(store.write_dataset(found, path)))
    assert (
        "- alpaca on prose, 12 documents: temperature 0.12; correlations temperature, alpha -0.75"
        in text
    )


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = store.write_dataset(xr.Dataset(attrs={"schema": "other/1"}), tmp_path / "x.nc")
    with pytest.raises(SchemaError, match="other/1"):
        table.describe(path)


def test_show_loads_no_heavy_library(tmp_path: Path) -> None:
    path = store.write_dataset(sweep(), tmp_path / "x.sweep.nc")
    code = (
        "import sys; from jaxsppl.report import table; "
        f"table.to_json(s := table.describe({str(path)!r})); sys.stdout.write(table.render(s)); "
        "heavy = {'jax', 'xarray', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "alpaca on prose" in done.stdout
