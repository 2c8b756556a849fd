"""Harvests from the files that `llama-perplexity --kl-divergence-base` writes, read as a stream.

Such a file holds the whole law at every scored place, in 16 bits a token. What is more than 16 nat
below the likeliest token was raised to that floor: of these tokens their number is known, that each
is at or below the floor, and their mass, from what the others leave of 1. So the statistics have
brackets, and those that are wider than `TOLERANCE` are left out.
"""

import hashlib
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from jaxsppl import schema, store
from jaxsppl.atomic import check_target
from jaxsppl.errors import ConfigError, MissingFileError, SchemaError
from jaxsppl.harvest.protocol import HarvestReport, ScoredPassage
from jaxsppl.harvest.records import assemble
from jaxsppl.harvest.statistics import (
    INVERSE_TEMPERATURE,
    Float64,
    Statistics,
    joined,
    power_sums,
)
from jaxsppl.journal import lock

MAGIC = b"_logits_"
HEAD = struct.Struct("<8s3i")
CODES = 65535
FLOOR = 16.0
# What a statistic may be off by, by the codes' steps and by what the floor leaves open [nat].
TOLERANCE = 4e-3
# Scale and offset are float32 and the sum behind them was rounded once.
ROUNDING = 1e-5
BLOCK = 1 << 22


