"""The figures: what is drawn, where, and what the labels, legends and captions say."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from small import harvest
from small_sweep import GRID, sweep

from jaxsppl import store
from jaxsppl.errors import ConfigError, SchemaError
from jaxsppl.report.plots import figures, plot
from jaxsppl.report.style import thinned
from jaxsppl.report.tradeoff import pareto_front


def size_of(png: Path) -> tuple[int, int]:
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def legend_texts(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def caption(figure: Any) -> str:
    return " ".join(figure.get_supxlabel().split())


@pytest.mark.parametrize("kind", ["curve", "groups", "heat", "tradeoff"])
def test_each_kind_is_a_png_of_readme_width(kind: str, tmp_path: Path) -> None:
    source = store.write_dataset(sweep(), tmp_path / "x.sweep.nc")
    (path,) = plot(source, tmp_path / f"{kind}.png", kind=kind, dpi=100)
    width, height = size_of(path)
    assert width == 900
    assert 200 < height < 800
    assert {p.name for p in tmp_path.iterdir()} == {"x.sweep.nc", f"{kind}.png"}


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_the_suffix_chooses_the_format(suffix: str, start: bytes, tmp_path: Path) -> None:
    (path,) = plot(sweep({"temperature": (0.5, 1.0)}), tmp_path / f"x{suffix}")
    assert path.read_bytes().startswith(start)


def test_curve_draws_the_slice_through_the_best_point() -> None:
    made = sweep()
    (figure,) = figures(made)
    top, bottom = figure.axes
    assert top.get_ylabel() == "nll [nat/token]"
    assert "% of tokens" in bottom.get_ylabel()
    assert bottom.get_xlabel() == "temperature"
    line = next(line for line in top.lines if len(line.get_xdata()) > 1)
    np.testing.assert_allclose(line.get_xdata(), GRID["temperature"])
    here = made.sel(model="alpaca", dataset="prose", min_p=0.02, top_k=10, alpha=2.0)
    np.testing.assert_allclose(line.get_ydata(), here["nll"])
    share = next(line for line in bottom.lines if len(line.get_xdata()) > 1)
    np.testing.assert_allclose(share.get_ydata(), 100 * here["ood"])
    # the band between the brackets
    (band, _) = top.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(float(here["nll_lower"].min()))
    assert heights.max() == pytest.approx(float(here["nll_upper"].max()))
    # best, default and neutral of the first pair
    points = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in top.lines
        if len(line.get_xdata()) == 1
    ]
    assert points[:3] == [(1.0, 2.5), (0.8, 2.125), (1.0, 2.0)]


def test_curve_says_everything() -> None:
    (figure,) = figures(sweep(models=("smol$lm$_x",)))
    texts = legend_texts(figure)
    assert texts == [
        "prose: best 2.000 at 1",
        "code: best 2.250 at 1",
        "best",
        "llama.cpp default",
        "all neutral",
    ]
    # a dollar in a name is shown as it is
    assert figure.legends[0].get_title().get_text() == r"smol\$lm\$_x"
    for expected in (
        "Chain: top_k → min_p → temperature; epsilon 0.01; tail: bound; 1,000 tokens each.",
        "Other parameters at each best point: min_p 0.02, top_k 10, alpha 2.",
        "Shaded: where the unseen tail can put nll.",
        "The llama.cpp default is temperature 0.8, top_k 40, top_p 0.95, min_p 0.05.",
    ):
        assert expected in caption(figure)


def test_curve_without_brackets_has_no_band() -> None:
    (figure,) = figures(sweep(bounded=False))
    assert not figure.axes[0].collections
    assert "Shaded" not in caption(figure)


def test_curve_along_top_k_puts_off_last() -> None:
    (figure,) = figures(sweep(), x="top_k")
    top, bottom = figure.axes
    assert [text.get_text() for text in bottom.get_xticklabels()] == ["10", "40", "off"]
    line = next(line for line in top.lines if len(line.get_xdata()) > 1)
    np.testing.assert_allclose(line.get_ydata(), [2.0, 2.1, 2.1])


def test_curve_along_epsilon() -> None:
    grid = {"temperature": (0.5, 1.0), "epsilon": (0.001, 0.01, 0.1)}
    (figure,) = figures(sweep(grid), x="epsilon")
    assert figure.axes[1].get_xlabel() == "epsilon"
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) > 1)
    assert list(line.get_xdata()) == [0.001, 0.01, 0.1]


def test_orders_of_the_chain_are_told_apart() -> None:
    first = sweep({"temperature": (0.5, 1.0), "min_p": (0.0, 0.02)}, datasets=("prose",))
    second = first.assign_attrs(chain="temperature,min_p")
    (figure,) = figures([first, second])
    assert legend_texts(figure)[:2] == [
        "min_p → temperature: best 2.000 at 1",
        "temperature → min_p: best 2.000 at 1",
    ]
    assert "Chain: as named" in caption(figure)


def test_many_lines_go_to_several_files(tmp_path: Path) -> None:
    made = sweep({"temperature": (0.5, 1.0)}, models=[f"m{i}" for i in range(5)])
    paths = plot(made, tmp_path / "x.png", dpi=50)
    assert [path.name for path in paths] == ["x.png", "x-2.png"]
    assert all(size_of(path)[0] == 450 for path in paths)


def test_groups_has_a_row_for_each_harvested_pair() -> None:
    made = sweep(models=("a", "b"), missing=[("b", "code")])
    (figure,) = figures(made, kind="groups")
    left, right = figure.axes
    ticks = [text.get_text() for text in left.get_yticklabels()]
    assert ticks == ["prose", "a", "b", "code", "a"]
    assert legend_texts(figure) == [
        "neutral",
        "llama.cpp default",
        "best for llama.cpp",
        "best",
    ]
    dots = [line for line in left.lines if line.get_linestyle() == "None"]
    values = [float(line.get_xdata()[0]) for line in dots]
    assert values[:4] == pytest.approx([2.5, 2.125, 2.1, 2.0])
    shares = [float(line.get_xdata()[0]) for line in right.lines if line.get_linestyle() == "None"]
    assert shares[:2] == pytest.approx([12.5, 20.0])
    assert shares[3] == pytest.approx(25.0)


def test_groups_best_for_llama_cpp_is_seen_where_it_meets_the_best() -> None:
    (figure,) = figures(sweep(datasets=("prose",)), kind="groups")
    dots = {line.get_marker(): line for line in figure.axes[0].lines if line.get_marker() != "None"}
    around, best = dots["^"], dots["o"]
    assert around.get_markerfacecolor() == "none"
    assert around.get_markersize() > best.get_markersize() + 2


def test_groups_warns_of_different_tokenizers() -> None:
    made = sweep(models=("a", "b"))
    made["n_token"][1] = 900
    (figure,) = figures(made, kind="groups")
    assert "does not rank them" in caption(figure)


def test_heat_shows_the_plane_through_the_best_point() -> None:
    made = sweep(datasets=("prose",))
    (figure,) = figures(made, x="temperature", y="top_k")
    axes, bar = figure.axes
    plane = made.sel(min_p=0.02, alpha=2.0).isel(model=0, dataset=0)["nll"]
    expected = plane.sel(top_k=[10, 40, 0]).transpose("top_k", "temperature").values - 2.0
    np.testing.assert_allclose(axes.collections[0].get_array().reshape(3, 5), expected, atol=1e-12)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("temperature", "top_k")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["10", "40", "off"]
    assert bar.get_ylabel() == "nll above the best [nat/token]"
    star = axes.lines[-1]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2.5, 0.5)
    assert axes.get_title(loc="left") == "best 2.000 at temperature 1, top_k 10"
    # few cells carry their numbers, the best one the star
    assert sorted({text.get_text() for text in axes.texts}) == [
        f"+{v:.3f}" for v in (0.1, 0.2, 0.3)
    ]
    assert "Other parameters at the best point: min_p 0.02, alpha 2." in caption(figure)


@pytest.mark.parametrize("models", [("a",), ("a", "b")])
def test_heat_labels_do_not_touch(models: tuple[str, ...]) -> None:
    long = tuple(float(value) for value in 0.5 * 4 ** (np.arange(9) / 8))
    made = sweep({"alpha": long, "temperature": (0.5, 1.0)}, models=models)
    (figure,) = figures(made, kind="heat", x="alpha", y="temperature", select={"dataset": "code"})
    figure.draw_without_rendering()
    for axes in figure.axes[: len(models)]:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert len(boxes) >= 2
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_heat_axes_can_be_swapped() -> None:
    made = sweep(datasets=("prose",))
    (one,) = figures(made, kind="heat", x="temperature", y="min_p")
    (two,) = figures(made, kind="heat", x="min_p", y="temperature")
    first = np.asarray(one.axes[0].collections[0].get_array()).reshape(3, 5)
    second = np.asarray(two.axes[0].collections[0].get_array()).reshape(5, 3)
    np.testing.assert_allclose(first, second.T)


def test_tradeoff_marks_settings_and_front() -> None:
    (figure,) = figures(sweep(datasets=("prose",)), kind="tradeoff")
    axes = figure.axes[0]
    assert axes.get_xlabel() == "nll [nat/token]"
    assert legend_texts(figure) == [
        "neutral",
        "llama.cpp default",
        "best",
        "no point beats it in both",
    ]
    assert figure.axes[1].get_ylabel() == "temperature"
    assert "A dot is a grid point; 135 a pair." in caption(figure)


def test_tradeoff_of_one_point() -> None:
    (figure,) = figures(sweep({"temperature": (0.7,)}), kind="tradeoff")
    assert len(figure.axes[0].collections[0].get_offsets()) == 1


def test_pareto_front_against_every_pair() -> None:
    rng = np.random.default_rng(0)
    nll, ood = rng.integers(0, 12, 60) / 4.0, rng.integers(0, 12, 60) / 12.0
    nll[3] = np.nan
    front = pareto_front(nll, ood)
    beaten = (
        (nll[None] <= nll[:, None])
        & (ood[None] <= ood[:, None])
        & ((nll[None] < nll[:, None]) | (ood[None] < ood[:, None]))
    ).any(axis=1)
    best = {(nll[i], ood[i]) for i in np.flatnonzero(~beaten & np.isfinite(nll))}
    assert {(nll[i], ood[i]) for i in front} == best
    assert (np.diff(nll[front]) > 0).all()
    assert pareto_front(np.array([np.nan]), np.array([0.1])).size == 0


def test_auto_takes_groups_when_nothing_is_swept() -> None:
    (figure,) = figures(sweep({"temperature": (0.7,)}))
    assert "neutral" in legend_texts(figure)


def test_select_holds_axes_and_names() -> None:
    made = sweep(models=("a", "b"))
    (figure,) = figures(made, select={"model": "b", "dataset": "code", "alpha": 1})
    assert legend_texts(figure)[0] == "code: best 2.850 at 1"
    assert figure.legends[0].get_title().get_text() == "b on code"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "curv"}, "did you mean 'curve'"),
        ({"x": "temprature"}, "did you mean 'temperature'"),
        ({"kind": "heat", "x": "alpha", "y": "alpha"}, "name two axes"),
        ({"kind": "curve", "y": "min_p"}, "'curve' has no y"),
        ({"kind": "groups", "x": "min_p"}, "'groups' has no x"),
        ({"select": {"model": "llama"}}, "there is no 'llama'"),
        ({"select": {"minp": 0.1}}, "did you mean 'min_p'"),
        ({"select": {"min_p": 0.03}}, "near are 0.02"),
        ({"select": {"min_p": "much"}}, "not a number"),
        ({"dpi": 0}, "dpi 0"),
    ],
)
def test_mistakes_are_one_clear_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plot(sweep(), tmp_path / "x.png", **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x", "x.jpg", "x.pgn"])
def test_unknown_suffix(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf"):
        plot(sweep(), tmp_path / name)


def test_too_few_axes_for_a_heat_map() -> None:
    with pytest.raises(ConfigError, match="needs 2 swept axes, the sweep has 1"):
        figures(sweep({"temperature": (0.5, 1.0)}), kind="heat")


def test_sources_that_are_no_sweeps(tmp_path: Path) -> None:
    path = store.write_dataset(harvest(), tmp_path / "x.harvest.nc")
    with pytest.raises(SchemaError, match="jaxsppl-sweep/1"):
        figures(path)
    with pytest.raises(SchemaError, match="no sweep file"):
        figures(str(tmp_path / "*.sweep.nc"))
    with pytest.raises(SchemaError, match="no sweep was given"):
        figures([])


def test_a_glob_of_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made = sweep({"temperature": (0.5, 1.0)}, models=(name,), datasets=("prose",))
        store.write_dataset(made, tmp_path / f"{name}.sweep.nc")
    (figure,) = figures(str(tmp_path / "*.sweep.nc"))
    assert legend_texts(figure)[:2] == ["a: best 2.000 at 1", "b: best 2.000 at 1"]


def test_ticks_are_thinned_to_round_values() -> None:
    texts = [f"{value:.4g}" for value in np.arange(0.05, 2.51, 0.05)]
    shown = [texts[at] for at in thinned(texts, 11)]
    assert shown == ["0.25", "0.5", "0.75", "1", "1.25", "1.5", "1.75", "2", "2.25", "2.5"]
    shown = [texts[at] for at in thinned(texts, 6)]
    assert shown == ["0.5", "1", "1.5", "2", "2.5"]
    assert thinned(["1"], 5) == [0]


def test_no_jax_and_no_pyplot(tmp_path: Path) -> None:
    path = store.write_dataset(sweep(), tmp_path / "x.sweep.nc")
    code = (
        "import sys; from jaxsppl.report.plots import plot; "
        "lazy = {'matplotlib', 'xarray'} & set(sys.modules); assert not lazy, lazy; "
        f"plot({str(path)!r}, {str(tmp_path / 'x.png')!r}, dpi=50); "
        "bad = {'jax', 'matplotlib.pyplot', 'tkinter'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_drawing_twice_gives_the_same_file(tmp_path: Path) -> None:
    made: xr.Dataset = sweep({"temperature": (0.5, 1.0)})
    one, two = plot(made, tmp_path / "a.png"), plot(made, tmp_path / "b.png")
    assert one[0].read_bytes() == two[0].read_bytes()
