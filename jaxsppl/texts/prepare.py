"""Make a folder of passages out of a source: read, skip and count, draw, write."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import cast

from jaxsppl.errors import ConfigError, SchemaError, TextError
from jaxsppl.plural import plural
from jaxsppl.texts.builtin import seeded_order
from jaxsppl.texts.columns import Columns, Row
from jaxsppl.texts.folder import Preparation, load_passages, read_preparation, write_folder
from jaxsppl.texts.passages import (
    DUPLICATE,
    NO_PLACE,
    NOT_DRAWN,
    TOO_SHORT,
    WHOLE,
    Cut,
    Lengths,
    Passage,
    Skip,
    cut,
    cut_answer,
    normalised_sha256,
    safe_name,
    sha256,
    text_of,
)
from jaxsppl.texts.sources import Source, open_source

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 100
# Raise this when the rules of cutting, skipping or drawing change: folders are then redone.
_RULES = 1


@dataclass(frozen=True)
class PrepareReport:
    """What `prepare` did.

    Attributes
    ----------
    out : Path
        The folder.
    name : str
        The dataset's name.
    n_passage : int
        Passages in the folder.
    n_row_seen : int
        Rows read; equals `n_passage` plus all of `skipped`.
    skipped : dict of str to int
        Rows that gave no passage, by reason.
    fingerprint : str
        Of everything that decides the passages.
    was_prepared : bool
        True when the folder was already complete and nothing was done.
    """

    out: Path
    name: str
    n_passage: int
    n_row_seen: int
    skipped: dict[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    was_prepared: bool = False


def prepare(
    source: str,
    out: Path | str,
    *,
    name: str | None = None,
    column: str = "text",
    prefix_chars: int = 600,
    continuation_chars: int = 1100,
    minimum_chars: int = 200,
    whole: bool = False,
    prefix_column: str | None = None,
    group_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    split: str = "train",
    subset: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PrepareReport:
    """Cut prefix/continuation passages out of a source and write them as text files.

    Each document (a row, a text file, a built-in text) gives at most one passage, from its
    start; see `jaxsppl.texts.passages.cut` for where the cuts lie. With a column for prefixes a
    row gives its prefix as it is, and one passage for each text that it holds: one, or a list of
    several continuations. The selection is seeded:
    built-in texts and folders of text files are drawn from as a whole; of rows, the first
    10,000 that give a passage (1,000 on the Hub, which is streamed; more if `limit` is more)
    are drawn from, files in seeded order. A larger `limit` keeps the passages of a smaller
    one and adds to them, as long as it does not exceed that number.

    A row is skipped and counted when its text is null, not a string, empty or only white
    space, badly encoded (not UTF-8, a lone surrogate), contains a NUL character, is too short
    or has no white space to cut at, or repeats an earlier passage (compared in NFC form, with
    white space folded); when the record cannot be parsed, or lacks the column.

    The folder holds ``NNNN.prefix.txt`` and ``NNNN.continuation.txt`` (UTF-8, every line end
    as in the source), ``manifest.jsonl`` with one line per passage, and ``prepare.json`` with
    the arguments and counts. It is complete when ``manifest.jsonl`` is there; an interrupted
    run leaves ``manifest.jsonl.partial`` instead and is redone by the next. A complete folder
    made by the same arguments of the same source is left as it is.

    Parameters
    ----------
    source : str
        Hugging Face dataset id; a file, folder or glob pattern of .parquet, .jsonl, .json,
        .csv, .tsv or .txt; a folder saved by `datasets`; ``python:prose``; ``python:code``.
    out : Path or str
        Folder to write; made if missing. Other files in it are left alone.
    name : str, optional
        Name of the dataset in all results; by default made from `source`.
    column : str
        Column with the text; a path such as ``"messages.0.content"`` for nested ones.
    prefix_chars, continuation_chars : int
        Longest prefix (0: none) and continuation [character].
    minimum_chars : int
        Shortest continuation [character].
    whole : bool
        The continuation goes to the end of the document, however long; harvest such documents
        with a window.
    prefix_column : str, optional
        Column of the prefixes, for example of questions; `prefix_chars` is then not used.
    group_column : str, optional
        Column that says what a passage belongs to. It becomes the coordinate `group` of the
        harvest; without one, continuations of one prefix form a group.
    limit : int, optional
        Most passages, 100 by default.
    seed : int
        Decides the selection; at least 0.
    split : str
        Split of a dataset that has several.
    subset : str, optional
        Configuration of a dataset on the Hub that has several.
    progress : callable, optional
        Called with the number of passages found so far and the number looked for.

    Returns
    -------
    PrepareReport
        What was written and what was skipped why.

    Raises
    ------
    ConfigError
        When an argument is out of range.
    TextError
        When the source cannot be found or read, gives no passage, or `out` cannot be written
        or holds passages that `prepare` did not make, or the source.
    """
    lengths = _checked_lengths(prefix_chars, WHOLE if whole else continuation_chars, minimum_chars)
    n_wanted = _checked_count("limit", DEFAULT_LIMIT if limit is None else limit, 1)
    _checked_count("seed", seed, 0)
    opened = open_source(
        source,
        columns=Columns(column, prefix_column, group_column),
        subset=subset,
        split=split,
        seed=seed,
        n_char=lengths.document,
    )
    dataset = opened.name if name is None else check_name(name)
    arguments: dict[str, str | int | None] = {
        "source": source,
        "source_state": opened.state,
        "name": dataset,
        "column": column,
        "prefix_chars": prefix_chars,
        "continuation_chars": continuation_chars,
        "minimum_chars": minimum_chars,
        "limit": n_wanted,
        "seed": seed,
        "split": split,
        "subset": subset,
        "rules": _RULES,
    }
    # only what is given, so that folders of earlier versions stay valid
    further = {"whole": int(whole), "prefix_column": prefix_column, "group_column": group_column}
    arguments |= {key: value for key, value in further.items() if value}
    fingerprint = sha256(json.dumps(arguments, sort_keys=True).encode())
    folder = Path(out).expanduser()
    if folder.resolve() in opened.folders:
        raise TextError(f"{folder}: the source lies in it; choose another folder for the passages")
    done = _already_prepared(folder, fingerprint)
    if done is not None:
        _log.info("%s: already prepared, %d passages", folder, done.n_passage)
        return _report(folder, done, was_prepared=True)

    skipped: Counter[str] = Counter()
    found = _collect(opened, dataset, lengths, n_wanted, skipped, progress)
    passages = _draw(found, opened, n_wanted, seed)
    skipped[NOT_DRAWN.reason] += len(found) - len(passages)
    preparation = Preparation(
        dataset=dataset,
        fingerprint=fingerprint,
        n_passage=len(passages),
        n_row_seen=len(passages) + skipped.total(),
        skipped={reason: n for reason, n in sorted(skipped.items()) if n},
        arguments=arguments,
    )
    if not passages:
        raise TextError(_no_passage(source, preparation, lengths))
    write_folder(folder, passages, preparation)
    _log.info("%s: wrote %d passages of %s", folder, len(passages), dataset)
    return _report(folder, preparation, was_prepared=False)


def check_name(name: str) -> str:
    """Check that a dataset's name can be part of a file name.

    Parameters
    ----------
    name : str

    Returns
    -------
    str
        The name.

    Raises
    ------
    ConfigError
        When it cannot.
    """
    if name != safe_name(name):
        raise ConfigError(
            f"name {name!r} cannot be part of a file name; allowed: letters, digits, '_', '.' and "
            f"'-', for example '{safe_name(name)}'"
        )
    return name


def _collect(
    source: Source,
    dataset: str,
    lengths: Lengths,
    n_wanted: int,
    skipped: Counter[str],
    progress: Callable[[int, int], None] | None,
) -> list[Passage]:
    """Read rows until enough of them gave a passage; count the others by reason."""
    n_pool = n_wanted if source.is_permuted else max(n_wanted, source.pool)
    found: list[Passage] = []
    seen: set[str] = set()
    uses: Counter[str] = Counter()
    for row in chain.from_iterable(map(_several, source.rows)):
        passage = _passage(row, dataset, lengths, seen, uses)
        if isinstance(passage, Skip):
            skipped[passage.reason] += 1
            continue
        found.append(passage)
        if progress is not None:
            progress(min(len(found), n_wanted), n_wanted)
        if len(found) == n_pool:
            break
    return found


def _several(row: Row) -> list[Row]:
    """Return a row with a prefix and several continuations as a row for each, of one group."""
    if row.prefix is None or not isinstance(row.value, list):
        return [row]
    group = row.document if row.group is None else row.group
    return [
        replace(row, document=f"{row.document}-{i}", value=value, group=group)
        for i, value in enumerate(cast("list[object]", row.value))
    ]


def _cut(row: Row, lengths: Lengths) -> Cut | Skip:
    """Cut one row's text into prefix and continuation."""
    text = text_of(row.value)
    if isinstance(text, Skip) or row.prefix is None:
        return text if isinstance(text, Skip) else cut(text, lengths)
    prefix = text_of(row.prefix)
    return prefix if isinstance(prefix, Skip) else cut_answer(prefix, text, lengths)


