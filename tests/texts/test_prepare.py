"""The folder that `prepare` writes: exact, complete or refused, redone only when needed."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl.errors import ConfigError, SchemaError, TextError
from jaxsppl.texts import load_passages, prepare, read_preparation
from jaxsppl.texts.folder import Preparation as Record
from jaxsppl.texts.folder import write_folder
from jaxsppl.texts.passages import Passage, sha256

SIZES: dict[str, Any] = {"prefix_chars": 20, "continuation_chars": 40, "minimum_chars": 10}


def jsonl(path: Path, n: int) -> str:
    lines = [
        {"text": f"Row {i} tells of {i} ships that left and {i % 7} that came back."}
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_and_manifest_agree(tmp_path: Path):
    source = jsonl(tmp_path / "ships.jsonl", 30)
    report = prepare(source, tmp_path / "out", limit=12, **SIZES)
    lines = [json.loads(s) for s in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert len(lines) == report.n_passage == 12
    assert report.name == "ships"
    assert report.n_row_seen == 30 == report.n_passage + sum(report.skipped.values())
    assert report.skipped == {"not drawn": 18}
    names = {"manifest.jsonl", "prepare.json"}
    for number, line in enumerate(lines):
        assert line["number"] == f"{number:04d}"
        for part in ("prefix", "continuation"):
            name = f"{number:04d}.{part}.txt"
            names.add(name)
            data = (tmp_path / "out" / name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == line[f"{part}_sha256"]
            assert len(data) == line[f"{part}_bytes"]
            assert len(data.decode()) == line[f"{part}_chars"]
        assert line["source"] == "ships.jsonl" and line["dataset"] == "ships"
        row = json.loads(Path(source).read_text().splitlines()[line["row"]])["text"]
        passage = load_passages(tmp_path / "out")[number]
        assert row[line["start"] :].startswith(passage.prefix + passage.continuation)
        assert passage.sha256 == line["continuation_sha256"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_the_draw_is_seeded_and_a_larger_limit_extends_it(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 200)
    for out, limit, seed in (("a", 10, 0), ("b", 25, 0), ("c", 10, 1)):
        prepare(source, tmp_path / out, limit=limit, seed=seed, **SIZES)
    a, b, c = (load_passages(tmp_path / out) for out in "abc")
    assert b[:10] == a
    assert [p.row for p in a] != [p.row for p in c]
    # A draw from all rows, not the first ones: 10 of 200 within the first 20 has p < 1e-11.
    assert max(p.row or 0 for p in a) >= 20


def test_equal_arguments_do_nothing_and_other_ones_replace(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 30)
    out = tmp_path / "out"
    first = prepare(source, out, limit=20, **SIZES)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    again = prepare(source, out, limit=20, **SIZES)
    assert again.was_prepared
    assert (again.n_passage, again.skipped, again.fingerprint, again.n_row_seen) == (
        first.n_passage,
        first.skipped,
        first.fingerprint,
        first.n_row_seen,
    )
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "notes.md").write_text("mine")
    (out / "x.harvest.nc").write_text("mine")
    other = prepare(source, out, limit=5, **SIZES)
    assert not other.was_prepared and other.fingerprint != first.fingerprint
    assert len(load_passages(out)) == 5
    assert len(list(out.glob("*.prefix.txt"))) == len(list(out.glob("*.continuation.txt"))) == 5
    assert (out / "notes.md").exists() and (out / "x.harvest.nc").exists()


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"name": "b"}, {"prefix_chars": 19}, {"minimum_chars": 9}]
)
def test_each_argument_counts(tmp_path: Path, change: dict[str, Any]):
    source = jsonl(tmp_path / "a.jsonl", 8)
    first = prepare(source, tmp_path / "out", **SIZES)
    assert not prepare(source, tmp_path / "out", **(SIZES | change)).was_prepared
    assert not prepare(source, tmp_path / "out", **SIZES).was_prepared
    assert prepare(source, tmp_path / "out", **SIZES).fingerprint == first.fingerprint


def test_a_changed_source_is_read_again(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    prepare(source, tmp_path / "out", **SIZES)
    jsonl(tmp_path / "a.jsonl", 9)
    assert prepare(source, tmp_path / "out", **SIZES).n_passage == 9


@pytest.mark.parametrize("name", ["0003.prefix.txt", "0003.continuation.txt", "manifest.jsonl"])
@pytest.mark.parametrize("damage", ["change", "truncate", "remove"])
def test_damage_is_refused_and_repaired(tmp_path: Path, name: str, damage: str):
    source = jsonl(tmp_path / "a.jsonl", 8)
    out = tmp_path / "out"
    prepare(source, out, **SIZES)
    whole = contents(out)
    path = out / name
    match damage:
        case "change":
            path.write_bytes(path.read_bytes().replace(b"e", b"o", 1))
        case "truncate":
            path.write_bytes(path.read_bytes()[:-9])
        case _:
            path.unlink()
    if not (name == "manifest.jsonl" and damage == "remove"):
        with pytest.raises(SchemaError) as caught:
            load_passages(out)
        assert name in str(caught.value) and "\n" not in str(caught.value)
    assert not prepare(source, out, **SIZES).was_prepared
    assert contents(out) == whole


def test_a_failing_source_leaves_the_old_folder(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    out = tmp_path / "out"
    prepare(source, out, **SIZES)
    whole = contents(out)
    with pytest.raises(TextError):
        prepare(source, out, column="none", **SIZES)
    assert contents(out) == whole


def test_an_interrupted_folder_is_refused_then_redone(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    out = tmp_path / "out"
    prepare(source, out, **SIZES)
    whole = contents(out)
    (out / "manifest.jsonl").rename(out / "manifest.jsonl.partial")
    with pytest.raises(TextError, match="was interrupted"):
        load_passages(out)
    assert read_preparation(out) is None
    assert not prepare(source, out, **SIZES).was_prepared
    assert contents(out) == whole


def test_kill_at_any_moment_never_leaves_a_false_whole(tmp_path: Path):
    """SIGKILL while the writer flips between two datasets as fast as it can."""
    out = tmp_path / "out"
    sources = [jsonl(tmp_path / "a.jsonl", 300), jsonl(tmp_path / "b.jsonl", 200)]
    wanted: list[dict[str, bytes]] = []
    for source in sources:
        prepare(source, out, limit=60, **SIZES)
        wanted.append(contents(out))
    program = (
        "import sys, time\nfrom jaxsppl.texts import prepare\nprint('ready', flush=True)\n"
        f"sizes = {SIZES!r}\nout, *sources = sys.argv[1:]\n"
        "for i in range(500):\n    prepare(sources[i % 2], out, limit=60, **sizes)\n"
        "    time.sleep(0.02)\n"
    )
    n_whole, n_refused = 0, 0
    rng = random.Random(5)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(out), *sources], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.25))
            process.send_signal(signal.SIGKILL)
        try:
            load_passages(out)
        except TextError:
            n_refused += 1
        else:
            n_whole += 1
            assert contents(out) in wanted
    assert n_whole + n_refused == 12
    prepare(sources[0], out, limit=60, **SIZES)
    assert contents(out) == wanted[0]


def test_two_writers_do_not_mix(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    out = tmp_path / "out"
    out.mkdir()
    program = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'ab')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.read()\nfile.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(out / "manifest.jsonl.partial")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(TextError, match="another process is preparing it"):
            prepare(source, out, **SIZES)
        process.communicate()
    assert prepare(source, out, **SIZES).n_passage == 8


def test_passages_that_others_made_are_not_overwritten(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    (tmp_path / "0000.prefix.txt").write_text("mine")
    with pytest.raises(TextError, match="did not make and would overwrite"):
        prepare(source, tmp_path, **SIZES)
    assert (tmp_path / "0000.prefix.txt").read_text() == "mine"


def test_out_that_cannot_be_a_folder(tmp_path: Path):
    source = jsonl(tmp_path / "a.jsonl", 8)
    with pytest.raises(TextError, match="cannot be written"):
        prepare(source, tmp_path / "a.jsonl", **SIZES)
    with pytest.raises(TextError, match="cannot be written"):
        prepare(source, tmp_path / "a.jsonl" / "below", **SIZES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit is 0; allowed: integers from 1"),
        ({"limit": True}, "limit is True"),
        ({"seed": -1}, "seed is -1; allowed: integers from 0"),
        ({"prefix_chars": -1}, "prefix_chars is -1"),
        ({"prefix_chars": 1.5}, r"prefix_chars is 1\.5"),
        ({"continuation_chars": 0}, "continuation_chars is 0"),
        ({"minimum_chars": 2000}, "minimum_chars 2000 exceeds continuation_chars 1100"),
        ({"name": "../up"}, r"name '\.\./up' cannot be part of a file name.*'up'"),
        ({"name": ""}, "name '' cannot"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        prepare("python:prose", tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_progress_ends_at_what_was_wanted(tmp_path: Path):
    calls: list[tuple[int, int]] = []
    prepare("python:prose", tmp_path, limit=5, progress=lambda n, total: calls.append((n, total)))
    assert calls == [(n, 5) for n in range(1, 6)]


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(text | st.just(""), text), min_size=1, max_size=4))
def test_any_text_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
):
    out = tmp_path_factory.mktemp("any")
    passages = [
        Passage(
            document=f"d{i}",
            prefix=prefix,
            continuation=continuation,
            prefix_sha256=sha256(prefix.encode()),
            sha256=sha256(continuation.encode()),
            dataset="any",
            source="s",
            row=i,
            start=0,
        )
        for i, (prefix, continuation) in enumerate(pairs)
    ]
    record = Record(
        dataset="any", fingerprint="", n_passage=len(pairs), n_row_seen=9, skipped={}, arguments={}
    )
    write_folder(out, passages, record)
    assert load_passages(out) == passages
    for i, (_, continuation) in enumerate(pairs):
        assert (out / f"{i:04d}.continuation.txt").read_bytes() == continuation.encode()


def test_pairs_without_a_manifest(tmp_path: Path):
    folder = tmp_path / "my texts"
    folder.mkdir()
    for stem in ("10", "9", "essay b"):
        (folder / f"{stem}.prefix.txt").write_bytes(b"" if stem == "9" else b"Once\r\n")
        (folder / f"{stem}.continuation.txt").write_bytes(f" upon {stem}\r\n".encode())
    passages = load_passages(folder)
    assert [p.document for p in passages] == ["9", "10", "essay-b"]
    assert [p.continuation for p in passages] == [
        " upon 9\r\n",
        " upon 10\r\n",
        " upon essay b\r\n",
    ]
    assert {p.dataset for p in passages} == {"my-texts"}
    assert passages[1].sha256 == hashlib.sha256(b" upon 10\r\n").hexdigest()
    (folder / "9.prefix.txt").unlink()
    with pytest.raises(SchemaError, match=r"9\.prefix\.txt: is missing"):
        load_passages(folder)


def test_pairs_that_cannot_be_used(tmp_path: Path):
    with pytest.raises(TextError, match="no such folder"):
        load_passages(tmp_path / "none")
    with pytest.raises(TextError, match="holds neither"):
        load_passages(tmp_path)
    (tmp_path / "a.prefix.txt").write_bytes(b"caf\xe9")
    (tmp_path / "a.continuation.txt").write_bytes(b"")
    with pytest.raises(SchemaError, match=r"a\.prefix\.txt: is not UTF-8 at byte 3"):
        load_passages(tmp_path)
    (tmp_path / "a.prefix.txt").write_bytes(b"cafe")
    with pytest.raises(SchemaError, match=r"a\.continuation\.txt: is empty"):
        load_passages(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("number", "../../0000"), ("number", "a"), ("document", "../x"), ("prefix_sha256", "0" * 64)],
)
def test_a_manifest_from_a_stranger(tmp_path: Path, key: str, value: str):
    prepare(jsonl(tmp_path / "a.jsonl", 3), tmp_path / "out", **SIZES)
    manifest = tmp_path / "out" / "manifest.jsonl"
    (tmp_path / "out" / "prepare.json").unlink()
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    lines[1][key] = value
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SchemaError, match=r"line 2: unsafe|was changed"):
        load_passages(tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"{", b"[]\n", b'{"number": 1}\n', b"\xff\n"])
def test_a_manifest_that_is_none(tmp_path: Path, data: bytes):
    (tmp_path / "manifest.jsonl").write_bytes(data)
    with pytest.raises((SchemaError, TextError), match=r"manifest\.jsonl") as caught:
        load_passages(tmp_path)
    assert "\n" not in str(caught.value)


def test_import_is_light():
    program = (
        "import sys, jaxsppl.texts\n"
        "print({'datasets', 'pyarrow', 'numpy', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "set()\n"
