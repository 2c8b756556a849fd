"""`harvest --statistics` on llama.cpp: against whole lists by hand, and against a KLD file."""

import json
import logging
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import xarray as xr
from harvest_standin import N_VOCAB, StandIn, Text, logprobs
from kld_writer import kld_bytes

from jaxsppl import store
from jaxsppl.errors import ConfigError, IncompleteError
from jaxsppl.harvest.kld import import_kld
from jaxsppl.harvest.runner import harvest, harvest_async
from jaxsppl.harvest.statistics import INVERSE_TEMPERATURE

TEXT = Text("short", "It was the best", " of \u6f22")


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """A request by hand, with none of our code."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read())


def whole_law(url: str, prompt: list[int], *, cached: bool) -> np.ndarray:
    """Log-probabilities of the whole vocabulary after a prompt, in the order of ids."""
    body = {
        "prompt": prompt, "n_predict": 1, "n_probs": 10**6, "logit_bias": [[28, 1e6]],
        "cache_prompt": cached, "id_slot": 0,
    }  # fmt: skip
    entry = post(url, "/completion", body)["completion_probabilities"][0]
    law = np.empty(len(entry["top_logprobs"]))
    for alternative in entry["top_logprobs"]:
        law[alternative["id"]] = alternative["logprob"]
    return law


def check(found: xr.Dataset, law: np.ndarray, atol: float) -> None:
    """Statistics against the laws that were asked for by hand."""
    law = scipy.special.log_softmax(law, axis=1)
    right = scipy.special.logsumexp(law[:, None] * INVERSE_TEMPERATURE[:, None], axis=-1)
    np.testing.assert_allclose(found.log_partition, right, atol=4 * atol)
    np.testing.assert_allclose(found.entropy, -(np.exp(law) * law).sum(1), atol=atol)
    np.testing.assert_allclose(found.logit_std, law.std(1), atol=atol)
    np.testing.assert_allclose(found.min_logprob, law.min(1), atol=atol)
    order = np.argsort(-law, axis=1, kind="stable")[:, : found.sizes["rank"]]
    np.testing.assert_allclose(
        found.top_logprob, np.take_along_axis(law, order, 1), atol=atol, rtol=1e-6
    )
    actual = law[np.arange(len(law)), found.token_id]
    np.testing.assert_allclose(found.token_logprob, actual, atol=atol, rtol=1e-6)


@pytest.mark.parametrize("method", ["token-grammar", "one-token"])
async def test_they_are_those_of_the_made_up_model(
    start: Any, tmp_path: Path, texts: list[Text], method: str
) -> None:
    url = await start(StandIn(bos=True))
    [report] = await harvest_async(
        texts[:2], url, tmp_path, dataset="d", alternatives=7, statistics=True, method=method
    )
    found = store.read_harvest(str(report.path))
    assert found.attrs["statistics"] == 1
    ids = [list((text.prefix + text.continuation).encode()) for text in texts[:2]]
    starts = [len(text.prefix) for text in texts[:2]]
    law = np.asarray(
        [logprobs(row[:i]) for row, first in zip(ids, starts, strict=True)
         for i in range(first, len(row))]
    )  # fmt: skip
    assert law.shape == (report.n_token, N_VOCAB)
    check(found, law, 1e-5)
    with pytest.raises(ConfigError, match="made with other statistics"):
        await harvest_async(texts[:2], url, tmp_path, dataset="d", alternatives=7, method=method)


def test_they_are_those_of_the_real_model_and_its_price_is_told(
    llama_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    options: dict[str, Any] = {"dataset": "d", "alternatives": 20}
    [report] = harvest([TEXT], llama_server, tmp_path, statistics=True, **options)
    assert "the whole vocabulary comes with each token" in caplog.text
    found = store.read_harvest(str(report.path))
    body = {"content": TEXT.prefix + TEXT.continuation, "parse_special": False}
    ids = post(llama_server, "/tokenize", body)["tokens"]
    context = int(found.context_tokens[0])
    assert found.token_id.values.tolist() == ids[context:]
    law = np.asarray(
        [whole_law(llama_server, ids[:i], cached=i > context) for i in range(context, len(ids))]
    )
    # the server's own low bits depend on how its batches fall
    check(found, law, 2e-3)
    # without them the same text has the same numbers, up to the server's common offset
    [plain] = harvest([TEXT], llama_server, tmp_path / "plain", **options)
    other = store.read_harvest(str(plain.path))
    assert "log_partition" not in other
    np.testing.assert_allclose(other.token_logprob, found.token_logprob, atol=2e-3)
    # and a file of llama-perplexity with the same laws agrees, where its floor leaves them known
    n_row = len(law)
    chunk = 2 * n_row + 1 + 1
    targets = np.zeros((1, chunk), int)
    targets[0, -n_row:] = ids[context:]
    (tmp_path / "a.kld").write_bytes(kld_bytes(targets, law[None].astype(np.float32)))
    import_kld(tmp_path / "a.kld", tmp_path / "kld.nc", alternatives=20)
    kld = store.read_harvest(tmp_path / "kld.nc")
    np.testing.assert_array_equal(kld.token_id, found.token_id)
    above = kld.token_logprob.values - found.token_logprob.values
    floored = above > 3e-3
    assert floored.sum() == kld.attrs["n_censored"]
    np.testing.assert_allclose(above[~floored], 0, atol=3e-3)
    np.testing.assert_allclose(kld.entropy, found.entropy, atol=8e-3)
    both = found.log_partition.sel(inverse_temperature=kld.inverse_temperature)
    np.testing.assert_allclose(kld.log_partition, both, atol=8e-3)


async def test_a_list_that_is_not_whole_is_refused(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    async def cut(standin: StandIn, body: Any, reply: Any) -> None:
        for entry in reply.get("completion_probabilities", []):
            del entry["top_logprobs"][-1:]

    async def underflow(standin: StandIn, body: Any, reply: Any) -> None:
        for entry in reply.get("completion_probabilities", []):
            entry["top_logprobs"][-1]["logprob"] = -3.4028235e38

    for fault, words in ((cut, "alternatives came for all 260"), (underflow, "underflowed")):
        url = await start(StandIn(fault=fault))
        with pytest.raises(IncompleteError, match=words):
            await harvest_async(texts[:1], url, tmp_path, dataset="d", statistics=True)
