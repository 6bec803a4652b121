"""Bodies of imports: decoded and cut into lines the same way however they arrive, in bounded memory."""

import gzip
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.api.ndjson import CHUNK_BYTES, CHUNK_LINES, DECOMPRESSORS, chunks, decoded
from app.core.errors import InvalidEncodingError, LineTooLongError
from app.service.imports import Line

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST = 64
MEGABYTE = 1024 * 1024

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}

# Some of what can go wrong at a cut: ends of lines, marks, and contents as long as a line may be.
PIECES = st.sampled_from(
    [b"\n", b"\r\n", b"\r", b" ", b"\t", b"{}", BYTE_ORDER_MARK, "é𐍈".encode(), b"x" * MOST, b"y" * (MOST + 1), b"\0"]
)
BODIES = st.lists(PIECES | st.binary(max_size=5), max_size=20).map(b"".join)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=10)


async def stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Parts of these sizes, over and over, with an empty one after each."""
    parts: list[bytes] = []
    number = 0
    while body:
        size = sizes[number % len(sizes)]
        parts += [body[:size], b""]
        body = body[size:]
        number += 1
    return parts


async def lines_of(parts: Iterable[bytes], *, most: int = MOST) -> list[Line]:
    return [line async for chunk in chunks(stream(parts), most_line_bytes=most) for line in chunk]


def told(lines: Iterable[Line]) -> list[tuple[int, bytes | str]]:
    return [
        (line.number, line.content if isinstance(line.content, bytes) else f"{line.content.code}: {line.content}")
        for line in lines
    ]


def split(body: bytes) -> list[tuple[int, bytes | str]]:
    """The lines of a whole body."""
    found: list[tuple[int, bytes | str]] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if len(line) > MOST:
            found.append((number, f"line_too_long: a line has at most {MOST} bytes; this one has {len(line)}"))
            continue
        content = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            found.append((number, content))
    return found


@given(body=BODIES, sizes=CUTS)
@example(body=BYTE_ORDER_MARK + b"{}\r\n\r\n{}", sizes=[1])
@settings(max_examples=300, deadline=None)
async def test_lines_are_the_same_however_a_body_is_cut(body: bytes, sizes: list[int]) -> None:
    assert told(await lines_of([body])) == split(body)
    assert told(await lines_of(cut(body, sizes))) == split(body)


@pytest.mark.parametrize("coding", DECOMPRESSORS)
@given(bodies=st.lists(BODIES, min_size=1, max_size=4), sizes=CUTS)
@settings(max_examples=100, deadline=None)
async def test_a_compressed_body_is_the_same_however_it_is_cut(
    coding: str, bodies: list[bytes], sizes: list[int]
) -> None:
    """Of several members or frames after one another too."""
    compressed = b"".join(map(COMPRESS[coding], bodies))
    parts = decoded(stream(cut(compressed, sizes)), DECOMPRESSORS[coding])
    assert b"".join([part async for part in parts]) == b"".join(bodies)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"", []),
        (b"\n", []),
        (b"\r\n \t\n", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\r\n", [(1, b"a\r")]),
        (b"\n\na\n\nb", [(3, b"a"), (5, b"b")]),
        (b"a\rb", [(1, b"a\rb")]),
        ("a\u2028b\u0085c".encode(), [(1, "a\u2028b\u0085c".encode())]),
        (BYTE_ORDER_MARK, []),
        (BYTE_ORDER_MARK + b"a\n" + BYTE_ORDER_MARK + b"b", [(1, b"a"), (2, BYTE_ORDER_MARK + b"b")]),
        (BYTE_ORDER_MARK * 2 + b"a", [(1, BYTE_ORDER_MARK + b"a")]),
        (b" " + BYTE_ORDER_MARK + b"a", [(1, b" " + BYTE_ORDER_MARK + b"a")]),
        (b"\n" + BYTE_ORDER_MARK + b"a", [(2, BYTE_ORDER_MARK + b"a")]),
    ],
)
async def test_a_line_ends_at_a_line_feed_and_a_mark_counts_at_the_start_alone(
    body: bytes, lines: list[tuple[int, bytes]]
) -> None:
    assert told(await lines_of([body])) == lines


@pytest.mark.parametrize("ends", [b"", b"\n", b"\nc\n"])
async def test_a_line_may_be_as_long_as_the_limit_and_no_longer(ends: bytes) -> None:
    following = [(4, b"c")] if ends == b"\nc\n" else []
    body = b"a\n" + b"x" * MOST + b"\n" + b"y" * (MOST + 1) + ends
    error = (3, f"line_too_long: a line has at most {MOST} bytes; this one has {MOST + 1}")
    for sizes in ([len(body)], [1], [7]):
        lines = await lines_of(cut(body, sizes))
        assert told(lines) == [(1, b"a"), (2, b"x" * MOST), error, *following]
        assert isinstance(lines[2].content, LineTooLongError)


async def peak_of(parts: Iterable[bytes], coding: str | None) -> tuple[int, int, list[Line]]:
    """How many bytes the reading takes at most; how many lines there are, and those of them that can't be read."""
    tracemalloc.start()
    try:
        count = 0
        errors: list[Line] = []
        received = decoded(stream(parts), DECOMPRESSORS[coding]) if coding else stream(parts)
        async for chunk in chunks(received, most_line_bytes=MEGABYTE):
            count += len(chunk)
            errors += [line for line in chunk if not isinstance(line.content, bytes)]
        return tracemalloc.get_traced_memory()[1], count, errors
    finally:
        tracemalloc.stop()