def _passage(
    row: Row, dataset: str, lengths: Lengths, seen: set[str], uses: Counter[str]
) -> Passage | Skip:
    """Make one row's passage, or say why there is none."""
    part = _cut(row, lengths)
    if isinstance(part, Skip):
        return part
    digest = normalised_sha256(part.prefix + part.continuation)
    if digest in seen:
        return DUPLICATE
    seen.add(digest)
    return Passage(
        document=_unique(safe_name(row.document), uses),
        prefix=part.prefix,
        continuation=part.continuation,
        prefix_sha256=sha256(part.prefix.encode()),
        sha256=sha256(part.continuation.encode()),
        dataset=dataset,
        source=_printable(row.source),
        row=row.row,
        start=part.start,
        group=""
        if row.group is None or isinstance(row.group, Skip)
        else _printable(str(row.group)),
    )


def _draw(found: list[Passage], source: Source, n_wanted: int, seed: int) -> list[Passage]:
    """Choose the passages to keep, in an order that a larger number extends."""
    if source.is_permuted:
        return found[:n_wanted]
    by_document = {passage.document: passage for passage in found}
    return [by_document[document] for document in seeded_order(by_document, seed)[:n_wanted]]


def _unique(name: str, uses: Counter[str]) -> str:
    """Return the name, with a number if it was used before (in any case of letters)."""
    unique = name
    while unique.casefold() in uses:
        uses[name.casefold()] += 1
        unique = safe_name(f"{name}_{uses[name.casefold()]}")
    uses[unique.casefold()] = 1
    return unique


