"""Harvest one model on one dataset: fingerprint, journal, pool of workers, and the file."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxsppl import schema, store
from jaxsppl.errors import ConfigError, IncompleteError, SchemaError, ServerError
from jaxsppl.harvest.pool import Pool, check_same
from jaxsppl.harvest.protocol import (
    HarvestReport,
    Offer,
    Options,
    Passage,
    Progress,
    ScoredPassage,
    Scorer,
    Server,
    Unavailable,
)
from jaxsppl.harvest.records import failures_json, from_record, parts, texts_digest, to_record
from jaxsppl.harvest.selftest import FEW, LENGTH, prove
from jaxsppl.harvest.stream import write_parts
from jaxsppl.journal import Journal, lock

log = logging.getLogger("jaxsppl.harvest")
T = TypeVar("T")
Told = Callable[[Progress], None]
Members = list[tuple[Server, Offer]]
POLL_S = 0.5
# Characters of a token, for guesses.
CHARACTERS = 4


@dataclass(frozen=True)
class Settings:
    """What one call of `harvest` was given."""

    passages: Sequence[Passage]
    out: Path
    dataset: str
    options: Options
    parallel: int | None
    patience_s: float
    force: bool
    told: Told


async def patiently(ask: Callable[[], Awaitable[T]], settings: Settings) -> T:
    """Ask a server that may still be loading; one that cannot be reached is told at once.

    Parameters
    ----------
    ask : callable
        Returns an awaitable that asks.
    settings : Settings

    Returns
    -------
    object
        The answer.

    Raises
    ------
    ServerError
        When the server cannot be reached, or is still busy when the patience ends.
    """
    deadline = time.monotonic() + settings.patience_s
    while True:
        try:
            return await ask()
        except Unavailable as error:
            if not error.busy:
                raise ServerError(
                    f"{error}; is the server running, is the address right?"
                ) from error
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{error}; still so after {settings.patience_s:g} s, try again later"
                ) from error
            total = len(settings.passages)
            settings.told(Progress("", settings.dataset, 0, total, 0, 0, f"waiting: {error}"))
            await asyncio.sleep(POLL_S)


def harvest_path(out: str | Path, model: str, dataset: str) -> Path:
    """Return where the harvest of a model on a dataset lies.

    Parameters
    ----------
    out : path
        Folder.
    model, dataset : str
        Any text; what no file name may hold is replaced.

    Returns
    -------
    Path
    """
    return Path(out) / f"{store.safe_name(model)}.{store.safe_name(dataset)}.harvest.nc"


async def harvest_model(settings: Settings, model: str, members: Members) -> HarvestReport:
    """Harvest one model on the servers that have it.

    Parameters
    ----------
    settings : Settings
    model : str
        Name to store.
    members : list of (Server, Offer)

    Returns
    -------
    HarvestReport

    Raises
    ------
    ConfigError, ServerError, IncompleteError
        As `jaxsppl.harvest`.
    """
    began = time.monotonic()
    scorers = [await _open(settings, server, offer) for server, offer in members]
    first = scorers[0]
    for scorer in scorers[1:]:
        check_same(scorer.label, first.identity, scorer.identity, "has")
    alternatives = min(settings.options.alternatives, first.identity.n_vocab)
    if alternatives < settings.options.alternatives:
        log.warning("%s has a vocabulary of %d; all of it is kept", model, alternatives)
    config: dict[str, Any] = {
        "schema": schema.HARVEST,
        "texts_sha256": texts_digest(settings.passages),
        "model": model,
        "dataset": settings.dataset,
        "alternatives": alternatives,
        **settings.options.marks(),
        **first.identity.as_dict(),
    }
    path = harvest_path(settings.out, model, settings.dataset)
    with lock(path):
        journal_path = path.with_name(f".{path.name}.journal.jsonl")
        finished = None if settings.force else _finished(path, config)
        if finished is not None:
            journal_path.unlink(missing_ok=True)
            sizes = finished.sizes
            return HarvestReport(
                str(path),
                model,
                settings.dataset,
                sizes["document"],
                sizes["token"],
                seconds=time.monotonic() - began,
                skipped=True,
                protocol=first.identity.protocol,
            )
        run = _Run(settings, model, alternatives)
        run.journal = Journal.open(journal_path, {"fingerprint": mark(config)}, run.recall)
        try:
            await run.score(scorers)
            sizes = run.write(config, " ".join(scorer.label for scorer in scorers), path)
        finally:
            run.journal.close()
        if not run.failures:
            # with failures the journal stays, so that the next run tries only those again
            run.journal.remove()
    return HarvestReport(
        str(path),
        model,
        settings.dataset,
        sizes["document"],
        sizes["token"],
        tuple(run.failures.items()),
        time.monotonic() - began,
        protocol=first.identity.protocol,
    )


async def _open(settings: Settings, server: Server, offer: Offer) -> Scorer:
    """Make a model of a server ready, waiting while it loads."""
    scorer = await patiently(lambda: server.open(offer, settings.options), settings)
    check_able(scorer, settings.options)
    return scorer


def check_able(scorer: Scorer, options: Options) -> None:
    """Check that a server can read the passages as they are to be read.

    Parameters
    ----------
    scorer : Scorer
    options : Options

    Raises
    ------
    ServerError
        Saying what it cannot.
    """
    unable = sorted(set(options.marks()) - scorer.abilities)
    if unable:
        raise ServerError(
            f"{scorer.label}: the protocol {scorer.identity.protocol} knows no "
            f"--{', no --'.join(unable)}; leave it out, or take another protocol"
        )
    if options.window and options.window > scorer.identity.n_context - 1:
        raise ServerError(
            f"{scorer.label}: a window of {options.window} tokens does not fit in its "
            f"{scorer.identity.n_context} of context, less 1; take a smaller --window"
        )


def mark(config: Mapping[str, Any]) -> str:
    """Return the fingerprint of a harvest: what changes its numbers.

    The context does not: a user who gives the server a larger one, because a passage did not fit,
    goes on where the harvest stopped.

    Parameters
    ----------
    config : mapping
        Texts, model, build, vocabulary, alternatives, method, and the context.

    Returns
    -------
    str
    """
    return store.fingerprint({key: value for key, value in config.items() if key != "n_context"})


def _finished(path: Path, config: Mapping[str, Any]) -> schema.Contents | None:
    """Return a finished file of the same fingerprint; refuse to replace one of another."""
    if not path.exists():
        return None
    try:
        contents = store.read_contents(path)
        schema.check_harvest(contents, str(path))
    except SchemaError as error:
        raise ConfigError(
            f"{error}; it is in the way, remove it or choose another folder"
        ) from error
    if contents.attrs.get("fingerprint") == mark(config):
        return None if int(contents.attrs.get("n_failed", 0)) else contents
    try:
        old = json.loads(str(contents.attrs.get("config_json", "{}")))
    except ValueError:
        old = {}
    changed = sorted(key for key in config.keys() | old.keys() if config.get(key) != old.get(key))
    named = ["texts" if key == "texts_sha256" else key for key in changed]
    raise ConfigError(
        f"'{path}' was made with other {', '.join(named) or 'settings'}; choose another folder, "
        "or replace it with --force"
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A scored passage: its place in the journal, and what is summed over all of them."""

    place: int
    n_token: int
    merged: int
    censored: int