@dataclass(frozen=True)
class Layout:
    """Sizes that follow from the header: C tokens a chunk, V in the vocabulary, M chunks."""

    chunk: int
    n_vocab: int
    n_chunk: int

    @property
    def context(self) -> int:
        """Tokens of each chunk before the first scored one."""
        return self.chunk // 2 + 1

    @property
    def rows(self) -> int:
        """Scored tokens of a chunk."""
        return self.chunk - self.context

    @property
    def width(self) -> int:
        """16-bit words of a row: two float32, then a code for each token, to an even number."""
        return 4 + 2 * ((self.n_vocab + 1) // 2)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        per_chunk = 4 * self.chunk + 2 * self.rows * self.width
        return HEAD.size + self.n_chunk * per_chunk


@dataclass(frozen=True)
class _Chunk:
    """A chunk as a passage: its scored ids are its text."""

    document: str
    continuation: str
    prefix: str = ""


def import_kld(
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    alternatives: int = 100,
    model: str | None = None,
    dataset: str = "text",
    server: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HarvestReport:
    """Make a harvest of the file that `llama-perplexity --kl-divergence-base` writes.

    The file is read once from start to end, so it may be a pipe, and a few megabytes at a time.
    Each chunk becomes a document. Log-probabilities are exact to the quantisation, 1.2e-4 nat;
    an actual token at the floor has an upper bound only and is counted in `n_censored`.
    `entropy`, and `log_partition` from a certain inverse temperature on, are given where they are
    off by no more than 4e-3 nat (`statistics_tolerance`), for every token; `logit_std` and
    `min_logprob` only when no token is at the floor. Bytes of tokens are not in such a file:
    `token_bytes` is 0 unless a server tells them.

    Parameters
    ----------
    file : path
        The file, or a named pipe that the program writes to.
    out : path
        The harvest file.
    alternatives : int
        K, the alternatives kept for each token; at most the vocabulary is used.
    model, dataset : str
        Names to store; the model's is the file's by default.
    server : str, optional
        Address of a llama-server with a model of the same vocabulary, which tells how many bytes
        each token has: without it there are no bits per byte.
    progress : callable, optional
        Called with the chunks read and all of them.

    Returns
    -------
    HarvestReport

    Raises
    ------
    ConfigError
        When an argument is unusable or the harvest cannot be written.
    SchemaError
        When the file is not such a file, is too short or too long, or its rows are no laws.
    ServerError
        When the server cannot be reached or has another vocabulary.
    """
    began = time.monotonic()
    if isinstance(alternatives, bool) or alternatives < 1:
        raise ConfigError(f"alternatives is {alternatives}; give a whole number of at least 1")
    source, target = Path(file), Path(out)
    check_target(target, schema.HARVEST)
    name = model or source.name.split(".")[0] or "kld"
    with lock(target), _opened(source) as stream:
        layout = _layout(stream, source)
        reader = _Reader(source, stream, layout, min(alternatives, layout.n_vocab))
        passages: list[_Chunk] = []
        scored: dict[str, ScoredPassage] = {}
        for passage, part in reader.chunks(server):
            passages.append(passage)
            scored[passage.document] = part
            if progress is not None:
                progress(len(passages), layout.n_chunk)
        config: dict[str, Any] = {
            "schema": schema.HARVEST,
            "method": "kl-divergence-base",
            "sha256": reader.digest.hexdigest(),
            "alternatives": reader.alternatives,
            "model": name,
            "dataset": dataset,
        }
        harvest = assemble(
            passages,
            scored,
            model=name,
            dataset=dataset,
            attrs={
                "n_vocab": layout.n_vocab,
                "protocol": "llama-perplexity",
                "server": "",
                "build_info": "unknown",
                "n_context": layout.chunk,
                "method": "kl-divergence-base",
                "fingerprint": store.fingerprint(config),
                "config_json": json.dumps(config, sort_keys=True),
                "document_sha256_of": "the scored token ids in decimal, separated by spaces",
                "floor": FLOOR,
                "n_floored": reader.n_floored,
                "statistics_tolerance": TOLERANCE,
                "n_failed": 0,
            },
        )
        store.write_dataset(reader.without_unknown(harvest), target)
    n_token = harvest.sizes["token"]
    seconds = time.monotonic() - began
    return HarvestReport(str(target), name, dataset, len(passages), n_token, seconds=seconds)


def _opened(source: Path) -> IO[bytes]:
    """Open the file; a pipe waits here for its writer."""
    try:
        return source.open("rb")
    except OSError as error:
        raise MissingFileError(
            f"{source}: {error.strerror}; name a file of llama-perplexity --kl-divergence-base"
        ) from error


def _layout(stream: IO[bytes], source: Path) -> Layout:
    """Read the header, and compare the size of a regular file with what it promises."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise SchemaError(
            f"{source}: it does not begin with '{MAGIC.decode()}' and its sizes; it is no file of "
            "llama-perplexity --kl-divergence-base"
        )
    _, chunk, n_vocab, n_chunk = HEAD.unpack(head)
    if chunk < 2 or n_vocab < 2 or n_chunk < 1 or chunk // 2 + 1 >= chunk:
        raise SchemaError(
            f"{source}: its header speaks of {n_chunk} chunks of {chunk} tokens and a vocabulary "
            f"of {n_vocab}; the file is damaged"
        )
    layout = Layout(chunk, n_vocab, n_chunk)
    status = os.fstat(stream.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size != layout.size:
        raise _wrong_size(source, status.st_size, layout)
    return layout


def _wrong_size(source: Path, found: int, layout: Layout, *, at_least: bool = False) -> SchemaError:
    """Say how large the file should be."""
    how = "more than " if at_least else ""
    hint = "was it interrupted, or is it still being written?" if found < layout.size else ""
    return SchemaError(
        f"{source}: it has {how}{found:,} bytes, but {layout.n_chunk} chunks of {layout.chunk} "
        f"tokens with a vocabulary of {layout.n_vocab:,} are {layout.size:,} bytes; "
        f"{hint or 'the file is damaged'}"
    )


class _Reader:
    """The stream from its first id to its end, chunk by chunk."""

    def __init__(self, source: Path, stream: IO[bytes], layout: Layout, alternatives: int) -> None:
        self._source = source
        self._stream = stream
        self._layout = layout
        self._at = HEAD.size
        self.alternatives = alternatives
        self.digest = hashlib.sha256(repr(layout).encode())
        self.n_floored = 0
        self._open = np.zeros(INVERSE_TEMPERATURE.size)
        self._open_entropy = 0.0

    def chunks(self, server: str | None) -> Iterator[tuple[_Chunk, ScoredPassage]]:
        """Yield each chunk as a passage and its scores."""
        layout = self._layout
        n_id = layout.n_chunk * layout.chunk
        ids = np.frombuffer(self._read(4 * n_id), "<i4").reshape(layout.n_chunk, layout.chunk)
        if ids.min() < 0 or ids.max() >= layout.n_vocab:
            raise SchemaError(
                f"{self._source}: a token id is not in 0 .. {layout.n_vocab - 1}; it is damaged"
            )
        n_byte = np.zeros_like(ids)
        if server is not None:
            from jaxsppl.harvest.piece_bytes import piece_bytes

            n_byte = piece_bytes(server, ids.ravel().tolist(), layout.n_vocab).reshape(ids.shape)
        digits = len(str(layout.n_chunk - 1))
        for number, targets in enumerate(ids[:, layout.context :]):
            name = f"chunk-{number:0{digits}d}"
            text = " ".join(map(str, targets.tolist()))
            lengths = n_byte[number, layout.context :]
            yield _Chunk(name, text), self._chunk(name, targets, lengths)
        if self._stream.read(1):
            raise _wrong_size(self._source, self._at, layout, at_least=True)

    def _read(self, n_byte: int) -> bytes:
        """Read exactly so many bytes."""
        data = self._stream.read(n_byte)
        self._at += len(data)
        if len(data) < n_byte:
            raise _wrong_size(self._source, self._at, self._layout)
        self.digest.update(data)
        return data

    def _chunk(
        self, name: str, targets: npt.NDArray[np.int32], token_bytes: npt.NDArray[np.int32]
    ) -> ScoredPassage:
        """Score one chunk."""
        width, n_row = self._layout.width, targets.size
        top_id = np.full((n_row, self.alternatives), -1, np.int32)
        top = np.full((n_row, self.alternatives), -np.inf, np.float32)
        rank = np.zeros(n_row, np.int32)
        actual = np.empty(n_row, np.float32)
        parts: list[Statistics] = []
        censored = 0
        step = max(1, BLOCK // (2 * width))
        for first in range(0, n_row, step):
            n_block = min(step, n_row - first)
            data = np.frombuffer(self._read(2 * n_block * width), "<u2").reshape(n_block, width)
            law = np.ascontiguousarray(data[:, :4]).view("<f4").astype(np.float64)
            codes = data[:, 4 : 4 + self._layout.n_vocab]
            for i in range(n_block):
                row = _Row(codes[i], *law[i])
                try:
                    parts.append(self._statistics(row))
                except ValueError as error:
                    raise SchemaError(
                        f"{self._source}: {name}, row {first + i}: {error}; the file is damaged"
                    ) from None
                at = first + i
                listed = row.largest(self.alternatives)
                top_id[at, : listed.size] = listed
                top[at, : listed.size] = row.logprob(listed)
                actual[at] = row.logprob(targets[at : at + 1])[0]
                place = np.flatnonzero(listed == targets[at])
                rank[at] = place[0] + 1 if place.size else 0
                censored += bool(row.has_floor and row.codes[targets[at]] == 0)
        return ScoredPassage(
            token_id=targets,
            token_logprob=np.minimum(actual, 0),
            token_rank=rank,
            token_bytes=token_bytes,
            top_token_id=top_id,
            top_logprob=np.minimum(top, 0),
            context_tokens=self._layout.context,
            censored=censored,
            statistics=joined(parts),
        )

    def _statistics(self, row: "_Row") -> Statistics:
        """Return a row's statistics, and keep in mind what was left open by them."""
        low, high, entropy = row.brackets()
        self.n_floored += row.n_floored
        self._open = np.maximum(self._open, (high - low) / 2)
        self._open_entropy = max(self._open_entropy, (entropy[1] - entropy[0]) / 2)
        return Statistics(
            ((low + high) / 2)[None],
            np.asarray([sum(entropy) / 2], np.float32),
            np.asarray([row.listed.std()], np.float32),
            np.asarray([row.listed.min()], np.float32),
        )

    def without_unknown(self, harvest: Any) -> Any:
        """Leave out the statistics that the floor spoils."""
        spoilt = ["logit_std", "min_logprob"] if self.n_floored else []
        spoilt += ["entropy"] if self._open_entropy > TOLERANCE else []
        wide = np.flatnonzero(self._open > TOLERANCE)
        # what lies beyond a gap would mislead whoever interpolates
        first = int(wide[-1]) + 1 if wide.size else 0
        if first == INVERSE_TEMPERATURE.size:
            spoilt += ["log_partition", "inverse_temperature"]
        else:
            harvest = harvest.isel(inverse_temperature=slice(first, None))
        return harvest.drop_vars(spoilt)


class _Row:
    """One law: codes of all tokens, log-probability = scale * code + lowest."""

    def __init__(self, codes: npt.NDArray[np.uint16], scale: float, lowest: float) -> None:
        self.codes = codes
        self._scale = scale
        self._lowest = lowest
        self.has_floor = scale * CODES > FLOOR * (1 - 1e-6)
        above = codes > 0 if self.has_floor else np.ones(codes.size, bool)
        self.listed = scale * codes[above].astype(np.float64) + lowest
        self.n_floored = codes.size - self.listed.size

    def logprob(self, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
        """Return the log-probabilities of some tokens; of a floored one its upper bound."""
        return self._scale * self.codes[ids].astype(np.float64) + self._lowest

    def largest(self, count: int) -> npt.NDArray[np.intp]:
        """Return the likeliest tokens above the floor; of equal codes the lower ids go first."""
        count = min(count, self.listed.size)
        # A histogram finds those that may be meant ten times faster than a partition of all.
        tail = np.bincount(self.codes >> 6, minlength=1 << 10)[::-1].cumsum()
        lowest = (1 << 10) - 1 - int(np.searchsorted(tail, count))
        likely = np.flatnonzero(self.codes >= lowest << 6)
        return likely[np.argsort(-self.codes[likely].astype(np.int32), kind="stable")][:count]

    def brackets(self) -> tuple[Float64, Float64, tuple[float, float]]:
        """Bracket log_partition and the entropy by what the tokens at the floor may be.

        Raises
        ------
        ValueError
            When the row is no law.
        """
        if not (np.isfinite(self._lowest) and 0 <= self._scale < 1) or self.listed.size == 0:
            raise ValueError(f"scale {self._scale:g} and offset {self._lowest:g} make no law")
        if self.listed.max() > ROUNDING:
            raise ValueError(f"the likeliest token has log-probability {self.listed.max():.6g}")
        probability = np.exp(self.listed)
        mass = float(probability.sum())
        # The likeliest token is coded exactly, the others to half a step.
        doubt = self._scale / 2 * (mass - float(probability.max())) + ROUNDING
        floor = self._lowest + self._scale / 2
        cap = self.n_floored * float(np.exp(floor))
        least = max(1 - mass - doubt, 0.0)
        most = min(1 - mass + doubt, cap)
        if mass > 1 + doubt or least > cap:
            raise ValueError(f"the probabilities sum to {mass:.6g}")
        sums, inverse = power_sums(self.listed), INVERSE_TEMPERATURE
        spread = self._scale / 2 * inverse
        entropy = -float((probability * self.listed).sum())
        own = self._scale / 2 * (entropy + 1)
        if not self.n_floored:
            return np.log(sums) - spread, np.log(sums) + spread, (entropy - own, entropy + own)
        # A mass m is either spread evenly, or on the fewest tokens that the floor allows.
        even = [self.n_floored * (m / self.n_floored) ** inverse for m in (least, most)]
        few = [m * np.exp(floor * (inverse - 1)) for m in (least, most)]
        low = np.where(inverse < 1, few[0], even[0])
        high = np.where(inverse < 1, even[1], few[1])
        low[0] = high[0] = self.n_floored
        tail = most * np.log(self.n_floored / most) if most > 0 else 0.0
        return (
            np.log(sums + low) - spread,
            np.log(sums + high) + spread,
            (entropy - own - least * floor, entropy + own + tail),
        )