def _already_prepared(folder: Path, fingerprint: str) -> Preparation | None:
    """Return the record of a complete folder made by the same preparation."""
    try:
        preparation = read_preparation(folder)
        if preparation is None or preparation.fingerprint != fingerprint:
            return None
        load_passages(folder)
    except (SchemaError, TextError) as error:
        _log.warning("%s; preparing it again", error)
        return None
    return preparation


def _report(folder: Path, preparation: Preparation, *, was_prepared: bool) -> PrepareReport:
    """Return the report of a folder's record."""
    return PrepareReport(
        out=folder,
        name=preparation.dataset,
        n_passage=preparation.n_passage,
        n_row_seen=preparation.n_row_seen,
        skipped=dict(preparation.skipped),
        fingerprint=preparation.fingerprint,
        was_prepared=was_prepared,
    )


def _no_passage(source: str, preparation: Preparation, lengths: Lengths) -> str:
    """Say why a source gave nothing."""
    if not preparation.n_row_seen:
        return f"{source}: holds no rows"
    counts = ", ".join(f"{reason} {n}" for reason, n in preparation.skipped.items())
    short = {TOO_SHORT.reason, NO_PLACE.reason} & preparation.skipped.keys()
    return (
        f"{source}: none of {plural(preparation.n_row_seen, 'row')} gives a passage ({counts}); "
        + (
            f"a row needs about {lengths.prefix} + {lengths.minimum} characters: choose another "
            "column or smaller lengths"
            if short
            else "mend the source, or choose another column"
        )
    )


def _checked_lengths(prefix: int, continuation: int, minimum: int) -> Lengths:
    """Check the three lengths."""
    _checked_count("prefix_chars", prefix, 0)
    _checked_count("continuation_chars", continuation, 1)
    _checked_count("minimum_chars", minimum, 1)
    if minimum > continuation:
        raise ConfigError(
            f"minimum_chars {minimum} exceeds continuation_chars {continuation}; make it smaller"
        )
    return Lengths(prefix=prefix, continuation=continuation, minimum=minimum)


def _checked_count(name: str, value: object, least: int) -> int:
    """Check that an argument is an integer that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; allowed: integers from {least}")
    return value


def _printable(text: str) -> str:
    """Return a file name from anywhere as text that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
