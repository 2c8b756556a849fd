"""Comparisons: divergences against whole vocabularies, pairing, refusals across tokenizers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from uneven import uneven

import jaxsppl
from jaxsppl import cli
from jaxsppl.check import check
from jaxsppl.choice import Rules
from jaxsppl.errors import ConfigError, SchemaError
from jaxsppl.report import table
from jaxsppl.report.comparison import comparison_text, summarise_comparison
from jaxsppl.sweep.bootstrap import draw_documents, resample, resample_difference
from jaxsppl.sweep.compared import MEAN, PLAIN
from jaxsppl.sweep.divergence import places, plain_divergence, sampler_divergence

Array = np.ndarray[Any, Any]
RULES = Rules(resamples=300)


def laws(seed: int, n_token: int = 6, n_vocab: int = 60, apart: float = 0.3) -> tuple[Array, Array]:
    """Log-probabilities of two similar models over a whole vocabulary."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2.5, (n_token, n_vocab))
    both = (logits, logits + rng.normal(0, apart, logits.shape))
    return tuple(special.log_softmax(one, axis=1) for one in both)  # type: ignore[return-value]


def listed(logprob: Array, n_rank: int) -> tuple[Array, Array]:
    """The likeliest tokens and their ids."""
    ids = np.argsort(-logprob, axis=1)[:, :n_rank]
    return np.take_along_axis(logprob, ids, axis=1), ids


@settings(max_examples=60)
@given(st.integers(0, 999), st.sampled_from([3, 10, 30, 60]), st.floats(0, 2))
def test_the_bounds_hold_the_divergence_of_the_whole_vocabulary(
    seed: int, n_rank: int, apart: float
) -> None:
    p, q = laws(seed, apart=apart)
    truth = special.rel_entr(np.exp(p), np.exp(q)).sum(axis=1)
    (p_top, p_ids), (q_top, q_ids) = listed(p, n_rank), listed(q, n_rank)
    place = places(p_ids, q_ids)
    found = plain_divergence(p_top, q_top, place, q.min(axis=1))
    assert (found.kl_lower <= truth + 1e-9).all()
    assert (found.kl_upper >= truth - 1e-9).all()
    assert found.same_top.tolist() == (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    if n_rank == 60:
        assert found.kl_lower == pytest.approx(truth, abs=1e-9)
        assert found.kl_upper == pytest.approx(truth, abs=1e-9)
    assert np.isinf(plain_divergence(p_top, q_top, place, None).kl_upper).all()


def test_divergences_of_samplers_by_hand() -> None:
    p, q = np.array([[0.6, 0.4, 0.0]]), np.array([[0.5, 0.25, 0.25]])
    place = np.array([[1, 0, -1]])  # Q finds P's second the likeliest and does not list the third
    clipped, overlap = sampler_divergence(p, q, place, 0.01)
    assert clipped[0] == pytest.approx(0.6 * np.log(0.6 / 0.25) + 0.4 * np.log(0.4 / 0.5))
    assert overlap[0] == pytest.approx(0.25 + 0.4)
    nothing = np.array([[0, -1, -1]])
    clipped, overlap = sampler_divergence(p, np.array([[1.0, 0.0, 0.0]]), nothing, 0.01)
    assert clipped[0] == pytest.approx(0.6 * np.log(0.6) + 0.4 * np.log(0.4 / 0.01))
    assert overlap[0] == pytest.approx(0.6)


def test_a_difference_of_ratios_is_what_explicit_repetition_gives() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.uniform(50, 90, (2, 8)), rng.uniform(40, 80, (2, 8))
    drawn = draw_documents(8, 40, 1)
    found = resample_difference((one[0], one[1]), (other[0], other[1]), drawn)
    for row, value, error in zip(drawn.astype(int), found.values, found.errors, strict=True):
        x, w, y, v = (np.repeat(part, row) for part in (*one, *other))
        a, b = x.sum() / w.sum(), y.sum() / v.sum()
        assert value == pytest.approx(a - b, abs=1e-12)
        residual = (x - a * w) / w.sum() - (y - b * v) / v.sum()
        assert error == pytest.approx(np.sqrt(8 / 7 * np.square(residual).sum()), abs=1e-9)
    same = resample_difference((one[0], one[1]), (other[0], one[1]), drawn)
    assert np.array_equal(same.errors, resample(one[0] - other[0], one[1], drawn).errors)


def noisy(harvest: xr.Dataset, model: str, spread: float = 0.05) -> xr.Dataset:
    """The same text by a model whose log-probabilities differ a little."""
    rng = np.random.default_rng(3)
    before = harvest.top_logprob.values.astype("f8")
    top = before + rng.normal(0, spread, before.shape)
    # The listed tokens keep their mass.
    mass = [special.logsumexp(values, axis=1, keepdims=True) for values in (before, top)]
    top += mass[0] - mass[1]
    order = np.argsort(-top, axis=1)
    top = np.take_along_axis(top, order, 1)
    ids = np.take_along_axis(harvest.top_token_id.values, order, 1)
    hit = ids == harvest.token_id.values[:, None]
    rank = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, 0)
    at_rank = np.take_along_axis(top, np.maximum(rank, 1)[:, None] - 1, 1)[:, 0]
    beyond = np.minimum(harvest.token_logprob.values, top[:, -1])
    two, one = ("token", "rank"), "token"
    return harvest.assign(
        top_logprob=(two, top.astype("f4")),
        top_token_id=(two, ids),
        token_rank=(one, rank.astype("i4")),
        token_logprob=(one, np.where(rank > 0, at_rank, beyond).astype("f4")),
    ).assign_coords(model=model)


