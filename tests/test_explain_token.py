"""One token under a chain: each alternative's way through the stages, in numbers and in words."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small import harvest

import jaxsppl
from jaxsppl import store
from jaxsppl.cli import main
from jaxsppl.demo import shipped_harvests
from jaxsppl.errors import ConfigError, PlanError

P = np.array([0.5, 0.25, 0.12, 0.08, 0.05])


@pytest.fixture
def base() -> xr.Dataset:
    """A harvest whose every position has the five worked probabilities and no others."""
    made = harvest(n_token=4, n_rank=5, n_vocab=5, n_document=1)
    top = np.log(np.tile(P, (4, 1))).astype("f4")
    ids = np.tile(np.arange(5, dtype="i4"), (4, 1))
    actual = np.array([0, 1, 2, 4])
    return made.assign(
        top_logprob=(("token", "rank"), top), top_token_id=(("token", "rank"), ids),
        token_id=("token", actual.astype("i4")), token_rank=("token", (actual + 1).astype("i4")),
        token_logprob=("token", top[0, actual]),
    )  # fmt: skip


def test_the_worked_chain_step_by_step(base: xr.Dataset) -> None:
    found = jaxsppl.explain_token(
        base, 2, chain=["top_k", "top_p", "min_p", "temperature"],
        top_k=4, top_p=0.9, min_p=0.3, temperature=0.8,
    )  # fmt: skip
    assert [stage.name for stage in found.stages] == ["top_k", "top_p", "min_p", "temperature"]
    assert [stage.kept for stage in found.stages] == [
        ((1.0, 1, 4),), ((1.0, 1, 3),), ((1.0, 1, 2),), ((1.0, 1, 2),)
    ]  # fmt: skip
    three = P[:3] / P[:3].sum()
    assert found.stages[2].threshold == pytest.approx(0.3 * three[0], rel=1e-6)
    first, _, third, fourth, fifth = found.alternatives
    assert [a.cut_by for a in found.alternatives] == ["", "", "min_p", "top_p", "top_k"]
    assert first.after == pytest.approx(
        [0.5 / 0.95, three[0], 2 / 3, 2**1.25 / (2**1.25 + 1)], rel=1e-6
    )
    assert (first.drawn, third.drawn) == (first.after[-1], 0.0)
    assert third.is_actual
    assert third.why == "its 13.8 % are below the threshold 17.2 %"
    assert fourth.why == "those before it have 91.58 %, which reaches 0.9"
    assert fifth.why == "behind the 4 that it keeps"
    assert (found.rank, found.drawn, found.lower, found.upper) == (3, 0.0, 0.0, 0.0)


def test_both_sides_of_a_coin_and_an_interval(base: xr.Dataset) -> None:
    coin = jaxsppl.explain_token(base, 0, xtc_probability=0.5, xtc_threshold=0.1)
    assert coin.stages[0].kept == ((0.5, 1, 5), (0.5, 3, 5))
    assert [a.drawn for a in coin.alternatives] == pytest.approx(
        [0.25, 0.125, 0.3, 0.2, 0.125], rel=1e-6
    )
    sure = jaxsppl.explain_token(base, 0, xtc_probability=1, xtc_threshold=0.1)
    assert sure.alternatives[1].why == "one of the top choices before rank 3"
    typical = jaxsppl.explain_token(base, 0, typical_p=0.2)
    assert [a.cut_by for a in typical.alternatives] == ["typical_p", "", *["typical_p"] * 3]
    assert typical.alternatives[0].why.startswith(
        "its surprise is 0.61 nat from the entropy 1.30; nearer ones"
    )


def test_it_is_what_the_pipeline_gives_the_actual_token() -> None:
    file = shipped_harvests()[0]
    values = {"top_p": 0.97, "min_p": 0.01, "temperature": 1.2, "alpha": 0.9}
    chain = ["temperature", "top_p", "min_p"]
    every = jaxsppl.token_probabilities(file, chain=chain, **values)
    ranks = jaxsppl.open_harvest(file)["token_rank"].values
    for at in (3, int(np.flatnonzero(ranks == 0)[0]), int(np.flatnonzero(ranks == 9)[0])):
        found = jaxsppl.explain_token(file, at, chain=chain, **values)
        expected = [float(one[at]) for one in (every, every.lower, every.upper)]
        assert [found.drawn, found.lower, found.upper] == pytest.approx(expected, rel=1e-12)
        own = [a.drawn for a in found.alternatives if a.is_actual]
        assert own == pytest.approx([found.drawn] * len(own), rel=1e-9)
        assert len(own) == (ranks[at] > 0)


def test_the_command_and_its_json(
    base: xr.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(store.write_dataset(base, tmp_path / "a.harvest.nc"))
    words = ["explain-token", file, "--at", "3", "--set", "min_p=0.2", "temperature=0.5"]
    assert main([*words, "--rows", "2"]) == 0
    said = capsys.readouterr().out
    assert "Token 3 of tiny on noise, in d0: 4, rank 5, model 5 %, drawn 0 %" in said
    assert "min_p leaves ranks 1 to 3; threshold 10 %" in said
    assert "rank 5 was cut by min_p: its 5 % are below the threshold 10 %" in said
    assert "2 more alternatives (--rows)" in said
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["alternatives"][4]["cut_by"] == "min_p"
    assert data["stages"][1]["settings"] == {"temperature": 0.5}
    # Without any it is llama.cpp's default.
    assert main(["explain-token", file, "--at", "0", "--tail", "drop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["top_p"] == 0.95


def test_texts_come_from_a_server(llama_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(next(one for one in shipped_harvests() if "prose" in one.name))
    assert main(["explain-token", file, "--at", "120", "--server", llama_server]) == 0
    assert "2*    '\\n' (198)" in capsys.readouterr().out


def test_every_refusal_names_the_way_out(base: xr.Dataset) -> None:
    with pytest.raises(ConfigError, match="has 4, from 0 to 3"):
        jaxsppl.explain_token(base, 4, min_p=0.1)
    with pytest.raises(ConfigError, match="whole number"):
        jaxsppl.explain_token(base, -1, min_p=0.1)
    with pytest.raises(ConfigError, match="2 harvests were given; give one"):
        jaxsppl.explain_token(shipped_harvests(), 0, min_p=0.1)
    with pytest.raises(ConfigError, match="did you mean 'min_p'"):
        jaxsppl.explain_token(base, 0, minp=0.1)
    with pytest.raises(PlanError, match="put a top_k of at most 100 before it"):
        jaxsppl.explain_token(shipped_harvests()[0], 0, typical_p=0.5)
