"""The demo: a real model, a real server, real text, and what it recommends."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsppl import config
from jaxsppl.errors import ConfigError, JaxspplError, suggest
from jaxsppl.run import RunReport, missing_harvests, prepare_texts, run

if TYPE_CHECKING:
    from jaxsppl.harvest.local import LocalServer


def ready_config(name: str) -> Path:
    """Return a sweep config that comes with the package.

    Parameters
    ----------
    name : str
        For example "demo" or "dense".

    Returns
    -------
    Path
        Its TOML file: in ``sweeps/`` of the repository, or in the installed package.

    Raises
    ------
    ConfigError
        When there is none of that name.
    """
    package = Path(__file__).parent
    for folder in (package / "ready_sweeps", package.parent / "sweeps"):
        if (folder / "demo.toml").is_file():
            names = sorted(file.stem for file in folder.glob("*.toml"))
            if name not in names:
                raise ConfigError(f"there is no ready config '{name}'; {suggest(name, names)}")
            return folder / f"{name}.toml"
    raise ConfigError("the ready configs are not where they belong; install jaxsppl again")


def shipped_harvests() -> list[Path]:
    """Return the small real harvests that come with the package.

    Returns
    -------
    list of Path
    """
    return sorted((Path(__file__).parent / "data").glob("*.harvest.nc"))


def demo(
    out: Path, servers: Sequence[str] = (), tell: Callable[[str], None] = lambda line: None
) -> RunReport:
    """Run ``sweeps/demo.toml`` on a real model; what is there already is not done again.

    Parameters
    ----------
    out : Path
        Folder for everything.
    servers : sequence of str
        Addresses of running servers; without one a local server is started when it is needed.
    tell : callable
        Takes a line about each step.

    Returns
    -------
    RunReport
        Made from the shipped harvests where no server can run.
    """
    file = ready_config("demo")

    def settings(**values: object) -> config.Config:
        """Return the demo's config with some keys set; an underscore stands for the dot."""
        overrides = [
            f"{key.replace('_', '.', 1)}={json.dumps(value, ensure_ascii=False)}"
            for key, value in {"run_out": str(out), **values}.items()
        ]
        return config.load(file, overrides, environment={})

    if servers:
        return run(settings(server_url=[*servers], server_models=[]), tell)
    if not missing_harvests(settings(), prepare_texts(settings(), RunReport())):
        return run(settings(), tell)
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_local_server(tell))
        except (JaxspplError, ImportError) as error:
            tell(f"no server can run here ({error}); taking the harvests that come with jaxsppl")
            shipped = [str(file) for file in shipped_harvests()]
            return run(settings(texts_datasets={}, run_input=shipped), tell)
        tell(f"a llama.cpp server runs at {server.url}")
        return run(settings(server_url=server.url), tell)


def _local_server(tell: Callable[[str], None]) -> "LocalServer":
    """Fetch the model if need be and return a server for it, not started yet."""
    from jaxsppl.harvest.demo_model import demo_model
    from jaxsppl.harvest.local import LocalServer

    tell("model: SmolLM2-135M-Instruct, Q4_1 (98 MB, fetched once)")
    model = demo_model()
    tell("starting a llama.cpp server")
    return LocalServer(model)
