"""Newline-delimited JSON as a stream: decoded, cut into lines, and gathered into chunks, in bounded memory."""

import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from anyio.lowlevel import checkpoint

from app.core.errors import InvalidEncodingError, InvalidInputError, LineTooLongError
from app.service.imports import Line

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

MEDIA_TYPE = "application/x-ndjson"

CHUNK_LINES = 4000  # a chunk ends with a wait for the disk
CHUNK_BYTES = 4 * 1024 * 1024

_SLICE = 64 * 1024  # bytes, of what is decoded at once
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's own, with the interface that the newer ones share."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._rest = b""

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._rest

    def decompress(self, data: bytes, max_length: int) -> bytes:
        decoded = self._zlib.decompress(self._rest + data, max_length)
        self._rest = self._zlib.unconsumed_tail
        return decoded


# By the name of the content coding. Several members or frames after one another are one stream.
DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {"gzip": _Gzip, "zstd": ZstdDecompressor}


async def decoded(body: AsyncIterator[bytes], make: Callable[[], _Decompressor]) -> AsyncIterator[bytes]:
    """What `body` holds, a slice at a time, however much that is. InvalidEncodingError where it is damaged."""
    decompressor = make()
    begun = False
    async for received in body:
        data = received
        while data or not (decompressor.needs_input or decompressor.eof):
            if decompressor.eof:
                decompressor = make()
            begun = True
            try:
                part = decompressor.decompress(data, _SLICE)
            except (zlib.error, ZstdError) as error:
                raise InvalidEncodingError(f"the compressed data is damaged: {error}", pointer="") from None
            data = decompressor.unused_data
            if part:
                yield part
                await checkpoint()  # a few bytes can hold very many
    if begun and not decompressor.eof:
        raise InvalidEncodingError("the compressed data ends too early", pointer="")


class _Lines:
    """Cuts what comes in at line feeds."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: list[bytes] = []
        self._size = 0
        self._number = 0

    def feed(self, data: bytes) -> Iterator[Line]:
        start = 0
        if not self._size and not data.strip():  # blank lines, by the million perhaps
            self._number += data.count(b"\n")
            start = data.rfind(b"\n") + 1
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            yield from self.end()
            start = end + 1
        self._add(data[start:])

    def _add(self, part: bytes) -> None:
        """What is beyond the limit is counted, not kept."""
        self._size += len(part)
        if self._size <= self._most_bytes:
            self._begun.append(part)
        else:
            self._begun.clear()

    def end(self) -> Iterator[Line]:
        """The line that ends here; none where it is blank."""
        self._number += 1
        content = b"".join(self._begun)
        if self._number == 1:
            content = content.removeprefix(_BYTE_ORDER_MARK)
        if self._size > self._most_bytes:
            detail = f"a line has at most {self._most_bytes} bytes; this one has {self._size}"
            yield Line(self._number, LineTooLongError(detail, pointer=""))
        elif content.strip():
            yield Line(self._number, content)
        self._begun.clear()
        self._size = 0

    def damaged(self, error: InvalidInputError) -> Line:
        """In place of the line that can't be read to its end."""
        return Line(self._number + 1, error)


async def chunks(body: AsyncIterator[bytes], *, most_line_bytes: int) -> AsyncIterator[list[Line]]:
    """The lines that aren't blank, in chunks of bounded size. A damaged encoding is the error of the last line."""
    lines = _Lines(most_line_bytes)
    chunk: list[Line] = []
    size = 0
    try:
        async for data in body:
            for line in lines.feed(data):
                chunk.append(line)
                size += len(line.content) if isinstance(line.content, bytes) else 0
                if len(chunk) >= CHUNK_LINES or size >= CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        chunk += lines.end()
    except InvalidEncodingError as error:
        chunk.append(lines.damaged(error))
    if chunk:
        yield chunk
