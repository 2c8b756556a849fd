"""Harvest: passages and servers in, one file for each model out, resumable at any moment."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from jaxsppl.errors import ConfigError, IncompleteError, ServerError
from jaxsppl.harvest.client import Client, open_session, run_to_end
from jaxsppl.harvest.one_model import Members, Settings, Told, harvest_model, patiently
from jaxsppl.harvest.protocol import HarvestReport, Offer, Options, Passage, Server
from jaxsppl.harvest.recognise import recognise
from jaxsppl.harvest.servers import ProtocolModule
from jaxsppl.harvest.servers import protocol as find_protocol
from jaxsppl.parameters import check_positive

log = logging.getLogger("jaxsppl.harvest")
# Its addresses are models, so that naming a model is enough.
IN_PROCESS = "transformers"


def harvest(
    passages: Sequence[Passage],
    servers: str | Sequence[str],
    out: str | Path,
    *,
    dataset: str,
    protocol: str = "auto",
    models: Sequence[str] | Mapping[str, str] | None = None,
    all_models: bool = False,
    alternatives: int = 100,
    method: str = "auto",
    statistics: bool = False,
    window: int = 0,
    stride: int = 0,
    chat: bool = False,
    parallel: int | None = None,
    timeout_s: float = 600.0,
    patience_s: float = 300.0,
    force: bool = False,
    progress: Told | None = None,
) -> list[HarvestReport]:
    """Score the passages with the models of the servers, and write one harvest file for each model.

    A run that ends early, however it ends, is resumed by the same call. A file that is finished
    and has the same fingerprint is left as it is.

    Parameters
    ----------
    passages : sequence of Passage
        Objects with `document`, `prefix` and `continuation` (str), as `jaxsppl.load_passages`
        returns them.
    servers : str or sequence of str
        Addresses; several with the same model share the work. A key goes by the environment
        variable JAXSPPL_API_KEY. For the protocol "transformers" an address is a model's folder or
        its name on the Hugging Face Hub; those of `models` are taken when they are given.
    out : path
        Folder of the files ``MODEL.DATASET.harvest.nc``.
    dataset : str
        Name of the dataset.
    protocol : str
        Kind of server; "auto" asks each.
    models : sequence of str or mapping of str to str, optional
        Names to harvest among those that the servers offer; a mapping gives the name to store
        for each.
    all_models : bool
        Every model that is offered, one after another; one that fails is reported.
    alternatives : int
        K, the alternatives kept for each token; at most the vocabulary is used.
    method : str
        "auto", "token-grammar" or "one-token" (llama.cpp).
    statistics : bool
        Keep what samplers need of the whole vocabulary: `log_partition`, `entropy`, `logit_std`,
        `min_logprob`. The protocol "transformers" always does; llama.cpp then sends the whole
        vocabulary for each token, and a warning tells what that costs.
    window, stride : int
        Score texts of any length in windows of so many tokens, each of which scores `stride` new
        ones, half of it by default. 0: a text that does not fit into the context is refused.
    chat : bool
        Give the prefix as a user's message in the model's chat template, and score the
        continuation as the answer.
    parallel : int, optional
        Requests in flight on each server; as many as it has slots when missing. One is the way to
        results that repeat bit for bit on servers whose arithmetic depends on the batch.
    timeout_s, patience_s : float
        Longest single request, and longest absence of a server [s].
    force : bool
        Replace a file that was made from something else.
    progress : callable, optional
        Called with a `Progress` after each passage.

    Returns
    -------
    list of HarvestReport
        One for each model; passages that cannot be scored are in `failures`.

    Raises
    ------
    ConfigError
        When an argument is unusable, or a file of another fingerprint is in the way.
    ServerError
        When a server cannot be reached or is unfit.
    IncompleteError
        When no passage could be scored, or the disk is full.
    """
    task = harvest_async(
        passages,
        servers,
        out,
        dataset=dataset,
        protocol=protocol,
        models=models,
        all_models=all_models,
        alternatives=alternatives,
        method=method,
        statistics=statistics,
        window=window,
        stride=stride,
        chat=chat,
        parallel=parallel,
        timeout_s=timeout_s,
        patience_s=patience_s,
        force=force,
        progress=progress,
    )
    return run_to_end(task)


async def harvest_async(
    passages: Sequence[Passage],
    servers: str | Sequence[str],
    out: str | Path,
    *,
    dataset: str,
    protocol: str = "auto",
    models: Sequence[str] | Mapping[str, str] | None = None,
    all_models: bool = False,
    alternatives: int = 100,
    method: str = "auto",
    statistics: bool = False,
    window: int = 0,
    stride: int = 0,
    chat: bool = False,
    parallel: int | None = None,
    timeout_s: float = 600.0,
    patience_s: float = 300.0,
    force: bool = False,
    progress: Told | None = None,
) -> list[HarvestReport]:
    """Do what `harvest` does, inside a running event loop.

    Parameters
    ----------
    passages, servers, out, dataset, protocol, models, all_models, alternatives, method, \
