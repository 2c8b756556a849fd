"""The texts that Python carries."""

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from jaxsppl.texts import load_passages, prepare
from jaxsppl.texts.builtin import builtin_rows, seeded_order


@pytest.mark.parametrize("source", ["python:prose", "python:code"])
def test_same_seed_same_passages(tmp_path: Path, source: str):
    report = prepare(source, tmp_path / "a", limit=30)
    prepare(source, tmp_path / "b", limit=30)
    prepare(source, tmp_path / "c", limit=30, seed=1)
    prepare(source, tmp_path / "d", limit=10)
    a, b, c, d = (load_passages(tmp_path / name) for name in "abcd")
    assert report.n_passage == len(a) == 30
    assert a == b
    assert {p.document for p in a} != {p.document for p in c}
    assert a[:10] == d
    assert all(300 <= len(p.prefix) <= 600 and len(p.continuation) <= 1100 for p in a)


def test_prose_is_what_the_help_topics_say():
    rows = list(builtin_rows("python:prose", 0))
    assert len(rows) > 40
    assert all(row.value == topics[row.document] for row in rows)
    assert "operator-summary" not in {row.document for row in rows}


def test_code_is_what_the_library_files_hold():
    root = Path(sysconfig.get_paths()["stdlib"])
    rows = list(builtin_rows("python:code", 0))
    assert len(rows) > 150
    for row in rows:
        assert (root / row.source).read_bytes() == str(row.value).encode()
    names = {row.document for row in rows}
    assert {"argparse", "json.decoder", "asyncio.tasks"} <= names
    assert not any(part in ("test", "tests", "encodings") for n in names for part in n.split("."))


def test_seeded_order_does_not_move_the_others():
    names = [f"n{i}" for i in range(50)]
    order = seeded_order(names, 3)
    assert sorted(order) == sorted(names)
    assert order != seeded_order(names, 4)
    assert [n for n in order if n != "n7"] == seeded_order([n for n in names if n != "n7"], 3)
