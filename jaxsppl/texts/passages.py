"""The passage: what is cut out of one document, and where the cuts may fall.  No I/O."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import cast

import msgspec

# White space that typography uses to keep a word or a number together is no place to cut.
_NO_BREAK_SPACES = frozenset("\u00a0\u2007\u202f")
# Scripts without spaces between words are cut after their own punctuation instead.
_EAST_ASIAN_STOPS = frozenset("。！？、，；：")
_EAST_ASIAN_CLOSERS = frozenset("」』）】》〉”’。！？、，；：…")
_UNSAFE = re.compile(r"[^\w.-]+")
_NAME_LENGTH = 96


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that gives context and the continuation that is scored.

    Attributes
    ----------
    document : str
        Name of the document, unique within its dataset and safe as a file name.
    prefix, continuation : str
        Text whose UTF-8 encoding is exactly the bytes of the two files. White space at the
        join belongs to the continuation; the prefix may be empty.
    prefix_sha256, sha256 : str
        Hexadecimal SHA-256 of the bytes of the prefix and of the continuation.
    dataset : str
        Name of the dataset.
    source : str
        Where the document came from: a file, a dataset id, a module or a topic.
    row : int or None
        0-based place within that source; None when unknown.
    start : int or None
        Characters of the document before the prefix (leading white space); None when unknown.
    group : str
        What the passage belongs to, for results by group; "" when nothing is known.
    """

    document: str
    prefix: str
    continuation: str
    prefix_sha256: str
    sha256: str
    dataset: str
    source: str = ""
    row: int | None = None
    start: int | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a row gives no passage; equal reasons are counted together."""

    reason: str


NULL = Skip("null")
MISSING = Skip("column missing")
NOT_A_RECORD = Skip("not a record")
NOT_A_STRING = Skip("not a string")
BADLY_ENCODED = Skip("badly encoded")
EMPTY = Skip("empty")
NUL_CHARACTER = Skip("NUL character")
TOO_SHORT = Skip("too short")
NO_PLACE = Skip("no place to cut")
DUPLICATE = Skip("duplicate")
NOT_DRAWN = Skip("not drawn")


@dataclass(frozen=True, slots=True)
class Cut:
    """One passage's text: ``document[start:]`` begins with ``prefix + continuation``."""

    prefix: str
    continuation: str
    start: int


