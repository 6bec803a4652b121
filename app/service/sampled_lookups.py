"""Lookups near stored fingerprints, chosen at random, each compared with a scan in the same snapshot."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import AsyncConnection

from app.core.cost import Profile, cost, uniform
from app.core.fingerprint import to_signed
from app.core.model import Collection, Match, StoredLayout
from app.core.probes import plan_probes
from app.core.scheme import given
from app.store import collections, documents
from app.store.lookups import Lookup, Sought, count_candidates, queue_lookup

_LIMIT = 1000
# Beyond, a lookup is a scan whatever the layout; the values alone would fill the memory.
_MOST_PROBES = 50_000

_SNAPSHOT = b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass(frozen=True, slots=True)
class Query:
    """A stored fingerprint with some bits flipped."""

    collection: Collection
    fingerprints: int  # of the collection
    simhash: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A lookup beside the scan of the same snapshot. Answers are documents; only the nearest 1,000 are compared."""

    missed: int  # found by the scan alone
    invented: int  # found by the lookup alone
    matches: int
    candidates: int
    probed: bool  # False: probing would have been absurd, so the lookup was a scan too
    lookup_seconds: float
    scan_seconds: float


async def choose_queries(session: AsyncConnection, count: int, threshold: int) -> list[Query]:
    """About `count` queries, from each collection in proportion to its size; up to `threshold` + 1 bits flipped."""
    sizes = await documents.sizes(session)
    total = sum(sizes.values())
    known = {collection.id: collection for collection in await collections.by_ids(session, list(sizes)[:count])}
    queries: list[Query] = []
    for collection_id, size in sizes.items():
        collection = known.get(collection_id)
        if collection is None:  # beyond `count`, or deleted
            continue
        wanted = max(1, round(count * size / total))
        sampled = await documents.sample(session, collection_id, size=size, most=wanted)
        queries += [Query(collection, size, _near(simhash, collection.scheme.bits, threshold)) for simhash in sampled]
    random.shuffle(queries)
    return queries[:count]


def _near(simhash: int, bits: int, threshold: int) -> int:
    """With up to one bit more flipped than the threshold allows: what is near must be found, what isn't must not."""
    flips = random.randint(0, min(threshold + 1, bits))  # noqa: S311  no secret
    flipped = random.sample(range(bits), flips)
    for bit in flipped:
        simhash ^= to_signed(1 << bit)
    return simhash


async def compare_with_scan(
    session: AsyncConnection, query: Query, probed: Sequence[StoredLayout], threshold: int
) -> list[Compared]:
    """The lookup in each of the layouts `probed`, against one scan of the documents, all in one snapshot.

    Probes even where the service would rather scan: the bands are what is tested. StaleCatalogError where the
    collection is gone.
    """
    async with session.transaction():
        await session.execute(_SNAPSHOT)
        start = time.perf_counter()
        collection_id = query.collection.id
        expected = set(await documents.scan(session, collection_id, query.simhash, threshold, _LIMIT))
        scan_seconds = time.perf_counter() - start
        compared: list[Compared] = []
        for layout in probed:
            lookup, sought = _lookup(query, layout, threshold), Sought(given(query.simhash))
            start = time.perf_counter()
            found = await _answer(session, lookup, sought)
            lookup_seconds = time.perf_counter() - start
            compared.append(
                Compared(
                    missed=len(expected - found),
                    invented=len(found - expected),
                    matches=len(found),
                    candidates=await count_candidates(session, lookup, sought),
                    probed=not lookup.scan,
                    lookup_seconds=lookup_seconds,
                    scan_seconds=scan_seconds,
                )
            )
    return compared


async def _answer(session: AsyncConnection, lookup: Lookup, sought: Sought) -> set[tuple[str, int | None, int]]:
    matches = await (await queue_lookup(session, lookup, sought)).result()
    return {_identity(match) for match in matches.items}


def _identity(match: Match) -> tuple[str, int | None, int]:
    return match.key, match.simhash, match.distance


def _lookup(query: Query, layout: StoredLayout, threshold: int) -> Lookup:
    bits = query.collection.scheme.bits
    probes = plan_probes(layout.layout, bits, threshold)
    return Lookup(
        collection=query.collection,
        layout=layout,
        probes=probes,
        scan=probes.probes > _MOST_PROBES,
        expected=cost(probes, Profile(query.fingerprints, uniform(layout.layout, bits))),
        limit=_LIMIT,
        fingerprints=query.fingerprints,
    )
