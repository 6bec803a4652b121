"""What the tests believe instead of SQL: every stored document compared with the query, in Python."""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from app.core.model import Matches

DATA = Path(__file__).parent.parent / "data"

LARGEST = 2**63 - 1
SMALLEST = -(2**63)

Answer = tuple[str, int | None, int]
"""Key, fingerprint, distance."""


@dataclass(frozen=True)
class Stored:
    key: str
    simhash: int


def unsigned(simhash: int) -> int:
    return simhash % 2**64


def signed(value: int) -> int:
    return value if value <= LARGEST else value - 2**64


def distance(a: int, b: int) -> int:
    return (unsigned(a) ^ unsigned(b)).bit_count()


def nearest(
    documents: Iterable[Stored], simhash: int, threshold: int, *, except_key: str | None = None
) -> list[Answer]:
    """All documents within the threshold: the nearest first, then by unsigned fingerprint, then by the key's bytes."""
    found = [
        (away, unsigned(document.simhash), document.key.encode(), document)
        for document in documents
        if (away := distance(document.simhash, simhash)) <= threshold and document.key != except_key
    ]
    return [(document.key, document.simhash, away) for away, _, _, document in sorted(found, key=lambda each: each[:3])]


def within(ranked: Sequence[Answer], threshold: int) -> list[Answer]:
    return [answer for answer in ranked if answer[2] <= threshold]


def answers(matches: Matches) -> list[Answer]:
    return [(match.key, match.simhash, match.distance) for match in matches.items]


def assert_right(matches: Matches, expected: Sequence[Answer], *, limit: int) -> None:
    assert answers(matches) == expected[:limit], f"threshold {matches.threshold}"
    assert matches.truncated == (len(expected) > limit)


def flipped(simhash: int, bits: Iterable[int]) -> int:
    return signed(unsigned(simhash) ^ sum(1 << bit for bit in bits))


def uniform(random: Random, count: int, bits: int) -> list[int]:
    return [signed(random.getrandbits(bits)) for _ in range(count)]


def planted(random: Random, simhash: int, bits: int) -> list[int]:
    """One fingerprint at each distance that `bits` allow, the differing bits anywhere."""
    return [flipped(simhash, random.sample(range(bits), away)) for away in range(bits + 1)]


def spread(simhash: int, bits: int) -> list[int]:
    """As `planted`, the differing bits dealt out over blocks of 16 bits: what a search by blocks finds hardest."""
    found: list[int] = []
    for start in range(0, bits, 16):
        order = sorted(range(bits), key=lambda bit: (bit % 16, (bit - start) % bits))
        found += [flipped(simhash, order[:away]) for away in range(1, bits + 1)]
    return found


@cache
def real_fingerprints(name: str) -> tuple[int, ...]:
    """The distinct fingerprints of a sample, in its order."""
    lines = gzip.decompress((DATA / f"{name}.hex.gz").read_bytes()).decode().split()
    return tuple(dict.fromkeys(signed(int(line, 16)) for line in lines))
