"""Start and stop a real llama.cpp server on this machine, for the demo and the tests."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxsppl.errors import ConfigError, ServerError

CHILD = Path(__file__).with_name("local_child.py")

# From 32 tokens on, CPU builds multiply with BLAS in float32 instead of the quantised kernels of
# single tokens: measured on SmolLM2 Q4_1, a token's log-probability then moves by up to 0.46 nat
# with whatever the other slot happens to process. Below that, results repeat bit for bit.
BATCH = 16


_builds: dict[str, str] = {}


def local_build(url: str) -> str | None:
    """Return the build of a server that this process has started, if it cannot tell itself.

    The wheel's server says ``b0-unknown`` whatever its version, and a harvest that is resumed under
    another build would go unnoticed.

    Parameters
    ----------
    url : str
        Its address.

    Returns
    -------
    str or None
        For example ``"xllamacpp 2026.10.11549"``.
    """
    return _builds.get(url)


def server_program() -> str | None:
    """Say which llama.cpp server can be started here.

    Returns
    -------
    str or None
        The path of a `llama-server` program, ``"xllamacpp"`` for the installed wheel, or None.
        The environment variable JAXSPPL_LLAMA_SERVER goes first, then the wheel, then PATH.
    """
    named = os.environ.get("JAXSPPL_LLAMA_SERVER")
    if named:
        return shutil.which(named) or named
    if importlib.util.find_spec("xllamacpp") is not None:
        return "xllamacpp"
    return shutil.which("llama-server")


class LocalServer:
    """A llama.cpp server that lives as long as the `with` block, or its process, whichever ends.

    Parameters
    ----------
    model_path : path
        The GGUF file.
    slots : int
        Requests that it answers at once.
    context : int
        Tokens of context for each slot.
    threads : int, optional
        Processor threads; all usable ones but one when missing. The threads of llama.cpp wait for
        each other in busy loops, so that one too many on a busy machine slows it down tenfold.
    port : int
        Port on 127.0.0.1; 0 takes a free one.
    api_key : str, optional
        Key that the server then demands. It travels by the environment, never on a command line.
    log : path, optional
        File that takes the server's log; a temporary one when missing.
    patience_s : float
        Seconds to wait until the model answers.

    Attributes
    ----------
    url : str
        Address, once started.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        slots: int = 2,
        context: int = 4096,
        threads: int | None = None,
        port: int = 0,
        api_key: str | None = None,
        log: str | os.PathLike[str] | None = None,
        patience_s: float = 120.0,
    ) -> None:
        self.model_path = Path(model_path)
        self.slots = slots
        self.context = context
        self.threads = threads or max(1, _usable_cpus() - 1)
        self.port = port
        self.api_key = api_key
        self.patience_s = patience_s
        self.url = ""
        self._is_wheel = False
        self._own_log = log is None
        self.log = Path(log) if log is not None else _temporary_log()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server and wait until the model really answers.

        Returns
        -------
        LocalServer
            Itself.

        Raises
        ------
        ConfigError
            When the model file does not exist.
        ServerError
            When no server program is at hand, or it ends or does not answer in time.
        """
        if not self.model_path.is_file():
            raise ConfigError(f"there is no model file '{self.model_path}'; give a GGUF file")
        program = server_program()
        if program is None:
            raise ServerError(
                "no llama.cpp server is at hand; pip install 'jaxsppl[demo]', or put llama-server "
                "on PATH, or name it in JAXSPPL_LLAMA_SERVER"
            )
        self._is_wheel = program == "xllamacpp"
        binary = "" if self._is_wheel else program
        options = {
            "binary": binary,
            "model": str(self.model_path),
            "port": self.port or (free_port() if binary else 0),
            "context": self.context,
            "slots": self.slots,
            "threads": self.threads,
            "batch": BATCH,
        }
        environment = dict(os.environ)
        environment.pop("LLAMA_API_KEY", None)
        if self.api_key:
            environment["LLAMA_API_KEY"] = self.api_key
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        try:
            self._wait_until_it_answers(time.monotonic() + self.patience_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and wait for its end; its port is free afterwards."""
        process, self._process = self._process, None
        if process is None:
            return
        _builds.pop(self.url, None)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._own_log:
            self.log.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the server without warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.stop()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def _wait_until_it_answers(self, deadline: float) -> None:
        """Wait for the address, then for a completion: health alone says too much too early."""
        process = self._process
        if process is None or process.stdout is None:
            raise ServerError("the server was stopped while it started")
        address = b""
        while not address.endswith(b"\n"):
            if not select.select([process.stdout], [], [], 0.1)[0]:
                self._check_alive(process, deadline)
                continue
            part = os.read(process.stdout.fileno(), 4096)
            address += part
            if not part:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                self._check_alive(process, deadline)
        self.url = address.decode().strip()
        self.port = int(self.url.rpartition(":")[2])
        if self._is_wheel:
            _builds[self.url] = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
        while not self._answers():
            self._check_alive(process, deadline)
            time.sleep(0.1)

    def _check_alive(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        """Raise when the server has ended or the time is up."""
        code = process.poll()
        if code is not None:
            raise ServerError(
                f"the llama.cpp server ended while it started{_why(code)}; last line of its "
                f"log: {self.last_log_line()}"
            )
        if time.monotonic() > deadline:
            raise ServerError(
                f"the llama.cpp server did not answer within {self.patience_s:g} s; last line of "
                f"its log: {self.last_log_line()}"
            )

    def _answers(self) -> bool:
        """Return whether a one-token completion works."""
        body = json.dumps({"prompt": "a", "n_predict": 1, "cache_prompt": False}).encode()
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(self.url + "/completion", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return "content" in json.loads(reply.read())
        except (OSError, ValueError):
            return False

    def last_log_line(self) -> str:
        """Return the last line of the server's log that says something.

        Returns
        -------
        str
        """
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "(empty)"


def _usable_cpus() -> int:
    """Return the number of processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _why(code: int) -> str:
    """Return a phrase for the exit code of a server."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGILL:
        return " (illegal instruction: it was built for another processor)"
    if number:
        return f" (signal {number})"
    return f" (exit code {code})"


def _temporary_log() -> Path:
    """Return a new file for a server's log."""
    handle, name = tempfile.mkstemp(prefix="jaxsppl-server-", suffix=".log")
    os.close(handle)
    return Path(name)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now.

    Returns
    -------
    int
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
