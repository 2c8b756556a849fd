"""Commands that do all of it: run, demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from jaxsppl.cli.terminal import Flag, Json, Overrides, Several, emit, tell
from jaxsppl.errors import IncompleteError

if TYPE_CHECKING:
    from jaxsppl.run import RunReport

Servers = Annotated[list[str] | None, Several]


def run(
    file: Path,
    /,
    *,
    server: Servers = None,
    overrides: Overrides = None,
    force: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Prepare, harvest, sweep, and write tables, figures and a page; only what is missing.

    Parameters
    ----------
    file
        Sweep config (TOML).
    server
        Addresses of servers, instead of server.url of the config.
    overrides
        Set a key of the config, for example grid.min_p=[0,0.05]; may be given several times.
    force
        Replace harvests that were made from something else.
    """
    from jaxsppl import config
    from jaxsppl.run import run as do

    given = [*(overrides or ()), *server_override(server)]
    return finish(do(config.load(file, given), tell, force=force), json)


def server_override(server: list[str] | None) -> list[str]:
    """Return the addresses of a flag as an override of the config."""
    import json as codec

    return [f"server.url={codec.dumps(server)}"] if server else []


def demo(
    *,
    out: Path = Path("demo"),
    server: Servers = None,
    json: Json = False,
) -> int:
    """Show all of it on a real model and real text, in a few minutes.

    Parameters
    ----------
    out
        Folder for everything that is made.
    server
        Address of a running server with a model of yours; without one the demo fetches a small
        model and starts a server for it.
    """
    from jaxsppl.demo import demo as do

    return finish(do(out, server or [], tell), json)


def finish(report: "RunReport", as_json: bool) -> int:
    """Print the tables of a run and return its exit code."""
    from jaxsppl.report.table import describe, render, to_data

    files = report.paths("sweep") + report.paths("optimum")
    summaries = [describe(path) for path in files]
    text = "\n\n".join(render(summary).rstrip() for summary in summaries)
    emit(
        as_json,
        text,
        {
            "steps": [
                {"what": step.what, "path": step.path, "made": step.made} for step in report.steps
            ],
            "problems": report.problems,
            "files": [to_data(summary) for summary in summaries],
        },
    )
    return IncompleteError.exit_code if report.problems else 0
