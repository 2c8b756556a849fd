"""How the engine's time and memory grow with tokens and with points.

    python scripts/scaling.py [HARVEST.nc] [--most 1000000] [--ledger] [--plot docs/scaling.png]

The harvest is tiled to each length, every tile with its own jitter, so that no two tokens are
alike, and written to a file; the grid is that of `sweeps/dense.toml`, and for points its alpha and
beta axes grow. Each size runs in a process of its own, which tells its peak memory. "first" is with
reading, compilation and audit; "again" is the same sweep once more. Without a harvest a small one
that comes with the package is used.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ledger
import numpy as np

import jaxsppl
from jaxsppl import config
from jaxsppl.demo import ready_config, shipped_harvests
from jaxsppl.store import read_harvest

TOKENS = (1_000, 10_000, 100_000, 1_000_000)
SIDES = (3, 11, 35)  # alpha and beta each


def tiled(harvest: Any, n_token: int) -> Any:
    """Return a harvest of so many tokens: copies, each token a little sharper or flatter."""
    rng = np.random.default_rng(0)
    place = np.resize(np.arange(harvest.sizes["token"]), n_token)
    made = harvest.isel(token=place).load()
    top = made.top_logprob.values.astype(np.float64)
    own = made.token_logprob.values.astype(np.float64)
    power = 1 + 0.1 * rng.uniform(-1, 1, n_token)
    rest = np.maximum(1 - np.exp(top).sum(axis=1), 0)
    log_total = np.log((np.exp(top) ** power[:, None]).sum(axis=1) + rest**power)
    made["top_logprob"] = (
        ("token", "rank"),
        (power[:, None] * top - log_total[:, None]).astype(np.float32),
    )
    made["token_logprob"] = (("token",), (power * own - log_total).astype(np.float32))
    made["document_index"] = (("token",), np.sort(made.document_index.values))
    made.attrs.pop("digest", None)
    return made


def peak_mib() -> float:
    """Return the most memory that this process has held; rusage would count its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


def one(file: Path, n_token: int, side: int, tail: str) -> dict[str, Any]:
    """Sweep one size and return its figures."""
    settings = config.load(ready_config("dense"))
    axis = np.geomspace(0.4, 2.5, side).tolist()
    grid = {**settings.grid, "alpha": axis, "beta": axis}
    seconds: list[float] = []
    result = None
    for _ in range(2 if n_token < 200_000 else 1):
        began = time.perf_counter()
        result = jaxsppl.sweep(file, grid, chain=settings.order(), tail=tail)
        seconds.append(time.perf_counter() - began)
    return {
        "n_token": n_token,
        "n_point": int(result.nll.size),
        "first_s": seconds[0],
        "again_s": seconds[-1],
        "peak_mib": peak_mib(),
        "audit_nll": float(result.attrs["audit_nll"]),
        "audit_ood": float(result.attrs["audit_ood"]),
    }


def in_child(file: Path, n_token: int, side: int, tail: str) -> dict[str, Any]:
    """Measure one size in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "tiled.harvest.nc"
        jaxsppl.save(tiled(read_harvest(file), n_token), made)
        command = [sys.executable, __file__, str(made), "--tail", tail]
        command += ["--one", f"{n_token},{side}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print("  ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
    return row


def draw(by_token: list[dict[str, Any]], by_point: list[dict[str, Any]], target: Path) -> None:
    """Draw time against tokens and against points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, rows, name, words in (
        (panels[0], by_token, "n_token", f"tokens, {by_token[0]['n_point']:,} points"),
        (panels[1], by_point, "n_point", f"points, {by_point[0]['n_token']:,} tokens"),
    ):
        x = [row[name] for row in rows]
        panel.loglog(x, [row["first_s"] for row in rows], "o-", color="#0072B2", label="first run")
        panel.loglog(x, [row["again_s"] for row in rows], "s--", color="#D55E00", label="again")
        panel.set_xlabel(words)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[0].legend(frameon=False)
    figure.suptitle("One sweep of temperature, min_p, top_k, alpha and beta; compiled and audited")
    figure.savefig(target, dpi=150)


def main() -> None:
    """Measure all sizes and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harvest", nargs="?", type=Path)
    parser.add_argument("--tail", choices=["drop", "bound"], default="drop")
    parser.add_argument("--most", type=int, default=TOKENS[-1])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    file = arguments.harvest or shipped_harvests()[0]
    if arguments.one:
        n_token, side = map(int, arguments.one.split(","))
        print(json.dumps(one(file, n_token, side, arguments.tail)))
        return
    sizes = [n for n in TOKENS if n <= arguments.most]
    by_token = [in_child(file, n, 11, arguments.tail) for n in sizes]
    by_point = [in_child(file, 10_000, side, arguments.tail) for side in SIDES]
    if arguments.plot:
        draw(by_token, by_point, arguments.plot)
    if arguments.ledger:
        ledger.append("scaling", tail=arguments.tail, by_token=by_token, by_point=by_point)


if __name__ == "__main__":
    main()
