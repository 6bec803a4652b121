import json
import os
import subprocess
import sys
from random import Random

import pytest
from oracles import naive_simhash, random_words
from xxhash import xxh3_64_intdigest

from app.core.fingerprint import distance
from app.core.scheme import ARTICLE, SHORT_WORDS, Digest, Scheme, Status, digest, given, status

ANY_LENGTH = Scheme(min_words=1)


def words(count: int) -> str:
    return b" ".join(random_words(Random(count), count)).decode()


def simhash_of(text: str, scheme: Scheme = ANY_LENGTH) -> int:
    value = digest(text, scheme).simhash
    assert value is not None
    return value


def test_the_article_s_parameters() -> None:
    assert Scheme("article", shingle_size=3, bits=63, min_words=20) == ARTICLE


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, Status.TOO_SHORT),
        (1, Status.TOO_SHORT),
        (3, Status.TOO_SHORT),
        (19, Status.TOO_SHORT),
        (20, Status.SHORT),
        (199, Status.SHORT),
        (200, Status.OK),
        (5_000, Status.OK),
    ],
)
def test_status_by_number_of_words(count: int, expected: Status) -> None:
    found = digest(words(count), ARTICLE)
    assert found.status == expected
    assert (found.simhash is None) is (expected is Status.TOO_SHORT)
    assert found.words == count
    assert ARTICLE.shingles(count) == max(0, count - 2)


@pytest.mark.parametrize(
    ("simhash", "count", "expected"),
    [
        (5, None, Status.GIVEN),
        (0, None, Status.GIVEN),
        (None, 0, Status.TOO_SHORT),
        (None, 19, Status.TOO_SHORT),
        (None, SHORT_WORDS, Status.TOO_SHORT),
        (0, 199, Status.SHORT),  # 0 is a fingerprint like any other
        (0, 200, Status.OK),
        (-1, 1, Status.SHORT),
    ],
)
def test_status_of_what_is_stored(simhash: int | None, count: int | None, expected: Status) -> None:
    assert status(simhash, count) == expected


@pytest.mark.parametrize("min_words", [1, 2, 3, 4, 20, 500])
def test_below_the_minimum_there_is_no_fingerprint(min_words: int) -> None:
    scheme = Scheme(shingle_size=1, min_words=min_words)
    below, enough = digest(words(min_words - 1), scheme), digest(words(min_words), scheme)
    assert (below.simhash, below.status) == (None, Status.TOO_SHORT)
    assert enough.simhash is not None


def test_a_shingle_longer_than_the_minimum_is_a_minimum_of_its_own() -> None:
    scheme = Scheme(shingle_size=10, min_words=1)
    assert digest(words(9), scheme) == Digest(None, digest(words(9), ARTICLE).content_hash, words=9)
    assert digest(words(9), scheme).status == Status.TOO_SHORT
    assert digest(words(10), scheme).simhash is not None
    assert [scheme.shingles(count) for count in (9, 10)] == [0, 1]


@pytest.mark.parametrize("bits", [1, 8, 32, 62, 63, 64])
@pytest.mark.parametrize("shingle_size", [1, 2, 3, 10])
def test_a_digest_obeys_its_scheme(shingle_size: int, bits: int) -> None:
    text = words(64)
    found = digest(text, Scheme(shingle_size=shingle_size, bits=bits))
    assert found.simhash == naive_simhash(text.encode().split(), shingle_size, bits)


def test_a_given_fingerprint_knows_nothing_of_its_text() -> None:
    assert given(-1) == Digest(simhash=-1, content_hash=None, words=None)
    assert given(-1).status == Status.GIVEN


@pytest.mark.parametrize("scheme", [ARTICLE, ANY_LENGTH], ids=["article", "any length"])
@pytest.mark.parametrize("text", ["", "   ", "\t\n", "\0", "!!!", "—"], ids=ascii)
def test_blank_and_punctuation_get_no_fingerprint_and_no_content_hash(text: str, scheme: Scheme) -> None:
    """A stand-in like 0 or 2^63 - 1 would make all of them near-duplicates of one another."""
    found = digest(text, scheme)
    assert (found.simhash, found.content_hash, found.status) == (None, None, Status.TOO_SHORT)


