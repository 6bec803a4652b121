"""What the tests believe instead of the code under test: slow, plain, and taken from the definitions."""

import gzip
import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

DATA = Path(__file__).parent.parent / "data"

LARGEST = 2**63 - 1
SMALLEST = -(2**63)

BANDS = range(2, 17)
THRESHOLDS = range(64)
# The two widths that people use, and some that leave bands without a live bit or with one only.
WIDTHS = (1, 8, 20, 32, 48, 63, 64)

_Item = TypeVar("_Item", str, int)


def signed(unsigned: int) -> int:
    (simhash,) = struct.unpack(">q", struct.pack(">Q", unsigned))
    return simhash


def binary(simhash: int) -> str:
    """The 64 binary digits of a signed number's two's complement, the highest first."""
    (unsigned,) = struct.unpack(">Q", struct.pack(">q", simhash))
    return format(unsigned, "064b")


def differing_bits(a: int, b: int) -> int:
    return sum(x != y for x, y in zip(binary(a), binary(b), strict=True))


def flip(simhash: int, positions: Iterable[int]) -> int:
    """`simhash` with the bits at `positions` turned over; 0 is the lowest, 63 the sign."""
    digits = list(binary(simhash))
    for position in positions:
        digits[63 - position] = "10"[int(digits[63 - position])]
    return signed(int("".join(digits), 2))


def pieces(digits: Sequence[_Item], widths: Sequence[int]) -> list[Sequence[_Item]]:
    """`digits` cut one after the other into runs of `widths`."""
    ends = list(accumulate(widths))
    return [digits[end - width : end] for end, width in zip(ends, widths, strict=True)]


def band_values(simhash: int, widths: Sequence[int]) -> list[int]:
    return [int("".join(piece), 2) for piece in pieces(binary(simhash), widths)]


def live_positions(widths: Sequence[int], bits: int) -> list[list[int]]:
    """For each band the bit positions that a fingerprint of `bits` bits can set."""
    return [[position for position in piece if position < bits] for piece in pieces(range(63, -1, -1), widths)]


@cache
def ball(width: int, radius: int) -> int:
    """How many numbers of `width` bits have at most `radius` ones, by Pascal's rule: the top bit is 0, or it is 1."""
    if radius < 0:
        return 0
    return 1 if width == 0 else ball(width - 1, radius) + ball(width - 1, radius - 1)


def random_fingerprint(rng: Random, bits: int = 63) -> int:
    return signed(rng.getrandbits(bits))


def naive_words(text: str) -> list[bytes]:
    r"""PHP's preg_split('/\s+/', mb_strtolower(trim($text)), -1, PREG_SPLIT_NO_EMPTY)."""
    trimmed = text.lower().encode().strip(b" \t\n\r\0\x0b")
    return [word for word in re.split(rb"[ \t\n\v\f\r]+", trimmed) if word]


def naive_simhash(words: list[bytes], shingle_size: int, bits: int) -> int | None:
    """The definition: each shingle votes +1 or -1 on each bit; above zero is a 1."""
    shingles = [b" ".join(words[start : start + shingle_size]) for start in range(len(words) - shingle_size + 1)]
    if not shingles:
        return None
    hashes = [xxh3_64_intdigest(shingle) for shingle in shingles]
    votes = [sum(1 if value >> bit & 1 else -1 for value in hashes) for bit in range(bits)]
    return signed(sum(1 << bit for bit, vote in enumerate(votes) if vote > 0))


def random_words(rng: Random, count: int) -> list[bytes]:
    return [b"word%d" % rng.randrange(5_000) for _ in range(count)]


@cache
def real_documents(name: str) -> tuple[int, ...]:
    """The fingerprints of a sample, equal ones included, in its order."""
    lines = gzip.decompress((DATA / f"{name}.hex.gz").read_bytes()).decode().split()
    return tuple(signed(int(line, 16)) for line in lines)


@cache
def real_fingerprints(name: str) -> tuple[int, ...]:
    """The distinct fingerprints of a sample, in its order."""
    return tuple(dict.fromkeys(real_documents(name)))


def as_array(fingerprints: Iterable[int]) -> NDArray[np.uint64]:
    return np.array([fingerprint % 2**64 for fingerprint in fingerprints], np.uint64)


def distances(fingerprints: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Of each with each, one binary digit after the other."""
    digits = np.unpackbits(fingerprints.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    apart = np.zeros((len(digits), len(digits)), np.uint8)
    for column in np.ascontiguousarray(digits.T):
        apart += column[:, None] != column
    return apart


def near_pairs(apart: NDArray[np.uint8], threshold: int) -> NDArray[np.int64]:
    """All pairs within the threshold, one a row, each once, the lower index first, in order."""
    return np.argwhere(np.triu(apart <= threshold, 1))
