"""Every kind of source, good and bad, through `prepare` and from real files."""

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxsppl.errors import TextError
from jaxsppl.texts import load_passages, prepare

SIZES: dict[str, Any] = {"prefix_chars": 20, "continuation_chars": 40, "minimum_chars": 10}


def story(n: int) -> str:
    return f"Story {n} begins on a grey morning, and story {n} ends when the {n} lamps are lit."


def write_jsonl(path: Path, values: list[object]) -> Path:
    path.write_bytes(b"".join(json.dumps(value).encode() + b"\n" for value in values))
    return path


def documents(out: Path) -> set[str]:
    return {passage.document for passage in load_passages(out)}


def test_parquet_rows_and_reasons(tmp_path: Path):
    texts = [None] * 1000 + [story(1), story(1), "  ", "short", story(2)]
    pq.write_table(pa.table({"n": range(1005), "text": texts}), tmp_path / "a.parquet")
    report = prepare(str(tmp_path / "a.parquet"), tmp_path / "out", **SIZES)
    assert report.n_passage == 2
    assert report.n_row_seen == 1005
    assert report.skipped == {"null": 1000, "duplicate": 1, "empty": 1, "too short": 1}
    passages = load_passages(tmp_path / "out")
    assert {(p.document, p.row) for p in passages} == {("a-001000", 1000), ("a-001004", 1004)}
    assert {p.source for p in passages} == {"a.parquet"}


def test_parquet_nested_column_in_several_row_groups(tmp_path: Path):
    chats = [[{"role": "user", "content": story(n)}] for n in range(10)]
    chats[3], chats[4] = [], None  # type: ignore[call-overload]
    chats[5] = [{"role": "user", "content": None}]  # type: ignore[list-item]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "a.parquet", row_group_size=3)
    report = prepare(
        str(tmp_path / "a.parquet"), tmp_path / "out", column="messages.0.content", **SIZES
    )
    assert report.n_passage == 7
    assert report.skipped == {"column missing": 1, "null": 2}


def test_parquet_string_that_is_not_utf8_costs_one_row(tmp_path: Path):
    values = pa.array([story(0).encode(), b"\xff\xfe" + story(1).encode(), story(2).encode()])
    strings = pa.Array.from_buffers(pa.string(), 3, values.buffers())
    pq.write_table(pa.table({"text": strings}), tmp_path / "a.parquet")
    report = prepare(str(tmp_path / "a.parquet"), tmp_path / "out", **SIZES)
    assert documents(tmp_path / "out") == {"a-000000", "a-000002"}
    assert report.skipped == {"badly encoded": 1}


def test_parquet_columns_of_other_types(tmp_path: Path):
    table = pa.table({"number": [1, 2], "raw": [story(1).encode(), b"\xff" * 99]})
    pq.write_table(table, tmp_path / "a.parquet")
    report = prepare(str(tmp_path / "a.parquet"), tmp_path / "out", column="raw", **SIZES)
    assert (report.n_passage, report.skipped) == (1, {"badly encoded": 1})
    with pytest.raises(TextError, match=r"none of 2 rows gives a passage \(not a string 2\)"):
        prepare(str(tmp_path / "a.parquet"), tmp_path / "none", column="number", **SIZES)
    assert not (tmp_path / "none").exists()


def test_folder_of_parquet_takes_only_the_split(tmp_path: Path):
    for split, first in (("train", 0), ("test", 100)):
        table = pa.table({"text": [story(first + n) for n in range(5)]})
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text("a dataset")
    train = prepare(str(tmp_path), tmp_path / "out" / "a", **SIZES)
    test = prepare(str(tmp_path), tmp_path / "out" / "b", split="test", **SIZES)
    assert (train.n_row_seen, test.n_row_seen) == (5, 5)
    assert all("Story 10" in p.prefix for p in load_passages(tmp_path / "out" / "b"))
    with pytest.raises(TextError, match="no split 'tset'; did you mean 'test'"):
        prepare(str(tmp_path), tmp_path / "out" / "c", split="tset", **SIZES)


def test_files_with_other_schemas_in_one_folder(tmp_path: Path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": [story(1)], "a": [1]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"b": ["x"], "text": [story(2)]}), tmp_path / "in" / "b.parquet")
    assert prepare(str(tmp_path / "in"), tmp_path / "out", **SIZES).n_passage == 2


@pytest.mark.parametrize("size", [0, 4, 300])
def test_corrupted_parquet_is_one_line(tmp_path: Path, size: int):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [story(n) for n in range(50)]}), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TextError, match=r"a\.parquet: cannot be read: Arrow") as caught:
        prepare(str(path), tmp_path / "out", **SIZES)
    assert "\n" not in str(caught.value)


def test_parquet_with_damaged_pages_is_one_line(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [story(n) for n in range(500)]}), path, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:2000] = b"\xa5" * 1996
    path.write_bytes(data)
    with pytest.raises(TextError, match=r"a\.parquet: cannot be read") as caught:
        prepare(str(path), tmp_path / "out", **SIZES)
    assert "\n" not in str(caught.value)


