"""The page: self-contained, escaped, complete, and its commands give its numbers."""

import base64
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from small import harvest
from small_sweep import sweep
from test_table import optimum

import jaxsppl
from jaxsppl import cli, store
from jaxsppl.choice import Choice, Rules
from jaxsppl.errors import ConfigError, SchemaError
from jaxsppl.report.page import write_report

GRID = {"temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1], "beta": [1.0, 2.0]}
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """What a browser would see: tags, addresses, and the text of each block."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.blocks: dict[str, list[str]] = {"pre": [], "td": [], "p": [], "h3": [], "h4": []}
        self.blocks |= {"th": [], "li": [], "code": []}
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag in self.blocks:
            self.blocks[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.blocks:
            if tag in self.open:
                self.blocks[tag][-1] += data


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    made = harvest(n_rank=50)
    store.write_dataset(made, tmp_path / "a b.harvest.nc")
    result = jaxsppl.sweep(tmp_path / "a b.harvest.nc", GRID)
    return store.write_dataset(result, tmp_path / "x.sweep.nc")


def test_it_asks_for_nothing_and_runs_nothing(swept: Path, tmp_path: Path) -> None:
    page = Page(write_report([swept], tmp_path / "new" / "r.html"))
    assert page.open == []
    assert not page.tags & {"script", "link", "iframe", "object", "base", "form"}
    assert len(page.addresses) == 4  # heat, curve, trade-off, groups
    for address in page.addresses:
        head, _, body = address.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(body).startswith(b"\x89PNG")
    style = (tmp_path / "new" / "r.html").read_text(encoding="utf-8").split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    wild = '<script>alert("1")</script>&amp;{{ 7 * 7 }}$x$'
    made = sweep({"temperature": (0.5, 1.0)}, models=(wild,))
    path = store.write_dataset(made, tmp_path / "<b>&.sweep.nc")
    page = Page(write_report([path], tmp_path / "r.html", title="<i>t</i>"))
    assert not page.tags & {"script", "b", "i"}
    assert f"{wild} on prose" in page.blocks["h3"]


def test_its_commands_give_its_numbers(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(write_report([swept], tmp_path / "r.html"))
    again = tmp_path / "again"
    again.mkdir()
    monkeypatch.chdir(again)
    (config,) = (block for block in page.blocks["pre"] if block.startswith("[chain]"))
    (again / "x.toml").write_text(config)
    (made,) = (block for block in page.blocks["pre"] if block.startswith("jaxsppl sweep"))
    assert cli.main(shlex.split(made)[1:]) == 0
    old, new = jaxsppl.open_sweep(swept), jaxsppl.open_sweep(again / "x.sweep.nc")
    np.testing.assert_array_equal(new["nll"], old["nll"])
    assert new.attrs["chain"] == old.attrs["chain"]
    # and one setting alone, as a stranger would run it
    named = [text for text in page.blocks["p"] if text.startswith("best, ")]
    alone = [block for block in page.blocks["pre"] if block.startswith("python -c")]
    assert len(alone) == 4  # neutral, default, best, best for llama.cpp
    assert named == ["best, tiny on noise"]
    done = subprocess.run(
        [sys.executable, *shlex.split(alone[2])[1:]], capture_output=True, text=True, check=True
    )
    nll, ood = map(float, done.stdout.split())
    assert nll == pytest.approx(float(old["best_nll"].squeeze()), abs=1e-12)
    assert ood == pytest.approx(float(old["best_ood"].squeeze()), abs=1e-12)
    assert f"{nll:.4f}" in page.blocks["td"]


def test_a_gain_on_the_same_text_is_not_called_a_proof(swept: Path, tmp_path: Path) -> None:
    page = Page(write_report([swept], tmp_path / "r.html"))
    assert any("prove nothing about other text" in " ".join(p.split()) for p in page.blocks["p"])
    assert "Held-out proof" not in page.blocks["h4"]


def test_held_out_proof_and_plateau_appear_when_the_file_has_them(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = jaxsppl.decide(jaxsppl.open_sweep(swept), tmp_path / "a b.harvest.nc")
    path = store.write_dataset(decided, tmp_path / "d.sweep.nc")
    page = Page(write_report([path], tmp_path / "r.html"))
    assert "Held-out proof" in page.blocks["h4"]
    assert "What cannot be told from the best" in page.blocks["h4"]
    said = [" ".join(text.split()) for text in page.blocks["p"]]
    assert any("12 points in turn on 2 of 3 documents, proven on the others, 3" in s for s in said)
    assert not any("prove nothing" in text for text in page.blocks["p"])
    gain = decided["heldout_gain"].sel(setting="neutral").squeeze()
    assert f"{float(gain):+.4f}" in page.blocks["td"]
    assert any(s.startswith(f"{int(decided['plateau'].sum())} of 12 points") for s in said)
    # the proof is made again by what is printed too
    monkeypatch.chdir(tmp_path)
    (config,) = (block for block in page.blocks["pre"] if block.startswith("[chain]"))
    (tmp_path / "d.toml").write_text(config)
    (made,) = (block for block in page.blocks["pre"] if block.startswith("jaxsppl sweep"))
    path.unlink()
    assert cli.main(shlex.split(made)[1:]) == 0
    again = jaxsppl.open_sweep(path)
    for name in ("heldout_nll", "heldout_gain_interval", "plateau", "sampler_gain"):
        np.testing.assert_array_equal(again[name], decided[name])


def test_an_optimum_is_made_again_by_what_is_printed(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del swept
    found = jaxsppl.optimize(
        tmp_path / "a b.harvest.nc",
        over=("temperature", "min_p"),
        values={"min_p": [0.0, 0.1]},
        fixed={"beta": 1.5},
        bounds={"temperature": (0.3, 2.0)},
        starts=4,
        seed=3,
        choice=Choice(ood_max=0.5),
        rules=Rules(folds=2, resamples=200),
    )
    path = store.write_dataset(found, tmp_path / "o.optimum.nc")
    page = Page(write_report([path], tmp_path / "r.html"))
    (config,) = (block for block in page.blocks["pre"] if block.startswith("[chain]"))
    (made,) = (block for block in page.blocks["pre"] if block.startswith("jaxsppl optimize"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o.toml").write_text(config)
    path.unlink()
    assert cli.main(shlex.split(made)[1:]) == 0
    again = store.read_contents(path)
    np.testing.assert_array_equal(again.array("optimum"), found["optimum"])
    for name in ("nll", "heldout_nll", "heldout_gain_interval"):
        np.testing.assert_array_equal(again.array(name), found[name])
    assert "from 4 starts in turn on " in " ".join(page.blocks["p"])


def test_optimum_and_harvest_have_their_sections(tmp_path: Path) -> None:
    found = store.write_dataset(optimum(), tmp_path / "o.optimum.nc")
    text = store.write_dataset(harvest(), tmp_path / "h.harvest.nc")
    page = Page(write_report([found, text], tmp_path / "r.html"))
    assert "2 of 4" in page.blocks["td"]
    assert "40 in 3 documents" in page.blocks["td"]
    assert page.addresses == ["#file-1", "#file-2"]


def test_what_was_made_from_no_file_is_shown_only(tmp_path: Path) -> None:
    made = jaxsppl.sweep(harvest(n_rank=50), {"temperature": [0.5, 1.0]})
    path = store.write_dataset(made, tmp_path / "x.sweep.nc")
    page = Page(write_report([path], tmp_path / "r.html"))
    commands = [block for block in page.blocks["pre"] if block.startswith("jaxsppl ")]
    assert commands[:2] == [f"jaxsppl show {path}", f"jaxsppl check {path}"]
    assert "Make these numbers again" not in page.blocks["h3"]


def test_what_cannot_be_reported_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no file"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(SchemaError, match="no such file"):
        write_report([tmp_path / "absent.nc"], tmp_path / "r.html")
    with pytest.raises(ConfigError, match="it is a folder"):
        write_report([store.write_dataset(harvest(), tmp_path / "h.harvest.nc")], "/")
    assert cli.main(["report", str(tmp_path / "absent.nc"), "--out", "r.html"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