class _Run:
    """One model on one dataset: what is scored, what has failed, and the journal of both."""

    journal: Journal

    def __init__(self, settings: Settings, model: str, alternatives: int) -> None:
        self._settings = settings
        self._model = model
        self._alternatives = alternatives
        self._wanted = {passage.document for passage in settings.passages}
        self._n_token = 0
        self.scored: dict[str, _Kept] = {}
        self.failures: dict[str, str] = {}
        self.proofs: dict[str, dict[str, Any]] = {}

    def recall(self, place: int, record: Mapping[str, Any]) -> None:
        """Take what an earlier run has written to the journal."""
        if isinstance(record.get("self_test"), dict):
            self.proofs.update(record["self_test"])
        whole = from_record(record, self._alternatives)
        if whole is not None and whole[0] in self._wanted:
            self._add(*whole, place)

    def _add(self, document: str, scored: ScoredPassage, place: int) -> None:
        """Note a scored passage."""
        n_token = int(scored.token_id.size)
        if document not in self.scored:
            self._n_token += n_token
        self.scored[document] = _Kept(place, n_token, scored.merged, scored.censored)

    def _load(self, passage: Passage) -> ScoredPassage:
        """Read a scored passage from the journal."""
        record = self.journal.read(self.scored[passage.document].place)
        whole = from_record(record, self._alternatives)
        if whole is None or whole[0] != passage.document:
            raise IncompleteError(
                f"'{self.journal.path}' was changed while it was in use; run the command again"
            )
        return whole[1]

    async def score(self, scorers: Sequence[Scorer]) -> None:
        """Score what the journal does not hold yet."""
        passages = self._settings.passages
        todo = [i for i, passage in enumerate(passages) if passage.document not in self.scored]
        self._tell("")
        if self._settings.options.statistics and todo:
            await self._tell_price(scorers, [passages[i] for i in todo])
        pool = Pool(
            scorers,
            passages,
            todo,
            parallel=self._settings.parallel,
            patience_s=self._settings.patience_s,
            prove=self._prove,
            keep=self._keep,
            fail=self._fail,
            note=self._tell,
        )
        await pool.run()
        if not self.scored:
            document, reason = next(iter(self.failures.items()))
            raise IncompleteError(
                f"none of the {len(passages)} passages could be scored with {self._model}; "
                f"{document}: {reason}"
            )

    async def _tell_price(self, scorers: Sequence[Scorer], passages: Sequence[Passage]) -> None:
        """Say beforehand what the statistics cost: measured for one token, guessed for all."""
        price = await scorers[0].price()
        if price is None:
            return
        n_byte, seconds = price
        workers = sum(self._settings.parallel or scorer.slots for scorer in scorers)
        n_token = sum(len(passage.continuation) for passage in passages) // CHARACTERS + 1
        log.warning(
            "statistics of %s: the whole vocabulary comes with each token, %.1f MB and %.2f s; "
            "for about %s tokens %.1f GB and %.1f minutes",
            self._model,
            n_byte / 1e6,
            seconds,
            f"{n_token:,}",
            n_token * n_byte / 1e9,
            n_token * seconds / workers / 60,
        )

    def write(self, config: Mapping[str, Any], servers: str, path: Path) -> dict[str, int]:
        """Write the harvest; passages stand in their own order, not in that of their end."""
        passages = self._settings.passages
        order = [passage.document for passage in passages]
        self.failures = {name: self.failures[name] for name in order if name in self.failures}
        kept = self.scored.values()
        sizes = {"token": self._n_token, "document": len(kept)}
        attrs: dict[str, str | int | float] = {
            "schema": schema.HARVEST,
            "n_vocab": int(config["n_vocab"]),
            "protocol": str(config["protocol"]),
            "server": servers,
            "build_info": str(config["build"]),
            "n_context": int(config["n_context"]),
            "method": str(config["method"]),
            **self._settings.options.marks(),
            "self_test_json": json.dumps(self.proofs, sort_keys=True),
            "texts_sha256": str(config["texts_sha256"]),
            "fingerprint": mark(config),
            "config_json": json.dumps(config, sort_keys=True),
            "n_failed": len(self.failures),
            "failures_json": failures_json(list(self.failures.items())),
            "n_boundary_merged": sum(one.merged for one in kept),
            "n_censored": sum(one.censored for one in kept),
        }
        scored = [passage for passage in passages if passage.document in self.scored]
        made = parts(scored, self._load, model=self._model, dataset=self._settings.dataset)
        write_parts(made, sizes, attrs, path)
        return sizes

    async def _prove(self, scorer: Scorer, passage: Passage, slot: int) -> None:
        """Let a server pass its self-test, unless the journal says that it has."""
        if scorer.label in self.proofs:
            return
        length = FEW if self._settings.options.statistics else LENGTH
        proof = await prove(scorer, passage, slot, length)
        if proof is not None:
            found = {scorer.label: proof.as_dict()}
            self.journal.append({"self_test": found})
            self.proofs.update(found)

    def _keep(self, passage: Passage, scored: ScoredPassage) -> None:
        """Write a scored passage to the journal before anything else."""
        place = self.journal.append(to_record(passage.document, scored))
        self._add(passage.document, scored, place)
        self._tell("")

    def _fail(self, passage: Passage, reason: str) -> None:
        """Note why a passage cannot be scored."""
        self.failures[passage.document] = reason
        log.warning("%s: %s", passage.document, reason)
        self._tell("")

    def _tell(self, note: str) -> None:
        """Report where the harvest stands."""
        self._settings.told(
            Progress(
                self._model,
                self._settings.dataset,
                len(self.scored),
                len(self._settings.passages),
                self._n_token,
                len(self.failures),
                note,
            )
        )
