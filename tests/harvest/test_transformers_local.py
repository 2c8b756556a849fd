"""Hugging Face transformers in process: a tiny random model and a tokeniser, both made here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import xarray as xr
from harvest_standin import Text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from jaxsppl import config, store  # noqa: E402
from jaxsppl.cli import main  # noqa: E402
from jaxsppl.errors import ConfigError, ServerError  # noqa: E402
from jaxsppl.harvest.runner import harvest  # noqa: E402
from jaxsppl.harvest.statistics import INVERSE_TEMPERATURE  # noqa: E402
from jaxsppl.run import run  # noqa: E402

# The libraries warn of their own old habits when they are imported and run.
pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore:::transformers")

CORPUS = [
    "It was the best of times, it was the worst of times, it was the age of wisdom",
    "the cat sat on the mat and looked at a dog that ran into the age of wisdom",
]
PROSE = Text("prose", "It was the best of times,", " it was the age of the cat\r\n that ran.")
NASTY = Text("nasty", "caf\u00e9 ", "\U0001f469\u200d\U0001f680 \u6f22\u5b57 <s> </s>\tx the cat")
SHORT = Text("short", "", "the mat and the dog")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers with a byte-level vocabulary that begins texts with <s>."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny", bos=True)


def byte_level() -> Any:
    """A vocabulary like that of GPT-2 and most models since."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def sentence_piece() -> Any:
    """A vocabulary like that of Llama 2 and Gemma: spaces shown, unknown characters as bytes."""
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, show_progress=False)
    learned.train_from_iterator(CORPUS, trainer)
    found = json.loads(learned.to_str())["model"]
    names = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *found["vocab"]]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[tuple(pair) for pair in found["merges"]],
            byte_fallback=True,
        )
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    )
    inner.add_special_tokens(["<s>", "</s>"])
    return inner


def make_model(
    folder: Path, *, bos: bool, seed: int = 0, vocabulary: Callable[[], Any] = byte_level
) -> Path:
    """A random model with a small vocabulary."""
    inner = vocabulary()
    if bos:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=320,  # more than the tokeniser has, as with many real models
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.6,
    )
    torch.manual_seed(seed)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def harvested(model: Path, out: Path, *texts: Text, **options: Any) -> xr.Dataset:
    [report] = harvest(
        list(texts), str(model), out, dataset="d", protocol="transformers", **options
    )
    assert not report.failures
    return store.read_harvest(str(report.path))


def by_hand(model_path: Path, text: str) -> tuple[list[int], np.ndarray]:
    """Ids with <s> first and the law of each place but the first, token by token in float64."""
    inner = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    inner.encode_special_tokens = True
    ids = [0, *inner.encode(text, add_special_tokens=False).ids]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    rows = []
    with torch.no_grad():
        for end in range(1, len(ids)):
            logits = model(torch.tensor([ids[:end]])).logits[0, -1]
            rows.append(logits.numpy())
    return ids, scipy.special.log_softmax(np.asarray(rows, np.float64), axis=1)


def test_numbers_are_those_of_a_computation_by_hand(model_path: Path, tmp_path: Path) -> None:
    texts = (PROSE, NASTY, SHORT)
    found = harvested(model_path, tmp_path, *texts, alternatives=7)
    assert str(found.model.values) == "tiny"
    assert found.attrs["n_vocab"] == 320
    for number, text in enumerate(texts):
        part = found.isel(token=np.flatnonzero(found.document_index == number))
        ids, law = by_hand(model_path, text.prefix + text.continuation)
        context = int(found.context_tokens[number])
        law = law[context - 1 :]
        assert part.token_id.values.tolist() == ids[context:]
        actual = law[np.arange(len(law)), part.token_id]
        np.testing.assert_allclose(part.token_logprob, actual, atol=1e-4)
        order = np.argsort(-law, axis=1)[:, :7]
        np.testing.assert_array_equal(part.top_token_id, order)
        np.testing.assert_allclose(part.top_logprob, np.take_along_axis(law, order, 1), atol=1e-4)
        right = scipy.special.logsumexp(law[:, None] * INVERSE_TEMPERATURE[:, None], axis=-1)
        np.testing.assert_allclose(part.log_partition, right, atol=4e-4)
        np.testing.assert_allclose(part.entropy, -(np.exp(law) * law).sum(1), atol=1e-4)
        np.testing.assert_allclose(part.logit_std, law.std(1), atol=1e-4)
        np.testing.assert_allclose(part.min_logprob, law.min(1), atol=1e-4)


