import string
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import LARGEST, SMALLEST, differing_bits, signed

from app.core.errors import InvalidFingerprintError
from app.core.fingerprint import distance, parse_decimal, parse_hex, require_bits, to_hex, to_signed

SIMHASHES = st.integers(SMALLEST, LARGEST)
EDGES = [0, 1, -1, 2**53, 2**53 + 1, 2**62, LARGEST - 1, LARGEST, SMALLEST, SMALLEST + 1, 0x5555555555555555]

# What crawlers, spreadsheets and lenient parsers make of a number; none of it is either spelling.
MALFORMED = [
    "",
    " ",
    "xyz",
    "0x7",
    " 5",
    "5 ",
    "5\n",
    "\n5",
    "\t5",
    "+5",
    "--5",
    "- 5",
    "-",
    "+",
    "5.0",
    "5.",
    ".5",
    "1e3",
    "1E3",
    "1_000",
    "1,000",
    "1'000",
    "1 000",
    "1\xa0000",
    "0b1",
    "0o7",
    "-0x1",
    "５",
    "１２",
    "٣",
    "५",
    "߅",
    "5\0",
    "\ufeff5",
    "−5",
    "½",
    "²",
    "NaN",
    "inf",
    "None",
    "null",
    "true",
    '"5"',
    "[5]",
    "\ud835\udfd3",
]


def accepts(parse: Callable[[str], int], text: str) -> bool:
    try:
        parse(text)
    except InvalidFingerprintError:
        return False
    return True


@settings(deadline=None)
@given(SIMHASHES)
@example(SMALLEST)
@example(LARGEST)
def test_hex_is_the_big_endian_two_s_complement(simhash: int) -> None:
    assert to_hex(simhash) == struct.pack(">q", simhash).hex()


@settings(deadline=None)
@given(SIMHASHES)
@example(SMALLEST)
@example(LARGEST)
@example(0x5555555555555555)  # 7 bits away from itself once it has been a JavaScript number
def test_both_spellings_come_back_as_they_went(simhash: int) -> None:
    assert parse_hex(to_hex(simhash)) == simhash
    assert parse_hex(to_hex(simhash).upper()) == simhash
    assert parse_decimal(str(simhash)) == simhash


@pytest.mark.parametrize(
    ("text", "simhash"),
    [
        ("0000000000000000", 0),
        ("0000000000000001", 1),
        ("51037fe0aBcDeF03", 0x51037FE0ABCDEF03),
        ("4000000000000000", 2**62),
        ("7fffffffffffffff", LARGEST),
        ("8000000000000000", SMALLEST),
        ("FFFFFFFFFFFFFFFF", -1),
    ],
)
def test_hex_digits(text: str, simhash: int) -> None:
    assert parse_hex(text) == simhash
    assert to_hex(simhash) == text.lower()


@pytest.mark.parametrize("text", [*MALFORMED, "7f", "123456789", "-000000000000001", "00000000000000g0"], ids=ascii)
def test_malformed_hex_is_refused(text: str) -> None:
    assert not accepts(parse_hex, text)


SIXTEEN = "0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        SIXTEEN[:15],
        SIXTEEN + "0",
        SIXTEEN * 2,
        SIXTEEN + "\n",
        SIXTEEN + " ",
        SIXTEEN + "\0",
        " " + SIXTEEN,
        "\n" + SIXTEEN,
        "0x" + SIXTEEN,
        "0x" + SIXTEEN[2:],
        "0X" + SIXTEEN[2:],
        "+" + SIXTEEN[1:],
        "-" + SIXTEEN[1:],
        " " + SIXTEEN[1:],
        SIXTEEN[:15] + "\n",
        SIXTEEN[:7] + "_" + SIXTEEN[8:],
        SIXTEEN[:8] + " " + SIXTEEN[8:],
        SIXTEEN[:4] + "-" + SIXTEEN[4:],
        SIXTEEN.replace("9", "９"),  # full-width
        SIXTEEN.replace("9", "٩"),  # Arabic-Indic
        SIXTEEN.replace("9", "९"),  # Devanagari
        SIXTEEN.replace("9", "𝟗"),  # mathematical
        SIXTEEN.replace("9", "⁹"),  # superscript
        SIXTEEN.replace("a", "ａ"),  # full-width
        SIXTEEN.replace("a", "а"),  # Cyrillic
        "１" * 16,
        "٣" * 16,
    ],
    ids=ascii,
)
def test_almost_16_hex_digits_are_refused(text: str) -> None:
    assert not accepts(parse_hex, text)


@settings(max_examples=300, deadline=None)
@given(
    st.text("0123456789abcdefABCDEF", min_size=15, max_size=17)
    | st.text(st.sampled_from("09afAFgG ٣９_-+\n"), min_size=16, max_size=16)
    | st.from_regex(r"\A[\da-fA-F]{16}\Z")  # \d: the decimal digits of all scripts
)
def test_hex_accepts_16_ascii_hex_digits_and_nothing_else(text: str) -> None:
    assert accepts(parse_hex, text) is (len(text) == 16 and set(text) <= set(string.hexdigits))


