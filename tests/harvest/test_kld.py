"""Files of llama-perplexity: real numbers, an independent writer, and everything cut short."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from kld_writer import encoded, kld_bytes, row_bytes

from jaxsppl import store
from jaxsppl.errors import ConfigError, SchemaError, ServerError
from jaxsppl.harvest.kld import TOLERANCE, import_kld
from jaxsppl.harvest.statistics import INVERSE_TEMPERATURE

# Half a step of the codes, and the float32 of scale and offset.
STEP = 16 / 65535 / 2 + 2e-5
REAL = Path(__file__).with_name("real_kld.npz")


def law(logits: np.ndarray) -> np.ndarray:
    """The log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def made(
    n_chunk: int = 2, chunk: int = 8, n_vocab: int = 31, spread: float = 3.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits of a made-up model."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, n_vocab, (n_chunk, chunk))
    logits = rng.normal(0, spread, (n_chunk, chunk - 1 - chunk // 2, n_vocab))
    return ids, logits.astype(np.float32)


def imported(folder: Path, data: bytes, **options: int) -> xr.Dataset:
    (folder / "a.kld").write_bytes(data)
    report = import_kld(folder / "a.kld", folder / "a.harvest.nc", **options)
    found = store.read_harvest(str(report.path))
    assert (report.n_document, report.n_token) == (found.sizes["document"], found.sizes["token"])
    return found


def test_perplexities_are_those_that_the_program_printed(tmp_path: Path) -> None:
    """llama-perplexity -c 128 --chunks 2 on SmolLM2 and George Washington's address of 1790.

    Ids, scale and offset of each row, and the code of the actual token are from its file; so many
    of the other 49,151 codes are made up as the law needs to sum to 1.
    """
    with np.load(REAL) as real:
        ids, rows, codes = (real[name] for name in ("ids", "law", "code"))
    n_vocab = 49152
    out = [b"_logits_", np.array([ids.shape[1], n_vocab, len(ids)], "<i4").tobytes()]
    out.append(ids.astype("<i4").tobytes())
    for targets, chunk, actual in zip(ids[:, 65:], rows, codes, strict=True):
        for target, (scale, lowest), code in zip(targets, chunk, actual, strict=True):
            largest = np.exp(float(scale) * 65535 + float(lowest))
            own = np.exp(float(scale) * code + float(lowest))
            rest = 1 - largest - (own if code < 65535 else 0)
            even = max((np.log(rest / n_vocab) - float(lowest)) / float(scale), 0)
            # floor and ceiling in turn, so that their mean is right
            row = (even + np.linspace(0, 1, n_vocab, endpoint=False)).astype(np.uint16)
            if code < 65535:
                row[(int(target) + 1) % n_vocab] = 65535
            row[target] = code
            out.append(row_bytes(scale, lowest, row))
    found = imported(tmp_path, b"".join(out), alternatives=5)
    logprob = found.token_logprob.values.astype(np.float64)
    assert np.exp(-logprob[:63].mean()) == pytest.approx(29.5027, abs=0.01)
    assert np.exp(-logprob.mean()) == pytest.approx(30.9983, abs=0.01)
    assert found.context_tokens.values.tolist() == [65, 65]
    np.testing.assert_array_equal(found.token_id, ids[:, 65:].ravel())
    assert found.attrs["n_vocab"] == n_vocab


def test_a_row_as_it_stands_in_a_file() -> None:
    """Worked by hand from the program's source, for p = .5, .25, .12, .08, .05."""
    logits = np.log(np.array([0.5, 0.25, 0.12, 0.08, 0.05], np.float32))
    scale, lowest, codes = encoded(logits)
    assert row_bytes(scale, lowest, codes)[:8].hex(" ") == "21 5e 13 38 14 ba 3f c0"
    assert codes.tolist() == [65535, 45807, 24917, 13377, 0]


@settings(max_examples=60, deadline=None)
@given(
    n_chunk=st.integers(1, 3),
    chunk=st.integers(3, 12),
    n_vocab=st.integers(2, 40),
    spread=st.sampled_from([0.0, 0.5, 3.0, 9.0]),
    alternatives=st.integers(1, 45),
    seed=st.integers(0, 2**31),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    n_chunk: int,
    chunk: int,
    n_vocab: int,
    spread: float,
    alternatives: int,
    seed: int,
) -> None:
    ids, logits = made(n_chunk, chunk, n_vocab, spread, seed)
    data = kld_bytes(ids, logits)
    found = imported(tmp_path_factory.mktemp("kld"), data, alternatives=alternatives)
    truth = law(logits).reshape(-1, n_vocab)
    targets = ids[:, chunk // 2 + 1 :].ravel()
    n_token = targets.size
    np.testing.assert_array_equal(found.token_id, targets)
    assert (
        found.document_index.values.tolist()
        == np.repeat(range(n_chunk), n_token // n_chunk).tolist()
    )
    rows = logits.reshape(-1, n_vocab)
    above = np.stack([encoded(row)[2] > 0 for row in rows])
    spared = above | (rows.min(1) > rows.max(1) - 16)[:, None]
    actual = truth[np.arange(n_token), targets]
    inside = spared[np.arange(n_token), targets]
    gap = found.token_logprob.values - actual
    assert np.abs(gap[inside]).max(initial=0) < STEP
    assert (gap[~inside] > -STEP).all()
    assert found.attrs["n_censored"] == (~inside).sum()
    k = min(alternatives, n_vocab)
    assert found.sizes["rank"] == k
    for i in range(n_token):
        listed = found.top_token_id.values[i]
        present = listed[listed >= 0]
        assert present.size == min(k, spared[i].sum())
        wanted = np.sort(truth[i])[::-1][: present.size]
        np.testing.assert_allclose(found.top_logprob.values[i, : present.size], wanted, atol=STEP)
        np.testing.assert_allclose(truth[i, present], wanted, atol=2 * STEP)
    check_statistics(found, truth, floored=not spared.all())


def check_statistics(found: xr.Dataset, truth: np.ndarray, *, floored: bool) -> None:
    """What is in the file is right to the tolerance that it states."""
    assert ("logit_std" in found) == ("min_logprob" in found) == (not floored)
    if not floored:
        np.testing.assert_allclose(found.logit_std, truth.std(1), atol=2 * STEP)
        np.testing.assert_allclose(found.min_logprob, truth.min(1), atol=STEP)
        np.testing.assert_array_equal(found.inverse_temperature, INVERSE_TEMPERATURE)
        assert "entropy" in found
    allowed = found.attrs["statistics_tolerance"] if floored else 5 * STEP
    if "entropy" in found:
        entropy = -(np.exp(truth) * truth).sum(1)
        np.testing.assert_allclose(found.entropy, entropy, atol=allowed)
    if "log_partition" in found:
        inverse = found.inverse_temperature.values
        right = np.log(np.exp(truth[:, None] * inverse[:, None]).sum(-1))
        np.testing.assert_allclose(found.log_partition, right, atol=allowed)
        assert inverse[-1] == INVERSE_TEMPERATURE[-1]
        assert (np.diff(inverse) <= 0.25).all()


def test_statistics_stay_where_the_floor_leaves_them_known(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    # a law with a likely head and thousands of tokens about the floor, like that of a real model
    logits = np.concatenate([rng.normal(12, 2, (2, 3, 40)), rng.normal(-4, 2, (2, 3, 5000))], -1)
    ids = rng.integers(0, 40, (2, 8))
    found = imported(tmp_path, kld_bytes(ids, logits.astype(np.float32)))
    assert found.attrs["n_floored"] > 10_000
    assert "logit_std" not in found
    assert "min_logprob" not in found
    assert found.attrs["statistics_tolerance"] == TOLERANCE
    assert 0.5 < found.inverse_temperature.values[0] <= 1
    check_statistics(found, law(logits.astype(np.float32)).reshape(6, -1), floored=True)


def test_a_pipe_is_read_while_it_is_written_and_nothing_large_is_kept(tmp_path: Path) -> None:
    ids, logits = made(n_chunk=20, chunk=32, n_vocab=20_001)
    data = kld_bytes(ids, logits)
    assert len(data) > 12e6
    pipe = tmp_path / "model.kld"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    seen: list[tuple[int, int]] = []
    tracemalloc.start()
    report = import_kld(
        pipe, tmp_path / "pipe.nc", alternatives=5, progress=lambda *at: seen.append(at)
    )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.join()
    assert seen == [(i, 20) for i in range(1, 21)]
    (tmp_path / "file").write_bytes(data)
    import_kld(tmp_path / "file", tmp_path / "file.nc", alternatives=5, model="model")
    assert store.read_harvest(tmp_path / "file.nc").equals(store.read_harvest(str(report.path)))
    # the blocks and the harvest, not the file
    assert most < 8e6


@pytest.mark.parametrize("chunk", [9, 10])
@pytest.mark.parametrize("n_vocab", [30, 31])
def test_a_file_that_is_cut_or_too_long_is_refused_with_its_size(
    tmp_path: Path, chunk: int, n_vocab: int
) -> None:
    data = kld_bytes(*made(chunk=chunk, n_vocab=n_vocab))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for wrong in (data[:-1], data[:100], data[:20], data + b"\0"):
        (tmp_path / "a.kld").write_bytes(wrong)
        for source in (tmp_path / "a.kld", pipe):
            writer = threading.Thread(target=pipe.write_bytes, args=(wrong,))
            if source == pipe:
                writer.start()
            with pytest.raises(SchemaError, match=f"{len(data):,} bytes") as caught:
                import_kld(source, tmp_path / "out.nc")
            assert "\n" not in str(caught.value)
            if source == pipe:
                writer.join()
    assert not (tmp_path / "out.nc").exists()


def changed(at: int, value: bytes) -> bytes:
    data = bytearray(kld_bytes(*made()))
    data[at : at + len(value)] = value
    return bytes(data)


FIRST_ROW = 20 + 4 * 2 * 8
WRONG = {
    "nothing": (b"", "does not begin"),
    "another file": (b"GGUF" + bytes(100), "does not begin"),
    "no chunk": (changed(16, b"\0\0\0\0"), "0 chunks"),
    "one token a chunk": (changed(8, b"\2\0\0\0"), "chunks of 2 tokens"),
    "negative vocabulary": (changed(12, b"\xff\xff\xff\xff"), "vocabulary of -1"),
    "an id that is none": (changed(20, b"\xff\xff\0\0"), "id is not in 0 .. 30"),
    "NaN": (changed(FIRST_ROW, b"\0\0\xc0\x7f"), "chunk-0, row 0: .* make no law"),
    "another offset": (changed(FIRST_ROW + 4, b"\0\0\x80\xc0"), "chunk-0, row 0: .*"),
    "other codes": (changed(FIRST_ROW + 8, b"\xff\xff" * 31), "row 0: .* sum to"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_such_file_is_refused(tmp_path: Path, name: str) -> None:
    data, words = WRONG[name]
    (tmp_path / "a.kld").write_bytes(data)
    with pytest.raises(SchemaError, match=words) as caught:
        import_kld(tmp_path / "a.kld", tmp_path / "out.nc")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.nc").exists()


def test_arguments_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"No such file.*llama-perplexity"):
        import_kld(tmp_path / "missing", tmp_path / "out.nc")
    (tmp_path / "a.kld").write_bytes(kld_bytes(*made()))
    with pytest.raises(ConfigError, match="alternatives is 0"):
        import_kld(tmp_path / "a.kld", tmp_path / "out.nc", alternatives=0)


def test_a_server_tells_the_bytes_of_tokens(llama_server: str, tmp_path: Path) -> None:
    text = "It was the best of times, caf\u00e9 \u6f22\u5b57 \U0001f984 and the end of it."
    body = json.dumps({"content": text, "parse_special": False, "with_pieces": True}).encode()
    request = urllib.request.Request(
        f"{llama_server}/tokenize", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        tokens = json.load(reply)["tokens"]
    ids = [token["id"] for token in tokens]
    n_byte = [
        len(t["piece"].encode() if isinstance(t["piece"], str) else t["piece"]) for t in tokens
    ]
    # the last token is a special one that no text becomes
    ids, n_byte = [*ids[: 2 * (len(ids) // 2) - 1], 2], n_byte[: 2 * (len(ids) // 2) - 1]
    n_byte.append(len("<|im_end|>"))
    chunk = len(ids)
    rows = np.random.default_rng(0).normal(0, 1, (1, chunk - 1 - chunk // 2, 49152))
    (tmp_path / "a.kld").write_bytes(kld_bytes(np.array([ids]), rows.astype(np.float32)))
    import_kld(tmp_path / "a.kld", tmp_path / "a.nc", alternatives=2, server=llama_server)
    found = store.read_harvest(tmp_path / "a.nc")
    assert found.token_bytes.values.tolist() == n_byte[chunk // 2 + 1 :]
    (tmp_path / "b.kld").write_bytes(kld_bytes(*made()))
    with pytest.raises(ServerError, match="has a vocabulary of 49,152, the file one of 31"):
        import_kld(tmp_path / "b.kld", tmp_path / "b.nc", server=llama_server)
    with pytest.raises(ServerError, match="is the server running"):
        import_kld(tmp_path / "a.kld", tmp_path / "b.nc", server="http://127.0.0.1:9")


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.kld").write_bytes(kld_bytes(*made()))
    command = [sys.executable, "-m", "jaxsppl", "import-kld", "a.kld", "--out", "a.harvest.nc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a.harvest.nc: 6 tokens of 2 chunks\n")
    (tmp_path / "a.kld").write_bytes(kld_bytes(*made())[:-9])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "was it interrupted" in done.stderr.splitlines()[0]
