from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive_words

from app.core.text import article_words, content_hash

# White space of ASCII, what only looks like it, what PHP's trim() strips, and letters that change in lower case.
TRICKY = " \t\n\r\x0b\x0c\0\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u200b\u202f\u3000\ufeffaÉΣßİ.…"
ASCII_SPACES = (" ", "\t", "\n", "\r", "\x0b", "\x0c", "\r\n", "   ", " \t\n")
NOT_SPACES = ("\0", "\x1c", "\x1f", "\x85", "\xa0", "\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\ufeff")


def hash_of(text: str) -> bytes | None:
    return content_hash(article_words(text), text)


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from(TRICKY), max_size=30) | st.text(max_size=30))
def test_words_are_those_of_the_php_pattern(text: str) -> None:
    assert article_words(text) == naive_words(text)


@pytest.mark.parametrize("space", ASCII_SPACES)
def test_ascii_white_space_cuts(space: str) -> None:
    assert article_words(space.join(["", "Le", "chat", ""])) == [b"le", b"chat"]


@pytest.mark.parametrize("character", NOT_SPACES)
def test_nothing_else_cuts(character: str) -> None:
    """Cutting at Unicode white space would change the fingerprint of every second real page."""
    assert article_words(f"1{character}000 euros") == [f"1{character}000".encode(), b"euros"]


def test_words_are_lower_case_and_keep_their_punctuation() -> None:
    assert article_words("L'ÉTÉ, «Œuvre» N42! ΛΟΓΟΣ") == [
        word.encode() for word in ("l'été,", "«œuvre»", "n42!", "λογος")
    ]


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert article_words("half an emoji \ud83d here") == [b"half", b"an", b"emoji", b"?", b"here"]


def test_a_stored_content_hash_never_changes() -> None:
    """BLAKE2b-128 of "le chat mange": databases hold it."""
    value = hash_of(" Le  CHAT\nmange ")
    assert value is not None
    assert value.hex() == "8aa7390dc7eb0051ed15838818a45c5b"


@settings(max_examples=200, deadline=None)
@given(
    words=st.lists(st.text("abcxyzéèœ0189.,!", min_size=1), min_size=1, max_size=8),
    gaps=st.lists(st.sampled_from(ASCII_SPACES), min_size=9, max_size=9),
    upper=st.booleans(),
)
def test_case_and_ascii_spaces_do_not_matter_to_the_content_hash(
    words: list[str], gaps: list[str], upper: bool
) -> None:
    plain = " ".join(words)
    variant = "".join(gap + word for gap, word in zip(gaps, words, strict=False)) + gaps[-1]
    assert hash_of(variant.upper() if upper else variant) == hash_of(plain)


@pytest.mark.parametrize(
    "other",
    [
        "le chat mange.",
        "le chat",
        "le chat mange mange",
        "lechat mange",
        "le chatmange",
        "mange le chat",
        "le\xa0chat mange",
        "le chât mange",
        "le chat mange 1",
    ],
)
def test_any_other_difference_matters_to_the_content_hash(other: str) -> None:
    assert hash_of(other) not in {hash_of("le chat mange"), None}


BLANK = ["", " ", "   ", "\t\r\n", "\x0b\x0c", "\0", "\xa0\u3000", "\u200b", "\ufeff"]
PUNCTUATION = ["!!!", "—", "…", "— ! ?", "| | |", "─────", "«»", "¿?", "€ $ £", "_"]


@pytest.mark.parametrize("text", BLANK + PUNCTUATION, ids=ascii)
def test_blank_and_punctuation_have_no_content_that_could_be_equal(text: str) -> None:
    assert hash_of(text) is None


@pytest.mark.parametrize("text", ["a", "É", "7", "٣", "ж", "字", "ก", "!a!", "\0 x"], ids=ascii)
def test_one_letter_or_digit_of_any_script_is_content(text: str) -> None:
    value = hash_of(text)
    assert value is not None
    assert len(value) == 16


def test_every_small_text_has_a_content_hash_of_its_own() -> None:
    """The join of the words must not hide where one ends: "ab c" and "a bc" differ."""
    words = ["a", "b", "ab", "ba", "abb"]
    texts = [" ".join(choice) for length in range(1, 5) for choice in product(words, repeat=length)]
    assert len({hash_of(text) for text in texts}) == len(texts)
