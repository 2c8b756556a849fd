"""Whole documents, questions with several answers, and groups that xarray selects by."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from jaxsppl.cli import main
from jaxsppl.errors import TextError
from jaxsppl.harvest.protocol import ScoredPassage
from jaxsppl.harvest.records import assemble
from jaxsppl.texts import load_passages, prepare

ROWS = [
    {
        "question": f"What did ship {i} bring home?",
        "answers": [f" It brought {i} barrels of salt.", f"\nNothing at all, {i} times over."],
        "port": ["north", "south"][i % 2],
        "meta": {"year": 1790 + i},
    }
    for i in range(4)
]
SIZES: dict[str, Any] = {"minimum_chars": 5}


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def parquet(path: Path, rows: list[Any]) -> str:
    datasets.Dataset.from_list(rows).to_parquet(path)
    return str(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("write", "name"), [(jsonl, "a.jsonl"), (parquet, "a.parquet")])
def test_several_continuations_of_one_prefix(tmp_path: Path, write: Any, name: str) -> None:
    source = write(tmp_path / name, ROWS)
    report = prepare(
        source,
        tmp_path / "out",
        column="answers",
        prefix_column="question",
        group_column="port",
        **SIZES,
    )
    found = {passage.document: passage for passage in load_passages(tmp_path / "out")}
    assert report.n_passage == len(found) == 8
    for i, row in enumerate(ROWS):
        for j, answer in enumerate(row["answers"]):
            passage = found[f"a-{i:06d}-{j}"]
            assert (passage.prefix, passage.continuation) == (row["question"], answer)
            assert (passage.group, passage.row) == (row["port"], i)


def test_continuations_of_one_prefix_are_a_group_by_themselves(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ROWS)
    prepare(source, tmp_path / "out", column="answers", prefix_column="question", **SIZES)
    groups = {p.document: p.group for p in load_passages(tmp_path / "out")}
    assert groups["a-000002-0"] == groups["a-000002-1"] == "a-000002"


def test_a_group_of_cut_texts_and_of_numbers(tmp_path: Path) -> None:
    rows = [{"text": f"Row {i} tells of many ships that left.", **ROWS[i]} for i in range(4)]
    rows[3]["meta"] = None
    source = jsonl(tmp_path / "a.jsonl", rows)
    report = prepare(source, tmp_path / "out", group_column="meta.year", prefix_chars=8, **SIZES)
    assert report.n_passage == 4
    assert sorted(p.group for p in load_passages(tmp_path / "out")) == ["", "1790", "1791", "1792"]
    assert all(p.prefix.startswith("Row") for p in load_passages(tmp_path / "out"))


def test_rows_without_a_prefix_are_counted(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "question": None}, {**ROWS[1], "question": 7}, *ROWS[2:]]
    source = jsonl(tmp_path / "a.jsonl", rows)
    report = prepare(source, tmp_path / "out", column="answers", prefix_column="question", **SIZES)
    assert report.skipped == {"not a string": 2, "null": 2}
    assert report.n_passage == 4


def test_an_answer_is_cut_and_a_question_is_not(tmp_path: Path) -> None:
    row = {"q": "long question " * 100, "a": "  many words " * 50}
    source = jsonl(tmp_path / "a.jsonl", [row])
    prepare(source, tmp_path / "out", column="a", prefix_column="q", continuation_chars=40, **SIZES)
    [passage] = load_passages(tmp_path / "out")
    assert passage.prefix == row["q"]
    assert passage.continuation == "  many words   many words   many words"


def test_whole_documents(tmp_path: Path) -> None:
    texts = {f"{i}.txt": f"  Document {i} begins. " + "It goes on and on. " * 9000 for i in (1, 2)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    report = prepare(str(tmp_path), tmp_path / "out", whole=True, prefix_chars=30)
    assert report.n_passage == 2
    for passage in load_passages(tmp_path / "out"):
        text = texts[passage.source]
        assert passage.prefix + passage.continuation == text.strip()
        assert 15 <= len(passage.prefix) <= 30
    first = report.fingerprint
    assert prepare(str(tmp_path), tmp_path / "out", prefix_chars=30).fingerprint != first


def test_columns_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for source in (str(tmp_path / "a.txt"), "python:prose"):
        with pytest.raises(TextError, match=r"has no columns, so none for the group \('port'\)"):
            prepare(source, tmp_path / "out", group_column="port")
    source = jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(TextError, match=r"no column 'prt'.*'port'"):
        prepare(source, tmp_path / "out", column="answers.0", group_column="prt")


def test_old_folders_stay_as_they_are(tmp_path: Path) -> None:
    """The digest and the manifest of a preparation without the new options did not change."""
    source = jsonl(tmp_path / "a.jsonl", [{"text": "one two three four five six seven"}])
    prepare(source, tmp_path / "out", prefix_chars=8, **SIZES)
    [line] = (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()
    assert "group" not in json.loads(line)
    record = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert {"whole", "prefix_column", "group_column"}.isdisjoint(record["arguments"])


def test_groups_are_a_coordinate_of_the_harvest(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ROWS)
    prepare(
        source,
        tmp_path / "out",
        column="answers.0",
        prefix_column="question",
        group_column="port",
        **SIZES,
    )
    passages = load_passages(tmp_path / "out")
    one = ScoredPassage(
        token_id=np.zeros(1, np.int32),
        token_logprob=np.full(1, -1, np.float32),
        token_rank=np.ones(1, np.int32),
        token_bytes=np.ones(1, np.int32),
        top_token_id=np.zeros((1, 1), np.int32),
        top_logprob=np.full((1, 1), -1, np.float32),
        context_tokens=1,
    )
    scored = {passage.document: one for passage in passages}
    found = assemble(passages, scored, model="m", dataset="d", attrs={"n_vocab": 5})
    assert found.group.dims == ("document",)
    north = found.document[found.group == "north"].values.tolist()
    assert sorted(north) == ["a-000000", "a-000002"]
    sizes = found.context_tokens.groupby("group").count()
    assert dict(zip(sizes.group.values.tolist(), sizes.values.tolist(), strict=True)) == {
        "north": 2,
        "south": 2,
    }


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "a.jsonl", ROWS)
    words = ["prepare", source, "--out", str(tmp_path / "out"), "--minimum-chars", "5", "--whole"]
    words += ["--column", "answers", "--prefix-column", "question", "--group-column", "port"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("8 passages of a in")
    assert {p.group for p in load_passages(tmp_path / "out")} == {"north", "south"}
