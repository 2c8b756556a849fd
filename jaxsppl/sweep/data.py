"""From labelled harvests to blocks of arrays: the border that labels do not cross."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxsppl import schema, store
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.parameters import TAILS
from jaxsppl.sampling.candidates import Candidates, candidates
from jaxsppl.sampling.measured import with_partition
from jaxsppl.sampling.tail import with_tail

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class TokenArrays:
    """One harvest as plain arrays.

    Attributes
    ----------
    model, dataset : str
        Its labels.
    top_logprob : array
        (token, rank) float32 [nat].
    token_logprob : array
        (token,) float32 [nat].
    token_rank : array
        (token,) int32, 1-based, 0 = outside.
    n_vocab : int
        Size of the vocabulary.
    n_byte : int
        UTF-8 bytes of the scored tokens.
    fingerprint : str
        Digest of the values, which guards results made from them.
    source : str
        File that it came from, or "".
    entropy, logit_std, min_logprob : array or None
        (token,) statistics of the whole vocabulary [nat], where the harvest carries them.
    log_partition : array or None
        (token, node) log sum_j exp(logprob_j * inverse_temperature), likewise.
    inverse_temperature : array or None
        (node,) ascending.
    partition_error : float
        What `log_partition` may be off by [nat].
    """

    model: str
    dataset: str
    top_logprob: schema.Array
    token_logprob: schema.Array
    token_rank: schema.Array
    n_vocab: int
    n_byte: int
    fingerprint: str
    source: str
    entropy: schema.Array | None = None
    logit_std: schema.Array | None = None
    min_logprob: schema.Array | None = None
    log_partition: schema.Array | None = None
    inverse_temperature: schema.Array | None = None
    partition_error: float = 0.0

    @property
    def n_token(self) -> int:
        """Number of scored tokens."""
        return int(self.token_rank.size)

    @property
    def n_rank(self) -> int:
        """Number of alternatives."""
        return int(self.top_logprob.shape[1])

    @property
    def label(self) -> str:
        """Model and dataset in words."""
        return f"model '{self.model}' on dataset '{self.dataset}'"

    @property
    def plain_nll(self) -> float:
        """Negative log-likelihood under the model itself [nat/token]."""
        return -float(self.token_logprob.astype(np.float64).mean())

    def take(self, index: "schema.Array | slice") -> "TokenArrays":
        """Return some of the tokens.

        Parameters
        ----------
        index : array or slice
            (part,) which, in the order wanted; (token,) bool; or a range.

        Returns
        -------
        TokenArrays
            With the labels, `n_byte` and fingerprint of the whole.
        """
        arrays = {name: getattr(self, name) for name in PER_TOKEN}
        return replace(self, **{k: v[index] for k, v in arrays.items() if v is not None})


# Of the whole vocabulary, where a harvest carries them; and all arrays over tokens.
STATISTICS = ("entropy", "logit_std", "min_logprob")
PER_TOKEN = ("top_logprob", "token_logprob", "token_rank", "log_partition", *STATISTICS)


def token_arrays(harvest: "xr.Dataset") -> TokenArrays:
    """Return a checked harvest as plain arrays.

    Parameters
    ----------
    harvest : xarray.Dataset
        As `jaxsppl.open_harvest` gives it.

    Returns
    -------
    TokenArrays
    """
    digest = harvest.attrs.get("digest") or schema.digest(store.contents_of(harvest))
    more: dict[str, Any] = {
        name: np.asarray(harvest[name].values, np.float32)
        for name in STATISTICS
        if name in harvest.data_vars
    }
    if "log_partition" in harvest.data_vars:
        order = np.argsort(harvest["inverse_temperature"].values)
        more["log_partition"] = np.asarray(harvest["log_partition"].values[:, order], np.float64)
        more["inverse_temperature"] = harvest["inverse_temperature"].values[order].astype(float)
        # A file of llama-perplexity leaves something open where tokens are at its floor.
        more["partition_error"] = float(harvest.attrs.get("statistics_tolerance", 0.0))
    return TokenArrays(
        model=str(harvest["model"].values),
        dataset=str(harvest["dataset"].values),
        top_logprob=np.asarray(harvest["top_logprob"].values, np.float32),
        token_logprob=np.asarray(harvest["token_logprob"].values, np.float32),
        token_rank=np.asarray(harvest["token_rank"].values, np.int32),
        n_vocab=int(harvest.attrs["n_vocab"]),
        n_byte=int(harvest["token_bytes"].values.sum()),
        fingerprint=str(digest),
        source=str(harvest.attrs.get("source", "")),
        **more,
    )


def check_tail(tail: str) -> None:
    """Check the name of a tail mode.

    Raises
    ------
    ConfigError
        When there is no such mode.
    """
    if tail not in TAILS:
        raise ConfigError(f"tail: '{tail}' is not allowed; it is 'bound' or 'drop'")


def usable_top_k(
    tokens: TokenArrays, values: Mapping[str, Sequence[float]], tail: str
) -> dict[str, list[float]]:
    """Return the values with a top_k of the whole vocabulary or more turned off.

    Parameters
    ----------
    tokens : TokenArrays
        The harvest.
    values : mapping of str to sequence of float
        Values of each parameter.
    tail : str
        With "drop" only the alternatives exist, so any top_k can be applied.

    Returns
    -------
    dict of str to list of float

    Raises
    ------
    PlanError
        When a top_k lies between the number of alternatives and the vocabulary: which tokens it
        keeps cannot be known from this harvest.
    """
    usable = {name: [float(value) for value in axis] for name, axis in values.items()}
    if tail == "bound" and "top_k" in usable:
        for value in usable["top_k"]:
            if tokens.n_rank < value < tokens.n_vocab:
                raise PlanError(
                    f"top_k {value:g} is above the {tokens.n_rank} harvested alternatives "
                    f"of {tokens.label}; harvest with --alternatives {value:g} or more, or leave "
                    "it out of the axis"
                )
        usable["top_k"] = [0.0 if value >= tokens.n_vocab else value for value in usable["top_k"]]
    return usable


_candidates = jax.jit(candidates)
_with_tail = jax.jit(with_tail, static_argnames="n_vocab")
_with_partition = jax.jit(with_partition)


def blocks(tokens: TokenArrays, size: int, tail: str) -> Iterator[Candidates]:
    """Cut a harvest into blocks of one shape; the last is padded with tokens of weight 0.

    Parameters
    ----------
    tokens : TokenArrays
        The harvest.
    size : int
        Tokens in a block.
    tail : str
        "bound" or "drop".

    Yields
    ------
    Candidates
        In float64; to be used inside `float64()`.
    """
    for first in range(0, tokens.n_token, size):
        stop = min(first + size, tokens.n_token)
        fill = size - (stop - first)

        def cut(
            values: schema.Array, first: int = first, stop: int = stop, fill: int = fill
        ) -> Any:
            """Repeat the last token, so that padding is as harmless as a real one."""
            part = values[first:stop].astype(np.float64 if values.dtype.kind == "f" else np.int32)
            return np.concatenate([part, np.repeat(part[-1:], fill, axis=0)]) if fill else part

        weight = np.concatenate([np.ones(stop - first), np.zeros(fill)])
        block = _candidates(
            cut(tokens.top_logprob), cut(tokens.token_logprob), cut(tokens.token_rank), weight
        )
        if tail == "bound":
            block = _with_tail(block, n_vocab=tokens.n_vocab)._replace(
                **{k: cut(v) for k in STATISTICS if (v := getattr(tokens, k)) is not None}
            )
            if tokens.log_partition is not None:
                block = _with_partition(
                    block,
                    tokens.inverse_temperature,
                    cut(tokens.log_partition),
                    tokens.partition_error,
                )
        yield cast("Candidates", block)
