"""Files that hold documents, read as lines of an import: NDJSON, CSV, and plain texts, compressed by gzip or not."""

import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, cast

# A longer line is no document; the service's own limit may be lower.
MOST_LINE_BYTES = 64 * 1024 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
STANDARD = Path("-")  # input, or output

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


class Format(StrEnum):
    AUTO = "auto"
    NDJSON = "ndjson"
    CSV = "csv"
    TEXT = "text"


_BY_SUFFIX = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".json": Format.NDJSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
}
_DELIMITERS = {".tsv": "\t"}
HTML = (".html", ".htm", ".xhtml")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which members of an object, or columns of a table, are what. Of several texts the first that there is counts."""

    key: str = "key"
    texts: tuple[str, ...] = ("text",)
    metadata: tuple[str, ...] = ()

    @property
    def are_the_service_s(self) -> bool:
        """Then a line of JSON can go as it is."""
        return self == Fields()


@dataclass(frozen=True, slots=True)
class Record:
    """A document as a line of JSON, or why there is none; `place` is where it stands, for a person."""

    place: str
    line: bytes | None
    refusal: str = ""


class _RefusedError(Exception):
    """The message says why."""


@dataclass(slots=True)
class Sources:
    """All documents of files and folders, in order. `position` of `size` bytes are read, as they are on the disk."""

    paths: Sequence[Path]
    format: Format
    fields: Fields
    size: int = 0
    position: int = 0
    _files: list[Path | Record] = field(default_factory=list["Path | Record"])

    def __post_init__(self) -> None:
        self._files = [file for path in self.paths for file in _files_of(path)]
        self.size = sum(map(_size, self._files))

    def records(self) -> Iterator[Record]:
        done = 0
        for file in self._files:
            if isinstance(file, Record):
                yield file
                continue
            place = printable(str(file))
            try:
                with _opened(file) as (raw, content):
                    for record in self._records(file, place, content):
                        if raw.seekable():
                            self.position = done + raw.tell()
                        yield record
            except _RefusedError as error:
                yield Record(place, None, str(error))
            except UnicodeDecodeError as error:
                yield Record(place, None, f"not UTF-8, at byte {error.start + 1}")
            except DAMAGED as error:
                yield Record(place, None, f"the gzip data is damaged, or ends too early: {error}")
            except OSError as error:
                yield Record(place, None, error.strerror or type(error).__name__)
            done += _size(file)
            self.position = done

    def _records(self, file: Path, place: str, content: BinaryIO) -> Iterator[Record]:
        suffix = (file.with_suffix("") if file.suffix == ".gz" else file).suffix.lower()
        chosen = self.format
        if chosen is Format.AUTO:
            if suffix in HTML:
                raise _RefusedError("html is not supported yet: extract its text, or give it as --format text")
            chosen = _BY_SUFFIX.get(suffix, Format.NDJSON if file == STANDARD else Format.TEXT)
        if chosen is Format.NDJSON:
            return self._of_ndjson(place, content)
        if chosen is Format.CSV:
            return self._of_csv(place, content, _DELIMITERS.get(suffix, ","))
        return self._of_text(file, place, content)

    def _of_ndjson(self, place: str, content: BinaryIO) -> Iterator[Record]:
        for number, (_, line) in enumerate(_lines(content), 1):
            where = f"{place}:{number}"
            if line is None:
                yield Record(where, None, f"a line has at most {MOST_LINE_BYTES} bytes")
            elif self.fields.are_the_service_s:
                yield Record(where, line.rstrip(b"\r\n"))
            elif line.strip():
                yield self._chosen(where, line)

    def _chosen(self, place: str, line: bytes) -> Record:
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Record(place, None, f"not JSON: {error}")
        if not isinstance(given, dict):
            return Record(place, None, "not an object")
        document = cast("dict[str, Any]", given)
        # What an object doesn't say stays as it is stored.
        metadata = self._metadata(document) or None if self.fields.metadata else document.get("metadata")
        return self._document(place, document, metadata)

    def _of_csv(self, place: str, content: BinaryIO, delimiter: str) -> Iterator[Record]:
        csv.field_size_limit(MOST_LINE_BYTES)
        table = csv.reader(_decoded(content), delimiter=delimiter, strict=True)
        try:
            header = next(table, list[str]())
            if self.fields.key not in header:
                columns = ", ".join(map(printable, header)) or "none"
                raise _RefusedError(f"there is no column {self.fields.key} for the key (--key); there are: {columns}")
            if missing := [name for name in self.fields.metadata if name not in header]:
                raise _RefusedError(f"there is no column {missing[0]} for metadata (--metadata)")
            if repeated := {name for name in header if header.count(name) > 1}:
                raise _RefusedError(f"several columns are called {printable(min(repeated))}")
            for row in table:
                where = f"{place}:{table.line_num}"
                if len(row) == len(header):
                    # An empty cell is nothing: CSV can't tell it from an empty text.
                    given = {name: cell for name, cell in zip(header, row, strict=True) if cell}
                    yield self._document(where, given, self._metadata(given) if self.fields.metadata else None)
                elif row:
                    yield Record(where, None, f"{len(row)} cells for {len(header)} columns")
        except csv.Error as error:
            raise _RefusedError(f"not CSV, at line {table.line_num}: {error}; the rest of it was not read") from None

    def _metadata(self, given: dict[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in self.fields.metadata if name in given}

    def _document(self, place: str, given: dict[str, Any], metadata: Any) -> Record:
        """From an object or a row, whose names are the caller's own. `metadata` None: there is none to be stored."""
        key = given.get(self.fields.key)
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if key is None:
            return Record(place, None, f"there is no {self.fields.key} for the key")
        document: dict[str, Any] = {"key": key}
        names = [name for name in self.fields.texts if given.get(name) is not None]
        if names:
            document["text"] = given[names[0]]
        else:
            document |= {name: given[name] for name in ("fingerprint", "simhash") if given.get(name) is not None}
        if metadata is not None:
            document["metadata"] = metadata
        return Record(place, json.dumps(document).encode())

    def _of_text(self, file: Path, place: str, content: BinaryIO) -> Iterator[Record]:
        """The whole file is a text, and its name the key."""
        try:
            key = "-" if file == STANDARD else str(file).encode().decode()
        except UnicodeEncodeError:
            raise _RefusedError("its name is not UTF-8, so it can't be a key") from None
        text = content.read(MOST_LINE_BYTES + 1)
        if len(text) > MOST_LINE_BYTES:
            raise _RefusedError(f"a text has at most {MOST_LINE_BYTES} bytes")
        yield Record(place, json.dumps({"key": key, "text": _text(text)}).encode())


