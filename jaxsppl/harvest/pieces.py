"""The bytes of tokens, from what servers show of them: vocabulary strings, or decoded texts.

Whatever way is tried, it counts only when the bytes together are the text's own.
"""

import re
from collections.abc import Callable, Sequence

from jaxsppl.harvest.protocol import PassageError

# Byte-level vocabularies show each byte as one character: printable Latin-1 as itself, the others
# in order from 256 on.
_SHOWN_AS_ITSELF = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN_AS_ITSELF]
_BYTE_OF = {chr(byte): byte for byte in _SHOWN_AS_ITSELF} | {
    chr(256 + i): byte for i, byte in enumerate(_HIDDEN)
}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LOST = "\N{REPLACEMENT CHARACTER}"


def _byte_level(string: str) -> bytes:
    """Return the bytes of a byte-level vocabulary's string; others are added tokens, literal."""
    if all(character in _BYTE_OF for character in string):
        return bytes(_BYTE_OF[character] for character in string)
    return string.encode()


def _sentence_piece(string: str) -> bytes:
    """Return the bytes of a SentencePiece vocabulary's string."""
    if (byte := _BYTE_TOKEN.fullmatch(string)) is not None:
        return bytes([int(byte[1], 16)])
    return string.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def from_vocabulary(strings: Sequence[str], text: bytes) -> list[bytes]:
    """Return the bytes of each token of a text from its vocabulary strings.

    Parameters
    ----------
    strings : sequence of str
        As the vocabulary has them, for example ``"\u0120the"``, ``"\u2581the"``, ``"<0xE2>"``.
    text : bytes
        The whole text.

    Returns
    -------
    list of bytes

    Raises
    ------
    PassageError
        When no known way of writing them gives the text.
    """
    ways: tuple[Callable[[str], bytes], ...] = (_byte_level, _sentence_piece)
    for way in ways:
        pieces = [way(string) for string in strings]
        if b"".join(pieces) in {text, b" " + text}:
            return pieces
    raise PassageError("the model's tokeniser does not keep the text's bytes as they are")


def from_decoded(decoded: Sequence[str], text: bytes) -> list[bytes]:
    """Return the bytes of each token of a text from the texts that single tokens decode to.

    A token that is no whole character decodes to a replacement character. The bytes of a run of
    such tokens are known only together, and counted at its last one.

    Parameters
    ----------
    decoded : sequence of str
        Each token decoded by itself; the space before a word may be missing.
    text : bytes
        The whole text.

    Returns
    -------
    list of bytes

    Raises
    ------
    PassageError
        When they do not give the text.
    """
    pieces: list[bytes] = []
    at = 0
    waiting = 0
    for token in decoded:
        if LOST in token:
            pieces.append(b"")
            waiting += 1
            continue
        here = _find(text, token.encode(), at, waiting)
        if waiting:
            pieces[-1] = text[at : here[0]]
            waiting = 0
        pieces.append(text[here[0] : here[1]])
        at = here[1]
    if waiting:
        pieces[-1] = text[at:]
        at = len(text)
    if at != len(text) or b"".join(pieces) != text:
        raise PassageError("the decoded tokens do not give the text back")
    return pieces


def _find(text: bytes, token: bytes, at: int, waiting: int) -> tuple[int, int]:
    """Return where a token lies: at once, or after the bytes of the tokens that wait."""
    starts = range(at + waiting, len(text) - len(token) + 1) if waiting else (at,)
    for start in starts:
        for form in (token, b" " + token):
            boundary = start == len(text) or text[start] & 0xC0 != 0x80
            if boundary and text.startswith(form, start):
                return start, start + len(form)
    raise PassageError("the decoded tokens do not give the text back")
