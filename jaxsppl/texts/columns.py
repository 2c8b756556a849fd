"""One column out of records of any shape, by a dotted path."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from jaxsppl.errors import TextError, suggest
from jaxsppl.texts.passages import MISSING, NOT_A_RECORD, NULL, Skip

# A column that none of so many rows has is a misspelt one: stop before reading everything.
_PATIENCE = 1000
_LISTED = 24


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source.

    Attributes
    ----------
    document : str
        Name for the document that the row holds.
    source : str
        File, dataset id, module or topic that it came from.
    row : int
        0-based place within `source`.
    value : object
        A record, a text, None, or the `Skip` that says why there is neither.
    prefix, group : object
        What stands in the columns of the prefix and of the group, where there are such.
    """

    document: str
    source: str
    row: int
    value: object
    prefix: object = None
    group: object = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are read: of the text, and perhaps of its prefix and its group."""

    text: str
    prefix: str | None = None
    group: str | None = None

    def names(self) -> list[str]:
        """Return those that there are."""
        return [name for name in (self.text, self.prefix, self.group) if name is not None]


def pick_columns(rows: Iterable[Row], columns: Columns) -> Iterator[Row]:
    """Replace each row's record by the values of some of its columns.

    Parameters
    ----------
    rows : iterable of Row
        Rows whose value is a record (a mapping) or a `Skip`.
    columns : Columns

    Yields
    ------
    Row
        The same rows, with what stands in the columns, or a `Skip`.

    Raises
    ------
    TextError
        As `pick_column`.
    """
    if columns.group is not None:
        rows = pick_column(rows, columns.group, "group")
    if columns.prefix is not None:
        rows = pick_column(rows, columns.prefix, "prefix")
    return pick_column(rows, columns.text)


def pick_column(
    rows: Iterable[Row], column: str, field: Literal["value", "prefix", "group"] = "value"
) -> Iterator[Row]:
    """Put the value of one column of each row's record into a field of the row.

    Parameters
    ----------
    rows : iterable of Row
        Rows whose value is a record (a mapping) or a `Skip`.
    column : str
        A column name, or a path through nested columns such as ``"messages.0.content"``.
    field : str
        The field; "value" replaces the record.

    Yields
    ------
    Row
        The same rows; the field is what stands at `column`, or a `Skip`.

    Raises
    ------
    TextError
        When none of the first 1000 rows, or of all if there are fewer, has the column.
    """
    n_missing, n_found, source = 0, 0, ""
    available: dict[str, None] = {}
    for row in rows:
        source = row.source
        value = row.value if isinstance(row.value, Skip) else lookup(row.value, column)
        if value is MISSING:
            n_missing += 1
            if n_found == 0:
                available.update(dict.fromkeys(column_paths(row.value)))
        elif value is not NOT_A_RECORD:
            n_found += 1
        if n_found == 0 and n_missing >= _PATIENCE:
            raise missing_column(source, column, available)
        # None in these fields means that there is no such column
        yield replace(row, **{field: NULL if value is None and field != "value" else value})
    if n_found == 0 and n_missing:
        raise missing_column(source, column, available)


def lookup(record: object, column: str) -> object:
    """Return what stands at a dotted path of a record.

    Parameters
    ----------
    record : object
        A mapping, possibly with nested mappings and lists.
    column : str
        A key of the record as it is, or keys and list positions joined by dots.

    Returns
    -------
    object
        The value; a `Skip` when the record is no mapping, the path does not exist, or a part
        of the path is null.
    """
    if not isinstance(record, Mapping):
        return NOT_A_RECORD
    found = cast(object, record)
    parts = [column] if column in record else column.split(".")
    for part in parts:
        if found is None:
            return NULL
        if isinstance(found, Mapping) and part in found:
            found = cast("Mapping[str, object]", found)[part]
        elif _is_position(found, part):
            found = cast("Sequence[object]", found)[int(part)]
        else:
            return MISSING
    return found


def column_paths(record: object, prefix: str = "") -> list[str]:
    """List the paths that a record offers, nested ones with dots.

    Parameters
    ----------
    record : object
        A record.
    prefix : str
        What to put before each path.

    Returns
    -------
    list of str
        At most 24 paths; of a list only the first item is entered.
    """
    if isinstance(record, Mapping):
        items = [
            (str(key), value) for key, value in cast("Mapping[object, object]", record).items()
        ]
    elif isinstance(record, list) and record:
        items = [("0", cast("list[object]", record)[0])]
    else:
        return [prefix] if prefix else []
    paths: list[str] = []
    for key, value in items[:_LISTED]:
        paths.extend(column_paths(value, f"{prefix}.{key}" if prefix else key))
    return paths[:_LISTED]


def missing_column(source: str, column: str, available: Iterable[str]) -> TextError:
    """Return the error that names the columns there are.

    Parameters
    ----------
    source : str
        Where the column was looked for.
    column : str
        The column asked for.
    available : iterable of str
        The paths that exist.

    Returns
    -------
    TextError
        To be raised.
    """
    paths = list(available)[:_LISTED]
    hint = suggest(column, paths)
    if hint.startswith("did you mean"):
        hint += " Columns: " + ", ".join(f"'{path}'" for path in paths)
    return TextError(f"{source}: no column '{column}'; {hint}")


def _is_position(found: object, part: str) -> bool:
    """Tell whether `part` is a position that the list `found` has."""
    return (
        isinstance(found, list)
        and part.isdecimal()
        and int(part) < len(cast("list[object]", found))
    )