def turned(harvest: xr.Dataset) -> xr.Dataset:
    """The same harvest with its documents in the opposite order."""
    n = harvest.sizes["document"]
    tokens = np.argsort(n - 1 - harvest.document_index.values, kind="stable")
    back = harvest.isel(token=tokens, document=slice(None, None, -1))
    return back.assign(document_index=("token", (n - 1 - back.document_index.values).astype("i4")))


@pytest.fixture(scope="module")
def compared() -> xr.Dataset:
    prose, code = uneven(dataset="prose"), uneven(n_document=7, seed=1, dataset="code")
    others = [turned(noisy(one, "small")) for one in (prose, code)]
    chosen = {"neutral": {}, "cold": {"temperature": 0.6, "top_k": 8}}
    return jaxsppl.compare([prose, code, *others], chosen, rules=RULES)


def test_numbers_of_a_comparison(compared: xr.Dataset) -> None:
    assert compared.model.values.tolist() == ["tiny", "small"]
    assert compared.setting.values.tolist() == [PLAIN, "neutral", "cold"]
    assert compared.dataset.values.tolist() == ["prose", "code", MEAN]
    assert compared.attrs["unit"] == "token"
    prose = uneven(dataset="prose")
    here = compared.sel(dataset="prose", model="tiny")
    plain = here.sel(setting=PLAIN)
    nll = -float(prose.token_logprob.astype("f8").mean())
    assert float(plain.nll) == pytest.approx(nll, rel=1e-6)
    bits = nll * 270 / float(prose.token_bytes.sum()) / np.log(2)
    assert float(plain.bits_per_byte) == pytest.approx(bits, rel=1e-6)
    own = jaxsppl.token_probabilities(prose, temperature=0.6, top_k=8).values
    cold = -np.log(np.maximum(own, 0.01)).mean()
    assert float(here.sel(setting="cold").nll) == pytest.approx(cold)
    beside = float(here.sel(setting="cold").nll - here.sel(setting="neutral").nll)
    assert float(here.sel(setting="cold").to_setting) == pytest.approx(beside)
    mean = compared.sel(dataset=MEAN, setting=PLAIN).nll
    assert mean.values == pytest.approx(
        compared.sel(setting=PLAIN, dataset=["prose", "code"]).nll.mean("dataset").values
    )


def test_models_are_paired_by_text_whatever_the_order(compared: xr.Dataset) -> None:
    # The noise is small beside what documents differ by: only pairing makes the interval narrow.
    here = compared.sel(dataset="prose", model="small", setting=PLAIN)
    width = float(np.diff(here.to_model_interval)[0])
    alone = float(np.diff(here.nll_interval)[0])
    assert width < alone / 3
    assert float(here.to_model) == pytest.approx(
        float(here.nll - compared.sel(dataset="prose", model="tiny", setting=PLAIN).nll)
    )
    assert 0 < float(here.kl_lower) < 0.1
    assert 0.5 < float(here.same_top) < 1
    assert np.isnan(float(here.kl_upper)) if "kl_upper" in here else True
    assert np.isnan(float(compared.sel(dataset="prose", model="tiny").kl_lower))
    for name in ("same_top", "overlap", "unshared"):
        ends = compared[f"{name}_interval"]
        assert float(ends.min()) >= 0
        assert float(ends.max()) <= 1
    last = compared.kl_percentile.sel(dataset="code", model="small").values
    assert (np.diff(last) >= 0).all()


