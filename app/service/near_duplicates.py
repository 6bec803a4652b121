"""Which stored documents are near-duplicates of a text, a fingerprint or a stored document: of one, or of many."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from psycopg import AsyncConnection

from app.core.cost import cost
from app.core.errors import DocumentNotFoundError, InvalidFingerprintError, SchemesDifferError
from app.core.fingerprint import unsigned
from app.core.model import Collection, Explanation, Found, Match, Matches
from app.core.probes import plan_probes
from app.core.scheme import Digest
from app.service.catalog import Catalog, Place, document_not_found
from app.service.fingerprinting import Content, digest_contents
from app.service.profiles import Profiles
from app.store import documents
from app.store.database import Database
from app.store.lookups import Lookup, Sought, count_candidates, queue_lookup, queue_lookups


@dataclass(frozen=True, slots=True)
class Key:
    """A stored document."""

    key: str
    pointer: str | None = None  # the member of the request that gave it, where there are several


@dataclass(frozen=True, slots=True)
class Options:
    """`threshold` None: that of the active layout, else 0 to 63. `limit`: matches at most, from 1."""

    threshold: int | None
    limit: int


async def digests_for(database: Database, collection: Collection, contents: Sequence[Content]) -> list[Digest]:
    """InvalidFingerprintError where a fingerprint has bits that the collection's scheme hasn't.

    StaleCatalogError where that was by the scheme of a collection that is gone.
    """
    try:
        return await digest_contents(contents, collection.scheme)
    except InvalidFingerprintError:
        async with database.connection() as connection:
            await Catalog.require_current(connection, collection)
        raise


async def plan_lookup(profiles: Profiles, connection: AsyncConnection, place: Place, options: Options) -> Lookup:
    collection, layout = place.collection, place.layouts.active
    threshold = layout.threshold if options.threshold is None else options.threshold
    probes = plan_probes(layout.layout, collection.scheme.bits, threshold)
    profile = await profiles.of(connection, layout, collection)
    expected = cost(probes, profile)
    return Lookup(
        collection=collection,
        layout=layout,
        probes=probes,
        scan=expected.scan_is_cheaper,
        expected=expected,
        limit=options.limit,
        fingerprints=profile.fingerprints,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query whose digest is known; the document itself, where it is one, is in one of the collections."""

    digest: Digest
    key: str | None = None
    collection_id: int | None = None

    def in_collection(self, collection: Collection) -> Sought:
        return Sought(self.digest, self.key if self.collection_id == collection.id else None)