statistics, window, stride, chat, parallel, timeout_s, patience_s, force, progress
        As in `harvest`.

    Returns
    -------
    list of HarvestReport
    """
    addresses = [servers] if isinstance(servers, str) else list(servers)
    if protocol == IN_PROCESS and isinstance(models, Mapping):
        addresses = list(models.values())
    elif protocol == IN_PROCESS and models:
        addresses, models, all_models = list(models), None, all_models or len(models) > 1
    elif protocol == IN_PROCESS and not addresses:
        raise ConfigError(
            "no model was given; name one with --model: a folder, or a name of the Hugging Face Hub"
        )
    _check_arguments(passages, addresses, dataset, models, all_models)
    for name, value in (("alternatives", alternatives), ("parallel", parallel)):
        if value is not None and (isinstance(value, bool) or value < 1):
            raise ConfigError(f"{name} is {value}; give a whole number of at least 1")
    if window < 0 or window == 1 or stride < 0 or stride >= max(window, 1):
        raise ConfigError(
            f"window {window} and stride {stride} are not allowed; the stride is smaller than the "
            "window, which has at least 2 tokens or is 0"
        )
    check_positive(timeout_s, "timeout_s")
    if not 0 <= patience_s < math.inf:
        raise ConfigError(f"patience_s: {patience_s} is not allowed; it is a number of at least 0")
    settings = Settings(
        passages=passages,
        out=Path(out),
        dataset=dataset,
        options=Options(alternatives, method, statistics, window, stride or window // 2, chat),
        parallel=parallel,
        patience_s=patience_s,
        force=force,
        told=progress or (lambda _: None),
    )
    module = find_protocol(protocol, method)
    async with open_session(timeout_s) as session:
        found = [await _connected(session, url, module, settings) for url in addresses]
        offers = [(server, await patiently(server.offers, settings)) for server in found]
        reports: list[HarvestReport] = []
        for name, members in _choose(offers, models, all_models).items():
            try:
                reports.append(await harvest_model(settings, name, members))
            except (ServerError, IncompleteError) as error:
                if not all_models:
                    raise
                log.warning("%s: %s", name, error)
                reports.append(HarvestReport(None, name, dataset, 0, 0, (("*", str(error)),)))
    if all(report.path is None for report in reports):
        raise ServerError("; ".join(report.failures[0][1] for report in reports))
    return reports


async def _connected(
    session: aiohttp.ClientSession, url: str, module: ProtocolModule | None, settings: Settings
) -> Server:
    """Return the server at an address, by the protocol that was named or that it speaks."""
    if module is None:
        client = Client(session, url, patience_s=settings.patience_s)
        module = await patiently(lambda: recognise(client), settings)
        find_protocol(module.NAME, settings.options.method)
    return module.connect(session, url, patience_s=settings.patience_s)


def _check_arguments(
    passages: Sequence[Passage],
    addresses: Sequence[str],
    dataset: str,
    models: Sequence[str] | Mapping[str, str] | None,
    all_models: bool,
) -> None:
    """Refuse arguments that cannot be meant."""
    if not addresses:
        raise ConfigError("no server was given; name at least one with --server")
    if not dataset:
        raise ConfigError("the dataset has no name; give one")
    if models and all_models:
        raise ConfigError("a model and all models were asked for; choose one of the two")
    if not passages:
        raise ConfigError(f"dataset '{dataset}' has no passages; prepare some first")
    names = [passage.document for passage in passages]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"two passages have the name '{twice[0]}'; names must differ")


def _choose(
    offers: Sequence[tuple[Server, list[Offer]]],
    models: Sequence[str] | Mapping[str, str] | None,
    all_models: bool,
) -> dict[str, Members]:
    """Return the models to harvest by the name to store, each with the servers that have it."""
    listed = "; ".join(
        f"{server.label} offers {', '.join(repr(offer.name) for offer in found) or 'nothing'}"
        for server, found in offers
    )
    groups: dict[str, Members] = {}
    if models:
        wanted = models if isinstance(models, Mapping) else {name: name for name in models}
        for stored, name in wanted.items():
            groups[stored] = [
                (server, offer)
                for server, found in offers
                for offer in found
                if offer.answers_to(name)
            ]
            if not groups[stored]:
                raise ServerError(f"no server offers the model '{name}'; {listed}")
        return groups
    for server, found in offers:
        for offer in found:
            groups.setdefault(offer.name, []).append((server, offer))
        if not found or (len(found) > 1 and not all_models):
            raise ServerError(f"{listed}; name one with --model, or take --all-models")
    if len(groups) > 1 and not all_models:
        raise ServerError(
            f"the servers have different models: {listed}; take --all-models to harvest each"
        )
    return groups
