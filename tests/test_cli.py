"""The command line by subprocess: results on stdout, words on stderr, exit codes, lean imports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small import harvest, sweep_file

from jaxsppl import cli, store
from jaxsppl.cli.app import explain_error
from jaxsppl.errors import IncompleteError, ServerError

HEAVY = {"jax", "xarray", "matplotlib", "datasets", "optax"}
CONFIG = """
[grid]
temperature = [0.5, 1.0]
min_p = [0, 0.1]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a harvest, a config and texts, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAXSPPL_SERVER_URL", raising=False)
    store.write_dataset(harvest(), tmp_path / "out/a.harvest.nc")
    (tmp_path / "c.toml").write_text(CONFIG)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "0.prefix.txt").write_text("Once upon a")
    (texts / "0.continuation.txt").write_text(" time")
    return tmp_path


def jaxsppl(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "jaxsppl", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The only line on standard error, and nothing on standard output."""
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("jaxsppl: ")
    return lines[0]


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:2000])


# Words of the command, its exit code, and what the one line must say.
MISTAKES: dict[str, tuple[list[str], int, list[str]]] = {
    "unknown command": (["swep"], 2, ["swep", "sweep"]),
    "unknown flag": (["show", "--jsn", "x.nc"], 2, ["--jsn", "--json"]),
    "no argument": (["sweep"], 2, ["FILE"]),
    "not a number": (["prepare", "t", "--out", "o", "--limit", "many"], 2, ["--limit", "many"]),
    "no config": (["sweep", "missing.toml"], 2, ["missing.toml"]),
    "unknown axis": (["sweep", "c.toml", "--set", "grid.temprature=1"], 2, ["'temperature'"]),
    "empty axis": (["sweep", "c.toml", "--set", "grid.min_p=[]"], 2, ["grid.min_p", "empty"]),
    "NaN": (["sweep", "c.toml", "--set", "grid.min_p=[nan]"], 2, ["grid.min_p", "nan"]),
    "negative": (["sweep", "c.toml", "--set", "grid.temperature=-1"], 2, ["at least 0"]),
    "no input": (["sweep", "c.toml", "--input", "no/*.nc"], 2, ["no/*.nc"]),
    "no grid": (["sweep", "c.toml", "--set", "grid={}"], 2, ["[grid]"]),
    "no text": (["run", "c.toml"], 2, ["[texts.datasets]"]),
    "no file": (["show", "missing.nc"], 2, ["missing.nc", "no such file"]),
    "no source": (["prepare", "missing.txt", "--out", "o"], 2, ["missing.txt"]),
    "bad column": (["prepare", "t.csv", "--out", "o", "--column", "b"], 2, ["'b'"]),
    "no server": (["harvest", "texts", "--out", "o"], 2, ["--server"]),
    "server away": (
        ["harvest", "texts", "--server", "http://127.0.0.1:9", "--out", "o"],
        4,
        ["http://127.0.0.1:9", "running"],
    ),
    "no such protocol": (
        ["harvest", "texts", "--server", "http://a", "--out", "o", "--protocol", "llama"],
        2,
        ["--protocol", "llama"],
    ),
    "no such kind": (
        ["plot", "out/a.harvest.nc", "--out", "a.png", "--kind", "curv"],
        2,
        ["'curve'"],
    ),
    "plot of a harvest": (["plot", "out/a.harvest.nc", "--out", "a.png"], 3, ["a.harvest.nc"]),
    "bad select": (
        ["plot", "out/a.harvest.nc", "--out", "a.png", "--select", "min_p"],
        2,
        ["--select min_p"],
    ),
    "unknown over": (["optimize", "out/a.harvest.nc", "--over", "temp"], 2, ["--over", "temp"]),
    "no over": (["optimize", "out/a.harvest.nc", "--over", ","], 2, ["--over", "empty"]),
    "fixed twice": (
        ["optimize", "out/a.harvest.nc", "--fixed", "min_p=0.1", "min_p=0.2"],
        2,
        ["min_p=0.2", "twice"],
    ),
    "a setting without a number": (
        ["explain-token", "out/a.harvest.nc", "--at", "0", "--set", "min_p=x"],
        2,
        ["--set min_p=x", "name=value"],
    ),
    "a setting twice": (
        ["compare", "out/a.harvest.nc", "--setting", "min_p=0,min_p=0.1"],
        2,
        ["--setting min_p=0.1", "twice"],
    ),
    "a setting that is not allowed": (
        ["compare", "out/a.harvest.nc", "--setting", "min_p=2"],
        2,
        ["--setting min_p: 2.0", "at most 1"],
    ),
    "no known setting": (
        ["compare", "out/a.harvest.nc", "--setting", "neutrl"],
        2,
        ["did you mean 'neutral'?", "name=value"],
    ),
    "a page of another kind": (
        ["report", "out/a.harvest.nc", "--out", "r.pdf"],
        2,
        ["'r.pdf'", ".html"],
    ),
    "fewer rows than none": (
        ["explain-token", "out/a.harvest.nc", "--at", "0", "--rows", "-3"],
        2,
        ["--rows", "-3"],
    ),
    "empty argument": (["prepare", "t.csv", "--out", ""], 2, ["empty"]),
    "half a passage": (["prepare", "t.csv", "--out", "o", "--limit", "1.5"], 2, ["--limit", "1.5"]),
    "no bounds": (
        ["optimize", "out/a.harvest.nc", "--bounds", "temperature=2"],
        2,
        ["--bounds temperature=2", "low:high"],
    ),
    "bounds of a cut": (
        ["optimize", "out/a.harvest.nc", "--bounds", "min_p=0:0.5"],
        2,
        ["bounds", "min_p"],
    ),
    "half a start": (["optimize", "out/a.harvest.nc", "--starts", "2.5"], 2, ["--starts", "2.5"]),
    "no time": (
        ["harvest", "texts", "--server", "http://a", "--out", "o", "--timeout-s", "-1"],
        2,
        ["timeout_s", "-1"],
    ),
    "no patience": (
        ["harvest", "texts", "--server", "http://a", "--out", "o", "--patience-s", "nan"],
        2,
        ["patience_s", "nan"],
    ),
    "a folder": (["show", "out"], 2, ["out", "folder"]),
    "a config as the output": (["sweep", "c.toml", "--out", "c.toml"], 2, ["c.toml", "config"]),
    "a folder as the output": (["sweep", "c.toml", "--out", "out"], 2, ["'out'", "folder"]),
    "a harvest as the output": (
        ["sweep", "c.toml", "--out", "out/a.harvest.nc"],
        2,
        ["a.harvest.nc", "jaxsppl-harvest/1"],
    ),
    "one harvest twice": (
        ["compare", "out/a.harvest.nc", "out"],
        2,
        ["two harvests", "give one"],
    ),
    "order as text": (
        ["sweep", "c.toml", "--set", "chain.order=temperature"],
        2,
        ["chain.order", "give a list"],
    ),
    "which to hold": (
        ["optimize", "c.toml", "--over", "alpha"],
        2,
        ["grid.temperature", "--fixed temperature"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_a_code(place: Path, case: str) -> None:
    (place / "t.csv").write_text("text\n" + "word " * 500)
    words, code, parts = MISTAKES[case]
    done = jaxsppl(*words)
    assert done.returncode == code, done.stderr
    line = one_line(done)
    for part in parts:
        assert part in line


def test_a_damaged_file_is_code_3_for_every_reader(place: Path) -> None:
    damage(place / "out/a.harvest.nc")
    for words in (
        ["show", "out/a.harvest.nc"],
        ["check", "out/a.harvest.nc"],
        ["sweep", "c.toml"],
        ["optimize", "out/a.harvest.nc"],
    ):
        done = jaxsppl(*words)
        assert done.returncode == 3
        assert "not a readable NetCDF file" in one_line(done)


def test_check_examines_every_file_before_it_ends(place: Path) -> None:
    (place / "bad.toml").write_text("[grid]\nmin_p = 2")
    (place / "text.nc").write_text("not NetCDF")
    words = ["check", "bad.toml", "text.nc", "c.toml", "out/a.harvest.nc", "texts", "missing.nc"]
    done = jaxsppl(*words)
    assert done.returncode == 3
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "bad.toml",
        "text.nc",
        "missing.nc",
    ]
    assert [line.split(":")[1].strip() for line in done.stdout.splitlines()] == [
        "c.toml",
        "out/a.harvest.nc",
        "texts",
    ]
    assert jaxsppl("check", "bad.toml").returncode == 2
    found = json.loads(jaxsppl(*words, "--json").stdout)["files"]
    assert [entry["ok"] for entry in found] == [False, False, True, True, True, False]


def test_show_gives_text_markdown_and_one_json_object(place: Path) -> None:
    text = jaxsppl("show", "out/a.harvest.nc")
    assert (text.returncode, text.stderr) == (0, "")
    assert "tiny on noise" in text.stdout
    assert "| tokens |" in jaxsppl("show", "out/a.harvest.nc", "--markdown").stdout
    data = json.loads(jaxsppl("show", "out/a.harvest.nc", "--json").stdout)
    assert data["files"][0]["n_token"] == 40


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(place: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command in this process, where jax is loaded and warm: code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        return (code, *capsys.readouterr())

    return run


def test_sweep_plans_then_computes_and_shows(place: Path, here: Said) -> None:
    code, out, _ = here("sweep", "c.toml", "--dry-run")
    assert code == 0
    assert "4 of each of 1 harvest" in out
    assert not (place / "out/c.sweep.nc").exists()
    plans = json.loads(here("sweep", "c.toml", "--dry-run", "--json")[1])["plans"]
    assert plans["out/c.sweep.nc"]["n_point"] == 4
    code, out, err = here("sweep", "c.toml", "--set", "grid.min_p=[0, 0.1, 0.2]")
    assert code == 0, err
    assert "--samplers" in out
    assert store.read_sweep("out/c.sweep.nc").sizes["min_p"] == 3
    assert here("plot", "out/c.sweep.nc", "--out", "p/c.svg")[1].strip() == "p/c.svg"
    assert (place / "p/c.svg").read_text().startswith("<?xml")
    held = here("plot", "out/c.sweep.nc", "--out", "p/d.png", "--select", "min_p=0.1", "--json")
    assert json.loads(held[1]) == {"figures": ["p/d.png"]}


def test_sweep_with_an_output_of_its_own_and_several_orders(place: Path, here: Said) -> None:
    (place / "o.toml").write_text(
        CONFIG + '[chain.orders]\na = ["temperature", "min_p"]\nb = ["min_p", "temperature"]\n'
    )
    code, out, err = here("sweep", "o.toml", "--out", "x/y.sweep.nc", "--json")
    assert code == 0, err
    assert json.loads(out)["written"] == ["x/y.a.sweep.nc", "x/y.b.sweep.nc"]
    assert store.read_sweep("x/y.a.sweep.nc").attrs["chain"] == "temperature,min_p"
    assert store.read_sweep("x/y.b.sweep.nc").attrs["chain"] == "min_p,temperature"


def test_optimize_writes_its_file_and_every_start(place: Path, here: Said) -> None:
    code, out, err = here(
        "optimize", "out/a.harvest.nc", "--over", "temperature", "--fixed", "min_p=0.05",
        "--starts", "4", "--out", "o.optimum.nc", "--csv", "o.csv", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["written"] == "o.optimum.nc"
    assert len((place / "o.csv").read_text().splitlines()) == 5
    assert here("check", "o.optimum.nc")[0] == 0


def test_prepare_says_what_it_skipped(place: Path) -> None:
    rows = [json.dumps({"text": text}) for text in ("", "short", "word " * 400)]
    (place / "t.jsonl").write_text("\n".join(rows))
    done = jaxsppl("prepare", "t.jsonl", "--out", "p", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["passages"] == 1
    assert sum(data["skipped"].values()) == 2
    assert "skipped: " in done.stderr
    assert json.loads(jaxsppl("prepare", "t.jsonl", "--out", "p", "--json").stdout)["was_prepared"]


def modules_after(words: list[str]) -> set[str]:
    """Names of the modules that a command loads."""
    code = (
        "import sys, json, io, contextlib\n"
        "from jaxsppl.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(sys.argv[1:])\n"
        "print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_help_check_and_show_load_nothing_heavy(place: Path) -> None:
    store.write_dataset(sweep_file(), place / "out/c.sweep.nc")
    for words in (
        ["--help"],
        ["sweep", "--help"],
        ["--version"],
        ["check", "c.toml", "out/a.harvest.nc", "out/c.sweep.nc", "texts", "out"],
        ["show", "out/a.harvest.nc", "out/c.sweep.nc", "--json"],
        ["show", "out/c.sweep.nc"],
    ):
        assert modules_after(words) & HEAVY == set(), words


def test_compiled_programs_are_kept_for_the_next_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = place / "cache"
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    first = jaxsppl("sweep", "c.toml", JAXSPPL_CACHE=str(cache))
    kept = {file: file.stat().st_mtime_ns for file in (cache / "compiled").rglob("*-cache")}
    assert len(kept) > 1
    # What a kill leaves: one that has no time yet. Another one has to be stored beside it.
    torn, absent = list(kept)[:2]
    torn.write_bytes(torn.read_bytes()[:99])
    for file in (torn, absent):
        os.utime(file, (0, 0))
    for file in (absent, *(Path(str(one)[: -len("cache")] + "atime") for one in (torn, absent))):
        file.unlink()
    again = jaxsppl("sweep", "c.toml", JAXSPPL_CACHE=str(cache))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout
    made = {file for file, when in kept.items() if file.stat().st_mtime_ns != when}
    assert made == {torn, absent}
    (place / "file").write_text("no folder")
    without = jaxsppl("sweep", "c.toml", JAXSPPL_CACHE=str(place / "file"))
    assert (without.returncode, without.stdout) == (0, first.stdout)


def test_every_command_has_help_and_json() -> None:
    top = jaxsppl("--help").stdout
    for command in (
        "prepare", "harvest", "import-kld", "sweep", "optimize", "show", "explain-token", "plot",
        "run", "check", "demo", "export", "import-preset", "report",
    ):  # fmt: skip
        assert command in top
        page = jaxsppl(command, "--help")
        assert page.returncode == 0
        assert "--json" in page.stdout


def test_a_reader_that_has_seen_enough_is_no_error(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "jaxsppl", "show", *["out/a.harvest.nc"] * 200],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def in_shell(command: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of the shell in which `jaxsppl` is the command."""
    line = f'jaxsppl() {{ "{sys.executable}" -m jaxsppl "$@"; }}; set -o pipefail; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("jaxsppl --help | head -n 1 >&2", 0, "Usage: jaxsppl COMMAND"),
        ("jaxsppl show out/a.harvest.nc >&-", 0, ""),
        ("jaxsppl show out/a.harvest.nc 2>&- >/dev/null", 0, ""),
        ("jaxsppl show missing.nc 2>&-", 2, ""),
        ("jaxsppl show out/a.harvest.nc >/dev/full", 1, "No space left on device"),
    ],
)
def test_odd_standard_streams_cost_no_traceback(
    place: Path, command: str, code: int, words: str
) -> None:
    done = in_shell(command)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)