def test_a_comparison_has_a_file(compared: xr.Dataset, tmp_path: Path) -> None:
    path = jaxsppl.save(compared, tmp_path / "c.comparison.nc")
    assert check(path).startswith("comparison of 2 models under 3 settings; SHA-256")
    text = comparison_text(summarise_comparison(compared))
    assert table.render(table.describe(path)) == text
    assert "KL at most is not known" in text
    assert "with 16 alternatives: an unlisted token may reach epsilon" in text
    for wrong in (compared.drop_vars("to_model"), compared.transpose("dataset", ...)):
        jaxsppl.save(wrong, path)
        with pytest.raises(SchemaError, match=r"'to_model' is missing|'nll' has dims"):
            table.describe(path)


def test_two_copies_do_not_differ() -> None:
    one = uneven()
    found = jaxsppl.compare([one, turned(one).assign_coords(model="copy")], rules=RULES,
                            settings={"cold": {"temperature": 0.5}})  # fmt: skip
    copy = found.sel(model="copy", dataset="noise")
    assert (np.abs(copy.to_model) < 1e-12).all()
    assert (np.abs(copy.to_model_interval) < 1e-12).all()
    assert (copy.to_model_win == 0.5).all()
    assert float(copy.kl_lower) == pytest.approx(0, abs=1e-9)
    assert float(copy.same_top) == 1
    assert float(copy.overlap.sel(setting="cold")) == pytest.approx(1, abs=1e-9)
    assert float(copy.clipped_kl.sel(setting="cold")) == pytest.approx(0, abs=1e-12)


def test_other_tokenizers_are_compared_by_byte_or_not_at_all() -> None:
    one = uneven()
    other = uneven(seed=4, n_token=200).assign_coords(model="wide")
    other = other.assign(
        document_sha256=one.document_sha256,
        token_bytes=("token", np.full(200, 6, "i4")),
    ).assign_attrs(n_vocab=262_144)
    found = jaxsppl.compare([one, other], ["neutral"], rules=RULES)
    assert found.attrs["unit"] == "byte"
    here = found.sel(dataset="noise", model="wide", setting=PLAIN)
    there = found.sel(dataset="noise", model="tiny", setting=PLAIN)
    assert float(here.to_model) == pytest.approx(float(here.bits_per_byte - there.bits_per_byte))
    assert "kl_lower" not in found or found.kl_lower.isnull().all()
    with pytest.raises(ConfigError, match=r"different tokens \(vocabularies of 200 and 262,144\)"):
        jaxsppl.compare([one, other], ["neutral"], unit="token", rules=RULES)
    with pytest.raises(ConfigError, match="characters of some documents are not known"):
        jaxsppl.compare([one, other], ["neutral"], unit="character", rules=RULES)
    size = {str(digest): 80 for digest in one.document_sha256.values}
    by_character = jaxsppl.compare(
        [one, other], ["neutral"], unit="character", characters=size, rules=RULES
    )
    bits = -float(one.token_logprob.astype("f8").sum()) / (9 * 80) / np.log(2)
    text = comparison_text(summarise_comparison(by_character))
    assert max(map(len, text.splitlines())) <= 100
    assert "nat/token" not in text
    assert "no KL to wide" in text
    assert "KL at least" not in text
    found_bits = by_character.bits_per_character.sel(model="tiny", setting=PLAIN).item()
    assert found_bits == pytest.approx(bits, rel=1e-6)


def test_only_documents_that_all_models_have_count() -> None:
    one = uneven()
    part = one.isel(token=one.document_index.values < 5, document=slice(0, 5))
    found = jaxsppl.compare([one, part.assign_coords(model="part")], ["neutral"], rules=RULES)
    assert found.n_document.item() == 5
    assert float(found.to_model.sel(model="part", setting=PLAIN, dataset="noise")) == 0
    strangers = uneven(seed=2).assign(
        document_sha256=("document", np.array([f"{i:x}" * 64 for i in range(1, 10)]))
    )
    with pytest.raises(ConfigError, match="share no document of 'noise'"):
        jaxsppl.compare([one, strangers.assign_coords(model="b")], ["neutral"], rules=RULES)