def test_bytes_are_the_texts(model_path: Path, tmp_path: Path) -> None:
    found = harvested(model_path, tmp_path, PROSE, NASTY, SHORT, alternatives=3)
    n_byte = found.token_bytes.groupby(found.document_index).sum().values.tolist()
    assert n_byte[0] == len(PROSE.continuation.encode())
    assert n_byte[2] == len(SHORT.continuation.encode())
    # of the emoji and the words of the special tokens no byte is lost; the join may be merged
    assert n_byte[1] + found.attrs["n_boundary_merged"] >= len(NASTY.continuation.encode())
    assert found.context_tokens.values.tolist()[2] == 1  # <s>
    assert not {0, 1} & set(found.token_id.values.tolist())


def test_a_vocabulary_that_shows_spaces_and_falls_back_to_bytes(tmp_path: Path) -> None:
    model = make_model(tmp_path / "pieces", bos=True, vocabulary=sentence_piece)
    found = harvested(model, tmp_path, PROSE, NASTY, SHORT, alternatives=3)
    n_byte = found.token_bytes.groupby(found.document_index).sum().values.tolist()
    assert n_byte == [len(t.continuation.encode()) for t in (PROSE, NASTY, SHORT)]
    # the emoji is four bytes, each a token of its own
    assert (found.token_bytes == 1).sum() >= 4
    assert not {0, 1} & set(found.token_id.values.tolist())


def test_without_a_begin_token_the_first_token_is_context(tmp_path: Path) -> None:
    model = make_model(tmp_path / "bare", bos=False)
    found = harvested(model, tmp_path, SHORT, alternatives=3)
    assert found.context_tokens.values.tolist() == [1]
    ids, _ = by_hand(model, SHORT.continuation)
    assert found.token_id.values.tolist() == ids[2:]


def test_a_batch_changes_nothing_that_counts(model_path: Path, tmp_path: Path) -> None:
    texts = [
        Text(f"t{i}", "It was" + " the cat" * i, " sat on the mat" * (5 - i)) for i in range(5)
    ]
    one = harvested(model_path, tmp_path / "one", *texts, alternatives=20)
    many = harvested(model_path, tmp_path / "many", *texts, alternatives=20, parallel=4)
    again = harvested(model_path, tmp_path / "again", *texts, alternatives=20)
    np.testing.assert_array_equal(one.token_id, many.token_id)
    np.testing.assert_allclose(one.token_logprob, many.token_logprob, atol=2e-5)
    np.testing.assert_allclose(one.log_partition, many.log_partition, atol=1e-4)
    assert again.drop_attrs().identical(one.drop_attrs())


def test_it_resumes_and_notices_another_model(model_path: Path, tmp_path: Path) -> None:
    texts = [PROSE, SHORT]
    options: dict[str, Any] = {"dataset": "d", "protocol": "transformers", "alternatives": 3}

    def stop(state: Any) -> None:
        if state.done == 1:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        harvest(texts, str(model_path), tmp_path, progress=stop, **options)
    [journal] = tmp_path.glob(".*.jsonl")
    assert (
        sum("log_partition" in json.loads(line) for line in journal.read_text().splitlines()) == 1
    )
    [report] = harvest(texts, str(model_path), tmp_path, **options)
    whole = harvested(model_path, tmp_path / "whole", *texts, alternatives=3)
    found = store.read_harvest(str(report.path))
    assert found.drop_attrs().identical(whole.drop_attrs())
    assert found.attrs["protocol"] == "transformers"
    other = make_model(tmp_path / "models" / "tiny", bos=True, seed=1)
    with pytest.raises(ConfigError, match="was made with other"):
        harvest(texts, str(other), tmp_path, **options)


def test_models_are_the_addresses(model_path: Path, tmp_path: Path) -> None:
    reports = harvest(
        [SHORT],
        [],
        tmp_path,
        dataset="d",
        protocol="transformers",
        models={"first": str(model_path), "second": str(model_path)},
        alternatives=3,
    )
    assert [report.model for report in reports] == ["first", "second"]


