"""The child process that runs a local llama.cpp server and ends with its parent.

It is started as a script by `jaxsppl.harvest.local` and imports nothing of jaxsppl. Its standard
input is a pipe that the parent holds open: when the parent ends, however it ends, the pipe closes
and the server stops with it. The address goes to standard output, the log to standard error.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any


def _watch_parent(child: "subprocess.Popen[bytes] | None" = None) -> None:
    """End this process, and the server it runs, once the parent has closed the pipe."""
    while os.read(0, 4096):
        pass
    if child is not None:
        child.kill()
    os._exit(0)


def _report(descriptor: int, address: str) -> None:
    """Tell the parent where the server listens."""
    os.write(descriptor, (address + "\n").encode())
    os.close(descriptor)


def _run_wheel(options: dict[str, Any], report: int) -> int:
    """Run the server of the installed `xllamacpp` inside this process."""
    import importlib

    xllamacpp: Any = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["model"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = options["port"]
    parameters.n_ctx = options["context"] * options["slots"]
    parameters.n_parallel = options["slots"]
    parameters.cpuparams.n_threads = options["threads"]
    parameters.cpuparams_batch.n_threads = options["threads"]
    parameters.n_ubatch = options["batch"]
    parameters.fit_params = False  # the context is what was asked for, or the start fails
    parameters.cache_ram_mib = 0  # nothing is ever asked twice
    key = os.environ.pop("LLAMA_API_KEY", "")
    if key:
        parameters.api_keys = [key]
    server = xllamacpp.Server(parameters)
    _report(report, str(server.listening_address))
    while True:
        time.sleep(3600)


def _die_with_wrapper() -> None:
    """Ask Linux to kill the binary when this wrapper is killed; elsewhere the pipe must do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _run_binary(options: dict[str, Any], report: int) -> int:
    """Run a `llama-server` program and wait for its end."""
    command = [
        options["binary"],
        *("--model", options["model"]),
        *("--host", "127.0.0.1"),
        *("--port", str(options["port"])),
        *("--ctx-size", str(options["context"] * options["slots"])),
        *("--parallel", str(options["slots"])),
        *("--threads", str(options["threads"])),
        *("--ubatch-size", str(options["batch"])),
    ]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=2,
        preexec_fn=_die_with_wrapper,  # noqa: PLW1509
    )
    threading.Thread(target=_watch_parent, args=(child,), daemon=True).start()
    _report(report, f"http://127.0.0.1:{options['port']}")
    code = child.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the server that the JSON argument describes."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    report = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if options["binary"]:
        return _run_binary(options, report)
    threading.Thread(target=_watch_parent, daemon=True).start()
    return _run_wheel(options, report)


if __name__ == "__main__":
    sys.exit(main())
