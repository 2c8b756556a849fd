"""How fast a harvest is beside a plain load loop, what it costs, and how much memory it takes.

    python scripts/harvest_speed.py [--passages 16] [--rounds 3] [--many 20000] [--ledger]

Rate: a real llama.cpp server with the demo's model answers the same requests to a plain aiohttp
loop, which reads and forgets, and to a harvest, in turns; the ratio is the median over the rounds.
Both begin with idle slots; the harvest's first passage, which carries its self-test, is left out.
On a machine that does other work too the rates jump; the share of the time that the slots are busy
does not. Memory: a made-up server on loopback gives many passages to processes whose peak is read,
first a tenth of them, then all; halfway through all, the process is killed and another one resumes.
`--ledger` appends the figures to scripts/benchmarks.jsonl.
"""

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import ledger

import jaxsppl
from jaxsppl.harvest import client
from jaxsppl.harvest.demo_model import demo_model
from jaxsppl.harvest.local import LocalServer, free_port
from jaxsppl.harvest.protocol import Passage, Progress
from jaxsppl.harvest.runner import harvest
from jaxsppl.texts.folder import load_passages

ROOT = Path(__file__).parents[1]
SLOTS = 2
# Shorter prompts are the harvester finding out what the server can do.
PROBES = 8

SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from aiohttp import web
from harvest_standin import StandIn
web.run_app(StandIn(slots=4).app(), host="127.0.0.1", port=int(sys.argv[2]), print=None)
"""
HARVEST = """
import json, os, signal, sys, time
from dataclasses import dataclass
from pathlib import Path
from jaxsppl.harvest.runner import harvest

@dataclass(frozen=True)
class Text:
    document: str
    prefix: str
    continuation: str

url, n, kill_at, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
texts = [Text(f"doc-{i}", "It was said: ", f"{i:06d}") for i in range(n)]
cpu, began, seen = time.process_time(), time.monotonic(), []

def say(**more):
    status = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    (found_s, found), (end_s, end) = seen[0], seen[-1]
    print(json.dumps({
        "n_token": end.n_token, "peak_mib": int(status["VmHWM"].split()[0]) / 1024,
        "cpu_s": time.process_time() - cpu, "found": found.done, "found_s": found_s,
        "passages_per_s": (end.done - found.done) / (end_s - found_s), **more,
    }), flush=True)

def told(state):
    seen[1:] = [(time.monotonic() - began, state)]
    if kill_at and state.done >= kill_at:
        say()
        os.kill(os.getpid(), signal.SIGKILL)

