"""The tokens of a harvest as blocks that stay in memory, each a sample of the whole.

The tokens are ordered along a line that passes near alike tokens one after another, and dealt to
the blocks in turn. So the first block alone, a stratified sample, already has nearly the objective
of all, and a search can begin on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxsppl import schema
from jaxsppl.errors import PlanError
from jaxsppl.sweep.data import STATISTICS, TokenArrays, blocks

BLOCK = 1024
_MIB = 2**20


@dataclass(frozen=True)
class Resident:
    """One harvest, or several pooled, ready to be searched.

    Attributes
    ----------
    data : Candidates
        Arrays with a leading block axis; the listed log-probabilities in float32.
    n_block : int
        Blocks that hold tokens; those beyond are padding of one common shape.
    token : array
        (block, token) which token of the harvest each is; -1 for padding.
    """

    data: Any
    n_block: int
    token: schema.Array

    def part(self, chosen: schema.Array) -> "Resident":
        """Return the same blocks with only some of the tokens counting.

        Parameters
        ----------
        chosen : array
            (token,) bool, in the order of the harvest.

        Returns
        -------
        Resident
        """
        counts = np.append(chosen, False)[self.token]
        return replace(self, data=self.data._replace(weight=self.data.weight * counts))


def pool(harvests: Sequence[TokenArrays], label: str) -> TokenArrays:
    """Put harvests of one model together, so that each token weighs the same.

    Parameters
    ----------
    harvests : sequence of TokenArrays
        Of one model.
    label : str
        Name of the pooled dataset.

    Returns
    -------
    TokenArrays

    Raises
    ------
    PlanError
        When they list different numbers of alternatives or have different vocabularies.
    """
    shapes = {(one.n_rank, one.n_vocab) for one in harvests}
    if len(shapes) > 1:
        words = ", ".join(f"{k} of {v}" for k, v in sorted(shapes))
        raise PlanError(
            f"model '{harvests[0].model}': its harvests list {words} tokens; only harvests with "
            "the same alternatives and vocabulary can be pooled"
        )
    first = harvests[0]
    return TokenArrays(
        model=first.model,
        dataset=label,
        top_logprob=np.concatenate([one.top_logprob for one in harvests]),
        token_logprob=np.concatenate([one.token_logprob for one in harvests]),
        token_rank=np.concatenate([one.token_rank for one in harvests]),
        **{name: _together([getattr(one, name) for one in harvests]) for name in STATISTICS},
        **_partition(harvests),
        n_vocab=first.n_vocab,
        n_byte=sum(one.n_byte for one in harvests),
        fingerprint="+".join(one.fingerprint for one in harvests),
        source="",
    )


def _partition(harvests: Sequence[TokenArrays]) -> dict[str, Any]:
    """Return the partition functions of all, where all have them at the same temperatures."""
    nodes = [one.inverse_temperature for one in harvests]
    first = nodes[0]
    if first is None or not all(one is not None and np.array_equal(one, first) for one in nodes):
        return {}
    return {
        "log_partition": _together([one.log_partition for one in harvests]),
        "inverse_temperature": first,
        "partition_error": max(one.partition_error for one in harvests),
    }


def _together(parts: Sequence[schema.Array | None]) -> schema.Array | None:
    """Return the concatenated parts, or None where one is missing."""
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None


def block_size(harvests: Sequence[TokenArrays], memory_mib: int) -> int:
    """Return how many tokens are computed at once.

    Parameters
    ----------
    harvests : sequence of TokenArrays
        All that are searched.
    memory_mib : int
        Memory that may be taken [MiB].

    Returns
    -------
    int

    Raises
    ------
    PlanError
        When the largest harvest itself does not fit.
    """
    largest = max(harvests, key=lambda one: one.n_token * one.n_rank)
    held = largest.n_token * (4 * largest.n_rank + 96)
    # While it is placed there are two copies of it; one token at work takes a few rows of ranks.
    need = 2 * held + 64 * _a_token(largest.n_rank)
    if need > memory_mib * _MIB:
        raise PlanError(
            f"{largest.label} takes {need // _MIB + 1} MiB while it is optimized, more than the "
            f"{memory_mib} MiB allowed; raise memory_mib to {need // _MIB + 1}"
        )
    room = (memory_mib * _MIB - 2 * held) // _a_token(largest.n_rank)
    size = BLOCK
    while size > room:
        size //= 2
    return min(size, max(one.n_token for one in harvests))


def _a_token(n_rank: int) -> int:
    """Return the bytes that a token at work takes."""
    return 8 * (6 * n_rank + 400)


def make_resident(tokens: TokenArrays, size: int, n_block: int, tail: str) -> Resident:
    """Cut a harvest into sample blocks.

    Parameters
    ----------
    tokens : TokenArrays
        One harvest.
    size : int
        Tokens in a block.
    n_block : int
        Blocks of the result, of one shape for all harvests so that the search compiles once.
    tail : str
        "bound" or "drop".

    Returns
    -------
    Resident
        To be made and used inside `float64()`.
    """
    used = -(-tokens.n_token // size)
    order = _along_a_line(tokens)
    # `blocks` pads its last block alone, so the shorter samples are filled up here.
    parts: list[Any] = []
    token = np.full((n_block, size), -1)
    for first in range(used):
        share = order[first::used]
        token[first, : len(share)] = share
        part = next(iter(blocks(tokens.take(share), size, tail)))
        part = part._replace(logprob=part.logprob.astype(np.float32))
        parts.append(jax.tree.map(np.asarray, part))
    parts += [parts[0]] * (n_block - used)
    data = jax.tree.map(lambda *leaves: jax.numpy.asarray(np.stack(leaves)), *parts)
    return Resident(data, used, token)


def _along_a_line(tokens: TokenArrays) -> schema.Array:
    """Return the order of the tokens: in strips of the mass before them, by their own mass."""
    n = tokens.n_token
    place = np.where(tokens.token_rank > 0, tokens.token_rank - 1, tokens.n_rank)
    ahead = np.arange(tokens.n_rank) < place[:, None]
    before = np.where(ahead, np.exp(tokens.top_logprob.astype(np.float64)), 0.0).sum(axis=1)
    n_strip = max(1, int(np.sqrt(n / BLOCK) * 32))
    rank = np.empty(n, np.int64)
    rank[np.lexsort((tokens.token_logprob, before))] = np.arange(n)
    strip = rank * n_strip // n
    # Every other strip backwards, so that the line does not jump between them.
    along = np.where(strip % 2 == 0, 1.0, -1.0) * tokens.token_logprob
    return np.lexsort((along, strip))
