"""A fingerprint's two spellings, and the distance between two fingerprints.

Inside it is `simhash`: a signed 64-bit integer, as PostgreSQL's bigint and PHP hold it. Outside it is a string:
16 hex digits (the two's complement of the same 64 bits) or the signed decimal. Never a JSON number: JavaScript
and old jq round integers beyond 2^53.
"""

import re

from app.core.errors import InvalidFingerprintError

MAX_BITS = 64
_MASK = (1 << MAX_BITS) - 1
_SIGN = 1 << (MAX_BITS - 1)
MIN_SIMHASH, MAX_SIMHASH = -_SIGN, _SIGN - 1
_HEX = re.compile(r"[0-9a-fA-F]{16}", re.ASCII)
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


def to_signed(value: int) -> int:
    """The signed 64-bit integer with the bits of `value`, 0 <= value < 2^64."""
    return (value ^ _SIGN) - _SIGN


def unsigned(simhash: int) -> int:
    """The unsigned integer with the same bits: fingerprints order by it, as their hex does."""
    return simhash & _MASK


def to_hex(simhash: int) -> str:
    """16 lower-case hex digits."""
    return f"{unsigned(simhash):016x}"


def parse_hex(text: str) -> int:
    """The simhash of exactly 16 hex digits, upper or lower case; else InvalidFingerprintError."""
    if not _HEX.fullmatch(text):
        raise InvalidFingerprintError("a fingerprint is exactly 16 hex digits", pointer="/fingerprint")
    return to_signed(int(text, 16))


def parse_decimal(text: str) -> int:
    """The simhash of a decimal without plus sign, spaces or leading zeros; else InvalidFingerprintError."""
    simhash = int(text) if _DECIMAL.fullmatch(text) else MAX_SIMHASH + 1
    if not MIN_SIMHASH <= simhash <= MAX_SIMHASH:
        raise InvalidFingerprintError(
            "a simhash is a whole decimal number from -9223372036854775808 to 9223372036854775807, in a string",
            pointer="/simhash",
        )
    return simhash


def require_bits(simhash: int, bits: int, *, pointer: str) -> int:
    """`simhash`, if it has no bit beyond the `bits` lowest; else InvalidFingerprintError."""
    if unsigned(simhash) >> bits:
        raise InvalidFingerprintError(
            f"fingerprints of this collection have {bits} bits; this one has a higher bit set",
            pointer=pointer,
        )
    return simhash


def distance(a: int, b: int) -> int:
    """The Hamming distance: how many of the 64 bits of two simhashes differ."""
    return unsigned(a ^ b).bit_count()
