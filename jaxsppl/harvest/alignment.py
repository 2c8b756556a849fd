"""Where the scored tokens begin: prefix and continuation tokenised together, split by bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxsppl.harvest.protocol import PassageError


@dataclass(frozen=True)
class Split:
    """Tokens before `start` are context; `merged` is 1 when one of them spans the join."""

    start: int
    merged: int
    token_bytes: tuple[int, ...]


def text_bytes(name: str, text: str) -> bytes:
    """Return a text as UTF-8.

    Parameters
    ----------
    name : str
        What it is, for the message.
    text : str

    Returns
    -------
    bytes

    Raises
    ------
    PassageError
        When it holds half of a surrogate pair, which no UTF-8 has.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PassageError(
            f"the {name} has half of a surrogate pair at character {error.start}"
        ) from error


def lead_tokens(bare: Sequence[int], dressed: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that a model wants before a text; those after it are left off.

    Parameters
    ----------
    bare, dressed : sequence of int
        The tokens of one text without and with those that the model wants around it.

    Returns
    -------
    tuple of int

    Raises
    ------
    PassageError
        When the text itself has other tokens in the two.
    """
    for start in range(len(dressed) - len(bare) + 1):
        if list(dressed[start : start + len(bare)]) == list(bare):
            return tuple(dressed[:start])
    raise PassageError("a text has other tokens with those that the model wants around it")


def split(pieces: Sequence[bytes], prefix: bytes, continuation: bytes, *, lead: bool) -> Split:
    """Split the tokens of prefix + continuation into context and scored ones.

    Parameters
    ----------
    pieces : sequence of bytes
        Bytes of each token of the joined text, without a begin-of-text token.
    prefix, continuation : bytes
        The texts. White space at the join belongs to the continuation.
    lead : bool
        Whether a begin-of-text token goes before; without one an empty prefix makes the first
        token of the text the context of the others, because nothing predicts it.

    Returns
    -------
    Split

    Raises
    ------
    PassageError
        When the pieces are not the text's exact bytes, or no token is left to score.
    """
    pieces = _without_dummy_space(pieces, prefix + continuation)
    ends: list[int] = []
    total = 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    join = len(prefix)
    starts = [0, *ends[:-1]]
    start = next((i for i, at in enumerate(starts) if at >= join), len(pieces))
    if start == 0 and not lead:
        start = 1
    if start >= len(pieces):
        raise PassageError("the continuation is too short: no token of its own is left to score")
    merged = int(join > 0 and start > 0 and ends[start - 1] > join)
    return Split(start, merged, tuple(len(piece) for piece in pieces[start:]))


def _without_dummy_space(pieces: Sequence[bytes], text: bytes) -> Sequence[bytes]:
    """Check that the pieces are the text; drop the space that some tokenisers put before it."""
    joined = b"".join(pieces)
    if joined == text:
        return pieces
    if joined == b" " + text and pieces[0].startswith(b" "):
        return [pieces[0][1:], *pieces[1:]]
    raise PassageError("the model's tokeniser does not keep the text's bytes as they are")
