"""Where the continuation begins: by bytes, whatever the tokens are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsppl.harvest.alignment import split, text_bytes
from jaxsppl.harvest.protocol import PassageError


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@given(
    st.text(max_size=30),
    st.text(min_size=1, max_size=30),
    st.lists(st.integers(0, 10**6), max_size=20),
    st.booleans(),
)
def test_every_byte_is_context_or_scored(prefix: str, rest: str, cuts, lead: bool) -> None:
    before, after = text_bytes("prefix", prefix), text_bytes("continuation", rest)
    pieces = cut_up(before + after, cuts)
    try:
        found = split(pieces, before, after, lead=lead)
    except PassageError as error:
        # only when the last token is the one that spans the join, or the only one
        assert "too short" in str(error)
        assert len(pieces[-1]) > len(after) or len(pieces) == 1
        return
    context, scored = pieces[: found.start], pieces[found.start :]
    assert [len(piece) for piece in scored] == list(found.token_bytes)
    assert after.endswith(b"".join(scored))
    inside = len(b"".join(context)) - len(before)
    assert inside >= 0
    assert found.merged == (1 if inside and before else 0)
    if lead or before:
        # no token of the continuation alone is lost
        assert not context or len(context[-1]) > inside or inside == 0
    else:
        assert found.start == 1


def test_examples_of_the_field() -> None:
    # a token that spans the join is context
    assert split([b"Ans", b"wer", b" it"], b"Answ", b"er it", lead=True).start == 2
    assert split([b"Ans", b"wer", b" it"], b"Answ", b"er it", lead=True).merged == 1
    # white space at the join belongs to the continuation
    assert split([b"hello", b" world"], b"hello", b" world", lead=True).token_bytes == (6,)
    # some tokenisers put a space before a text
    assert split([b" Hello", b" you"], b"Hello", b" you", lead=True).token_bytes == (4,)
    assert split([b" Hello", b" you"], b"", b"Hello you", lead=True).token_bytes == (5, 4)


def test_pieces_that_are_not_the_text_are_refused() -> None:
    with pytest.raises(PassageError, match="does not keep the text's bytes"):
        split([b"hello", b" there"], b"Hello", b" there", lead=True)
    with pytest.raises(PassageError, match="does not keep"):
        split([], b"Hello", b" there", lead=True)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(PassageError, match="prefix has half of a surrogate pair at character 2"):
        text_bytes("prefix", "ab\ud83d")
