"""docs/new-sampler.md is run as it stands: its files, its commands, and what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "new-sampler.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def parts(text: str) -> tuple[str, list[float]]:
    """The words of a text, and its numbers; how wide columns are does not matter."""
    words = " ".join(NUMBER.sub("#", text).split())
    return re.sub("-{2,}", "--", words), [float(one) for one in NUMBER.findall(text)]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    by_kind = {kind: [text for one, text in blocks if one == kind] for kind, _ in blocks}
    module, last = by_kind["python"]
    (tmp_path / "my_sampler.py").write_text(module)
    (tmp_path / "mine.toml").write_text(by_kind["toml"][0])
    (tmp_path / "last.py").write_text(last)
    script, expected = ["set -eu"], list[str]()
    for block in by_kind["console"]:
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = step.partition("\n")
            script += [command, "echo '<<end>>'"]
            expected.append(printed)
    script += ["python last.py"]
    expected.append(by_kind["text"][0])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "runs " in done.stderr
    assert "my_sampler.py" in done.stderr
    for printed, page in zip(done.stdout.split("<<end>>\n"), expected, strict=True):
        words, numbers = parts(printed)
        page_words, page_numbers = parts(page)
        assert words == page_words, printed
        assert numbers == pytest.approx(page_numbers, abs=2e-4, rel=0.02), printed
    assert (tmp_path / "out" / "mine.png").stat().st_size > 10_000