def test_single_words_have_no_fingerprint_by_default_and_different_ones_when_asked() -> None:
    oak, tin = digest("oak", ARTICLE), digest("tin", ARTICLE)
    assert (oak.simhash, tin.simhash) == (None, None)
    assert None not in {oak.content_hash, tin.content_hash}
    assert oak.content_hash != tin.content_hash
    word_by_word = Scheme(shingle_size=1, min_words=1)
    assert simhash_of("oak", word_by_word) == xxh3_64_intdigest(b"oak") % 2**63
    assert distance(simhash_of("oak", word_by_word), simhash_of("tin", word_by_word)) > 10


def test_case_and_ascii_spaces_change_nothing_that_is_kept() -> None:
    assert digest("  LE Chat\tmange\r\nla\x0bSOURIS ", ANY_LENGTH) == digest("le chat mange la souris", ANY_LENGTH)


def test_same_fingerprint_is_not_same_content() -> None:
    """Repeated phrases of different length: equal majorities, different texts, so never "exact"."""
    five, seven = digest("tick tock " * 5, ANY_LENGTH), digest("tick tock " * 7, ANY_LENGTH)
    assert five.simhash is not None
    assert five.simhash == seven.simhash
    assert five.content_hash != seven.content_hash


def test_template_sentences_that_differ_in_a_number_are_neither_exact_nor_near() -> None:
    sentence = "Night bus {} runs hourly between the harbour and Elm Square."
    found = [digest(sentence.format(bus), ANY_LENGTH) for bus in ("N41", "N42", "N47", "N50")]
    assert len({each.content_hash for each in found}) == len(found)
    simhashes = [each.simhash for each in found if each.simhash is not None]
    assert len(simhashes) == len(found)
    assert all(distance(a, b) > 3 for index, a in enumerate(simhashes) for b in simhashes[:index])


def test_one_letter_less_in_a_sentence_is_a_miss_that_the_status_explains() -> None:
    """Correct, if surprising: one of nine shingles changes, and the votes of nine are often that close."""
    sentence = "the ferry leaves the old harbour at noon on every sunday"
    whole, cut_short = digest(sentence, ANY_LENGTH), digest(sentence[:-1], ANY_LENGTH)
    assert distance(simhash_of(sentence), simhash_of(sentence[:-1])) > 3
    assert [(each.status, each.words) for each in (whole, cut_short)] == [(Status.SHORT, 11)] * 2
    assert digest(sentence, ARTICLE).status == Status.TOO_SHORT


def test_64_bit_fingerprints_may_be_negative_and_63_bit_ones_are_their_lower_bits() -> None:
    full = [simhash_of(words(count), Scheme(bits=64)) for count in range(20, 60)]
    assert any(value < 0 for value in full)
    assert [simhash_of(words(count), ARTICLE) for count in range(20, 60)] == [value % 2**63 for value in full]


_IN_A_PROCESS = """
import json, sys
from app.core.scheme import Scheme, digest
found = [digest(text, Scheme(min_words=1)) for text in json.load(sys.stdin)]
print(json.dumps([hash("le chat"), [[each.simhash, each.content_hash.hex()] for each in found]]))
"""

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "l’été dernier, à la fenêtre, l’élève naïf rêvait d’un goûter",
    "我们的 所有鞋子 都在二十四小时内 从里昂 的仓库 发货",
]


def in_a_process(hash_seed: str) -> tuple[int, list[list[int | str]]]:
    answer = subprocess.run(
        [sys.executable, "-c", _IN_A_PROCESS],
        input=json.dumps(TEXTS),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    salted, found = json.loads(answer)
    return salted, found


def test_every_process_gives_the_same_values() -> None:
    """Features hashed with the language's own salted hash would change at each restart."""
    first_salt, first = in_a_process("1")
    second_salt, second = in_a_process("2")
    assert first_salt != second_salt  # the two processes do hash strings differently
    assert first == second
    # Pinned, so that other versions of Python and of the libraries have to agree as well.
    assert [simhash for simhash, _ in first] == [6683844254051711237, 13661135525970465, 4805486132623728643]
