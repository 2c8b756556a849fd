"""The Hugging Face path, against a loopback server that answers as the Hub does.

The library reads the Hub's address when it is imported, so each run is a process of its own.
"""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxsppl.texts import load_passages

REVISION = "a" * 40
ROOT = "/api/datasets/me/ships"
PROGRAM = """
import json, sys
from jaxsppl.errors import TextError
from jaxsppl.texts import prepare
out, arguments = sys.argv[1], json.loads(sys.argv[2])
sizes = {"prefix_chars": 20, "continuation_chars": 40, "minimum_chars": 10}
try:
    report = prepare(out=out, **sizes, **arguments)
except TextError as error:
    print("TextError:", error)
else:
    print(report.n_passage, report.n_row_seen, report.name)
"""


def shard(first: int) -> bytes:
    rows = range(first, first + 1200)
    texts = [f"Row {n} tells of {n} ships that left the harbour and came back." for n in rows]
    file = io.BytesIO()
    pq.write_table(pa.table({"number": list(rows), "text": texts}), file, row_group_size=100)
    return file.getvalue()


class Hub(ThreadingHTTPServer):
    """One dataset of two shards; remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {f"data/train-0000{n}-of-00002.parquet": shard(n * 1200) for n in range(2)}
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
            for name, data in self.server.files.items()
        ]
        if path in (ROOT, f"{ROOT}/revision/{REVISION}"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.send_json(200, {"id": "me/ships", "sha": REVISION, "siblings": siblings})
        elif path == f"{ROOT}/tree/{REVISION}":
            self.send_json(200, [{"type": "directory", "path": "data", "oid": "c" * 40, "size": 0}])
        elif path == f"{ROOT}/tree/{REVISION}/data":
            self.send_json(200, entries)
        elif (name := path.partition(f"/resolve/{REVISION}/")[2]) in self.server.files:
            self.send_data(self.server.files[name])
        else:
            self.send_json(404, {"error": "not found"})

    def send_json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if status == 404:
            is_file = "/me/ships/" in self.path
            self.send_header("X-Error-Code", "EntryNotFound" if is_file else "RepoNotFound")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_data(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"x"')
        self.send_header("X-Repo-Commit", REVISION)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(out: Path, port: int, **arguments: object) -> tuple[str, str]:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(out.parent / "hf"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out), json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment,
    )
    return done.stdout, done.stderr


def test_a_dataset_is_streamed_as_far_as_needed(tmp_path: Path, hub: Hub):
    out = tmp_path / "out"
    stdout, stderr = run(out, hub.server_port, source="me/ships", limit=20)
    assert stdout == "20 1000 me-ships\n"
    assert stderr == ""
    passages = load_passages(out)
    assert all(p.prefix.startswith(f"Row {p.row} tells") for p in passages)
    assert {p.source for p in passages} == {"me/ships"}
    assert any("train-00000" in path for path in hub.asked)
    assert not any("train-00001" in path for path in hub.asked)
    # Done is done, also without the Hub.
    n_asked = len(hub.asked)
    assert run(out, hub.server_port, source="me/ships", limit=20)[0] == stdout
    assert len(hub.asked) == n_asked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "me/none"}, "TextError: 'me/none' is neither a local path nor a dataset"),
        ({"source": "me/ships", "split": "tset"}, "Available splits: ['train']"),
        ({"source": "me/ships", "column": "txt"}, "no column 'txt'; did you mean 'text'?"),
    ],
)
def test_what_the_hub_does_not_have(
    tmp_path: Path, hub: Hub, arguments: dict[str, str], message: str
):
    stdout, stderr = run(tmp_path / "out", hub.server_port, **arguments)
    assert stdout.startswith("TextError: ") and message in stdout
    assert stdout.count("\n") == 1 and stderr == ""
    assert not (tmp_path / "out").exists()


def test_no_network_is_one_line(tmp_path: Path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        stdout, stderr = run(tmp_path / "out", unused.getsockname()[1], source="me/ships")
    assert stdout.startswith("TextError: 'me/ships' is no local path, and the Hugging Face Hub")
    assert stdout.count("\n") == 1 and stderr == ""
