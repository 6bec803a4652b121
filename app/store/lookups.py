"""Lookups: the documents near a fingerprint, or, where there is none, those of the same content."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where is looked up, and how: the same for all queries of a request."""

    collection: Collection
    layout: StoredLayout
    probes: ProbePlan
    scan: bool
    expected: Cost  # what decided whether to scan
    limit: int  # matches at most
    fingerprints: int  # about so many does the collection have

    def matches(self, rows: list[TupleRow]) -> Matches:
        """Of rows that begin with a match's members: nulls where there is none, one more than the limit where there are
        more.
        """
        found = [Match(*row) for row in rows if row[0] is not None]
        return Matches(self.probes.threshold, found[: self.limit], truncated=len(found) > self.limit)

    def prepare(self) -> bool | None:
        return None if self.fingerprints >= _PLAN_KEPT_FROM else False


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked up."""

    digest: Digest  # its content hash decides which matches are exact
    except_key: str | None = None  # a document isn't its own neighbour


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
        return self._lookup.matches(rows)


async def queue_lookup(connection: AsyncConnection, lookup: Lookup, sought: Sought) -> QueuedLookup:
    if sought.digest.simhash is None:
        statement = _SQL["exact_duplicates"]
    else:
        statement = bands.lookup(lookup.layout, scan=lookup.scan)
    values = parameters(lookup, sought)
    return QueuedLookup(lookup, await connection.execute(statement, values, prepare=lookup.prepare()))


def parameters(lookup: Lookup, sought: Sought) -> Parameters:
    """Those of the statement of one lookup."""
    simhash = sought.digest.simhash
    common = _common_parameters(lookup) | {
        "simhash": simhash,
        "content_hash": sought.digest.content_hash,
        "except_key": sought.except_key,
    }
    if simhash is None or lookup.scan:
        return common
    return common | _probe_parameters(lookup.probes, lookup.probes.values(simhash))


def _common_parameters(lookup: Lookup) -> Parameters:
    """Of `limit` one more, which tells whether the answer is truncated."""
    return {
        "collection_id": lookup.collection.id,
        "collection": lookup.collection.name,
        "threshold": lookup.probes.threshold,
        "limit": lookup.limit + 1,
    }


def _probe_parameters(probes: ProbePlan, by_band: Iterable[Iterable[int]]) -> Parameters:
    """Values go as the text of an array: building a typed one costs the client a microsecond a value."""
    arrays = (f"{{{','.join(map(str, values))}}}" for values in by_band)
    names = bands.probe_parameters(probes.layout)
    return dict(zip(names, (*probes.radii, *arrays), strict=True))


@dataclass(frozen=True, slots=True)
class QueuedLookups:
    """Many lookups under way in a pipeline: those by fingerprint in one statement, those without one in another."""

    _lookup: Lookup
    _parts: list[tuple[list[int], AsyncCursor[TupleRow]]]  # which of the queries each statement answers

    async def result(self) -> list[Matches]:
        """In the order of the queries. StaleCatalogError where the collection is gone."""
        rows: list[list[TupleRow]] = [[] for numbers, _ in self._parts for _ in numbers]
        for numbers, cursor in self._parts:
            for position, *row in await cursor.fetchall():
                rows[numbers[int(position) - 1]].append(tuple(row))
        if not all(rows):
            raise StaleCatalogError
        return [self._lookup.matches(of_query) for of_query in rows]


async def queue_lookups(connection: AsyncConnection, lookup: Lookup, sought: list[Sought]) -> QueuedLookups:
    by_fingerprint = [number for number, each in enumerate(sought) if each.digest.simhash is not None]
    by_content = [number for number, each in enumerate(sought) if each.digest.simhash is None]
    parts: list[tuple[list[int], AsyncCursor[TupleRow]]] = []
    for numbers, statement in (
        (by_fingerprint, bands.lookup_many(lookup.layout, scan=lookup.scan)),
        (by_content, _SQL["exact_duplicates_of_many"]),
    ):
        if numbers:
            values = parameters_of_many(lookup, [sought[number] for number in numbers])
            parts.append((numbers, await connection.execute(statement, values, prepare=lookup.prepare())))
    return QueuedLookups(lookup, parts)


def parameters_of_many(lookup: Lookup, sought: list[Sought]) -> Parameters:
    """Those of the statement of many lookups."""
    common = _common_parameters(lookup) | {
        "simhashes": [each.digest.simhash for each in sought],
        "content_hashes": [each.digest.content_hash for each in sought],
        "except_keys": [each.except_key for each in sought],
    }
    return common if lookup.scan else common | _probe_parameters(lookup.probes, lookup.probes.flips())


async def count_candidates(connection: AsyncConnection, lookup: Lookup, sought: Sought) -> int:
    """How many rows the lookup's probes, or its scan, read."""
    statement = bands.count_candidates(lookup.layout, scan=lookup.scan)
    row = await (await connection.execute(statement, parameters(lookup, sought))).fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return int(row[0])
