"""Progress: a bar on a terminal, lines elsewhere."""

import io

import pytest

from jaxsppl.report.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_without_a_terminal() -> None:
    out = io.StringIO()
    with progress("harvest prose", 3, stream=out, interval_s=0) as bar:
        bar.advance()
        bar.update("0002.txt")
        bar.advance(2)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("harvest prose: 1 of 3 after 0 s")
    assert lines[1].startswith("harvest prose: 3 of 3 after")
    assert lines[1].endswith("(0002.txt)")
    assert lines[2].startswith("harvest prose: 3 of 3 in ")


def test_only_the_last_line_when_it_is_quick() -> None:
    out = io.StringIO()
    with progress("sweep", stream=out, interval_s=3600) as bar:
        for _ in range(1000):
            bar.advance()
    assert out.getvalue().startswith("sweep: 1,000 in ")
    assert out.getvalue().count("\n") == 1


def test_a_failure_says_how_far_it_came() -> None:
    out = io.StringIO()
    with (
        pytest.raises(KeyboardInterrupt),
        progress("sweep", 10, stream=out, interval_s=3600) as bar,
    ):
        bar.advance(4)
        raise KeyboardInterrupt
    assert out.getvalue().startswith("sweep: 4 of 10, stopped after")


def test_bar_on_a_terminal() -> None:
    out = Terminal()
    with progress("harvest [prose]", 3, stream=out) as bar:
        bar.update("0002.txt")
        bar.advance(3)
    # a name in brackets is shown, not taken as markup
    assert "harvest [prose]: 0002.txt" in out.getvalue()
    assert "3/3" in out.getvalue()


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sweep", 1, quiet=True) as bar:
        bar.advance()
        bar.update("x")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_results_stay_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sweep", 1) as bar:
        bar.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sweep: 1 of 1 in")
