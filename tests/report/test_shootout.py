"""The shootout: samplers in files of their own, or of one file, ranked by their held-out gain."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small import harvest

import jaxsppl
from jaxsppl.choice import Rules
from jaxsppl.errors import ConfigError
from jaxsppl.report.plots import figures
from jaxsppl.report.proof import proof_of
from jaxsppl.report.shootout import ranking
from jaxsppl.report.surface import at_one_epsilon, surfaces
from jaxsppl.store import contents_of

HARVEST = harvest(n_token=240, n_document=8)
RULES = Rules(folds=4, resamples=200)
AXES = {"top_k": [0, 3, 10], "min_p": [0, 0.02, 0.2], "temperature": [0.7, 1.0]}


def proven(*names: str) -> xr.Dataset:
    grid = {name: AXES[name] for name in (*names, "temperature")}
    return jaxsppl.decide(jaxsppl.sweep(HARVEST, grid, tail="drop"), HARVEST, RULES)


def entries(*results: xr.Dataset) -> tuple[list[tuple[str, float, float, float]], str]:
    pairs = []
    for result in results:
        contents = contents_of(result)
        [surface] = surfaces(contents, "made")
        proof = proof_of(contents, at_one_epsilon(surface))
        assert proof is not None
        pairs.append((surface, proof))
    ranked, reference = ranking(pairs)
    assert {entry.points for entry in ranked} == {6}
    return [(one.name, one.gain, one.low, one.high) for one in ranked], reference


def test_files_are_ranked_by_their_gain_with_its_paired_interval() -> None:
    by_name = {name: proven(name) for name in ("top_k", "min_p")}
    ranked, reference = entries(*by_name.values())
    # 20 alternatives serve a top_k of 40 where the tail is dropped.
    assert reference == "llama.cpp default"
    expected = []
    for name, result in by_name.items():
        one = result.isel(model=0, dataset=0).sel(setting="llama.cpp default")
        expected.append((name, float(one.heldout_gain), *one.heldout_gain_interval.values.tolist()))
    assert ranked == sorted(expected, key=lambda line: -line[1])


def test_one_file_ranks_the_samplers_that_it_compares() -> None:
    result = proven("top_k", "min_p")
    ranked, reference = entries(result)
    assert reference == "llama.cpp default"
    gains = result["sampler_gain"].isel(model=0, dataset=0)
    assert ranked[0][1] == float(gains.sel(sampler=["top_k", "min_p"]).max())
    assert {name for name, *_ in ranked} == {"top_k", "min_p"}


def test_the_figure_has_a_row_for_each_sampler_and_is_written(tmp_path: Path) -> None:
    results = [proven("top_k"), proven("min_p")]
    [figure] = figures(results, kind="shootout")
    [axes] = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(labels) == ["min_p", "top_k"]
    assert "best of 6 settings, chosen and scored on different documents (8 of them)" in " ".join(
        figure._supxlabel.get_text().split()
    )
    [path] = jaxsppl.plot(results, tmp_path / "s.png", kind="shootout")
    assert path.stat().st_size > 10_000


def test_refusals_name_the_way_out() -> None:
    plain = jaxsppl.sweep(HARVEST, {"min_p": [0, 0.1]}, tail="drop")
    with pytest.raises(ConfigError, match=r"add \[decide\] to its config"):
        figures(plain, kind="shootout")
    with pytest.raises(ConfigError, match="give a sweep file of each"):
        figures(proven("min_p"), kind="shootout")
    with pytest.raises(ConfigError, match="no x and no y"):
        figures(plain, kind="shootout", x="min_p")
    with pytest.raises(ConfigError, match="ranks whole files"):
        figures(plain, kind="shootout", select={"min_p": 0.1})


def test_equal_numbers_of_points_are_seen() -> None:
    many = jaxsppl.sweep(HARVEST, {"top_k": [0, 3], "temperature": [0.7, 0.9, 1.0]}, tail="drop")
    results = [proven("min_p"), jaxsppl.decide(many.isel(top_k=[0]), HARVEST, RULES)]
    [figure] = figures(results, kind="shootout")
    assert "best of 6 settings (top_k: 3)" in " ".join(figure._supxlabel.get_text().split())
    assert np.isfinite(figure.get_size_inches()).all()
