"""Fingerprinting beside the loop that anyone would write first."""

import random
from collections.abc import Callable
from timeit import repeat

from xxhash import xxh3_64_intdigest

from app.core.scheme import ARTICLE, digest
from app.core.simhash import simhash
from app.core.text import article_words

WORDS = 300


def text() -> str:
    """300 words of a vocabulary of 3,000, as long as those of a language."""
    generator = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(3000)]
    return " ".join(generator.choices(vocabulary, k=WORDS))


def plain_simhash(words: list[bytes]) -> int:
    """Bit by bit, as in the article."""
    votes = [0] * ARTICLE.bits
    for start in range(len(words) - 2):
        hashed = xxh3_64_intdigest(b" ".join(words[start : start + 3]))
        for bit in range(ARTICLE.bits):
            votes[bit] += 1 if hashed >> bit & 1 else -1
    return sum(1 << bit for bit, vote in enumerate(votes) if vote > 0)


def measure() -> dict[str, float]:
    """Microseconds a text, the best of several runs, by name."""
    page = text()
    words = article_words(page)
    if simhash(words, ARTICLE.shingle_size, ARTICLE.bits) != plain_simhash(words):
        raise AssertionError("the kernel and the plain loop differ")
    return {
        "kernel": _best(lambda: simhash(words, ARTICLE.shingle_size, ARTICLE.bits), 200),
        "kernel, words and content hash": _best(lambda: digest(page, ARTICLE), 200),
        "plain loop": _best(lambda: plain_simhash(words), 10),
    }


def _best(call: Callable[[], object], number: int) -> float:
    return min(repeat(call, number=number, repeat=7)) / number * 1e6
