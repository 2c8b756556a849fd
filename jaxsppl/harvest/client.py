"""One way to ask a server anything: keys, retries, bounded replies, and errors that say what to do.

Retried are 408, 429, 5xx, lost connections and timeouts, with backoff; `Retry-After` is honoured.
Everything else is an answer. Redirects are not followed, so a key never travels to another host.
"""

import asyncio
import base64
import concurrent.futures
import datetime as dt
import email.utils
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
import stamina
import yarl

from jaxsppl.errors import ConfigError, ServerError
from jaxsppl.harvest.protocol import Unavailable

T = TypeVar("T")
KEY = "JAXSPPL_API_KEY"
ATTEMPTS = 3
# Longest single pause that a server may ask for [s]; what is longer is given up and told.
LONGEST_PAUSE = 60.0

# Without a handler of its own, Python would print stamina's notes on retries to standard error.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class BadReplyError(Exception):
    """A reply with status 200 that is not what was asked for."""


class RefusedError(Exception):
    """A status that no retry changes, with the server's own words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"HTTP {status}: {said}")
        self.status = status
        self.said = said


class _TransientError(Exception):
    """A fault that a retry may mend."""

    def __init__(self, reason: str, *, down: bool, busy: bool, pause: float | None = None) -> None:
        super().__init__(reason)
        self.down = down
        self.busy = busy
        self.pause = pause


class _ErrorBody(msgspec.Struct):
    """The body of an error of llama-server, vLLM, SGLang or OpenAI."""

    error: Any = None
    message: Any = None
    detail: Any = None


def run_to_end(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return what it returns, whether an event loop is running or not.

    Parameters
    ----------
    task : coroutine

    Returns
    -------
    object
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(task)
    # inside a notebook a loop is running already: another thread has its own
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, task).result()


@asynccontextmanager
async def open_session(timeout_s: float) -> AsyncGenerator[aiohttp.ClientSession]:
    """Open the one session of a harvest.

    Parameters
    ----------
    timeout_s : float
        Longest duration of one request [s].

    Yields
    ------
    aiohttp.ClientSession
        TLS is verified, cookies and proxies of the environment are not used.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=10),
        headers={"User-Agent": "jaxsppl", "Accept-Encoding": "identity"},
    ) as session:
        yield session


def parse_url(text: str) -> tuple[yarl.URL, dict[str, str]]:
    """Return a server's address without credentials, and the headers that carry them.

    Parameters
    ----------
    text : str
        ``http://host:port``, ``host:port``, with or without ``/v1``.

    Returns
    -------
    (yarl.URL, dict)

    Raises
    ------
    ConfigError
        When it is no HTTP address; the message does not repeat credentials.
    """
    try:
        url = yarl.URL(text if "://" in text else f"http://{text}")
        host = url.host
        url.port  # noqa: B018  (parses the port)
    except ValueError:
        host, url = None, yarl.URL()
    if not host or url.scheme not in {"http", "https"}:
        shown = text.rpartition("@")[2]
        raise ConfigError(f"'{shown}' is no server address; give for example http://127.0.0.1:8080")
    headers: dict[str, str] = {}
    key = os.environ.get(KEY, "").strip()
    if not key.isprintable():
        raise ConfigError(f"{KEY} holds a line break or another control character; set it again")
    if url.user is not None or url.password is not None:
        pair = f"{url.user or ''}:{url.password or ''}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        if key:
            headers["X-Api-Key"] = key
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    path = url.path.rstrip("/").removesuffix("/v1")
    return url.with_user(None).with_path(path).with_query(None).with_fragment(None), headers


