"""Make docs/faults.md from the tables of the tests: python scripts/faults.py [--check]."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "harvest"
TARGET = ROOT / "docs" / "faults.md"

OUTCOMES = {
    "harmless": "taken as it is",
    "mended": "asked again; the file is as without the fault",
    "passage": "that passage fails with the reason, the rest is written; the next run asks again",
    "stopped": "the run stops with one line; what is finished is kept, nothing wrong is written",
}
BEGIN = """# What a server may do wrong, and what comes of it

Made by `scripts/faults.py` from the tables of the tests in `tests/harvest`; a test checks that this
page is current. Every row is put into a real HTTP server on loopback. After each fault the next run
makes up for what is missing, and its file is compared with that of an undisturbed run.
"""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table in Markdown."""
    clean = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in clean),
        "",
    ]


def disturbed(modules: Iterable[ModuleType]) -> list[tuple[str, ...]]:
    """Return the tests that disturb a whole run, by their names."""
    return [
        (name.removeprefix("test_").replace("_", " "), f"`{module.__name__}.py`")
        for module in modules
        for name in vars(module)
        if name.startswith("test_")
    ]


def page() -> str:
    """Return the page."""
    sys.path.insert(0, str(TESTS))
    import test_client
    import test_faults
    import test_protocols
    import test_resume
    import test_router

    faults = test_faults.FAULTS
    lines = [BEGIN, f"## Replies of llama.cpp: {len(faults)} kinds", ""]
    lines += [f"- **{name}**: {meaning}." for name, meaning in OUTCOMES.items()]
    lines.append("")
    rows = [
        (name, "every reply" if times >= 10**6 else str(times), outcome, f"`{words}`" * bool(words))
        for name, (_, times, outcome, words) in faults.items()
    ]
    lines += table(("fault", "replies that have it", "outcome", "the reason says"), rows)
    lines += ["## Replies of the other protocols", "", "Outcome: **passage**.", ""]
    rows = [
        (protocol, name, f"`{words}`")
        for protocol, found in (
            ("vLLM", test_protocols.VLLM),
            ("SGLang", test_protocols.SGLANG),
            ("echo", test_protocols.ECHO),
        )
        for name, (_, words) in found.items()
    ]
    lines += table(("protocol", "fault", "the reason says"), rows)
    lines += ["## Servers that are refused", "", "Outcome: **stopped**, before any passage.", ""]
    unfit = [(name, f"`{words}`") for name, (_, words) in test_protocols.UNFIT.items()]
    lines += table(("server", "the line says"), unfit)
    lines += ["## Runs that are disturbed", ""]
    lines += table(("what happens", "test"), disturbed([test_resume, test_router, test_client]))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page, or check that it is current."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
            sys.exit(f"{TARGET} is not current; run python scripts/faults.py")
        return
    TARGET.write_text(text, encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