[report] = harvest(texts, url, out, dataset="many", alternatives=100, progress=told)
say(failed=len(report.failures), n_document=report.n_document)
"""


@dataclass
class Run:
    """One run, from idle slots to the last finished passage.

    `rate` is in tokens a second, `busy` the share of the time that a slot has a request.
    """

    rate: float
    busy: float
    cpu_s: float = 0.0
    n_token: int = 0


@dataclass
class Asked:
    """Requests: their bodies, when they were sent and when the reply was there."""

    bodies: list[bytes]
    times: list[tuple[float, float]]

    def busy(self, begin: float, end: float) -> float:
        """Return the share of the time between two moments that a slot has a request."""
        inside = (max(min(b, end) - max(a, begin), 0.0) for a, b in self.times)
        return sum(inside) / (SLOTS * (end - begin))


@contextmanager
def recorded() -> Iterator[Asked]:
    """Note the completions that a harvest asks for."""
    real = client.Client._once
    asked = Asked([], [])

    async def once(self: Any, path: str, data: bytes, *rest: Any) -> bytes:
        began = time.monotonic()
        reply = await real(self, path, data, *rest)
        if path == "/completion" and len(json.loads(data)["prompt"]) > PROBES:
            asked.bodies.append(data)
            asked.times.append((began, time.monotonic()))
        return reply

    client.Client._once = once
    try:
        yield asked
    finally:
        client.Client._once = real


def rate(finished: list[tuple[float, int]]) -> float:
    """Return tokens a second, from moments and the tokens that were done by then."""
    (begin, before), (end, after) = finished[0], finished[-1]
    return (after - before) / (end - begin)


def one_harvest(passages: list[Passage], url: str, folder: Path) -> tuple[Run, list[bytes]]:
    """Harvest into a fresh folder; return also the requests of the passages."""
    finished: list[tuple[float, int]] = []

    def told(state: Progress) -> None:
        if state.done:
            finished.append((time.monotonic(), state.n_token))

    began = time.process_time()
    with recorded() as asked:
        [report] = harvest(passages, url, folder, dataset="speed", progress=told)
    if report.failures:
        sys.exit(f"passages failed: {report.failures}")
    cpu = time.process_time() - began
    # at the end the last slot alone is busy, in both ways of asking
    busy = asked.busy(finished[0][0], finished[-SLOTS][0])
    # before these came the first passage and the self-test, alone
    bodies = asked.bodies[1 - len(passages) :]
    return Run(rate(finished), busy, cpu, report.n_token), bodies


async def plain_loop(bodies: list[bytes], url: str) -> Run:
    """Send the same bodies with all slots busy; read and forget the replies."""
    finished = [(time.monotonic(), 0)]
    waiting = list(reversed(bodies))
    asked = Asked([], [])
    done = 0

    async def worker(session: aiohttp.ClientSession) -> None:
        nonlocal done
        while waiting:
            body = waiting.pop()
            began = time.monotonic()
            headers = {"Content-Type": "application/json"}
            async with session.post(url + "/completion", data=body, headers=headers) as reply:
                await reply.read()
            done += int(json.loads(body)["n_predict"])
            finished.append((time.monotonic(), done))
            asked.times.append((began, finished[-1][0]))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(worker(session) for _ in range(SLOTS)))
    return Run(rate(finished), asked.busy(finished[0][0], finished[-SLOTS][0]))


def speed(n_passage: int, rounds: int) -> dict[str, Any]:
    """Compare the rates on one real server."""
    with (
        tempfile.TemporaryDirectory() as name,
        LocalServer(demo_model(), slots=SLOTS, context=1024, threads=1) as server,
    ):
        folder = Path(name)
        jaxsppl.prepare(
            "python:prose", folder / "texts", name="prose", limit=n_passage, prefix_chars=120,
            continuation_chars=240, minimum_chars=120,
        )  # fmt: skip
        passages = load_passages(folder / "texts")
        _, bodies = one_harvest(passages, server.url, folder / "warm")
        loops: list[Run] = []
        runs: list[Run] = []
        for number in range(rounds):
            loops.append(asyncio.run(plain_loop(bodies, server.url)))
            runs.append(one_harvest(passages, server.url, folder / f"run-{number}")[0])
    pairs = [run.rate / loop.rate for run, loop in zip(runs, loops, strict=True)]
    return {
        "n_passage": len(passages),
        "n_token": runs[0].n_token,
        "rounds": rounds,
        "harvest_tokens_per_s": statistics.median(run.rate for run in runs),
        "plain_loop_tokens_per_s": statistics.median(loop.rate for loop in loops),
        "rate_ratio": statistics.median(pairs),
        "rate_ratio_lowest": min(pairs),
        "rate_ratio_highest": max(pairs),
        "harvest_slots_busy": statistics.median(run.busy for run in runs),
        "plain_loop_slots_busy": statistics.median(loop.busy for loop in loops),
        "core_share_per_100_tokens_per_s": statistics.median(
            100 * run.cpu_s / run.n_token for run in runs
        ),
    }


def memory(most: int) -> dict[str, Any]:
    """Read the peak of processes that harvest few and many passages from a made-up server."""
    port = free_port()
    tests = str(ROOT / "tests" / "harvest")
    server = subprocess.Popen([sys.executable, "-c", SERVER, tests, str(port)])

    def child(count: int, kill_at: int, folder: str) -> dict[str, Any]:
        words = [sys.executable, "-c", HARVEST, f"http://127.0.0.1:{port}"]
        words += [str(count), str(kill_at), folder]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != (-signal.SIGKILL if kill_at else 0):
            sys.exit(f"a harvest of {count} passages ended by {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    try:
        time.sleep(3)
        with tempfile.TemporaryDirectory() as few_folder:
            few = child(most // 10, 0, few_folder)
        with tempfile.TemporaryDirectory() as many_folder:
            killed = child(most, most // 2, many_folder)
            many = child(most, 0, many_folder)
    finally:
        server.terminate()
        server.wait()
    if few["failed"] or many["failed"] or many["n_document"] != most:
        sys.exit(f"passages failed or are missing: {few}, {many}")
    if many["found"] < killed["found"] + most // 2:
        sys.exit(f"only {many['found']} of {most // 2} passages were found again")
    peak = max(killed["peak_mib"], many["peak_mib"])
    grown = (peak - few["peak_mib"]) * 2**20
    return {
        "few_passages": most // 10,
        "few_peak_mib": few["peak_mib"],
        "few_passages_per_s": few["passages_per_s"],
        "few_core_share_per_100_tokens_per_s": 100 * few["cpu_s"] / few["n_token"],
        "many_passages": most,
        "many_peak_mib": peak,
        "many_passages_per_s": killed["passages_per_s"],
        "many_core_share_per_100_tokens_per_s": 100
        * (killed["cpu_s"] + many["cpu_s"])
        / many["n_token"],
        "many_found_again": many["found"],
        "many_found_again_s": many["found_s"],
        "many_resumed_passages_per_s": many["passages_per_s"],
        "grown_byte_per_passage": grown / (most - most // 10),
    }


def main() -> None:
    """Measure, print, and append to the ledger when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many", type=int, default=20_000)
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    if arguments.rounds:
        figures |= speed(arguments.passages, arguments.rounds)
    if arguments.many:
        figures |= memory(arguments.many)
    for name, value in figures.items():
        print(f"{name:40} {value:,.4g}" if isinstance(value, float) else f"{name:40} {value}")
    if arguments.ledger:
        ledger.append("harvest", "aiohttp", **figures)


if __name__ == "__main__":
    main()