class NearDuplicates:
    def __init__(self, database: Database, catalog: Catalog, profiles: Profiles) -> None:
        self._database = database
        self._catalog = catalog
        self._profiles = profiles

    async def find(self, name: str, query: Content | Key, options: Options, *, explain: bool) -> Found:
        """The matches of `query` in the collection `name`; a text too short finds its exact duplicates alone."""
        return await self._catalog.retry(partial(self._find, name, query, options, explain=explain))

    async def _find(self, name: str, query: Content | Key, options: Options, *, explain: bool) -> Found:
        start = time.perf_counter()
        place = await self._catalog.place(name)
        if isinstance(query, Key):
            async with self._database.connection() as connection:
                [asked] = await self._stored(connection, [place], [query])
                sought = asked.in_collection(place.collection)
                found = await self._look_up(connection, place, sought, options, explain=explain)
        else:
            [digest] = await digests_for(self._database, place.collection, [query])
            sought = Sought(digest)
            async with self._database.connection() as connection:
                found = await self._look_up(connection, place, sought, options, explain=explain)
        return Found(sought.digest, *found, time.perf_counter() - start)

    async def _look_up(
        self, connection: AsyncConnection, place: Place, sought: Sought, options: Options, *, explain: bool
    ) -> tuple[Matches, Explanation | None]:
        lookup = await plan_lookup(self._profiles, connection, place, options)
        matches = await (await queue_lookup(connection, lookup, sought)).result()
        if not explain or sought.digest.simhash is None:
            return matches, None
        candidates = await count_candidates(connection, lookup, sought)
        return matches, Explanation(lookup.probes, lookup.scan, candidates, lookup.expected)

    async def find_many(self, name: str, queries: Sequence[Content | Key], options: Options) -> list[Found]:
        """The matches of each query in one collection, by one statement for all that have a fingerprint."""
        return await self._catalog.retry(partial(self._find_many, [name], queries, options))

    async def find_across(
        self, names: Sequence[str], queries: Sequence[Content | Key], options: Options
    ) -> list[Found]:
        """The matches of each query in all of the collections together; each match names its collection.

        A key is that of the first collection, in their order, that holds it. SchemesDifferError where the collections
        have more than one scheme.
        """
        find = partial(self._find_many, names, queries, options, name_collections=True)
        return await self._catalog.retry(find)

    async def _find_many(
        self,
        names: Sequence[str],
        queries: Sequence[Content | Key],
        options: Options,
        *,
        name_collections: bool = False,
    ) -> list[Found]:
        start = time.perf_counter()
        places = [await self._catalog.place(name) for name in names]
        await self._require_one_scheme(places)
        contents = [query for query in queries if not isinstance(query, Key)]
        digests = iter(await digests_for(self._database, places[0].collection, contents))
        async with self._database.connection() as connection:
            stored = iter(
                await self._stored(connection, places, [query for query in queries if isinstance(query, Key)])
            )
            asked = [next(stored) if isinstance(query, Key) else _Asked(next(digests)) for query in queries]
            lookups = [await plan_lookup(self._profiles, connection, place, options) for place in places]
            async with connection.pipeline():
                queued = [
                    await queue_lookups(connection, lookup, [each.in_collection(lookup.collection) for each in asked])
                    for lookup in lookups
                ]
                found = [await each.result() for each in queued]
        seconds = time.perf_counter() - start
        if not name_collections:
            return [Found(each.digest, matches, None, seconds) for each, matches in zip(asked, found[0], strict=True)]
        return [
            Found(each.digest, _merged(names, matches, options.limit), None, seconds)
            for each, matches in zip(asked, zip(*found, strict=True), strict=True)
        ]

    async def _require_one_scheme(self, places: Sequence[Place]) -> None:
        first = places[0].collection
        for number, place in enumerate(places):
            if place.collection.scheme != first.scheme:
                async with self._database.connection() as connection:
                    for each in (first, place.collection):
                        await self._catalog.require_current(connection, each)
                raise SchemesDifferError(
                    f"{place.collection.name} has another scheme than {first.name}: their fingerprints say nothing "
                    "about one another",
                    pointer=f"/collections/{number}",
                )

    async def _stored(
        self, connection: AsyncConnection, places: Sequence[Place], queries: Sequence[Key]
    ) -> list[_Asked]:
        """DocumentNotFoundError for a key that none of the collections holds."""
        keys = [query.key for query in queries]
        asked: dict[str, _Asked] = {}
        for place in places:
            missing = [key for key in dict.fromkeys(keys) if key not in asked]
            if missing:
                collection = place.collection
                digests = await documents.digests(connection, collection.id, missing)
                asked |= {key: _Asked(digest, key, collection.id) for key, digest in digests.items()}
        for query in queries:
            if query.key not in asked:
                for place in places:
                    await self._catalog.require_current(connection, place.collection)
                raise _not_found(places, query)
        return [asked[key] for key in keys]


def _not_found(places: Sequence[Place], query: Key) -> DocumentNotFoundError:
    if len(places) == 1:
        return document_not_found(places[0].collection, pointer=query.pointer)
    return DocumentNotFoundError("none of the collections holds a document with this key", pointer=query.pointer)


def _merged(names: Sequence[str], found: Sequence[Matches], limit: int) -> Matches:
    """The nearest of several collections, in the order of one; of equal ones in that of the names."""
    items = [
        replace(match, collection=name) for name, matches in zip(names, found, strict=True) for match in matches.items
    ]
    items.sort(key=_order)
    truncated = len(items) > limit or any(matches.truncated for matches in found)
    return Matches(found[0].threshold, items[:limit], truncated)


def _order(match: Match) -> tuple[int, int, str]:
    return match.distance, -1 if match.simhash is None else unsigned(match.simhash), match.key
