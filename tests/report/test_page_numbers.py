"""Every number of a page is printed by the commands that the page prints, run on its harvests."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small import harvest
from test_page import Page

from jaxsppl import cli, store

CONFIG = """
[grid]
temperature = [0.5, 1.0, 1.5]
min_p = [0.0, 0.1]
beta = [1.0, 2.0]

[decide]
folds = 3
"""
OPTIMUM = """
[optimize]
over = ["temperature", "alpha"]
starts = 4
pooled = true

[decide]
folds = 3
"""
FILES = ("x.sweep.nc", "o.optimum.nc", "c.comparison.nc", "a b.noise.harvest.nc")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with harvests, a proven sweep and optimum, a comparison, and the page of them."""
    place = tmp_path_factory.mktemp("made")
    for seed, dataset in enumerate(("noise", "verse")):
        one = harvest(n_token=90, n_rank=50, n_document=6, seed=seed, dataset=dataset)
        store.write_dataset(one, place / f"a b.{dataset}.harvest.nc")
        store.write_dataset(surer(one), place / f"{dataset}.second.nc")
    (place / "mine.toml").write_text(CONFIG)
    (place / "own.toml").write_text(OPTIMUM)
    with contextlib.chdir(place):
        run("jaxsppl sweep mine.toml --input *.harvest.nc --out x.sweep.nc")
        run("jaxsppl optimize own.toml --input *.harvest.nc --out o.optimum.nc")
        run("jaxsppl compare *.harvest.nc *.second.nc --setting neutral temperature=0.7,min_p=0.1 "
            "--reference tiny --resamples 200 --out c.comparison.nc")  # fmt: skip
        run(shlex.join(["jaxsppl", "report", *FILES, "--out", "page.html"]))
    return place


@pytest.fixture(scope="module")
def again(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A fresh folder with the harvests where all commands were run, and what they printed."""
    place = tmp_path_factory.mktemp("again")
    for file in (*made.glob("*.harvest.nc"), *made.glob("*.second.nc")):
        shutil.copy(file, place)
    page = Page(made / "page.html")
    configs = [block for block in page.blocks["pre"] if block.startswith("[chain]")]
    for name, config in zip(page.blocks["code"], configs, strict=True):
        (place / name).write_text(config)
    commands = [b for b in page.blocks["pre"] if b.startswith(("jaxsppl ", "python "))]
    with contextlib.chdir(place):
        said = "\n".join(map(run, commands))
        said += "\n".join(file.read_text() for file in sorted(place.glob("*.csv")))
    return place, said


def surer(one: xr.Dataset) -> xr.Dataset:
    """A second model on the same text, whose law is a little sharper, the tail left as it is."""
    top = one.top_logprob.values.astype(np.float64)
    tail = 1 - np.exp(top).sum(axis=1)
    top = 1.2 * top + (np.log(1 - tail) - np.log(np.exp(1.2 * top).sum(axis=1)))[:, None]
    rank, own = one.token_rank.values, one.token_logprob.values
    listed = top[np.arange(len(top)), np.maximum(rank - 1, 0)]
    return one.assign(
        top_logprob=(("token", "rank"), top.astype("f4")),
        token_logprob=(
            "token",
            np.where(rank > 0, listed, np.minimum(own, top[:, -1])).astype("f4"),
        ),
    ).assign_coords(model="surer")


def run(command: str) -> str:
    """Run a command as a shell would; return what it printed."""
    program, *words = shlex.split(command)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if program == "python":  # test_page.py runs one in a process of its own
            exec(compile(words[1], "command", "exec"), {})
        else:
            assert cli.main(words) == 0, command
    return out.getvalue()


def numbers(text: str) -> np.ndarray:
    """Every number of a text."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return np.asarray([*map(float, re.findall(r"-?\b\d+\.?\d*(?:e[+-]?\d+)?", plain))])


def is_said(word: str, said: str, printed: np.ndarray) -> bool:
    """Whether a number was printed, to the digits of the page, as it is or as a share of 1."""
    try:
        value = float(word.replace(",", ""))
    except ValueError:
        return word in said  # a digest, a name
    digits = len(word.partition(".")[2]) if "e" not in word else -int(word.partition("e")[2])
    half = 0.5000001 * 10.0**-digits
    return bool((np.abs(np.concatenate([printed, 100 * printed]) - value) <= half).any())


def test_every_number_is_printed_by_the_commands(made: Path, again: tuple[Path, str]) -> None:
    said, page = again[1], Page(made / "page.html")
    printed = numbers(said)
    shown = [text for tag in ("td", "th", "li", "p") for text in page.blocks[tag]]
    words = [
        word.strip("+.,;:()[]%")
        for text in (text.replace("interval", "interval ") for text in shown)
        if not text.startswith("Written by")
        for word in text.replace("nat", " nat").split()
        if re.search(r"\d", word)
    ]
    assert len(words) > 400
    names = " ".join([*page.addresses, *page.blocks["pre"]])
    missing = [w for w in words if not (is_said(w, said, printed) or w in names.split())]
    assert missing == []
    # the check is one that can fail
    assert not is_said("1.23457", said, printed)
    assert not is_said("-0.3141", said, printed)


def test_the_page_of_the_files_that_were_made_again_is_the_same(
    made: Path, again: tuple[Path, str]
) -> None:
    old, new = (place / "page.html" for place in (made, again[0]))
    assert new.read_text() == old.read_text()


def test_sums_are_those_of_plain_numpy(made: Path) -> None:
    page = Page(made / "page.html")
    for dataset in ("noise", "verse"):
        file = store.read_contents(made / f"a b.{dataset}.harvest.nc")
        logprob = file.array("token_logprob").astype(np.float64)
        n_byte = int(file.array("token_bytes").sum())
        plain, bits = np.exp(-logprob.mean()), -logprob.sum() / np.log(2) / n_byte
        words = f"90 tokens, {n_byte} bytes, plain perplexity {plain:.4g}, {bits:.3f} bits per byte"
        assert any(words in " ".join(text.split()) for text in page.blocks["p"])
        # neutral is the model itself, clipped
        p = np.maximum(np.exp(logprob), 0.01)
        assert f"{-np.log(p).mean():.4f}" in page.blocks["td"]
        assert f"{100 * (np.exp(logprob) < 0.01).mean():.2f}" in page.blocks["td"]