def test_groups_of_one_file_hold_for_all_models() -> None:
    one = uneven().assign_coords(group=("document", np.array([*"aabbccdd", ""])))
    # Another model's file, in another order and without the labels; and a dataset without groups.
    other = turned(noisy(uneven(), "small"))
    code = uneven(seed=1, dataset="code")
    size = {str(digest): 80 for digest in one.document_sha256.values}
    found = jaxsppl.compare(
        [one, other, code], ["neutral"], unit="character", characters=size, rules=RULES
    )
    assert found.n_document.values.tolist() == [9, 9, 18]
    assert found.n_group.values.tolist() == [5, 0, 0]
    here = found.sel(dataset="noise", setting=PLAIN)
    sums = np.bincount(one.document_index, -one.token_logprob.astype("f8"))
    unit = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4])
    loss, bits = np.bincount(unit, sums), np.bincount(unit, np.full(9, 80 * np.log(2)))
    by_hand = resample(loss, bits, draw_documents(5, 300, [0, 0])).estimate(0.95)
    interval = here.bits_per_character_interval.sel(model="tiny").values
    assert interval == pytest.approx([by_hand.low, by_hand.high], rel=1e-6)
    text = comparison_text(summarise_comparison(found))
    assert "noise (9 documents; unit: group, 5 of them)" in text
    assert "only 5 groups: an interval from fewer than 10 may hold" in text.replace("\n  ", " ")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rules": Rules(cluster="topic")}, "cluster: 'topic' is not allowed"),  # type: ignore[arg-type]
    ({"settings": ["neutrl"]}, "setting 'neutrl': it is not known; did you mean 'neutral'"),
    ({"settings": {}}, "settings: none is given"),
    ({"settings": {"x": {"min_q": 1}}}, "setting 'x': there is no parameter 'min_q'"),
    ({"settings": {"x": {"min_p": 2}}}, "x.min_p: 2.0 is not allowed"),
    ({"settings": {"x": {"epsilon": 0.1}}}, "epsilon is how one scores"),
    ({"settings": {PLAIN: {}}}, "the name is taken"),
    ({"reference": "tin"}, "there is no model 'tin'; did you mean 'tiny'"),
    ({"unit": "word"}, "unit: 'word' is not allowed"),
    ({"tail": "cut"}, "tail: 'cut' is not allowed"),
    ({"epsilon": 0}, "epsilon: 0.0 is not allowed"),
    ({"rules": Rules(confidence=2)}, "confidence: 2 is not allowed"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jaxsppl.compare(uneven(), **{"settings": ["neutral"], **options})


def test_the_command_and_its_table(
    compared: xr.Dataset, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = comparison_text(summarise_comparison(compared))
    assert max(map(len, text.splitlines())) <= 100
    assert "KL at least" in text
    assert "mean of datasets (16 documents)" in text
    one = uneven()
    files = [jaxsppl.save(h, tmp_path / f"{n}.harvest.nc")
             for n, h in (("a", one), ("b", noisy(one, "small")))]  # fmt: skip
    preset = tmp_path / "generation_config.json"
    preset.write_text('{"do_sample": true, "temperature": 0.7, "top_k": 5, "top_p": 1.0}')
    words = [*map(str, files), "--setting", "neutral", "temperature=0.5,top_k=4", str(preset)]
    assert cli.main(["compare", *words, "--resamples", "200"]) == 0
    out = capsys.readouterr().out
    assert "temperature=0.5,top_k=4" in out.replace("\n", "") or "temp" in out
    assert cli.main(["compare", *words, "--resamples", "200", "--json"]) == 0
    assert '"to_model"' in capsys.readouterr().out
    assert cli.main(["compare", str(files[0]), "--setting", "temprature=0.5"]) == 2
    assert "did you mean 'temperature'" in capsys.readouterr().err
    assert cli.main(["compare", str(files[0]), "--setting", "nothing.json"]) == 2
    assert "no known setting and no file" in capsys.readouterr().err
