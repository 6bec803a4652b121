"""Analyses on the real process, beside ten sorts, the join of the bands in SQL, and the article's query."""

import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from httpx2 import Client
from numpy.typing import NDArray
from psycopg import sql
from psycopg.conninfo import make_conninfo

from app.core.fingerprint import to_signed
from app.postgres.migrate import migrate
from bench import data
from bench.layouts import one_site
from bench.serving import megabytes, service

_DATABASE = "analyses"
_SAMPLE = Path(__file__).parents[1] / "tests" / "data" / "real_mixed_20000.hex.gz"
_POLL_SECONDS = 0.02
_SORTS = 10
ARTICLE_PAGES = 5000  # beyond, the article's authors don't ask any more
_DEAR = 7
MIXED_THRESHOLDS = (3, 5, 7, 10)

# Each pair once: in the first band that both share.
_JOIN = b"""
    SELECT count(*) FROM (
        SELECT a.simhash, b.simhash FROM fingerprint a JOIN fingerprint b ON a.b0 = b.b0 AND a.simhash < b.simhash
        WHERE bit_count((a.simhash # b.simhash)::bit(64)) <= 3
        UNION ALL
        SELECT a.simhash, b.simhash FROM fingerprint a JOIN fingerprint b ON a.b1 = b.b1 AND a.simhash < b.simhash
        WHERE bit_count((a.simhash # b.simhash)::bit(64)) <= 3 AND a.b0 <> b.b0
        UNION ALL
        SELECT a.simhash, b.simhash FROM fingerprint a JOIN fingerprint b ON a.b2 = b.b2 AND a.simhash < b.simhash
        WHERE bit_count((a.simhash # b.simhash)::bit(64)) <= 3 AND a.b0 <> b.b0 AND a.b1 <> b.b1
        UNION ALL
        SELECT a.simhash, b.simhash FROM fingerprint a JOIN fingerprint b ON a.b3 = b.b3 AND a.simhash < b.simhash
        WHERE bit_count((a.simhash # b.simhash)::bit(64)) <= 3 AND a.b0 <> b.b0 AND a.b1 <> b.b1 AND a.b2 <> b.b2
    ) pairs
"""
_ARTICLE = b"""
    SELECT count(*) FROM page a
    WHERE EXISTS (SELECT FROM page b WHERE b.key <> a.key AND bit_count((a.simhash # b.simhash)::bit(64)) <= 3)
"""


@dataclass(frozen=True, slots=True)
class Analyzed:
    """`seconds`: from the request to the result, which tells the rest."""

    threshold: int
    seconds: float
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alone:
    """An analysis in a process of its own, and the megabytes that it took at most; None where /proc isn't."""

    analyzed: Analyzed
    megabytes: float | None


@dataclass(frozen=True, slots=True)
class Analyses:
    sorts: float  # seconds of ten argsorts of as many 64-bit integers
    join: float  # seconds of the pairs of as many fingerprints by SQL
    article: float  # seconds, of 5,000 pages
    uniform: Alone
    before: Analyzed  # of a threshold at which pairs are dear
    again: Analyzed  # the same after a thousand more documents
    one_site: Alone
    mixed: list[Analyzed]
    copies: Analyzed  # half of the documents are one page
    without_copies: Analyzed


def measure(conninfo: str, size: int, mixed: Path | None) -> Analyses:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
    own = make_conninfo(conninfo, dbname=_DATABASE)
    migrate(own, connect_timeout=10)
    uniform = data.uniform(size, seed=5)
    few = uniform[: size // 10]
    with psycopg.connect(own, autocommit=True) as connection:
        data.load(connection, uniform.tolist(), "uniform")
        join, article = _seconds(connection, _JOIN), _article(connection)
        data.load(connection, one_site(size, seed=6).tolist(), "one-site")
        data.load(connection, _real(mixed or _SAMPLE), "mixed")
        data.load(connection, [*few.tolist(), *[int(few[0])] * len(few)], "copies")
        data.load(connection, few.tolist(), "without-copies")
    sorts = _sorts(uniform)
    of_uniform = _analyze_alone(own, "uniform")
    of_one_site = _analyze_alone(own, "one-site")
    with service(own) as (port, _):
        before = _analyze(port, "uniform", _DEAR)
        _add(port, "uniform", data.uniform(1000, seed=7))
        again = _analyze(port, "uniform", _DEAR)
        # The lower ones first: an analysis may go on from one of a higher threshold.
        of_mixed = [_analyze(port, "mixed", threshold) for threshold in MIXED_THRESHOLDS]
        copies, without_copies = _analyze(port, "copies", 3), _analyze(port, "without-copies", 3)
    return Analyses(sorts, join, article, of_uniform, before, again, of_one_site, of_mixed, copies, without_copies)


def _seconds(connection: psycopg.Connection, query: bytes) -> float:
    start = time.perf_counter()
    connection.execute(query).fetchone()
    return time.perf_counter() - start


def _article(connection: psycopg.Connection) -> float:
    connection.execute(
        sql.SQL("CREATE TABLE page AS SELECT key, simhash FROM document LIMIT {}").format(sql.Literal(ARTICLE_PAGES))
    )
    return _seconds(connection, _ARTICLE)


def _sorts(fingerprints: NDArray[np.int64]) -> float:
    start = time.perf_counter()
    for _ in range(_SORTS):
        np.argsort(fingerprints)
    return time.perf_counter() - start


def _real(file: Path) -> list[int]:
    with gzip.open(file, "rt") as lines:
        return [to_signed(int(line, 16)) for line in lines]


def _analyze_alone(conninfo: str, collection: str) -> Alone:
    with service(conninfo) as (port, process):
        before = megabytes(process, "VmRSS")
        analyzed = _analyze(port, collection, 3)
        peak = megabytes(process, "VmHWM")
    return Alone(analyzed, None if peak is None or before is None else peak - before)


def _analyze(port: int, collection: str, threshold: int) -> Analyzed:
    path = f"/v1/collections/{collection}/analyses"
    with Client(base_url=f"http://127.0.0.1:{port}") as client:
        start = time.perf_counter()
        operation: dict[str, Any] = client.post(path, json={"threshold": threshold}).raise_for_status().json()
        while operation["finished_at"] is None:
            time.sleep(_POLL_SECONDS)
            operation = client.get(f"{path}/{operation['id']}").raise_for_status().json()
        seconds = time.perf_counter() - start
    if operation["status"] != "succeeded":
        raise AssertionError(f"the analysis has {operation['status']}: {operation['error']}")
    return Analyzed(threshold, seconds, operation["result"])


def _add(port: int, collection: str, simhashes: NDArray[np.int64]) -> None:
    lines = [json.dumps({"key": f"later/{each}", "simhash": str(each)}) for each in simhashes.tolist()]
    with Client(base_url=f"http://127.0.0.1:{port}") as client:
        client.post(
            f"/v1/collections/{collection}/import",
            content="\n".join(lines).encode(),
            headers={"Content-Type": "application/x-ndjson"},
        ).raise_for_status()