def test_what_cannot_be_loaded_or_does_not_fit_is_told(model_path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": "d", "protocol": "transformers"}
    with pytest.raises(ConfigError, match="name one with --model"):
        harvest([SHORT], [], tmp_path, **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="cannot be loaded") as caught:
        harvest([SHORT], str(tmp_path / "empty"), tmp_path, **options)
    assert "\n" not in str(caught.value)
    long = Text("long", "the", " cat" * 200)
    [report] = harvest([long, SHORT], str(model_path), tmp_path, **options)
    assert "do not fit in the 128" in dict(report.failures)["long"]
    assert report.n_document == 1


def test_the_command(model_path: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("JAXSPPL_SERVER_URL", "http://127.0.0.1:9")
    (tmp_path / "0.prefix.txt").write_text("It was")
    (tmp_path / "0.continuation.txt").write_text(" the best of times")
    words = ["harvest", str(tmp_path), "--protocol", "transformers", "--out", str(tmp_path / "o")]
    words += ["--model", str(model_path), "--window", "5", "--stride", "3", "--statistics"]
    assert main(words) == 0
    assert "6 tokens of 1 document" in capsys.readouterr().out
    [file] = (tmp_path / "o").glob("*.harvest.nc")
    assert file.name.startswith("tiny.")
    found = store.read_harvest(file)
    assert "log_partition" in found
    assert (found.attrs["window"], found.attrs["stride"]) == (5, 3)
    assert main([*words, "--chat", "--force"]) == 4
    assert "the chat template does not work" in capsys.readouterr().err


def test_windows_and_chat(model_path: Path, tmp_path: Path) -> None:
    long = Text("long", "It was", " the cat that sat on the mat and looked at a dog" * 3)
    found = harvested(model_path, tmp_path / "w", long, alternatives=3, window=20, stride=8)
    ids, _ = by_hand(model_path, long.prefix + long.continuation)
    start, text = int(found.context_tokens[0]), ids[1:]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    right: list[float] = []
    first, end = start - 1, 19
    while first < len(text):
        begin = max(0, end - 19)
        with torch.no_grad():
            rows = model(torch.tensor([[0, *text[begin:end]]])).logits[0].numpy()
        law = scipy.special.log_softmax(rows, axis=1)
        right += [law[i - begin, text[i]] for i in range(first, end)]
        first, end = end, min(end + 8, len(text))
    np.testing.assert_allclose(found.token_logprob, right, atol=1e-4)

    folder = make_model(tmp_path / "chatty", bos=True)
    with pytest.raises(ServerError, match="chat template does not work"):
        harvested(folder, tmp_path / "c", PROSE, chat=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "<s>ask {{ messages[0].content }}{% if add_generation_prompt %} say{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    question = Text("q", "was </s> it", " the best of times")
    chat = harvested(folder, tmp_path / "c", question, alternatives=3, chat=True)
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    before = inner.encode("<s>ask was </s> it say", add_special_tokens=False).ids
    assert before[0] == 0
    assert chat.context_tokens.values.tolist() == [len(before)]
    answer = inner.encode(question.continuation, add_special_tokens=False).ids
    assert chat.token_id.values.tolist() == answer


def test_a_config_harvests_once(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny", bos=True)
    source = tmp_path / "a.txt"
    source.write_text("It was the best of times. " * 20)

    def settings(window: int) -> config.Config:
        return config.build(
            {
                "texts": {
                    "datasets": {"prose": str(source)},
                    "prefix_chars": 10,
                    "minimum_chars": 5,
                    "whole": True,
                },
                "server": {
                    "protocol": "transformers",
                    "models": [str(model)],
                    "alternatives": 9,
                    "window": window,
                },
                "run": {"out": str(tmp_path / "out")},
            }
        )

    first = run(settings(30))
    assert [step.made for step in first.steps] == [True, True]
    [file] = first.paths("harvest")
    found = store.read_harvest(file)
    assert (found.attrs["window"], found.attrs["stride"]) == (30, 15)
    assert found.sizes["token"] > 60
    # nothing is missing, so the model is not even loaded
    (model / "model.safetensors").unlink()
    assert [step.made for step in run(settings(30)).steps] == [False, False]
    with pytest.raises(ServerError, match="cannot be loaded"):
        run(settings(24))
