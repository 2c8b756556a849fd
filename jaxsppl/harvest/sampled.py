"""What a llama-server draws from, in its own words: the law after its chain of samplers.

Without a grammar it reports the probabilities after sampling exactly, whatever it then draws.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from jaxsppl.errors import ServerError, suggest
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError, open_session, run_to_end
from jaxsppl.harvest.forcing import ALTERNATIVE_BYTES, SETTINGS
from jaxsppl.harvest.protocol import Identity, Options, Unavailable
from jaxsppl.harvest.servers import llamacpp
from jaxsppl.harvest.validate import LOWEST

# A token that is no whole character comes back without probabilities; another draw is another one.
_DRAWS = 12
Row = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class _Listed(msgspec.Struct):
    id: int
    logprob: float | None = None
    prob: float | None = None


class _Entry(msgspec.Struct):
    top_logprobs: list[_Listed] = []
    top_probs: list[_Listed] = []


class _Reply(msgspec.Struct):
    completion_probabilities: list[_Entry] = []


class Oracle:
    """One model of one llama-server, asked for laws.

    Attributes
    ----------
    identity : Identity
        Build, vocabulary and context.
    """

    def __init__(
        self, client: Client, model: Mapping[str, str], scorer: llamacpp.LlamaCppScorer
    ) -> None:
        self._client = client
        self._model = model
        self._scorer = scorer
        self.identity: Identity = scorer.identity

    async def tokens(self, text: str) -> list[int]:
        """Return the ids of a text, after those that the model wants before it.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of int
        """
        return [*self._scorer.lead, *(token.id for token in await self._scorer.tokenize(text))]

    async def text(self, token_id: int) -> str:
        """Return the text of a token; what is no whole character is replaced.

        Parameters
        ----------
        token_id : int

        Returns
        -------
        str
        """
        return await self._scorer.detokenize([token_id])

    async def model_law(self, prompt: Sequence[int], n_listed: int) -> Row:
        """Return the model's own distribution.

        Parameters
        ----------
        prompt : sequence of int
            Token ids.
        n_listed : int
            How many of the likeliest tokens; at most the vocabulary.

        Returns
        -------
        ids : array
            (rank,) by falling probability.
        logprob : array
            (rank,) float32 values, off by one offset that is common to all [nat].
        """
        entry = await self._ask(prompt, {}, n_listed)
        if entry is None or len(entry.top_logprobs) != n_listed:
            raise ServerError(f"{self._client.label}: it did not list {n_listed} alternatives")
        logprob = [LOWEST if one.logprob is None else one.logprob for one in entry.top_logprobs]
        return np.array([one.id for one in entry.top_logprobs]), np.array(logprob)

    async def drawn_law(
        self,
        prompt: Sequence[int],
        samplers: Sequence[str],
        settings: Mapping[str, float],
        n_listed: int,
    ) -> Row | None:
        """Return the distribution after the samplers.

        Parameters
        ----------
        prompt : sequence of int
            Token ids.
        samplers : sequence of str
            In the server's own names, first applied first.
        settings : mapping of str to float
            Their parameters.
        n_listed : int
            How many tokens to list at most.

        Returns
        -------
        (ids, probability) or None
            By falling probability; fewer than `n_listed` are all that can be drawn. None where
            all that was drawn were parts of characters.
        """
        asked = {"samplers": list(samplers), **settings, "post_sampling_probs": True}
        entry = await self._ask(prompt, asked, n_listed)
        if entry is None:
            return None
        listed = entry.top_probs
        ids = np.array([one.id for one in listed], np.int64)
        return ids, np.array([one.prob or 0.0 for one in listed])

    async def _ask(
        self, prompt: Sequence[int], how: Mapping[str, Any], n_listed: int
    ) -> _Entry | None:
        """Draw one token, with other seeds until it is a whole one."""
        for seed in range(_DRAWS):
            reply = await self._client.ask(
                "/completion",
                _Reply,
                body={
                    **SETTINGS,
                    "temperature": 1.0,
                    **how,
                    "seed": seed,
                    "prompt": list(prompt),
                    "n_predict": 1,
                    "n_probs": n_listed,
                    # Only the last token is computed again, alone: all requests see one arithmetic.
                    "cache_prompt": True,
                    "id_slot": 0,
                    **self._model,
                },
                limit=(1 << 20) + n_listed * ALTERNATIVE_BYTES,
            )
            if reply.completion_probabilities:
                return reply.completion_probabilities[0]
        return None


@asynccontextmanager
async def open_oracle(
    url: str, model: str | None = None, timeout_s: float = 600.0
) -> AsyncGenerator[Oracle]:
    """Connect with a llama-server.

    Parameters
    ----------
    url : str
        Its address.
    model : str, optional
        Which of its models; needed where it offers several.
    timeout_s : float
        Longest duration of one request [s].

    Yields
    ------
    Oracle

    Raises
    ------
    ServerError
        When the server cannot be reached or is no llama-server, does not offer the model, or
        offers several and none is named.
    """
    async with open_session(timeout_s) as session:
        server = llamacpp.connect(session, url, patience_s=60.0)
        try:
            offers = await server.offers()
            chosen = [one for one in offers if model is None or one.answers_to(model)]
            if len(chosen) != 1:
                names = [one.name for one in offers]
                raise ServerError(
                    f"{server.label}: name one of its models with --model; "
                    f"{suggest(model or '', names)}"
                )
            scorer = await server.open(chosen[0], Options(alternatives=1))
            asked = {"model": chosen[0].id} if chosen[0].router else {}
            yield Oracle(Client(session, url), asked, scorer)
        except Unavailable as error:
            raise ServerError(str(error)) from error
        except (RefusedError, BadReplyError) as error:
            raise ServerError(f"{server.label}: {error}") from error


def token_texts(url: str, ids: Sequence[int], model: str | None = None) -> dict[int, str]:
    """Ask a llama-server for the texts of tokens.

    Parameters
    ----------
    url : str
        Its address.
    ids : sequence of int
    model : str, optional
        Which of its models; needed where it offers several.

    Returns
    -------
    dict of int to str
        What is no whole character is replaced.

    Raises
    ------
    ServerError
        As `open_oracle`.
    """

    async def ask() -> dict[int, str]:
        async with open_oracle(url, model) as oracle:
            return {one: await oracle.text(one) for one in dict.fromkeys(ids)}

    return run_to_end(ask())