def read_text(file: Path) -> str:
    """A whole file. OSError, UnicodeDecodeError, and the errors of DAMAGED gzip data."""
    with _opened(file) as (_, content):
        return _text(content.read())


def _text(content: bytes) -> str:
    """Without a byte-order mark. UnicodeDecodeError with the position in the file."""
    start = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    return _decode(content[start:], start)


def _decode(part: bytes, offset: int) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        place = (offset + error.start, offset + error.end)
        raise UnicodeDecodeError(error.encoding, part, *place, error.reason) from None


def printable(text: str) -> str:
    """Without what a terminal would obey, and what can't be written."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def _files_of(path: Path) -> Iterator[Path | Record]:
    """Those of a folder in the order of their names, without hidden ones; folders that can't be read are refused."""
    if path == STANDARD or not os.path.isdir(path):  # noqa: PTH112  its own method raises for names that can't be
        yield path
        return
    refused: list[OSError] = []
    for folder, folders, files in os.walk(path, onerror=refused.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))
    yield from (Record(printable(str(error.filename)), None, error.strerror or "can't be read") for error in refused)


def _size(file: Path | Record) -> int:
    """0 where it isn't known."""
    if isinstance(file, Record) or not os.path.isfile(file):  # noqa: PTH113  as above
        return 0
    return file.stat().st_size


@contextmanager
def _opened(file: Path) -> Generator[tuple[BinaryIO, BinaryIO]]:
    """What is read from the disk, and what that holds when it is decompressed."""
    if file == STANDARD:
        with _decompressed(sys.stdin.buffer) as content:
            yield sys.stdin.buffer, content
    else:
        with file.open("rb") as raw, _decompressed(raw) as content:
            yield raw, content


@contextmanager
def _decompressed(raw: BinaryIO) -> Generator[BinaryIO]:
    if cast("io.BufferedReader", raw).peek(2)[:2] == _GZIP:
        with gzip.open(raw) as content:
            yield cast("BinaryIO", content)
    else:
        yield raw


def _lines(content: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """With the position of each; the first one without a byte-order mark, None for one that is too long."""
    offset = 0
    most = MOST_LINE_BYTES + len(b"\r\n")
    while line := content.readline(most):
        start, offset = offset, offset + len(line)
        kept: bytes | None = line
        while not line.endswith(b"\n") and (line := content.readline(most)):
            kept, offset = None, offset + len(line)
        if kept is not None and len(kept.rstrip(b"\r\n")) > MOST_LINE_BYTES:
            kept = None
        if not start and kept is not None and kept.startswith(_BYTE_ORDER_MARK):
            start = len(_BYTE_ORDER_MARK)
            kept = kept[start:]
        yield start, kept


def _decoded(content: BinaryIO) -> Iterator[str]:
    """Lines of text. UnicodeDecodeError with the position in the file."""
    for offset, line in _lines(content):
        if line is None:
            raise _RefusedError(f"a line has at most {MOST_LINE_BYTES} bytes")
        yield _decode(line, offset)


def batches(records: Iterable[Record], *, most_records: int, most_bytes: int) -> Iterator[list[Record]]:
    """In order, as many as one request should hold."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.line or b"")
        if len(batch) >= most_records or size >= most_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
