"""Sweep configs: what is read, and that each mistake names its path and the way out."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsppl import config, parameters
from jaxsppl.axes import axis
from jaxsppl.errors import ConfigError

EXAMPLE = """
[texts]
limit = 7
[texts.datasets]
prose = "python:prose"
[server]
url = "http://127.0.0.1:9"
[grid]
temperature = {start = 0, stop = 2.5, step = 0.05}
min_p = [0, 0.05]
beta = {geomspace = [0.5, 2, 3]}
alpha = {start = 1, stop = 2, num = 3}
top_k = 40
"""


def write(folder: Path, text: str, name: str = "x.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_every_form_of_an_axis_is_read(tmp_path: Path) -> None:
    found = config.load(write(tmp_path, EXAMPLE), environment={})
    assert found.name == "x"
    assert len(found.grid["temperature"]) == 51
    assert found.grid["temperature"][3] == 0.15
    assert found.grid["temperature"][-1] == 2.5
    assert found.grid["min_p"] == [0.0, 0.05]
    assert found.grid["beta"] == [0.5, 1.0, 2.0]
    assert found.grid["alpha"] == [1.0, 1.5, 2.0]
    assert found.grid["top_k"] == [40.0]
    assert found.order() == ("top_k", "min_p", "temperature")


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, EXAMPLE)
    environment = {"JAXSPPL_TEXTS_LIMIT": "8", "JAXSPPL_SERVER_URL": "http://there:1"}
    axis = {"JAXSPPL_GRID_TOP_P": "[0.9, 1]"}
    assert config.load(file, environment=axis).grid["top_p"] == [0.9, 1.0]
    assert config.load(file, environment={}).texts.seed == 0
    assert config.load(file, environment={}).texts.limit == 7
    assert config.load(file, environment=environment).texts.limit == 8
    both = config.load(file, ["texts.limit=9", "grid.min_p=[0.1]"], environment)
    assert both.texts.limit == 9
    assert both.grid["min_p"] == [0.1]
    assert both.urls() == ["http://there:1"]


def test_an_override_may_be_plain_text_and_make_a_table(tmp_path: Path) -> None:
    file = write(tmp_path, "[grid]\ntemperature = 1\n")
    found = config.load(file, ["texts.datasets.code=python:code", "run.out=a b"], {})
    assert found.texts.datasets == {"code": "python:code"}
    assert found.run.out == "a b"


def test_several_orders_have_names(tmp_path: Path) -> None:
    text = """
    [chain.orders]
    first = ["temperature", "min_p"]
    last = ["min_p", "temperature"]
    [grid]
    temperature = 1
    min_p = 0.1
    """
    found = config.load(write(tmp_path, text), environment={})
    assert found.orders() == {
        "first": ("temperature", "min_p"),
        "last": ("min_p", "temperature"),
    }


def test_orders_with_their_own_axes_sweep_no_others(tmp_path: Path) -> None:
    text = """
    [chain]
    own_axes = true
    [chain.orders]
    a = ["min_p", "temperature"]
    b = ["temperature", "top_k"]
    [grid]
    temperature = [0.5, 1]
    min_p = [0, 0.1]
    top_k = [0, 5]
    epsilon = [0.01, 0.1]
    """
    found = config.load(write(tmp_path, text), environment={})
    assert {name: [*found.axes(order)] for name, order in found.orders().items()} == {
        "a": ["temperature", "min_p", "epsilon"],
        "b": ["temperature", "top_k", "epsilon"],
    }


# What is written, and what the one line must contain: the path of the key and the way out.
MISTAKES = {
    "unknown table": ("[gird]\na = 1", ["gird", "did you mean 'grid'?"]),
    "unknown axis": ("[grid]\ntemperatur = 1", ["grid", "temperatur", "'temperature'"]),
    "unknown key": ("[objective]\nepsilom = 1", ["objective.epsilom", "'epsilon'"]),
    "empty axis": ("[grid]\ntemperature = []", ["grid.temperature", "empty"]),
    "NaN": ("[grid]\ntemperature = [nan]", ["grid.temperature", "nan is not allowed"]),
    "infinite": ("[grid]\ntemperature = [inf]", ["grid.temperature", "inf is not allowed"]),
    "negative temperature": ("[grid]\ntemperature = -0.1", ["grid.temperature", "at least 0"]),
    "alpha of zero": ("[grid]\nalpha = [0.0]", ["grid.alpha", "above 0"]),
    "min_p above 1": ("[grid]\nmin_p = [1.5]", ["grid.min_p", "at most 1"]),
    "half a token": ("[grid]\ntop_k = [2.5]", ["grid.top_k", "whole number"]),
    "text in an axis": ('[grid]\nmin_p = ["a"]', ["grid.min_p", "not a number"]),
    "truth in an axis": ("[grid]\nmin_p = true", ["grid.min_p", "not a number"]),
    "value twice": ("[grid]\nmin_p = [0, 0.0]", ["grid.min_p", "twice"]),
    "half a range": ("[grid]\nmin_p = {start = 0, stop = 1}", ["grid.min_p", "{start, stop, num}"]),
    "range of no points": (
        "[grid]\nmin_p = {start = 0, stop = 1, num = 0}",
        ["grid.min_p", "num is 0"],
    ),
    "range backwards": (
        "[grid]\nmin_p = {start = 1, stop = 0, step = 0.1}",
        ["grid.min_p", "does not lead"],
    ),
    "range of NaN": ("[grid]\nmin_p = {start = 0, stop = nan, num = 2}", ["grid.min_p", "finite"]),
    "geomspace from 0": ("[grid]\nbeta = {geomspace = [0, 1, 3]}", ["grid.beta", "above 0"]),
    "grid is a value": ("grid = 3", ["grid", "[grid]"]),
    "table is a value": ("texts = 3", ["texts", "give a table"]),
    "wrong type": ('[texts]\nlimit = "many"', ["texts.limit", "give a whole number"]),
    "wrong choice": ('[objective]\ntail = "bond"', ["objective.tail", "did you mean 'bound'?"]),
    "limit of zero": ("[texts]\nlimit = 0", ["texts.limit", "at least 1"]),
    "timeout of NaN": ("[server]\ntimeout_s = nan", ["server.timeout_s", "at least 1"]),
    "tolerance of zero": ("[run]\ntolerance = 0.0", ["run.tolerance", "above 0"]),
    "epsilon of zero": ("[objective]\nepsilon = 0.0", ["objective.epsilon", "above 0"]),
    "unknown stage": ('[chain]\norder = ["min-p"]', ["chain.order", "'min_p'"]),
    "stage left out": (
        '[chain]\norder = ["min_p"]\n[grid]\ntemperature = 1',
        ["chain.order", "'temperature' is set"],
    ),
    "stage left out of one order": (
        '[chain.orders]\na = ["min_p"]\n[grid]\ntemperature = 1',
        ["chain.orders.a", "'temperature' is set"],
    ),
    "own axes of no order": ("[chain]\nown_axes = true", ["chain.own_axes", "[chain.orders]"]),
    "an axis of no order": (
        "[chain]\nown_axes = true\n[chain.orders]\na = ['min_p']\n[grid]\nmin_p = 0.1\ntop_k = 5",
        ["grid.top_k", "stage 'top_k'"],
    ),
    "an order without an axis": (
        "[chain]\nown_axes = true\n[chain.orders]\na = ['min_p']\nb = ['top_k']\n[grid]\nmin_p = 0",
        ["chain.orders.b", "no axis"],
    ),
    "order and orders": (
        '[chain]\norder = []\norders = {a = ["min_p"]}',
        ["chain", "not both"],
    ),
    "bounds of nothing": ("[optimize.bounds]\nbetta = [1, 2]", ["optimize.bounds", "'beta'"]),
    "bounds backwards": ("[optimize.bounds]\nbeta = [2, 1]", ["optimize.bounds.beta", "above 1"]),
    "bounds below what there is": ("[optimize.bounds]\nbeta = [-1, 1]", ["optimize.bounds.beta"]),
    "one bound": ("[optimize]\nbounds = { beta = [1] }", ["optimize.bounds"]),
    "unknown method": ('[optimize]\nmethod = "bfgs"', ["optimize.method", "'lbfgs'"]),
    "unknown to optimize": ('[optimize]\nover = ["betta"]', ["optimize.over", "'beta'"]),
    "key in a file": ('[server]\napi_key = "s3cret"', ["server.api_key", "JAXSPPL_API_KEY"]),
    "no TOML": ("= =", ["not valid TOML"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_path(tmp_path: Path, case: str) -> None:
    text, parts = MISTAKES[case]
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, environment={})
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    assert "s3cret" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "override", ["grid.min_p", "=1", "grid..min_p=1", "grid.min_p=", "name.a=1"]
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str) -> None:
    file = write(tmp_path, 'name = "x"\n[grid]\nmin_p = 0.1')
    with pytest.raises(ConfigError):
        config.load(file, [override], {})


def test_a_file_of_windows_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbf[grid]\r\nmin_p = [0, 0.1]\r\n")
    assert config.load(file, environment={}).grid == {"min_p": [0, 0.1]}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "missing.toml", tmp_path, binary):
        with pytest.raises(ConfigError, match=str(file)):
            config.load(file, environment={})


def test_no_file_ever_holds_a_password(tmp_path: Path) -> None:
    text = '[server]\nurl = ["https://user:s3cret@host:1/v1", "http://plain:2"]'
    written = config.to_json(config.load(write(tmp_path, text), environment={}))
    assert "s3cret" not in written
    assert json.loads(written)["server"]["url"] == ["https://host:1/v1", "http://plain:2"]


def test_the_json_of_a_config_builds_the_same_config(tmp_path: Path) -> None:
    found = config.load(write(tmp_path, EXAMPLE), environment={})
    again = config.build(json.loads(config.to_json(found)))
    assert again.grid == found.grid
    assert config.to_json(again) == config.to_json(found)


@given(
    start=st.floats(0, 10, allow_nan=False),
    length=st.floats(0, 10, allow_nan=False),
    count=st.integers(2, 200),
)
def test_a_range_keeps_its_ends_and_its_number(start: float, length: float, count: int) -> None:
    stop = start + length
    spec = {"start": start, "stop": stop, "num": count}
    try:
        values = axis("temperature", spec, "grid.temperature")
    except ConfigError as error:  # too short a range to hold that many different values
        assert "twice" in str(error)
        return
    assert len(values) == count
    assert math.isclose(values[0], start, rel_tol=1e-11)
    assert math.isclose(values[-1], stop, rel_tol=1e-11)
    assert values == sorted(values)


@given(st.sampled_from(sorted(parameters.PARAMETERS)), st.floats())
def test_an_axis_holds_only_what_its_parameter_allows(name: str, value: float) -> None:
    known = parameters.PARAMETERS[name]
    try:
        assert axis(name, [value], f"grid.{name}") == [value]
    except ConfigError as error:
        assert name in str(error)
        assert not (
            known.lower < value <= known.upper
            and (not known.integer or value == int(value))
            and (known.on_above is None or value > known.on_above)
        )
    else:
        assert known.lower <= value <= known.upper