async def test_what_is_beyond_the_limit_of_a_line_is_not_kept() -> None:
    part = b"x" * (MEGABYTE // 4)
    peak, count, errors = await peak_of([part] * 400 + [b"\n{}"], None)
    detail = f"line_too_long: a line has at most {MEGABYTE} bytes; this one has {100 * MEGABYTE}"
    assert (count, told(errors)) == (2, [(1, detail)])
    assert peak < 4 * MEGABYTE


@pytest.mark.parametrize("coding", DECOMPRESSORS)
@pytest.mark.parametrize(
    ("held", "lines", "most"),
    [(bytes(256 * MEGABYTE), 1, 4), (b"\n" * MEGABYTE, 0, 2), (b"{}\n" * (MEGABYTE // 4), MEGABYTE // 4, 2)],
    ids=["zeros", "blank lines", "lines"],
)
async def test_a_few_bytes_that_hold_very_many_take_little_memory(
    coding: str, held: bytes, lines: int, most: int
) -> None:
    bomb = COMPRESS[coding](held)
    assert len(bomb) * 200 < len(held)
    peak, count, errors = await peak_of([bomb], coding)
    assert peak < most * MEGABYTE
    assert count == lines
    assert [error.number for error in errors] == ([1] if lines == 1 else [])


async def test_a_chunk_is_bounded_by_its_lines() -> None:
    body = b"{}\n" * (2 * CHUNK_LINES + 1)
    sizes = [len(chunk) async for chunk in chunks(stream([body]), most_line_bytes=MOST)]
    assert sizes == [CHUNK_LINES, CHUNK_LINES, 1]
    sizes = [len(chunk) async for chunk in chunks(stream([b"{}\n" * CHUNK_LINES]), most_line_bytes=MOST)]
    assert sizes == [CHUNK_LINES]


async def test_a_chunk_is_bounded_by_its_bytes() -> None:
    line = b"x" * (MEGABYTE + 1)
    parts = [line, b"\n"] * 9
    sizes = [len(chunk) async for chunk in chunks(stream(parts), most_line_bytes=CHUNK_BYTES)]
    assert sizes == [4, 4, 1]


@pytest.mark.parametrize("coding", DECOMPRESSORS)
@pytest.mark.parametrize("body", [[], [b""], [b"", b""]], ids=["nothing", "an empty part", "empty parts"])
async def test_a_body_without_a_byte_is_no_damage(coding: str, body: list[bytes]) -> None:
    assert await lines_of([part async for part in decoded(stream(body), DECOMPRESSORS[coding])]) == []


async def read_to_the_end(parts: Iterable[bytes], coding: str) -> tuple[bytes, str]:
    """What could be read, and what was said of the rest."""
    read: list[bytes] = []
    try:
        async for part in decoded(stream(parts), DECOMPRESSORS[coding]):
            read.append(part)  # noqa: PERF401  what was read before the error counts
    except InvalidEncodingError as error:
        return b"".join(read), str(error)
    return b"".join(read), ""


LINES = b"".join(b'{"key": "%d"}\n' % number for number in range(2000))


@pytest.mark.parametrize("coding", DECOMPRESSORS)
async def test_data_that_ends_too_early_is_told_wherever_it_ends(coding: str) -> None:
    compressed = COMPRESS[coding](LINES)
    for length in [1, 2, 5, 11, len(compressed) // 2, *range(len(compressed) - 10, len(compressed))]:
        for sizes in ([len(compressed)], [1], [100]):
            read, error = await read_to_the_end(cut(compressed[:length], sizes), coding)
            assert LINES.startswith(read)
            assert error == "the compressed data ends too early", length
    assert await read_to_the_end([compressed], coding) == (LINES, "")
    twice = compressed * 2
    for length in (len(compressed) + 1, len(twice) - 1):
        read, error = await read_to_the_end([twice[:length]], coding)
        assert read.startswith(LINES)
        assert error


@pytest.mark.parametrize("coding", DECOMPRESSORS)
async def test_damaged_data_is_told_after_the_lines_before(coding: str) -> None:
    good, damaged = COMPRESS[coding](b"a\nb\nc"), b"no compressed data"
    for sizes in ([1], [1000]):
        parts = cut(good + damaged, sizes)
        lines = [
            line
            async for chunk in chunks(decoded(stream(parts), DECOMPRESSORS[coding]), most_line_bytes=MOST)
            for line in chunk
        ]
        assert [line.number for line in lines] == [1, 2, 3]
        assert [line.content for line in lines[:2]] == [b"a", b"b"]
        error = lines[2].content
        assert isinstance(error, InvalidEncodingError)
        assert str(error).startswith("the compressed data is damaged: ")


@pytest.mark.parametrize("garbage", [b"\0" * 20, b"{}\n", b"\x1f\x8b" + b"x" * 20], ids=["zeros", "text", "a header"])
@pytest.mark.parametrize("coding", DECOMPRESSORS)
async def test_what_follows_the_data_and_is_none_is_damage(coding: str, garbage: bytes) -> None:
    for sizes in ([1], [1000]):
        read, error = await read_to_the_end(cut(COMPRESS[coding](LINES) + garbage, sizes), coding)
        assert read == LINES
        assert error.startswith("the compressed data is damaged: ")


@pytest.mark.parametrize("changed", [-8, -1], ids=["checksum", "length"])
async def test_a_wrong_trailer_is_damage(changed: int) -> None:
    compressed = bytearray(gzip.compress(LINES))
    compressed[changed] ^= 1
    read, error = await read_to_the_end([bytes(compressed)], "gzip")
    assert read == LINES[: len(read)]
    assert error.startswith("the compressed data is damaged: ")


async def test_what_only_looks_compressed_is_refused() -> None:
    deflated = zlib.compress(LINES)
    for coding in DECOMPRESSORS:
        read, error = await read_to_the_end([deflated], coding)
        assert read == b""
        assert error.startswith("the compressed data is damaged: ")


async def test_one_slice_at_a_time_is_decoded() -> None:
    for coding in DECOMPRESSORS:
        bomb = COMPRESS[coding](bytes(8 * MEGABYTE))
        sizes = [len(part) async for part in decoded(stream([bomb]), DECOMPRESSORS[coding])]
        assert sum(sizes) == 8 * MEGABYTE
        assert max(sizes) <= MEGABYTE // 4
