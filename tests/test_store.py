"""Files survive whatever happens: killed writers, open readers, damaged and foreign files."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from small import harvest, sweep_file

import jaxsppl
from jaxsppl import journal, schema, store
from jaxsppl.atomic import atomic_path
from jaxsppl.errors import ConfigError, IncompleteError, MissingFileError, SchemaError

TESTS = Path(__file__).parent

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import small
from jaxsppl import store
print("ready", flush=True)
for seed in range(1, 1000):
    store.write_dataset(small.harvest(n_token=4000, seed=seed), sys.argv[2])
"""


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = harvest()
    store.write_dataset(written, tmp_path / "a.harvest.nc")
    read = jaxsppl.open_harvest(tmp_path / "a.harvest.nc")
    assert isinstance(read, xr.Dataset)
    xr.testing.assert_equal(read, written)
    assert read.attrs["n_vocab"] == written.attrs["n_vocab"]
    assert read["document"].values.tolist() == ["d0", "d1", "d2"]


def test_another_program_reads_the_same(tmp_path: Path) -> None:
    written = harvest()
    store.write_dataset(written, tmp_path / "a.harvest.nc")
    with xr.open_dataset(tmp_path / "a.harvest.nc", engine="h5netcdf") as other:
        xr.testing.assert_equal(other.load(), written)


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.harvest.nc"
    store.write_dataset(harvest(n_token=4000, seed=0), target)
    rng = random.Random(0)
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(TESTS), str(target)],
            stdout=subprocess.PIPE,
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.3))
            writer.send_signal(signal.SIGKILL)
        assert store.read_harvest(target).sizes["token"] == 4000  # checks digest and every law


