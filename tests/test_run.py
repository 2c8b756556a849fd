"""A whole config, prepare to table: what is there is not done again, what is stale is."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small import harvest

from jaxsppl import cli, config, journal, results, store
from jaxsppl.check import check
from jaxsppl.demo import demo, shipped_harvests
from jaxsppl.errors import ConfigError
from jaxsppl.harvest.local import free_port
from jaxsppl.run import RunReport, run

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command in this process: code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    """A small sweep of one harvest."""
    store.write_dataset(harvest(), tmp_path / "in/a.harvest.nc")
    return make(tmp_path)


def make(folder: Path, **changes: str) -> config.Config:
    """A config with some keys set."""
    keys = {
        "grid.temperature": "[0.5, 1.0]",
        "grid.min_p": "[0.0, 0.1]",
        "run.out": f"{folder.as_posix()}/out",
        "run.input": json.dumps([f"{folder.as_posix()}/in/*.harvest.nc"]),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    raw: dict[str, object] = {"name": "r"}
    for key, value in keys.items():
        config.apply_override(raw, f"{key}={value}")
    return config.build(raw)


def made(report: RunReport) -> list[str]:
    """Names of the files that were made."""
    return [step.path.name for step in report.steps if step.made]


REPORTS = ["r.curve.png", "r.tradeoff.png", "r.heat.png", "r.groups.png", "r.html"]


def test_a_run_makes_all_once_and_then_only_what_is_missing(
    tmp_path: Path, settings: config.Config
) -> None:
    said: list[str] = []
    assert made(run(settings, said.append)) == ["r.sweep.nc", "r.csv", *REPORTS]
    assert any(line.startswith("sweep: ") for line in said)
    again = run(settings)
    assert made(again) == []
    assert [step.path.name for step in again.steps] == ["r.sweep.nc", "r.csv", *REPORTS]
    (tmp_path / "out/r.heat.png").unlink()
    assert made(run(settings)) == ["r.heat.png"]
    (tmp_path / "out/r.sweep.nc").write_bytes(b"damaged")
    assert made(run(settings)) == ["r.sweep.nc", "r.csv", *REPORTS]


def test_what_changes_a_number_makes_the_sweep_anew_and_nothing_else_does(
    tmp_path: Path, settings: config.Config
) -> None:
    path = results.sweep_paths(settings)[""]
    files = [tmp_path / "in/a.harvest.nc"]
    order = settings.order()
    results.sweep_to(path, settings, order, files)
    assert results.sweep_is_current(path, settings, order, files)
    for same in ({"run__memory_mib": "512"}, {"texts__limit": "3"}, {"optimize__starts": "5"}):
        assert results.sweep_is_current(path, make(tmp_path, **same), order, files), same
    for other in (
        {"grid__min_p": "[0.0, 0.2]"},
        {"grid__top_k": "[0, 5]"},
        {"objective__epsilon": "0.02"},
        {"objective__tail": '"drop"'},
        {"run__tolerance": "1e-6"},
    ):
        assert not results.sweep_is_current(path, make(tmp_path, **other), order, files), other
    assert not results.sweep_is_current(path, settings, tuple(reversed(order)), files)
    store.write_dataset(harvest(seed=1), tmp_path / "in/b.harvest.nc")
    assert not results.sweep_is_current(path, settings, order, [tmp_path / "in/b.harvest.nc"])
    assert not results.sweep_is_current(path, settings, order, [])


def test_where_to_compute_is_checked_before_anything_else(
    tmp_path: Path, settings: config.Config
) -> None:
    path = results.sweep_paths(settings)[""]
    with pytest.raises(ConfigError, match="dask: 'nowhere' is no address"):
        results.sweep_to(path, settings, settings.order(), [tmp_path / "none.nc"], dask="nowhere")


def test_the_first_ctrl_c_waits_for_a_place_where_it_is_safe_and_the_second_does_not() -> None:
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with (
        pytest.raises(KeyboardInterrupt),
        results.stoppable(lambda done, total: seen.append(done)) as told,
    ):
        told(1, 4)
        signal.raise_signal(signal.SIGINT)
        seen.append(2)
        told(3, 4)
        seen.append(4)
    assert seen == [1, 2, 3]
    with pytest.raises(KeyboardInterrupt), results.stoppable(lambda done, total: None):
        signal.raise_signal(signal.SIGINT)
        seen.append(5)
    with pytest.raises(KeyboardInterrupt), results.stoppable(lambda done, total: None):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        seen.append(6)
    assert seen == [1, 2, 3, 5]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_optimum_is_part_of_a_run(tmp_path: Path, settings: config.Config) -> None:
    del settings
    wanted = make(
        tmp_path, optimize__over='["temperature"]', optimize__starts="3", grid__min_p="[0.05]"
    )
    first = run(wanted)
    assert "r.optimum.nc" in made(first)
    assert (tmp_path / "out/r.optimum.csv").is_file()
    assert check(tmp_path / "out/r.optimum.nc").startswith("optimum over temperature")
    assert made(run(wanted)) == []
    more = make(
        tmp_path, optimize__over='["temperature"]', optimize__starts="4", grid__min_p="[0.05]"
    )
    assert made(run(more)) == ["r.optimum.nc", "r.html"]


def test_samplers_with_axes_of_their_own_are_ranked_in_one_figure(tmp_path: Path) -> None:
    store.write_dataset(harvest(n_document=6), tmp_path / "in/a.harvest.nc")
    settings = make(
        tmp_path, chain__own_axes="true", grid__top_k="[0, 3]", objective__tail="'drop'",
        chain__orders='{m = ["min_p", "temperature"], k = ["top_k", "temperature"]}',
        decide__resamples="100",
    )  # fmt: skip
    assert run(settings).problems == []
    out = tmp_path / "out"
    assert {file.name for file in out.glob("*.png")} == {"r.shootout.png"}
    assert {file.name for file in out.glob("*.sweep.nc")} == {"r.m.sweep.nc", "r.k.sweep.nc"}
    swept = store.read_sweep(out / "r.k.sweep.nc")
    assert swept["nll"].dims == ("model", "dataset", "temperature", "top_k")
    assert not [step for step in run(settings).steps if step.made]


def test_two_runs_of_one_folder_never_mix(settings: config.Config) -> None:
    with (
        journal.lock(Path(settings.run.out) / "run"),
        pytest.raises(ConfigError, match=f"process {os.getpid()}"),
    ):
        run(settings)


SWEEPER = """
import sys
from pathlib import Path
from jaxsppl import config, results
settings = config.load(sys.argv[1], environment={})
files = results.input_files(settings)
results.sweep_to(Path(sys.argv[2]) / "warm.sweep.nc", settings, settings.order(), files)
print("ready", flush=True)
while True:
    results.sweep_to(results.sweep_paths(settings)[""], settings, settings.order(), files)
