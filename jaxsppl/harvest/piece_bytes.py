"""How many bytes tokens have, asked of a llama-server with the same vocabulary."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jaxsppl.errors import ServerError
from jaxsppl.harvest.client import BadReplyError, RefusedError, open_session, run_to_end
from jaxsppl.harvest.pieces import LOST
from jaxsppl.harvest.protocol import Options, Unavailable
from jaxsppl.harvest.servers.llamacpp import connect

PATIENCE_S = 10.0
TIMEOUT_S = 120.0


def piece_bytes(url: str, ids: Sequence[int], n_vocab: int) -> npt.NDArray[np.int32]:
    """Return the UTF-8 length of each token's piece.

    The server makes text of the tokens and tokens of that text, with their bytes. It need not find
    the same tokens: what counts is that each id comes up once.

    Parameters
    ----------
    url : str
        Address of a llama-server.
    ids : sequence of int
        Tokens of a text.
    n_vocab : int
        Size of the vocabulary that they are of.

    Returns
    -------
    int32 (n,)
        Bytes.

    Raises
    ------
    ServerError
        When the server cannot be reached, has another vocabulary, or does not tell a token.
    """
    return run_to_end(_ask(url, ids, n_vocab))


async def _ask(url: str, ids: Sequence[int], n_vocab: int) -> npt.NDArray[np.int32]:
    """Ask the server."""
    async with open_session(TIMEOUT_S) as session:
        server = connect(session, url, patience_s=PATIENCE_S)
        try:
            scorer = await server.open((await server.offers())[0], Options())
            if scorer.identity.n_vocab != n_vocab:
                raise ServerError(
                    f"{server.label} has a vocabulary of {scorer.identity.n_vocab:,}, the file one "
                    f"of {n_vocab:,}; give a server of the same model"
                )
            known: dict[int, int] = {}
            text = await scorer.detokenize(ids)
            known.update((token.id, len(token.piece)) for token in await scorer.tokenize(text))
            for one in sorted(set(ids) - known.keys()):
                alone = await scorer.detokenize([one])
                if LOST in alone:
                    raise ServerError(f"{server.label} does not tell the bytes of token id {one}")
                known[one] = len(alone.encode())
        except Unavailable as error:
            raise ServerError(f"{error}; is the server running, is the address right?") from error
        except (RefusedError, BadReplyError) as error:
            raise ServerError(f"{server.label} does not tell its tokens: {error}") from error
    return np.asarray([known[one] for one in ids], np.int32)
