"""Equality, bit for bit, with what the article's PHP class prints."""

import json
from dataclasses import dataclass

import pytest
from oracles import DATA, naive_simhash, naive_words

from app.core.scheme import Scheme, digest
from app.core.simhash import simhash
from app.core.text import article_words


@dataclass(frozen=True)
class Golden:
    name: str
    text: str
    shingle_size: int
    bits: int
    fingerprint: int | None  # signed, as PHP prints 64 bits


def golden(file: str) -> list[Golden]:
    return [Golden(**json.loads(line)) for line in (DATA / file).read_text("utf-8").splitlines()]


TEXTS = golden("article_php.jsonl")
PARAMETERS = golden("article_php_params.jsonl")


def name_of(vector: Golden) -> str:
    return vector.name


def test_the_samples_are_whole() -> None:
    assert (len(TEXTS), len(PARAMETERS)) == (140, 48)
    # Signed and unsigned spelling differ in negative numbers only, and "none" is a value too.
    assert any(vector.fingerprint is not None and vector.fingerprint < 0 for vector in PARAMETERS)
    assert any(vector.fingerprint is None for vector in TEXTS)


@pytest.mark.parametrize("vector", TEXTS + PARAMETERS, ids=name_of)
def test_words_and_kernel_equal_the_php_class(vector: Golden) -> None:
    assert simhash(article_words(vector.text), vector.shingle_size, vector.bits) == vector.fingerprint


# Whether a text without a letter or digit deserves a fingerprint is the service's choice, not the class's.
@pytest.mark.parametrize(
    "vector", [vector for vector in TEXTS + PARAMETERS if any(map(str.isalnum, vector.text))], ids=name_of
)
def test_a_digest_equals_the_php_class(vector: Golden) -> None:
    scheme = Scheme(shingle_size=vector.shingle_size, bits=vector.bits, min_words=1)
    assert digest(vector.text, scheme).simhash == vector.fingerprint


@pytest.mark.parametrize("vector", [vector for vector in TEXTS + PARAMETERS if len(vector.text) < 2_000], ids=name_of)
def test_the_oracle_of_the_other_tests_equals_the_php_class(vector: Golden) -> None:
    assert naive_simhash(naive_words(vector.text), vector.shingle_size, vector.bits) == vector.fingerprint
