"""Recipes: the TOML that is written reads back as what was meant."""

import ast
import shlex
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxsppl.report.recipe import setting_command, toml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
VALUES = st.recursive(
    TEXT | NUMBERS | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "b_c"]), VALUES))
def test_toml_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text({"t": {**table, "none": None}})).get("t", {}) == table


@given(TEXT.filter(lambda text: "\0" not in text), NUMBERS)
def test_a_command_is_one_program_whatever_the_file_is_called(name: str, value: float) -> None:
    words = shlex.split(setting_command(name, {"temperature": value}, ("temperature",), 0.01, "b"))
    assert words[:2] == ["python", "-c"]
    assert len(words) == 3
    said = [node.value for node in ast.walk(ast.parse(words[2])) if isinstance(node, ast.Constant)]
    assert f"temperature={value!r}" in words[2]
    assert name in said