def test_jsonl_of_every_bad_kind(tmp_path: Path):
    path = write_jsonl(
        tmp_path / "a.jsonl",
        [
            {"text": story(0)},
            {"text": 3},
            {"text": [story(1)]},
            {"text": {"text": story(1)}},
            {"text": None},
            {"other": "x"},
            [1, 2],
            "just text",
            {"text": "lone \ud800 surrogate " + story(2)},
            {"text": "nul \0 " + story(3)},
            {"text": story(4)},
        ],
    )
    raw = path.read_bytes()
    bad = b'{"text": "caf\xe9 ' + story(5).encode() + b'"}\n'
    deep = b"[" * 100_000 + b"\n"
    path.write_bytes(raw + b'{"text": "torn\n' + bad + deep + b"NaN\n\n   \n" + b"1" * 5000)
    report = prepare(str(path), tmp_path / "out", **SIZES)
    assert documents(tmp_path / "out") == {"a-000000", "a-000010"}
    assert report.skipped == {
        "not a string": 3,
        "null": 1,
        "column missing": 1,
        "not a record": 6,
        "badly encoded": 2,
        "NUL character": 1,
    }
    assert report.n_row_seen == 16


def test_jsonl_with_a_thousand_nulls_then_text(tmp_path: Path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": None}] * 1500 + [{"text": story(1)}])
    assert prepare(str(path), tmp_path / "out", **SIZES).n_passage == 1


def test_json_array_object_and_surrogate_pairs(tmp_path: Path):
    text = "\U0001f600 " + story(1)
    (tmp_path / "a.json").write_text(json.dumps([{"text": text}, {"text": story(2)}], indent=1))
    (tmp_path / "b.json").write_text(json.dumps({"text": text}, indent=1))
    assert prepare(str(tmp_path / "a.json"), tmp_path / "a", **SIZES).n_passage == 2
    assert prepare(str(tmp_path / "b.json"), tmp_path / "b", **SIZES).n_passage == 1
    assert load_passages(tmp_path / "b")[0].prefix.startswith("\U0001f600")


def test_csv_with_quotes_line_ends_and_bad_bytes(tmp_path: Path):
    path = tmp_path / "a.csv"
    text = story(0).replace(", ", ',\r\n"quoted" ')
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerows([["text", "n"], [text, 1], ["", 2], [story(1)], [story(2), 4, 5]])
    with path.open("ab") as file:
        file.write(b"caf\xe9 " + story(3).encode().replace(b",", b"") + b",5\r\n")
        file.write(b'"broken" quote,6\r\n')
        file.write(b'"never closed ' + story(4).encode())
    report = prepare(str(path), tmp_path / "out", **SIZES)
    assert report.n_passage == 3
    assert report.skipped == {"empty": 1, "badly encoded": 1, "not a record": 2}
    first = next(p for p in load_passages(tmp_path / "out") if p.row == 0)
    assert text.startswith(first.prefix + first.continuation)


def test_tsv_and_a_very_long_field(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("id\ttext\n1\t" + story(1) * 20_000 + "\n2\t" + story(2) + "\n")
    assert prepare(str(tmp_path / "a.tsv"), tmp_path / "out", **SIZES).n_passage == 2


@pytest.mark.parametrize(
    ("ending", "opener"), [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)]
)
def test_compressed_files(tmp_path: Path, ending: str, opener: Callable[..., Any]):
    path = tmp_path / f"a.jsonl{ending}"
    with opener(path, "wb") as file:
        file.write(json.dumps({"text": story(1)}).encode() * 1)
    assert prepare(str(path), tmp_path / "out", **SIZES).n_passage == 1
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TextError, match="cannot be read"):
        prepare(str(path), tmp_path / "none", **SIZES)


