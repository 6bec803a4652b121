"""Lookups: the documents near a fingerprint, or, where there is none, those of the same content."""

from dataclasses import dataclass

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import TupleRow

from app.core.cost import Cost
from app.core.model import Collection, Match, Matches, StoredLayout
from app.core.probes import ProbePlan
from app.core.scheme import Digest
from app.store import bands
from app.store.database import StaleCatalogError
from app.store.named_sql import load

_SQL = load("documents.sql")

# On a table of a few rows every index costs the same, so PostgreSQL may plan to read all of one; a plan that is kept
# would go on doing so when the table has grown. From 40 rows on it plans to probe (PostgreSQL 15; 18 from 2 on).
_PLAN_KEPT_FROM = 100

Parameters = dict[str, int | str | bytes | None]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is looked up where, and how."""

    collection: Collection
    layout: StoredLayout
    probes: ProbePlan
    scan: bool
    expected: Cost  # what decided whether to scan
    digest: Digest  # its content hash decides which matches are exact
    except_key: str | None  # a document isn't its own neighbour
    limit: int  # matches at most
    fingerprints: int  # about so many does the collection have


@dataclass(frozen=True, slots=True)
class QueuedLookup:
    """A lookup under way in a pipeline, whose answer is still to be read."""

    _lookup: Lookup
    _cursor: AsyncCursor[TupleRow]

    async def result(self) -> Matches:
        """StaleCatalogError where the collection is gone."""
        rows = await self._cursor.fetchall()
        if not rows:
            raise StaleCatalogError
        matches = [Match(*row) for row in rows if row[0] is not None]
        limit = self._lookup.limit
        return Matches(self._lookup.probes.threshold, matches[:limit], truncated=len(matches) > limit)


async def queue_lookup(connection: AsyncConnection, lookup: Lookup) -> QueuedLookup:
    if lookup.digest.simhash is None:
        statement = _SQL["exact_duplicates"]
    else:
        statement = bands.lookup(lookup.layout, scan=lookup.scan)
    prepare = None if lookup.fingerprints >= _PLAN_KEPT_FROM else False
    return QueuedLookup(lookup, await connection.execute(statement, parameters(lookup), prepare=prepare))


def parameters(lookup: Lookup) -> Parameters:
    """Those of the lookup statements; of `limit` one more, which tells whether the answer is truncated."""
    common: Parameters = {
        "collection_id": lookup.collection.id,
        "collection": lookup.collection.name,
        "simhash": lookup.digest.simhash,
        "threshold": lookup.probes.threshold,
        "content_hash": lookup.digest.content_hash,
        "except_key": lookup.except_key,
        "limit": lookup.limit + 1,
    }
    if lookup.digest.simhash is None or lookup.scan:
        return common
    return common | _probe_parameters(lookup.probes, lookup.digest.simhash)


def _probe_parameters(probes: ProbePlan, simhash: int) -> Parameters:
    """Values go as the text of an array: building a typed one costs the client a microsecond a value."""
    arrays = (f"{{{','.join(map(str, values))}}}" for values in probes.values(simhash))
    names = bands.probe_parameters(probes.layout)
    return dict(zip(names, (*probes.radii, *arrays), strict=True))


async def count_candidates(connection: AsyncConnection, lookup: Lookup) -> int:
    """How many rows the lookup's probes, or its scan, read."""
    cursor = await connection.execute(bands.count_candidates(lookup.layout, scan=lookup.scan), parameters(lookup))
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return int(row[0])