"""


def test_a_killed_sweep_leaves_a_whole_file_or_none_and_is_resumed(tmp_path: Path) -> None:
    store.write_dataset(harvest(n_token=400), tmp_path / "out/a.harvest.nc")
    file = tmp_path / "k.toml"
    file.write_text(
        f"[grid]\ntemperature = {{start = 0.5, stop = 1.5, num = 60}}\nmin_p = [0, 0.1, 0.2]\n"
        f'[run]\nout = "{tmp_path.as_posix()}/out"\n'
    )
    settings = config.load(file, environment={})
    path = results.sweep_paths(settings)[""]
    whole = results.sweep_to(
        tmp_path / "whole.sweep.nc",
        settings,
        settings.order(),
        results.input_files(settings),
    )
    rng = random.Random(1)
    for _ in range(4):
        path.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", SWEEPER, str(file), str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.6))
            process.send_signal(signal.SIGKILL)
        if path.exists():
            np.testing.assert_array_equal(store.read_sweep(path)["nll"], whole["nll"])
        results.sweep_to(path, settings, settings.order(), results.input_files(settings))
        np.testing.assert_array_equal(store.read_sweep(path)["nll"], whole["nll"])


def test_prepare_harvest_sweep_show_plot_with_a_real_server(
    tmp_path: Path, llama_server: str, command: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--prefix-chars", "120", "--continuation-chars", "240")
    words = ("python:prose", "--out", "t", "--name", "prose", "--limit", "2", *short)
    code, out, _ = command("prepare", *words, "--json")
    assert (code, json.loads(out)["passages"]) == (0, 2)
    code, out, err = command("harvest", "t", "--server", llama_server, "--out", "o", "--json")
    assert code == 0, err
    (one,) = json.loads(out)["harvests"]
    assert one["n_document"] == 2
    file = one["path"]
    assert command("check", file)[0] == 0
    shown = json.loads(command("show", file, "--json")[1])["files"][0]
    read = store.read_harvest(file)
    perplexity = float(np.exp(-read["token_logprob"].astype("f8").mean()))
    assert shown["perplexity"] == pytest.approx(perplexity, rel=1e-12)
    n_byte = sum(len(path.read_bytes()) for path in Path("t").glob("*.continuation.txt"))
    assert shown["n_byte"] == n_byte
    Path("c.toml").write_text("[grid]\ntemperature = [0.5, 1.0]\n[objective]\nepsilon = 1e-12\n")
    code, out, err = command("sweep", "c.toml", "--input", "o", "--out", "c.sweep.nc", "--json")
    assert code == 0, err
    sweep = store.read_sweep("c.sweep.nc")
    plain = sweep["nll"].sel(temperature=1.0, dataset="prose").item()
    assert np.exp(plain) == pytest.approx(perplexity, abs=1e-6 * perplexity)
    assert f"{perplexity:.4g}" in command("show", "c.sweep.nc")[1]
    assert command("plot", "c.sweep.nc", "--out", "c.png")[0] == 0
    code, out, _ = command("harvest", "t", "--server", llama_server, "--out", "o", "--json")
    assert json.loads(out)["harvests"][0]["skipped"]


def test_run_with_a_real_server_and_then_without_one(
    tmp_path: Path, llama_server: str, command: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(
        """
        [texts]
        limit = 1
        prefix_chars = 120
        continuation_chars = 240
        [texts.datasets]
        prose = "python:prose"
        code = "python:code"
        [grid]
        temperature = [0.5, 1.0]
        """
    )
    code, out, err = command("run", "r.toml", "--server", llama_server, "--json")
    assert code == 0, err
    first = json.loads(out)
    assert [step["what"] for step in first["steps"] if step["made"]] == [
        "texts", "texts", "harvest", "harvest", "sweep", "table", "figure", "figure", "figure",
        "report",
    ]  # fmt: skip
    model = first["files"][0]["rows"][0]["model"]
    again = json.loads(command("run", "r.toml", "--server", llama_server, "--json")[1])
    assert not any(step["made"] for step in again["steps"])
    # With the model named, nobody needs to be asked.
    away = f"http://127.0.0.1:{free_port()}"
    named = ("--set", f'server.models=["{model}"]')
    code, out, err = command("run", "r.toml", "--server", away, "--json", *named)
    assert code == 0, err
    assert not any(step["made"] for step in json.loads(out)["steps"])
    # Without, the run goes on with what is there and says that it is not complete.
    code, out, err = command("run", "r.toml", "--server", away, "--json")
    assert code == 1
    assert "going on with the harvests that are there" in err
    assert [step["what"] for step in json.loads(out)["steps"]].count("harvest") == 2
    # Other texts in the same folder are refused, unless they are meant.
    other = ("--set", "texts.seed=1", "--server", llama_server, "--json")
    code, out, err = command("run", "r.toml", *other)
    assert code == 2
    assert "was made with other texts" in err
    assert command("run", "r.toml", *other, "--force")[0] == 0


def test_the_demo_works_where_no_server_can_run(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_path.is_file()
    monkeypatch.setenv("JAXSPPL_LLAMA_SERVER", str(tmp_path / "no-such-program"))
    said: list[str] = []
    report = demo(tmp_path / "demo", tell=said.append)
    assert any("no server can run here" in line for line in said)
    assert report.problems == []
    (sweep,) = report.paths("sweep")
    shipped = {store.read_contents(file).attrs["digest"] for file in shipped_harvests()}
    used = json.loads(store.read_sweep(sweep).attrs["harvests_json"])
    assert {entry["fingerprint"] for entry in used} == shipped
    assert made(demo(tmp_path / "demo")) == []


def test_a_port_that_answers_something_else_is_named(tmp_path: Path, command: Said) -> None:
    (tmp_path / "0.prefix.txt").write_text("Once upon a")
    (tmp_path / "0.continuation.txt").write_text(" time")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.settimeout(20)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        code, _, err = command(
            "harvest", str(tmp_path), "--server", url, "--out", str(tmp_path / "o"),
            "--timeout-s", "1", "--patience-s", "1",
        )  # fmt: skip
    assert code == 4
    assert url in err
