"""Imports of whole files beside the bare kernel and beside COPY of the same rows, and the memory that they take."""

import gzip
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg

from app.core.fingerprint import to_hex
from app.core.scheme import ARTICLE, digest
from bench import data, kernel
from bench.serving import megabytes, service

_PAGES = Path(__file__).parents[1] / "tests" / "data" / "revisions.jsonl.gz"
_SLICE = 1 << 16  # bytes, sent at once


@dataclass(frozen=True, slots=True)
class Rate:
    """Documents a second."""

    imported: float
    copied: float


@dataclass(frozen=True, slots=True)
class Imports:
    texts: Rate
    fingerprints: Rate
    again: float  # documents a second, of the same texts
    large_bytes: int
    large_seconds: float
    peak_megabytes: float | None  # of the process that imports them; None where /proc isn't


def measure(conninfo: str, texts: int, fingerprints: int, large_bytes: int) -> Imports:
    """`texts` documents of 300 words, `fingerprints` without a text, and real pages of `large_bytes` together."""
    with_text = [{"key": f"https://example.org/page/{n}", "text": text} for n, text in enumerate(_texts(texts))]
    without = [
        {"key": f"https://example.org/page/{n}", "fingerprint": to_hex(simhash)}
        for n, simhash in enumerate(data.uniform(fingerprints, seed=4).tolist())
    ]
    body, rows = b"".join(map(_line, with_text)), [_row(document) for document in with_text]
    short_body, short_rows = b"".join(map(_line, without)), [_row(document) for document in without]
    with service(conninfo) as (port, process):
        imported = texts / _import(port, "texts", [body])
        again = texts / _import(port, "texts", [body])
        imported_fingerprints = fingerprints / _import(port, "fingerprints", [short_body])
    # Another process, so that its peak is that of this import.
    with service(conninfo) as (port, process):
        large_seconds = _import(port, "large", _real_pages(large_bytes))
        peak = megabytes(process, "VmHWM")
    return Imports(
        Rate(imported, texts / _copy(conninfo, rows)),
        Rate(imported_fingerprints, fingerprints / _copy(conninfo, short_rows)),
        again,
        large_bytes,
        large_seconds,
        peak,
    )


def _texts(count: int) -> Iterator[str]:
    generator = random.Random(5)
    vocabulary = kernel.text().split()
    for _ in range(count):
        yield " ".join(generator.choices(vocabulary, k=kernel.WORDS))


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _row(document: dict[str, Any]) -> tuple[object, ...]:
    text = document.get("text")
    if text is None:
        return document["key"], None, int(document["fingerprint"], 16), None, None
    made = digest(text, ARTICLE)
    return document["key"], made.content_hash, made.simhash, made.words, text


def _real_pages(size: int) -> Iterator[bytes]:
    """Lines of so many bytes together, no two of which have the same text."""
    with gzip.open(_PAGES, "rt", encoding="utf-8") as lines:
        pages = [json.loads(line)["text"] for line in lines]
    sent = 0
    for number, page in enumerate(cycle(pages)):
        line = _line({"key": f"page {number}", "text": f"{page} {number}"})
        sent += len(line)
        if sent > size:
            return
        yield line


def _import(port: int, collection: str, body: Iterable[bytes]) -> float:
    """Seconds, from the first byte sent to the answer."""
    connection = HTTPConnection("127.0.0.1", port)
    start = time.perf_counter()
    connection.request(
        "POST",
        f"/v1/collections/{collection}/import",
        body=_sliced(body),
        headers={"Content-Type": "application/x-ndjson"},
        encode_chunked=True,
    )
    answer = json.loads(connection.getresponse().read())
    seconds = time.perf_counter() - start
    connection.close()
    if answer.get("failed") != 0 or not answer["lines"]:
        raise RuntimeError(answer)
    return seconds


def _sliced(parts: Iterable[bytes]) -> Iterator[bytes]:
    """In slices of one size, whatever the parts are."""
    begun = bytearray()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _SLICE):
            begun += view[start : start + _SLICE]
            if len(begun) >= _SLICE:
                yield bytes(begun)
                begun.clear()
    yield bytes(begun)


def _copy(conninfo: str, rows: list[tuple[object, ...]]) -> float:
    """Seconds of COPY into a table without indexes, through the same client library."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE copied (key text, content_hash bytea, simhash bigint, words integer, text text)"
        )
        start = time.perf_counter()
        with connection.cursor().copy("COPY copied FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        seconds = time.perf_counter() - start
        connection.execute("DROP TABLE copied")
    return seconds
