from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import LARGEST, differing_bits, naive_simhash, random_words, signed
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from app.core.simhash import simhash
from app.core.text import article_words

LE_CHAT_MANGE = 0xD103E0855A3E3F03


def fingerprint(words: list[bytes], shingle_size: int = 3) -> int:
    value = simhash(words, shingle_size, 63)
    assert value is not None
    return value


def test_the_hash_is_xxh3_read_big_endian() -> None:
    assert xxh3_64_hexdigest(b"le chat mange") == f"{LE_CHAT_MANGE:016x}"
    # One shingle alone decides every bit, so the 64-bit fingerprint is its hash.
    assert simhash([b"le", b"chat", b"mange"], 3, 64) == signed(LE_CHAT_MANGE)


@pytest.mark.parametrize("bits", range(1, 65))
def test_one_shingle_gives_the_lowest_bits_of_its_hash(bits: int) -> None:
    assert simhash([b"le", b"chat", b"mange"], 3, bits) == signed(LE_CHAT_MANGE % 2**bits)


def test_the_article_s_three_words() -> None:
    assert fingerprint(article_words("Le chat mange")) == 5837756405351595779 == LE_CHAT_MANGE % 2**63


@settings(max_examples=300, deadline=None)
@given(
    words=st.lists(st.sampled_from([b"a", b"b", b"c", b"longer", "é".encode(), b"\0"]), max_size=40),
    shingle_size=st.integers(1, 10),
    bits=st.integers(1, 64),
)
def test_equal_to_the_definition(words: list[bytes], shingle_size: int, bits: int) -> None:
    assert simhash(words, shingle_size, bits) == naive_simhash(words, shingle_size, bits)


@pytest.mark.parametrize("shingles", [1, 2, 127, 128, 254, 255, 256, 257, 509, 510, 511, 765, 1021])
def test_counts_are_exact_where_a_byte_would_overflow(shingles: int) -> None:
    """The kernel counts in bytes: 255 shingles of one mind, and one more, are where a carry would show."""
    same = [b"spam"] * (shingles + 2)
    assert simhash(same, 3, 64) == signed(xxh3_64_intdigest(b"spam spam spam"))
    mixed = random_words(Random(shingles), shingles + 2)
    assert simhash(mixed, 3, 64) == naive_simhash(mixed, 3, 64)


@pytest.mark.parametrize("each", [1, 100, 127, 128, 129, 255, 256, 400])
def test_a_tie_is_0_at_any_length(each: int) -> None:
    """Half of the votes for one hash, half for another: only what both have is above the half."""
    a, b = xxh3_64_intdigest(b"a"), xxh3_64_intdigest(b"b")
    assert simhash([b"a"] * each + [b"b"] * each, 1, 64) == signed(a & b)
    assert simhash([b"a"] * (each + 1) + [b"b"] * each, 1, 64) == signed(a)


def test_the_tie_rule_is_pinned_by_a_text_with_two_shingles() -> None:
    """Implementations that break ties in opposite ways differ in half of the bits: 31 of 63 here."""
    first, second = xxh3_64_intdigest(b"amber basil cedar"), xxh3_64_intdigest(b"basil cedar dune")
    assert ((first ^ second) % 2**63).bit_count() == 31
    pinned = fingerprint(article_words("amber basil cedar dune"))
    assert pinned == 4922453638887081187 == (first & second) % 2**63


@pytest.mark.parametrize("shingle_size", range(1, 11))
def test_fewer_words_than_a_shingle_give_none_and_as_many_give_one(shingle_size: int) -> None:
    words = random_words(Random(shingle_size), shingle_size)
    assert all(simhash(words[:count], shingle_size, 63) is None for count in range(shingle_size))
    assert simhash(words, shingle_size, 63) == xxh3_64_intdigest(b" ".join(words)) % 2**63


def test_word_order_matters_to_shingles_of_three_only() -> None:
    phrase = article_words("le chat mange la souris puis le chien attrape une balle rouge dans le jardin")
    assert differing_bits(fingerprint(phrase), fingerprint(sorted(phrase))) > 10
    assert fingerprint(phrase, shingle_size=1) == fingerprint(sorted(phrase), shingle_size=1)


def test_the_boundaries_of_words_count() -> None:
    """Glued together before they are cut, both phrases would be one string of letters, at distance 0."""
    van, cream = article_words("a nice cream van"), article_words("an ice cream van")
    assert b"".join(van) == b"".join(cream)
    assert differing_bits(fingerprint(van), fingerprint(cream)) > 10
    assert simhash([b"ab", b"c", b"d"], 3, 63) != simhash([b"a", b"bc", b"d"], 3, 63)


def test_a_word_in_front_moves_as_much_as_one_at_the_end() -> None:
    """Where words are glued together, a word in front shifts every feature and one at the end none."""
    front: list[int] = []
    back: list[int] = []
    for seed in range(400):
        *words, extra = random_words(Random(seed), 13)
        before = fingerprint(words)
        front.append(differing_bits(before, fingerprint([extra, *words])))
        back.append(differing_bits(before, fingerprint([*words, extra])))
    assert 6 < mean(front) < 10
    assert 6 < mean(back) < 10
    assert abs(mean(front) - mean(back)) < 0.8


def test_unrelated_texts_are_about_31_bits_apart() -> None:
    """The article: 300 random pairs, distances from 20 to 45. (Chance leaves that range once in 780 pairs.)"""
    rng = Random(9)
    distances = [
        differing_bits(fingerprint(random_words(rng, 300)), fingerprint(random_words(rng, 300))) for _ in range(300)
    ]
    assert min(distances) >= 20
    assert max(distances) <= 45
    assert 30.5 < mean(distances) < 32.5


def test_one_changed_word_of_300_moves_between_2_and_3_bits() -> None:
    """Theory: 47/√300 = 2.7 on average; 70 % of such pairs are within 3."""
    distances: list[int] = []
    for seed in range(600):
        rng = Random(seed)
        words = random_words(rng, 300)
        changed = words.copy()
        changed[rng.randrange(3, 297)] = b"replacement"
        distances.append(differing_bits(fingerprint(words), fingerprint(changed)))
    assert 2 < mean(distances) < 3.5
    assert max(distances) <= 12
    assert 0.6 < mean(distance <= 3 for distance in distances) < 0.85


def test_longer_texts_move_less() -> None:
    """The article's row of lengths, as means: its own single samples go up and down."""

    def moved(length: int, seed: int) -> int:
        words = random_words(Random(seed), length)
        changed = [*words[: length // 2], b"replacement", *words[length // 2 + 1 :]]
        return differing_bits(fingerprint(words), fingerprint(changed))

    means = [mean(moved(length, seed) for seed in range(60)) for length in (20, 50, 100, 300, 1_000, 2_000)]
    assert all(shorter > longer for shorter, longer in pairwise(means)), means


def test_a_63_bit_fingerprint_fits_a_signed_column() -> None:
    values = [fingerprint(random_words(Random(seed), 12)) for seed in range(500)]
    assert all(0 <= value <= LARGEST for value in values)
    assert any(value > LARGEST // 2 for value in values)  # bit 62 is in use


@pytest.mark.parametrize("length", [2_000, 100_000])
def test_long_texts_are_no_different(length: int) -> None:
    """A text that says one thing 2,000 or 100,000 times, and a little else, has that thing's hash."""
    words = [b"spam"] * length + random_words(Random(length), 300)
    assert simhash(words, 3, 64) == signed(xxh3_64_intdigest(b"spam spam spam"))
