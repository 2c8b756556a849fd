"""Laws of cutting and naming."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxsppl.texts.passages import (
    BADLY_ENCODED,
    EMPTY,
    MISSING,
    NO_PLACE,
    NOT_A_STRING,
    NUL_CHARACTER,
    NULL,
    TOO_SHORT,
    Cut,
    Lengths,
    cut,
    normalised_sha256,
    safe_name,
    sha256,
    text_of,
)

NO_BREAK = "\u00a0\u2007\u202f"
# Words and gaps with everything that makes cutting hard.
words = st.text(
    st.sampled_from("abcdefgéß9-'\u0301\u200d\U0001f469\U0001f3fd\u4e2d\u0e01"),
    min_size=1,
    max_size=12,
)
gaps = st.text(st.sampled_from(" \n\t\r\u3000\u2028" + NO_BREAK), min_size=1, max_size=3) | st.just(
    "\r\n"
)
documents = st.lists(st.tuples(gaps, words), max_size=60).map(
    lambda parts: "".join(gap + word for gap, word in parts)
) | st.text(max_size=300)


@st.composite
def lengths_(draw: st.DrawFn) -> Lengths:
    continuation = draw(st.integers(1, 80))
    return Lengths(
        prefix=draw(st.integers(0, 80)),
        continuation=continuation,
        minimum=draw(st.integers(1, continuation)),
    )


@given(documents, lengths_())
@example("word " * 40, Lengths(50, 80, 20))
@example("天気がいいから、散歩しましょう。" * 20, Lengths(40, 60, 20))
def test_a_passage_is_a_piece_of_its_document_within_the_limits(text: str, lengths: Lengths):
    part = cut(text, lengths)
    if not isinstance(part, Cut):
        return
    whole = part.prefix + part.continuation
    assert text[part.start :].startswith(whole)
    assert not text[: part.start].strip()
    if lengths.prefix:
        assert (lengths.prefix + 1) // 2 <= len(part.prefix) <= lengths.prefix
    else:
        assert part.prefix == ""
    assert len(part.continuation) <= lengths.continuation
    assert len(part.continuation.lstrip()) >= lengths.minimum
    assert whole.encode("utf-8").decode("utf-8") == whole


@given(documents, lengths_())
@example("pages 10\u00a0000 and more " * 9, Lengths(8, 80, 1))
def test_no_cut_is_inside_a_word(text: str, lengths: Lengths):
    part = cut(text, lengths)
    if not isinstance(part, Cut):
        return
    end = part.start + len(part.prefix) + len(part.continuation)
    places = [end] if not part.prefix else [part.start + len(part.prefix), end]
    for at in places:
        before, after = text[at - 1], text[at : at + 1]
        assert not before.isspace()
        if not text[at:].strip():
            continue
        is_gap = after.isspace() and after not in NO_BREAK
        is_east_asian_stop = before in "。！？、，；："
        assert is_gap or is_east_asian_stop
        assert is_gap or not unicodedata.category(after).startswith("M")
        # CR LF stays together, on the side of the continuation.
        assert (before, after) != ("\r", "\n")


@given(documents, lengths_(), st.text(" \n\t", max_size=5))
def test_only_the_needed_beginning_of_a_document_decides(text: str, lengths: Lengths, lead: str):
    whole = cut(lead + text, lengths)
    start = len(lead + text) - len((lead + text).lstrip())
    assert cut((lead + text)[: start + lengths.document], lengths) == whole


@given(documents, lengths_())
def test_white_space_around_a_document_changes_nothing_but_the_start(text: str, lengths: Lengths):
    plain, padded = cut(text.strip(), lengths), cut("\n\n" + text.strip() + " \n", lengths)
    if isinstance(plain, Cut):
        assert isinstance(padded, Cut)
        assert (padded.prefix, padded.continuation, padded.start) == (
            plain.prefix,
            plain.continuation,
            2,
        )
    elif plain is not EMPTY and plain is not NO_PLACE and len(text.strip()) + 2 < lengths.document:
        assert padded == plain


def test_the_join_is_before_white_space():
    part = cut("one two three four five six", Lengths(prefix=9, continuation=12, minimum=3))
    assert part == Cut(prefix="one two", continuation=" three four", start=0)


def test_without_a_prefix_the_continuation_begins_the_document():
    part = cut("  one two three", Lengths(prefix=0, continuation=8, minimum=3))
    assert part == Cut(prefix="", continuation="one two", start=2)


def test_line_ends_are_kept():
    part = cut("one\r\ntwo\r\nthree\rfour\nfive six", Lengths(9, 15, 3))
    assert part == Cut(prefix="one\r\ntwo", continuation="\r\nthree\rfour", start=0)


def test_text_without_spaces_is_cut_after_its_own_stops():
    sentence = "吾輩は猫である。名前はまだ無い。"
    part = cut(sentence * 10, Lengths(prefix=40, continuation=60, minimum=20))
    assert isinstance(part, Cut)
    assert part.prefix.endswith("。") and part.continuation.endswith("。")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", EMPTY),
        (" \n\t\u3000", EMPTY),
        ("one two three\0 four five six seven", NUL_CHARACTER),
        ("one two \ud800 three four five", BADLY_ENCODED),
        ("one", TOO_SHORT),
        ("one two three", TOO_SHORT),
        ("x" * 500, NO_PLACE),
        ("one two " + "x" * 500, NO_PLACE),
        ("one two" + " " * 500 + "three", NO_PLACE),
        ("one\u00a0two\u00a0three\u00a0four\u00a0five", NO_PLACE),
    ],
)
def test_unfit_text_has_its_reason(text: str, reason: object):
    assert cut(text, Lengths(prefix=10, continuation=12, minimum=8)) is reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        (b"caf\xc3\xa9", "café"),
        (b"caf\xe9", BADLY_ENCODED),
        (None, NULL),
        (3, NOT_A_STRING),
        (["a"], NOT_A_STRING),
        ({"a": "b"}, NOT_A_STRING),
        (MISSING, MISSING),
    ],
)
def test_values_become_text_or_a_reason(value: object, expected: object):
    assert text_of(value) == expected


@given(st.text(max_size=300))
@example("../../etc/passwd")
@example("C:\\x:y|z")
@example("-rf")
@example(".." * 100)
def test_safe_names_cannot_be_paths(text: str):
    name = safe_name(text)
    assert 1 <= len(name) <= 96
    assert name[0] not in ".-"
    assert all(char.isalnum() or char in "_.-" for char in name)
    assert safe_name(name) == name


def test_long_names_stay_different():
    assert safe_name("a" * 200 + "1") != safe_name("a" * 200 + "2")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_normalised_digest_ignores_white_space_and_form(text: str):
    spread = "\n" + unicodedata.normalize("NFD", text) + "\t "
    assert normalised_sha256(spread) == normalised_sha256(text)


def test_sha256_known_value():
    # FIPS 180-2, appendix B.1
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