def test_names_that_the_terminal_cannot_show_are_escaped(place: Path) -> None:
    name = "ä☃.harvest.nc"
    (place / "out/a.harvest.nc").rename(place / name)
    words = jaxsppl("check", name, PYTHONIOENCODING="ascii")
    assert words.returncode == 0
    assert r"\xe4\u2603.harvest.nc" in words.stdout
    data = json.loads(jaxsppl("check", name, "--json", PYTHONIOENCODING="ascii").stdout)
    assert data["files"][0]["path"] == name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_says_how_to_resume_and_leaves_nothing(
    place: Path, number: signal.Signals
) -> None:
    """A sweep that would take minutes, stopped at once and, if that is too early, again."""
    grid = "grid.temperature={start=0.1, stop=9, num=4000}"
    beta = "grid.beta={start=0.1, stop=9, num=400}"
    with subprocess.Popen(
        [sys.executable, "-m", "jaxsppl", "sweep", "c.toml", "--set", grid, "--set", beta],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lock = place / "out/.c.sweep.nc.lock"
        for _ in range(600):
            if lock.exists():
                break
            time.sleep(0.1)
        for _ in range(6):
            process.send_signal(number)
            try:
                out, err = process.communicate(timeout=15)
                break
            except subprocess.TimeoutExpired:
                # It fell into a callback of an import, where Python has to drop it.
                continue
    assert process.returncode == 130
    assert out == ""
    assert "interrupted; run the same command again to resume" in err
    assert "Traceback" not in err
    assert sorted(file.name for file in (place / "out").iterdir()) == ["a.harvest.nc"]


class Broken(Exception):
    """An error that nobody foresaw."""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (IncompleteError("a"), 1, "a"),
        (ServerError("b"), 4, "b"),
        (MemoryError(), 1, "memory"),
        (OSError(5, "Input/output error", "a.nc"), 1, "'a.nc': Input/output error"),
        (KeyboardInterrupt(), 130, "resume"),
        (Broken("c"), 1, "unexpected Broken: c"),
    ],
)
def test_every_error_has_words_and_a_code(error: BaseException, code: int, words: str) -> None:
    message, found = explain_error(error)
    assert found == code
    assert words in message


def test_the_traceback_is_shown_on_request(place: Path) -> None:
    done = jaxsppl("sweep", "missing.toml", JAXSPPL_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("jaxsppl: missing.toml")


def test_the_api_key_is_never_repeated(place: Path) -> None:
    done = jaxsppl(
        "harvest", "texts", "--server", "http://127.0.0.1:9", "--out", "o", JAXSPPL_API_KEY="s3cret"
    )
    assert done.returncode == 4
    assert "s3cret" not in done.stderr + done.stdout