def test_a_text_file_is_one_document_byte_for_byte(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf\r\n  " + story(1).replace(" ", "\r\n").encode() + b"\r\n")
    report = prepare(str(path), tmp_path / "out", **SIZES)
    assert report.n_row_seen == 1
    passage = load_passages(tmp_path / "out")[0]
    assert passage.start == 4
    assert path.read_bytes()[7:].startswith((passage.prefix + passage.continuation).encode())
    assert (tmp_path / "out" / "0000.continuation.txt").read_bytes().startswith(b"\r\n")


def test_folder_of_text_files(tmp_path: Path):
    root = tmp_path / "in"
    (root / "sub").mkdir(parents=True)
    (root / ".hidden").mkdir()
    names = ("a.txt", "sub/a.txt", "sub/A.txt", ".hidden/b.txt", ".c.txt", "README.txt")
    for n, name in enumerate(names):
        (root / name).write_text(story(n))
    (root / "latin.txt").write_bytes(b"caf\xe9 " + story(1).encode())
    (root / "big.txt").write_bytes((" " * 200_000 + story(9) * 50_000).encode() + b"\xff")
    report = prepare(str(root), tmp_path / "out", **SIZES)
    assert documents(tmp_path / "out") == {"a.txt", "sub-a.txt", "sub-A.txt_2", "big.txt"} or (
        documents(tmp_path / "out") == {"a.txt", "sub-a.txt_2", "sub-A.txt", "big.txt"}
    )
    assert report.skipped == {"badly encoded": 1}


def test_a_pattern_chooses_among_kinds(tmp_path: Path):
    (tmp_path / "a.txt").write_text(story(1))
    write_jsonl(tmp_path / "b.jsonl", [{"text": story(2)}])
    with pytest.raises(TextError, match=r"several kinds \(1 JSON, 1 text\)"):
        prepare(str(tmp_path), tmp_path / "out", **SIZES)
    report = prepare(str(tmp_path / "*.txt"), tmp_path / "out", name="mine", **SIZES)
    assert (report.n_passage, report.name) == (1, "mine")


def test_own_output_below_the_source_is_no_input(tmp_path: Path):
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(story(n))
    first = prepare(str(tmp_path), tmp_path / "out", **SIZES)
    again = prepare(str(tmp_path), tmp_path / "out", **SIZES)
    assert again.was_prepared and not first.was_prepared


def test_passages_are_not_written_among_the_texts_of_a_folder(tmp_path: Path):
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(story(n))
    for source in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(TextError, match="the source lies in it"):
            prepare(str(source), tmp_path, **SIZES)
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.parametrize(
    ("source", "part", "words"),
    [
        ("python:code", {"subset": "a"}, "has no subsets, so no 'a'; leave out --subset"),
        ("python:code", {"split": "test"}, "has no splits, so no 'test'; leave out --split"),
        ("0.txt", {"split": "test"}, "has no splits"),
        ("*.jsonl", {"split": "test"}, "has no splits"),
        (".", {"subset": "a"}, "has no subsets"),
    ],
)
def test_a_source_in_one_piece_is_asked_for_no_part(
    tmp_path: Path, source: str, part: dict[str, str], words: str
):
    (tmp_path / "0.txt").write_text(story(0))
    write_jsonl(tmp_path / "a.jsonl", [{"text": story(1)}])
    place = source if ":" in source else str(tmp_path / source)
    with pytest.raises(TextError, match=words):
        prepare(place, tmp_path / "out", **part, **SIZES)


def test_what_is_no_text_at_all_is_not_blamed_on_its_length(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\0")
    with pytest.raises(TextError, match=r"1 row gives .*badly encoded 1\); mend the source"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "out", **SIZES)


def test_dataset_saved_to_disk(tmp_path: Path):
    part = datasets.Dataset.from_dict({"text": [story(n) for n in range(4)] + [None]})
    datasets.DatasetDict({"train": part}).save_to_disk(str(tmp_path / "in"))
    report = prepare(str(tmp_path / "in"), tmp_path / "out", **SIZES)
    assert (report.n_passage, report.skipped) == (4, {"null": 1})
    with pytest.raises(TextError, match="no split 'test'; allowed: 'train'"):
        prepare(str(tmp_path / "in"), tmp_path / "none", split="test", **SIZES)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_a_missing_column_lists_what_there_is(tmp_path: Path, kind: str):
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"content": ["x"], "title": ["y"]}), path)
    elif kind == "jsonl":
        write_jsonl(path, [{"content": "x", "title": "y"}])
    else:
        path.write_text("content,title\nx,y\n")
    with pytest.raises(TextError, match=r"no column 'contnt'; did you mean 'content'\?.*'title'"):
        prepare(str(path), tmp_path / "out", column="contnt", **SIZES)
    with pytest.raises(TextError, match="no column 'text'; allowed: 'content', 'title'"):
        prepare(str(path), tmp_path / "out", **SIZES)


def test_a_missing_nested_column_lists_paths(tmp_path: Path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"chat": [{"role": "user", "content": "x"}]}] * 3)
    with pytest.raises(TextError, match=r"did you mean 'chat\.0\.content'"):
        prepare(str(path), tmp_path / "out", column="chat.content", **SIZES)


def test_a_column_that_nobody_has_stops_early(tmp_path: Path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"a": 1}] * 1000)
    path.write_bytes(path.read_bytes() + json.dumps({"text": story(1)}).encode())
    with pytest.raises(TextError, match="no column 'text'"):
        prepare(str(path), tmp_path / "out", **SIZES)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_empty_files_say_so(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    with pytest.raises(TextError, match=r"holds no rows|\(empty 1\)"):
        prepare(str(tmp_path / name), tmp_path / "out", **SIZES)


def test_sources_that_do_not_exist(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.xyz").touch()
    for source, message in [
        (str(tmp_path / "none.txt"), "does not exist; allowed"),
        ("./none", "does not exist"),
        ("none.parquet", "does not exist"),
        ("a/b/c", "does not exist"),
        ("nul\0character", "cannot be read|does not exist"),
        ("x" * 5000, "cannot be read|does not exist"),
        (str(tmp_path / "empty"), "no file to read"),
        (str(tmp_path / "*.txt"), "no file to read"),
        (str(tmp_path / "a.xyz"), r"unknown ending '\.xyz'"),
        ("python:poems", "'python:prose'"),
        ("python:pros", "did you mean 'python:prose'"),
    ]:
        with pytest.raises(TextError, match=message) as caught:
            prepare(source, tmp_path / "out", **SIZES)
        assert "\n" not in str(caught.value)