WHOLE = 1 << 40


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the parts of a passage may be [character].

    Attributes
    ----------
    prefix : int
        Longest prefix; the cut lies between half of it and all of it. 0: no prefix.
    continuation : int
        Longest continuation; `WHOLE` sets no limit.
    minimum : int
        Shortest continuation, not counting white space at the join.
    """

    prefix: int
    continuation: int
    minimum: int

    @property
    def document(self) -> int:
        """Characters of a document that decide its passage, leading white space aside."""
        return self.prefix + self.continuation + 1


def text_of(value: object) -> str | Skip:
    """Return a row's value as text, or the reason why it is none.

    Parameters
    ----------
    value : object
        What the source gave: text, UTF-8 bytes, None, a `Skip`, or anything else.

    Returns
    -------
    str or Skip
        The text, not yet judged by length or content.
    """
    if isinstance(value, (str, Skip)):
        return value
    if value is None:
        return NULL
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return BADLY_ENCODED
    return NOT_A_STRING


def cut(text: str, lengths: Lengths) -> Cut | Skip:
    """Cut the passage at the start of a document.

    Leading white space of the document is skipped and trailing white space dropped. Both cuts
    lie before white space that allows a line break (never a no-break space), or, in scripts
    written without spaces, after a full stop or comma of that script; so no word and no
    grapheme cluster is split. The white space at the join belongs to the continuation.

    Parameters
    ----------
    text : str
        The document, or at least its first `lengths.document` characters after leading
        white space.
    lengths : Lengths
        Limits [character].

    Returns
    -------
    Cut or Skip
        The passage, or why there is none.
    """
    body = text.lstrip()
    start = len(text) - len(body)
    is_whole = len(body) < lengths.document
    body = body.rstrip() if is_whole else body[: lengths.document]
    unfit = _unfit(body)
    if unfit is not None:
        return unfit
    join = _join(body, lengths.prefix)
    if isinstance(join, Skip):
        return join
    end = _last_break(body, join + 1, min(join + lengths.continuation, len(body)))
    if end is not None and len(body[join:end].lstrip()) >= lengths.minimum:
        return Cut(prefix=body[:join], continuation=body[join:end], start=start)
    return TOO_SHORT if is_whole and len(body) - join < lengths.minimum else NO_PLACE


def cut_answer(prefix: str, text: str, lengths: Lengths) -> Cut | Skip:
    """Cut a continuation whose prefix is a text of its own, which is kept as it is.

    Parameters
    ----------
    prefix : str
        May be empty.
    text : str
        The continuation, or more; its leading white space is kept.
    lengths : Lengths
        The prefix is not limited.

    Returns
    -------
    Cut or Skip
    """
    unfit = _unfit(prefix) if prefix else None
    part = cut(text, Lengths(0, lengths.continuation, lengths.minimum))
    if unfit is not None or isinstance(part, Skip):
        return unfit or cast("Skip", part)
    return Cut(prefix, text[: part.start] + part.continuation, 0)


def normalised_sha256(text: str) -> str:
    """Return a digest that is equal for texts that differ only in white space or Unicode form.

    Parameters
    ----------
    text : str
        Any text without lone surrogates.

    Returns
    -------
    str
        Hexadecimal SHA-256 of the NFC form with each run of white space as one space.
    """
    folded = " ".join(unicodedata.normalize("NFC", text).split())
    return sha256(folded.encode("utf-8"))


def sha256(data: bytes) -> str:
    """Return the hexadecimal SHA-256 of `data`.

    Parameters
    ----------
    data : bytes
        Any bytes.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    return hashlib.sha256(data).hexdigest()


def safe_name(text: str) -> str:
    """Return `text` as a name that can never be a path, an option or a hidden file.

    Parameters
    ----------
    text : str
        Any text, for example a dataset id or a path.

    Returns
    -------
    str
        Letters, digits, ``_``, ``.`` and ``-`` only, at most 96 characters, not starting or
        ending with ``.`` or ``-``; ``"text"`` when nothing is left. The full digest of a
        longer text keeps different texts different.
    """
    name = _UNSAFE.sub("-", unicodedata.normalize("NFC", text)).strip(".-")
    if len(name) > _NAME_LENGTH:
        digest = sha256(text.encode("utf-8", "backslashreplace"))[:12]
        name = f"{name[: _NAME_LENGTH - 13].rstrip('.-')}-{digest}"
    return name or "text"


def _unfit(body: str) -> Skip | None:
    """Return why no model should be given this text, if so."""
    if not body:
        return EMPTY
    if "\0" in body:
        return NUL_CHARACTER
    try:
        body.encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate: damaged when it was decoded.
        return BADLY_ENCODED
    return None


def _join(body: str, longest: int) -> int | Skip:
    """Return where the prefix ends."""
    if longest == 0:
        return 0
    if len(body) <= longest:
        return TOO_SHORT
    found = _last_break(body, (longest + 1) // 2, longest)
    return NO_PLACE if found is None else found


def _last_break(text: str, first: int, last: int) -> int | None:
    """Return the largest position in [first, last] where the text may be cut, if any."""
    return next((at for at in range(last, first - 1, -1) if _is_break(text, at)), None)


def _is_break(text: str, at: int) -> bool:
    """Tell whether the text may be cut before character `at`; its end always may."""
    if at == len(text):
        return True
    before, after = text[at - 1], text[at]
    # Format characters (joiners, prepended marks) can bind to what follows them.
    if before.isspace() or unicodedata.category(before) == "Cf":
        return False
    if after.isspace():
        return after not in _NO_BREAK_SPACES
    return (
        before in _EAST_ASIAN_STOPS
        and after not in _EAST_ASIAN_CLOSERS
        and unicodedata.category(after) not in {"Mn", "Mc", "Me", "Cf"}
    )