@pytest.mark.parametrize("text", [*MALFORMED, "00", "05", "-05", "-0", "+0", "7f", SIXTEEN], ids=ascii)
def test_malformed_decimals_are_refused(text: str) -> None:
    assert not accepts(parse_decimal, text)


@pytest.mark.parametrize("text", ["0", "5", "10", "-1", str(LARGEST), str(SMALLEST)])
def test_decimals_up_to_the_ends_of_the_range(text: str) -> None:
    assert str(parse_decimal(text)) == text


@pytest.mark.parametrize(
    "number",
    [LARGEST + 1, SMALLEST - 1, 2**64 - 1, 2**64, 10**19 - 1, 1 - 10**19, 10**19, 10**20 - 1, 2**128, -(2**128)],
)
def test_decimals_beyond_64_signed_bits_are_refused_and_never_wrapped(number: int) -> None:
    assert not accepts(parse_decimal, str(number))


def test_a_decimal_of_any_length_is_refused_as_such() -> None:
    """int() itself refuses more than 4,300 digits, with another error."""
    assert not accepts(parse_decimal, "9" * 100_000)
    assert not accepts(parse_decimal, "-" + "9" * 100_000)


def is_decimal(text: str) -> bool:
    try:
        number = int(text)
    except ValueError:
        return False
    return str(number) == text and SMALLEST <= number <= LARGEST


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("0019-+_ .e٣９\n"), max_size=5)
    | st.from_regex(r"\A-?\d{1,20}\Z")
    | st.integers(-(2**65), 2**65).map(str)
)
@example("9223372036854775807")
@example("9223372036854775808")
@example("-9223372036854775808")
@example("-9223372036854775809")
def test_decimal_accepts_python_s_own_spelling_and_nothing_else(text: str) -> None:
    assert accepts(parse_decimal, text) is is_decimal(text)


def test_refusals_point_at_the_field_and_name_the_form() -> None:
    with pytest.raises(InvalidFingerprintError, match="16 hex digits") as hexadecimal:
        parse_hex("7f")
    assert hexadecimal.value.pointer == "/fingerprint"
    with pytest.raises(InvalidFingerprintError, match="from -9223372036854775808 to 9223372036854775807") as decimal:
        parse_decimal("1e3")
    assert decimal.value.pointer == "/simhash"


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
@example(2**63)
@example(2**64 - 1)
def test_to_signed_keeps_the_bits(unsigned: int) -> None:
    assert to_signed(unsigned) == signed(unsigned)


@pytest.mark.parametrize("bits", range(1, 65))
def test_a_fingerprint_has_no_bit_that_its_scheme_lacks(bits: int) -> None:
    fitting = {0, 1, 2 ** (bits - 1), 2**bits - 1}
    beyond = {2**position for position in range(bits, 64)} | {2**64 - 1 for _ in range(bits, 64)}
    for unsigned in fitting:
        assert require_bits(signed(unsigned), bits, pointer="/simhash") == signed(unsigned)
    for unsigned in beyond:
        with pytest.raises(InvalidFingerprintError, match=f"{bits} bits") as refused:
            require_bits(signed(unsigned), bits, pointer="/queries/7/simhash")
        assert refused.value.pointer == "/queries/7/simhash"


def test_63_bits_take_both_ends_and_refuse_what_needs_a_sign() -> None:
    """Unsigned 64-bit hashes meet a signed column: refused by one rule, never wrapped to another number."""
    assert require_bits(parse_decimal("0"), 63, pointer="") == 0
    assert require_bits(parse_decimal("9223372036854775807"), 63, pointer="") == LARGEST
    for simhash in (parse_decimal("-1"), parse_hex("ffffffffffffffff"), parse_hex("8000000000000000")):
        with pytest.raises(InvalidFingerprintError):
            require_bits(simhash, 63, pointer="")


@settings(deadline=None)
@given(SIMHASHES, SIMHASHES)
@example(0, LARGEST)
@example(0, -1)
@example(SMALLEST, LARGEST)
@example(SMALLEST, 0)
def test_distance_counts_the_digits_that_differ(a: int, b: int) -> None:
    assert distance(a, b) == differing_bits(a, b) == distance(b, a)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, LARGEST, 63),
        (0, -1, 64),
        (SMALLEST, LARGEST, 64),
        (SMALLEST, 0, 1),
        (5, 5, 0),
        (5, 1, 1),
        (5, 8, 3),
        (5, 0, 2),
    ],
)
def test_known_distances(a: int, b: int, expected: int) -> None:
    assert distance(a, b) == expected


@pytest.mark.parametrize("a", EDGES)
def test_every_edge_is_at_distance_0_of_itself_and_1_of_its_neighbours(a: int) -> None:
    assert distance(a, a) == 0
    assert {distance(a, signed(int.from_bytes(struct.pack(">q", a)) ^ 1 << bit)) for bit in range(64)} == {1}
