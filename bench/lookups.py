"""Lookups by the service's statement beside the full scan and beside the article's query."""

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

import psycopg
from psycopg.rows import TupleRow

from app.core.scheme import given
from app.runtime import process
from app.service.near_duplicates import Options, plan_lookup
from app.settings import Settings
from app.store import bands
from app.store.lookups import Lookup, Parameters, Sought, parameters, parameters_of_many
from bench.data import COLLECTION, Filled

THRESHOLDS = (3, 5, 7, 10, 12, 15)
LIMIT = 20
_SCANS = 15  # a scan takes long and varies little
_BATCHES = 7

# What both yardsticks run under: plans made once, as ours are, and no parallel workers, which take as long to start
# as our lookups take. The planner may read the table as it likes.
_YARDSTICK = (
    b"SET plan_cache_mode = force_generic_plan",
    b"SET max_parallel_workers_per_gather = 0",
    b"SET jit = off",
    b"SET enable_seqscan = on",
    b"SET enable_bitmapscan = on",
)
_ARTICLE = b"""
SELECT key, simhash, bit_count((simhash # %(simhash)s::bigint)::bit(64)) AS distance,
       coalesce(content_hash = %(content_hash)s::bytea, false) AS exact, metadata
FROM article_page
WHERE collection_id = %(collection_id)s::int
  AND (b0 = ((%(simhash)s::bigint >> 48) & 32767) OR b1 = ((%(simhash)s::bigint >> 32) & 65535)
    OR b2 = ((%(simhash)s::bigint >> 16) & 65535) OR b3 = (%(simhash)s::bigint & 65535))
  AND bit_count((simhash # %(simhash)s::bigint)::bit(64)) <= %(threshold)s::int
ORDER BY distance, simhash, key
LIMIT %(limit)s::int
"""


@dataclass(frozen=True, slots=True)
class Lookups:
    """Median seconds a lookup."""

    statement: dict[int, float]  # by threshold
    batch: dict[int, float]  # by threshold, of all queries in one statement
    full_scan: float
    article: float


async def measure(settings: Settings, filled: Filled) -> Lookups:
    """All on plain connections, one statement at a time: what the process adds to a lookup is HTTP's figure."""
    async with process(settings) as opened:
        conninfo = opened.conninfo
        place = await opened.catalog.place(COLLECTION)
        async with opened.database.connection() as connection:
            plans = {
                threshold: await plan_lookup(opened.profiles, connection, place, Options(threshold, LIMIT))
                for threshold in THRESHOLDS
            }
        sought = [Sought(given(query)) for query in filled.queries]
        session: dict[str, Any] = dict(cast("dict[str, Any]", opened.pool.kwargs))
        with psycopg.Connection[TupleRow].connect(conninfo, **session) as ours:
            statement = {threshold: _ours(ours, plan, sought, scan=False) for threshold, plan in plans.items()}
            batch = {threshold: _batch(ours, plan, sought) for threshold, plan in plans.items()}
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=0) as plain:
        for setting in _YARDSTICK:
            plain.execute(setting)
        full_scan = _ours(plain, plans[3], sought[:_SCANS], scan=True)
        scanning = replace(plans[3], scan=True)
        article = _median(plain, [(_ARTICLE, parameters(scanning, each)) for each in sought])
    return Lookups(statement, batch, full_scan, article)


def _ours(connection: psycopg.Connection, plan: Lookup, sought: list[Sought], *, scan: bool) -> float:
    chosen = replace(plan, scan=scan)
    statement = bands.lookup(chosen.layout, scan=scan)
    return _median(connection, [(statement, parameters(chosen, each)) for each in sought])


def _batch(connection: psycopg.Connection, plan: Lookup, sought: list[Sought]) -> float:
    """Seconds a lookup, of many in one statement."""
    chosen = replace(plan, scan=False)
    values = parameters_of_many(chosen, sought)
    statement = bands.lookup_many(chosen.layout, scan=False)
    return _median(connection, [(statement, values)] * _BATCHES) / len(sought)


def _median(connection: psycopg.Connection, statements: list[tuple[bytes, Parameters]]) -> float:
    times: list[float] = []
    for statement, values in statements:
        start = time.perf_counter()
        rows = connection.execute(statement, values).fetchall()
        times.append(time.perf_counter() - start)
        if any(row[-5] is None for row in rows):  # the key, which a number may stand before
            raise AssertionError("a planted document was not found")
    return median(times)
