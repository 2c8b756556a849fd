"""Documents as the units of uncertainty: their sums, for single settings and for whole grids."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxsppl.schema import Array
from jaxsppl.sweep.binning import shared_tables
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.engine import direct_probabilities, grid_means
from jaxsppl.sweep.plan import make_plan

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.sweep.plan import Axis

# Batches of documents that a whole grid is computed for: more cost time and tell little more.
MOST_BATCHES = 20


@dataclass(frozen=True)
class Documents:
    """The documents of a harvest, or its groups of documents: what is drawn whole.

    Attributes
    ----------
    names : tuple of str
        What tells them apart, also between models: the SHA-256 of a text, the label of a group.
    index : array
        (token,) document of each token.
    n_token, n_byte, n_char : array
        (document,) float64 sizes; characters are NaN where nobody counted them.
    group : tuple of str
        Group of each document, "" without one.
    n_document : int
        Documents, also where the entries are groups.
    unit : {"document", "group"}
        What the entries are.
    """

    names: tuple[str, ...]
    index: Array
    n_token: Array
    n_byte: Array
    n_char: Array
    group: tuple[str, ...]
    n_document: int
    unit: Literal["document", "group"] = "document"

    def __len__(self) -> int:
        """Return their number."""
        return len(self.names)

    @property
    def n_group(self) -> int:
        """Return the number of groups, 0 where documents are what is drawn."""
        return len(self) if self.unit == "group" else 0

    def clustered(self, cluster: str) -> "Documents":
        """Return the units: whole groups, and the documents that have none.

        Parameters
        ----------
        cluster : {"group", "document"}
            Documents stay what they are with "document", or where none has a group.

        Returns
        -------
        Documents
        """
        if cluster == "document" or not any(self.group):
            return self
        labels = [f"group {g}" if g else n for g, n in zip(self.group, self.names, strict=True)]
        names = tuple(dict.fromkeys(labels))
        places = {name: place for place, name in enumerate(names)}
        unit = np.asarray([places[label] for label in labels])
        sizes = {
            name: np.bincount(unit, getattr(self, name), len(names))
            for name in ("n_token", "n_byte", "n_char")
        }
        none = ("",) * len(names)
        return replace(self, names=names, index=unit[self.index], group=none, unit="group", **sizes)

    def sums(self, values: Array) -> Array:
        """Return (..., document) sums of (..., token) values."""
        flat = values.reshape(-1, len(self.index))
        rows = [np.bincount(self.index, row, len(self)) for row in flat]
        return np.stack(rows).reshape(*values.shape[:-1], len(self))


def documents_of(harvest: "xr.Dataset") -> Documents:
    """Return the documents that have tokens, in the order of the file.

    Parameters
    ----------
    harvest : xarray.Dataset
        As `jaxsppl.open_harvest` gives it.

    Returns
    -------
    Documents
        Texts that are the same, byte by byte, are one document, in the group of the first.
    """
    digests = [str(value) for value in harvest["document_sha256"].values.tolist()]
    at = np.asarray(harvest["document_index"].values)
    names = tuple(dict.fromkeys(digests[place] for place in np.unique(at)))
    places = {name: place for place, name in enumerate(names)}
    index = np.asarray([places.get(digest, -1) for digest in digests])[at]
    n_byte = np.bincount(index, harvest["token_bytes"].values, len(names))
    n_token = np.bincount(index, minlength=len(names)).astype(np.float64)
    labels = harvest["group"].values.tolist() if "group" in harvest.variables else []
    group = {digest: str(label) for digest, label in zip(digests[::-1], labels[::-1], strict=False)}
    return Documents(
        names,
        index,
        n_token,
        n_byte,
        np.full(len(names), np.nan),
        tuple(group.get(name, "") for name in names),
        len(names),
    )


def joined(parts: Sequence[Documents]) -> Documents:
    """Return the documents of several harvests put together, those of the same text as one.

    Parameters
    ----------
    parts : sequence of Documents
        Of each harvest; no groups.

    Returns
    -------
    Documents
    """
    group = {name: g for one in parts for name, g in zip(one.names, one.group, strict=True)}
    names = tuple(group)
    places = {name: place for place, name in enumerate(names)}
    where = [np.asarray([places[name] for name in one.names]) for one in parts]

    def size(name: str) -> Array:
        """Return a size of each document."""
        return np.bincount(
            np.concatenate(where), np.concatenate([getattr(one, name) for one in parts])
        )

    return Documents(
        names,
        np.concatenate([at[one.index] for at, one in zip(where, parts, strict=True)]),
        size("n_token"),
        size("n_byte"),
        size("n_char"),
        tuple(group.values()),
        len(names),
    )


def shuffled(documents: Documents, seed: int) -> list[int]:
    """Return the documents in an order that only their texts and the seed decide.

    Parameters
    ----------
    documents : Documents
    seed : int

    Returns
    -------
    list of int
        The same texts come in the same order for every model and file.
    """

    def key(place: int) -> str:
        """Return what is as good as random."""
        return hashlib.sha256(f"{seed} {documents.names[place]}".encode()).hexdigest()

    return sorted(range(len(documents)), key=key)


def point_sums(
    tokens: TokenArrays,
    documents: Documents,
    point: Mapping[str, float],
    *,
    chain: Sequence[str],
    tail: str,
) -> tuple[Array, Array]:
    """Score one setting on each document, by the definition.

    Parameters
    ----------
    tokens : TokenArrays
    documents : Documents
        Of the same harvest.
    point : mapping of str to float
        Parameters, `epsilon` among them.
    chain : sequence of str
        Order of the stages.
    tail : str
        "bound" or "drop".

    Returns
    -------
    loss : array
        (document,) summed clipped losses [nat].
    ood : array
        (document,) summed counts.
    """
    settings = {name: value for name, value in point.items() if name != "epsilon"}
    own = direct_probabilities(tokens, settings, chain=chain, tail=tail, block=512)[0]
    loss = -np.log(np.maximum(own, point["epsilon"]))
    return documents.sums(loss), documents.sums((own < point["epsilon"]).astype(np.float64))


def grid_sums(
    tokens: TokenArrays,
    batches: Array,
    axes: "Sequence[Axis]",
    *,
    chain: Sequence[str],
    epsilon: float,
    tail: str,
    level: str,
    memory_mib: int,
) -> Iterator[tuple[Array, Array]]:
    """Score a whole grid on one batch of documents after another.

    Parameters
    ----------
    tokens : TokenArrays
    batches : array
        (token,) batch of each token: 0, 1, ...
    axes : sequence of Axis
        The grid.
    chain, epsilon, tail, level, memory_mib
        As in `make_plan`.

    Yields
    ------
    loss, ood : array
        Sums over the batch's tokens, of the shape of the grid.
    """
    parts = [tokens.take(batches == batch) for batch in range(int(batches.max()) + 1)]
    plan = make_plan(
        parts,
        axes,
        chain=chain,
        epsilon=epsilon,
        tail=tail,
        level=level,
        memory_mib=memory_mib,
    )
    tables = shared_tables(plan)
    for part in parts:
        means = grid_means(plan, part, lambda _: None, tables)
        yield means.nll * part.n_token, means.ood * part.n_token
