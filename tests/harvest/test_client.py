"""Addresses, keys, pauses."""

import asyncio
import base64
import email.utils
import os
import ssl
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web
from harvest_standin import StandIn, Text, error

from jaxsppl.errors import ConfigError, ServerError
from jaxsppl.harvest.client import parse_url, retry_after
from jaxsppl.harvest.runner import harvest_async

KEY = "sk-very-secret-4711"
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("127.0.0.1:8080/", "http://127.0.0.1:8080/"),
        ("localhost:9931", "http://localhost:9931/"),
        ("https://host.example/llama/v1/", "https://host.example/llama"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/"),
        ("http://host:1/?a=b#c", "http://host:1/"),
    ],
)
def test_address(given: str, expected: str) -> None:
    assert str(parse_url(given)[0]).rstrip("/") == expected.rstrip("/")


@pytest.mark.parametrize(
    "given", ["", "ftp://host/", "http://", "http://host:port", "http://host:99999", "file:///x"]
)
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(ConfigError, match="no server address"):
        parse_url(given)


def test_credentials_leave_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    url, headers = parse_url("http://user:pa%40ss@host:1")
    assert "user" not in str(url)
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"user:pa@ss"
    with pytest.raises(ConfigError) as caught:
        parse_url("http://user:hidden@host:port")
    assert "hidden" not in str(caught.value)
    monkeypatch.setenv("JAXSPPL_API_KEY", KEY)
    assert parse_url("http://host")[1] == {"Authorization": f"Bearer {KEY}"}
    both = parse_url("http://user:pass@host")[1]
    assert both["Authorization"].startswith("Basic ")
    assert both["X-Api-Key"] == KEY
    monkeypatch.setenv("JAXSPPL_API_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="JAXSPPL_API_KEY holds a line break") as caught:
        parse_url("http://host")
    assert "two" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("0.5", 0.5, 0.5),
        ("-3", 0, 0),
        (email.utils.formatdate(time.time() + 3600, usegmt=True), 3500, 3601),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("Thu, 01 Jan 2037 00:00:00 -0000", 1e6, 1e12),
    ],
)
def test_retry_after(value: str, low: float, high: float) -> None:
    pause = retry_after(value)
    assert pause is not None
    assert low <= pause <= high


@pytest.mark.parametrize("value", [None, "", "soon", "nan", "inf", "1e999"])
def test_retry_after_that_says_nothing(value: str | None) -> None:
    assert retry_after(value) is None


async def test_the_key_goes_on_every_call_and_is_written_nowhere(
    start, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, capfd
) -> None:
    caplog.set_level(0)

    async def echo(standin: StandIn, body: dict, answer: dict) -> web.Response:
        return error(400, f"you sent {KEY} as key")

    standin = StandIn(key=KEY, fault=echo, fault_times=1)
    url = (await start(standin)).replace("http://", "http://user@")
    said: list[str] = []
    for key in (None, "wrong-key-1234"):
        if key:
            monkeypatch.setenv("JAXSPPL_API_KEY", key)
        with pytest.raises(ServerError, match="JAXSPPL_API_KEY") as caught:
            await harvest_async(
                texts, url.replace("user@", ""), tmp_path, dataset="d", alternatives=10
            )
        said.append(str(caught.value))
    monkeypatch.setenv("JAXSPPL_API_KEY", KEY)
    [report] = await harvest_async(
        texts,
        url.replace("user@", ""),
        tmp_path,
        dataset="d",
        alternatives=10,
        progress=lambda p: said.append(repr(p)),
    )
    said.append(repr(report))
    assert "***" in report.failures[0][1]
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    out, err = capfd.readouterr()
    everything = written + "\n".join([*said, caplog.text, out, err]).encode()
    assert KEY.encode() not in everything
    assert b"wrong-key-1234" not in everything
    assert base64.b64encode(KEY.encode()) not in everything


async def test_credentials_in_the_address_are_used_and_stored_nowhere(
    start, texts: list[Text], tmp_path: Path, caplog
) -> None:
    caplog.set_level(0)
    basic = "Basic " + base64.b64encode(b"me:s3cr3t-word").decode()
    standin = StandIn()
    heads: list[str | None] = []

    @web.middleware
    async def note(request: web.Request, handler):
        heads.append(request.headers.get("Authorization"))
        return await handler(request)

    app = standin.app()
    app.middlewares.append(note)
    from aiohttp.test_utils import TestServer

    server = TestServer(app)
    await server.start_server()
    try:
        url = f"http://me:s3cr3t-word@127.0.0.1:{server.port}"
        [report] = await harvest_async(texts, url, tmp_path, dataset="d", alternatives=10)
    finally:
        await server.close()
    assert set(heads) == {basic}
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"s3cr3t" not in written + caplog.text.encode() + repr(report).encode()


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    aiohttp_server, texts: list[Text], tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    standin = StandIn()
    server = await aiohttp_server(standin.app(), ssl=context)
    with pytest.raises(ServerError, match="TLS certificate does not hold"):
        await harvest_async(
            texts, f"https://127.0.0.1:{server.port}", tmp_path, dataset="d", alternatives=5
        )
    assert not standin.paths


async def test_the_command_prints_and_writes_no_secret(
    start, texts: list[Text], tmp_path: Path
) -> None:
    async def echo(standin: StandIn, body: dict, answer: dict) -> web.Response:
        heads = standin.request.headers
        return error(400, f"you sent {heads['Authorization']} and {heads['X-Api-Key']}")

    folder = tmp_path / "texts"
    folder.mkdir()
    for text in texts[:3]:
        (folder / f"{text.document}.prefix.txt").write_text(text.prefix)
        (folder / f"{text.document}.continuation.txt").write_text(text.continuation)
    standin = StandIn(fault=echo, fault_times=1)
    place = (await start(standin)).removeprefix("http://")
    said = b""
    for words in (["--json"], ["--model", "nope"], ["--protocol", "vllm"]):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "jaxsppl", "harvest", str(folder), "--alternatives", "5",
            "--server", f"http://me:s3cr3t-word@{place}", "--out", str(tmp_path / "out"), *words,
            env={**os.environ, "JAXSPPL_API_KEY": KEY},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said += (await process.communicate())[0]
    assert b"harvest.nc" in said
    assert b'"protocol": "llama.cpp"' in said
    assert b"no server offers the model 'nope'" in said
    assert b"you sent Basic *** and ***" in said
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    basic = base64.b64encode(b"me:s3cr3t-word")
    for secret in (KEY.encode(), b"s3cr3t-word", basic, base64.b64encode(KEY.encode())):
        assert secret not in said + written