def test_a_reader_in_another_process_keeps_its_file(tmp_path: Path) -> None:
    target = tmp_path / "a.harvest.nc"
    store.write_dataset(harvest(seed=0), target)
    reader = (
        "import netCDF4, sys\n"
        "f = netCDF4.Dataset(sys.argv[1]); print('open', flush=True); sys.stdin.readline()\n"
        "print(float(f['token_logprob'][...].sum()))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        store.write_dataset(harvest(seed=1), target)
        out, _ = process.communicate("\n")
    old = float(harvest(seed=0)["token_logprob"].values.sum())
    assert float(out) == pytest.approx(old, rel=1e-5)
    new = store.read_harvest(target)["token_logprob"]
    xr.testing.assert_equal(new, harvest(seed=1)["token_logprob"])


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "a.harvest.nc"
    store.write_dataset(harvest(), target)
    before = target.read_bytes()
    with pytest.raises(RuntimeError), atomic_path(target, schema.HARVEST) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    wall = tmp_path / "file"
    wall.write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot write"):
        store.write_dataset(harvest(), wall / "a.harvest.nc")
    with pytest.raises(ConfigError, match="cannot write"):
        store.write_text(wall / "x.txt", "a")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other.harvest.nc", None, schema.HARVEST),
        ("my.toml", b"[grid]\n", "a sweep config"),
        ("notes.txt", b"notes", "a file"),
        ("folder", None, "a folder"),
        ("link", None, "a device"),
    ],
)
def test_a_sweep_never_takes_the_place_of_something_else(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    target = tmp_path / name
    if content is not None:
        target.write_bytes(content)
    elif name == "folder":
        target.mkdir()
    elif name == "link":
        target.symlink_to(os.devnull)
    else:
        store.write_dataset(harvest(), target)
    before = target.read_bytes() if target.is_file() else None
    with pytest.raises(ConfigError, match=f"'{target}': {words} is there"):
        store.write_dataset(sweep_file(), target)
    assert not target.is_file() or target.read_bytes() == before


def test_what_is_of_its_kind_or_of_none_is_replaced(tmp_path: Path) -> None:
    store.write_dataset(sweep_file(), tmp_path / "a.sweep.nc")
    (tmp_path / "half.nc").write_bytes((tmp_path / "a.sweep.nc").read_bytes()[:1000])
    (tmp_path / "junk.nc").write_bytes(b"junk")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a.sweep.nc")
    for name in ("a.sweep.nc", "half.nc", "junk.nc", "empty", "link"):
        store.write_dataset(sweep_file(), tmp_path / name)
        store.read_sweep(tmp_path / name)
    assert (tmp_path / "link").is_symlink()
    store.write_text(tmp_path / "a.txt", "a")
    store.write_text(tmp_path / "a.txt", "b")
    assert (tmp_path / "a.txt").read_text() == "b"
    with pytest.raises(ConfigError, match=schema.SWEEP):
        store.write_text(tmp_path / "link", "c")


def test_a_read_only_folder_is_named() -> None:
    """Root may write anywhere, so the writer gives up that right first."""
    code = (
        "import os, sys\n"
        "from jaxsppl import store\n"
        "from jaxsppl.errors import ConfigError\n"
        "from pathlib import Path\n"
        "if os.getuid() == 0: os.seteuid(65534)\n"
        "try: store.write_text(Path(sys.argv[1]) / 'x.txt', 'a')\n"
        "except ConfigError as error: print(error)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
        )
        assert list(Path(folder).iterdir()) == []
    assert "cannot write" in done.stdout
    assert "ermission denied" in done.stdout


def damage_text(file: Path) -> None:
    file.write_text("this was a text file")


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_tail(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def edit(change: Callable[[netCDF4.Dataset], object]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        with netCDF4.Dataset(file, "a") as opened:
            opened.set_auto_mask(False)
            change(opened)

    return apply


def shuffle(name: str) -> Callable[[Path], None]:
    def change(opened: netCDF4.Dataset) -> None:
        values = opened[name][...]
        opened[name][...] = np.random.default_rng(0).permutation(values)

    return edit(change)


def overwrite(name: str, place: tuple[int, ...], value: float) -> Callable[[Path], None]:
    def change(opened: netCDF4.Dataset) -> None:
        opened[name][place] = value

    return edit(change)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "text renamed": damage_text,
    "empty": damage_empty,
    "half": damage_half,
    "tail cut off": damage_tail,
    "shuffled top_logprob": shuffle("top_logprob"),
    "shuffled token_logprob": shuffle("token_logprob"),
    "shuffled token_id": shuffle("token_id"),
    "shuffled token_rank": shuffle("token_rank"),
    "shuffled document_index": shuffle("document_index"),
    "shuffled token_bytes": shuffle("token_bytes"),
    "one value": overwrite("token_bytes", (3,), 77),
    "NaN": overwrite("top_logprob", (3, 4), np.nan),
    "other schema": edit(lambda opened: opened.setncattr("schema", "other/1")),
    "no schema": edit(lambda opened: opened.delncattr("schema")),
    "not complete": edit(lambda opened: opened.setncattr("complete", 0)),
    "odd complete": edit(lambda opened: opened.setncattr("complete", "yes")),
    "renamed variable": edit(lambda opened: opened.renameVariable("token_id", "token")),
    "renamed dimension": edit(lambda opened: opened.renameDimension("rank", "place")),
    "no vocabulary": edit(lambda opened: opened.delncattr("n_vocab")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "a.harvest.nc"
    store.write_dataset(harvest(), file)
    DAMAGES[damage](file)
    with pytest.raises(SchemaError, match=r"a\.harvest\.nc") as caught:
        store.read_harvest(file)
    assert "\n" not in str(caught.value)


LAWS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "sum above 1": lambda d: d.assign(top_logprob=d.top_logprob + np.float32(0.5)),
    "above 0": lambda d: d.assign(token_logprob=d.token_logprob + np.float32(50)),
    "shuffled ranks": lambda d: d.assign(token_rank=d.token_rank.roll(token=1)),
    "shuffled ids": lambda d: d.assign(token_id=d.token_id.roll(token=1)),
    "reversed": lambda d: d.assign(top_logprob=d.top_logprob.copy(data=d.top_logprob[:, ::-1])),
    "documents out of order": lambda d: d.assign(document_index=d.document_index[::-1]),
    "document out of range": lambda d: d.assign(document_index=d.document_index + 1),
    "double precision text": lambda d: d.assign(token_id=d.token_id.astype("f8")),
    "id twice": lambda d: d.assign(top_token_id=d.top_token_id * 0),
    "no token": lambda d: d.isel(token=slice(0, 0)),
    "vocabulary too small": lambda d: d.assign_attrs(n_vocab=10),
    "names twice": lambda d: d.assign_coords(document=["a", "a", "b"]),
    "rank from 0": lambda d: d.assign_coords(rank=d["rank"] - 1),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_harvest_that_breaks_a_law_is_refused_though_its_digest_fits(
    tmp_path: Path, law: str
) -> None:
    file = tmp_path / "a.harvest.nc"
    store.write_dataset(LAWS[law](harvest(n_vocab=40)), file)
    with pytest.raises(SchemaError):
        store.read_harvest(file)


def test_a_glob_a_folder_and_a_list_open_the_same(tmp_path: Path) -> None:
    for dataset in ("b", "a"):
        store.write_dataset(harvest(dataset=dataset), tmp_path / f"{dataset}.harvest.nc")
    for source in (tmp_path, f"{tmp_path}/*.nc", [tmp_path / "a.harvest.nc", harvest(dataset="b")]):
        opened = jaxsppl.open_harvest(source)
        assert [str(d["dataset"].values) for d in opened] == ["a", "b"]


def test_one_pair_twice_and_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two harvests"):
        jaxsppl.open_harvest([harvest(), harvest(seed=1)])
    for nothing in (tmp_path, f"{tmp_path}/*.nc", tmp_path / "missing.nc"):
        with pytest.raises(MissingFileError, match=str(tmp_path)):
            jaxsppl.open_harvest(nothing)
    with pytest.raises(ConfigError, match="no harvest was given"):
        jaxsppl.open_harvest([])


@pytest.mark.parametrize("source", [5, None, [5], {"a": 1}])
def test_what_is_no_harvest_is_named(source: Any) -> None:
    with pytest.raises(ConfigError, match="is no harvest; give a file's name"):
        jaxsppl.open_harvest(source)


@given(st.text(min_size=1, max_size=300))
def test_a_safe_name_is_a_file_name_and_stays_apart(text: str) -> None:
    name = store.safe_name(text)
    assert name
    assert Path(name).name == name
    assert not name.startswith((".", "-"))
    assert len(name.encode()) < 200
    assert store.safe_name(text + "/") != name
    assert store.safe_name(name) == name


def nothing(place: int, record: dict[str, Any]) -> None:
    raise AssertionError(f"there should be no record, not {record} at {place}")


def test_a_journal_survives_a_torn_line_and_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    header = {"fingerprint": "f"}
    first = journal.Journal.open(path, header, nothing)
    for number in range(5):
        place = first.append({"number": number, "text": "é\u2028"})
        assert first.read(place)["number"] == number
    first.close()
    whole = path.read_bytes()
    for length in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        path.write_bytes(whole[:length])
        found: dict[int, int] = {}
        again = journal.Journal.open(
            path, header, lambda place, record, found=found: found.update({place: record["number"]})
        )
        n_whole = whole[:length].count(b"\n") - 1
        assert [*found.values()] == list(range(n_whole))
        assert all(again.read(place)["number"] == number for place, number in found.items())
        again.append({"number": n_whole, "text": "é\u2028"})
        again.close()
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: n_whole + 2])


def test_a_journal_of_another_run_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = journal.Journal.open(path, {"fingerprint": "f"}, nothing)
    first.append({"a": 1})
    first.close()
    journal.Journal.open(path, {"fingerprint": "g"}, nothing).close()
    assert b'"a":1' in path.with_name("j.jsonl.old").read_bytes()
    garbage = tmp_path / "g.jsonl"
    garbage.write_bytes(b"\x00\xff no json")
    journal.Journal.open(garbage, {"fingerprint": "f"}, nothing).close()


def test_a_journal_on_a_full_disk_says_so() -> None:
    full = journal.Journal(Path("/dev/full"), {"fingerprint": "f"})
    with pytest.raises(IncompleteError, match="No space left"):
        full.append({"a": 1})
    full.close()


HOLDER = """
import sys
from pathlib import Path
from jaxsppl import journal
with journal.lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_runs_never_write_one_output(tmp_path: Path) -> None:
    output = tmp_path / "a.harvest.nc"
    command = [sys.executable, "-c", HOLDER, str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigError, match=f"written by process {holder.pid} on"),
            journal.lock(output),
        ):
            pass
        holder.kill()
        holder.wait()
    with journal.lock(output):  # a killed owner blocks nobody
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_sees_values_and_not_the_order_of_keys() -> None:
    assert store.fingerprint({"a": 1, "b": [2]}) == store.fingerprint({"b": [2], "a": 1})
    assert store.fingerprint({"a": 1}) != store.fingerprint({"a": 1.5})
    with pytest.raises(ValueError, match="JSON"):
        store.fingerprint({"a": float("nan")})
    assert os.sep not in store.fingerprint({})