class Client:
    """A server's address, asked through the shared session.

    Parameters
    ----------
    session : aiohttp.ClientSession
    url : str
        Address of the server.
    final : tuple of str
        Parts of messages of status 500 that no retry changes.
    patience_s : float
        Retries of one request end after this time [s].
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        final: tuple[str, ...] = (),
        patience_s: float = 300.0,
    ) -> None:
        self._session = session
        self._url, self._headers = parse_url(url)
        self._secrets = _secrets(url, self._headers)
        self._final = final
        self._patience_s = patience_s
        self.label = str(self._url).rstrip("/")

    async def ask(
        self,
        path: str,
        kind: type[T],
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        limit: int = 1 << 22,
    ) -> T:
        """Send one request and decode its reply, after retries where they may help.

        Parameters
        ----------
        path : str
            For example ``/completion``.
        kind : type
            What the reply must be; unknown fields are ignored.
        body : mapping, optional
            JSON to POST; without it the request is a GET.
        query : mapping, optional
            Of the address.
        limit : int
            Largest reply that is read [byte].

        Returns
        -------
        object of `kind`

        Raises
        ------
        Unavailable
            When the server does not answer, after retries.
        RefusedError, BadReplyError
            When its answer is no, or not what was asked for.
        ServerError
            When it demands a key or sends us elsewhere.
        """
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async for attempt in stamina.retry_context(
                on=_may_retry,
                attempts=ATTEMPTS,
                timeout=self._patience_s,
                wait_initial=0.2,
                wait_max=10.0,
                wait_jitter=0.3,
            ):
                with attempt:
                    reply = await self._once(path, data, query, limit)
        except _TransientError as fault:
            raise Unavailable(f"{self.label}: {fault}", down=fault.down, busy=fault.busy) from fault
        return decode(path, reply, kind)  # pyright: ignore[reportPossiblyUnboundVariable]

    async def _once(
        self, path: str, data: bytes, query: Mapping[str, str] | None, limit: int
    ) -> bytes:
        """Send one request and return the body of its 200 reply."""
        url = self._url.with_path(self._url.path.rstrip("/") + path).with_query(query)
        try:
            async with self._session.request(
                "POST" if data else "GET",
                url,
                data=data or None,
                headers={**self._headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as reply:
                content = await self._read(reply, limit)
                status = reply.status
                pause = retry_after(reply.headers.get("Retry-After"))
                target = reply.headers.get("Location", "")
        except aiohttp.ClientSSLError as error:
            raise ServerError(f"{self.label}: its TLS certificate does not hold: {error}") from None
        except TimeoutError:
            raise _TransientError("no answer in time", down=False, busy=False) from None
        except (aiohttp.ClientError, OSError) as error:
            # aiohttp's own texts may repeat the address as it was given, so only the kind is told
            raise _TransientError(_connection_fault(error), down=True, busy=False) from None
        if status == 200:
            return content
        self._raise(status, self._said(content), pause, target)
        return content

    async def _read(self, reply: aiohttp.ClientResponse, limit: int) -> bytes:
        """Read a body up to the limit; more is no reply that we asked for."""
        parts: list[bytes] = []
        total = 0
        async for part in reply.content.iter_chunked(1 << 16):
            total += len(part)
            if total > limit:
                reply.close()
                raise BadReplyError(f"the reply is larger than the {limit} bytes that fit")
            parts.append(part)
        return b"".join(parts)

    def _raise(self, status: int, said: str, pause: float | None, target: str) -> None:
        """Turn a status into the error that says what to do."""
        if status in {401, 403}:
            have = "its value was refused" if os.environ.get(KEY) else "it is not set"
            raise ServerError(
                f"{self.label} demands an API key (HTTP {status}); "
                f"give it in the environment variable {KEY} ({have})"
            )
        if 300 <= status < 400:
            host = yarl.URL(target).host or "another address"
            raise ServerError(
                f"{self.label} redirects to {host}; redirects are not followed, "
                "give the final address"
            )
        may_pass = status in {408, 429} or (status >= 500 and status != 501)
        if may_pass and not any(text in said for text in self._final):
            busy = status in {429, 503}
            raise _TransientError(f"HTTP {status}: {said}", down=False, busy=busy, pause=pause)
        raise RefusedError(status, said)

    def _said(self, content: bytes) -> str:
        """Return the message inside an error's body, short, on one line, without any key."""
        try:
            body = msgspec.json.decode(content, type=_ErrorBody)
            inner = body.error if body.error is not None else body.message or body.detail
            text = inner.get("message", inner) if isinstance(inner, dict) else inner
            said = str(text)
        except (msgspec.MsgspecError, RecursionError):
            page = content.lstrip()[:1] == b"<"
            said = "a web page" if page else content[:200].decode("utf-8", "replace")
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return " ".join(said.split())[:300] or "(no message)"


def _secrets(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return what no message may repeat: keys and passwords, and how headers carry them."""
    place = url.partition("://")[2] or url
    password = yarl.URL(f"http://{place}").password or ""
    values = [value.rpartition(" ")[2] for value in headers.values()]
    return sorted({word for word in (*values, password) if word}, key=len, reverse=True)


def decode(path: str, reply: bytes, kind: type[T]) -> T:
    """Decode the body of a reply.

    Parameters
    ----------
    path : str
        Where it comes from, for messages.
    reply : bytes
    kind : type
        What it must be.

    Returns
    -------
    object of `kind`

    Raises
    ------
    BadReplyError
        When it is not JSON, or JSON of something else.
    """
    try:
        return msgspec.json.decode(reply, type=kind)
    except msgspec.ValidationError as error:
        raise BadReplyError(f"{path} answered something unexpected: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReplyError(f"{path} did not answer JSON ({error})") from error


def _may_retry(error: Exception) -> bool | float:
    """Say whether a retry may help, or after how many seconds the server wants it."""
    if not isinstance(error, _TransientError):
        return False
    if error.pause is None:
        return True
    return error.pause if error.pause <= LONGEST_PAUSE else False


def _connection_fault(error: Exception) -> str:
    """Return a phrase for a lost or refused connection."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name is not known"
    if isinstance(error, aiohttp.ClientConnectorError):
        # asyncio puts the address into strerror, the number says what happened
        number = error.os_error.errno
        return f"cannot connect ({os.strerror(number) if number else 'refused'})"
    return f"the connection broke ({type(error).__name__})"


def retry_after(value: str | None) -> float | None:
    """Return the pause that a `Retry-After` header asks for.

    Parameters
    ----------
    value : str or None
        Seconds, or an HTTP date.

    Returns
    -------
    float or None
        Seconds, at least 0; None when there is none or it says nothing.
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            then = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        if then.tzinfo is None:
            then = then.replace(tzinfo=dt.UTC)
        seconds = then.timestamp() - time.time()
    # the comparison is false for NaN
    return max(seconds, 0.0) if seconds < float("inf") else None
