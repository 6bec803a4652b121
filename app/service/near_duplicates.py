"""Which stored documents are near-duplicates of a text, a fingerprint or a stored document."""

import time
from dataclasses import dataclass, replace
from functools import partial

from psycopg import AsyncConnection

from app.core.cost import cost
from app.core.errors import InvalidFingerprintError
from app.core.fingerprint import require_bits
from app.core.model import Collection, Explanation, Matches
from app.core.probes import plan_probes
from app.core.scheme import Digest, Scheme, given
from app.service.catalog import Catalog, Place, document_not_found
from app.service.fingerprinting import digest_text
from app.service.profiles import Profiles
from app.store import documents
from app.store.database import Database
from app.store.lookups import Lookup, count_candidates, queue_lookup


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Simhash:
    simhash: int
    pointer: str  # the member of the request that gave it, for errors


@dataclass(frozen=True, slots=True)
class Key:
    key: str


Content = Text | Simhash


@dataclass(frozen=True, slots=True)
class Options:
    """`threshold` None: that of the active layout, else 0 to 63. `limit`: matches at most, from 1."""

    threshold: int | None
    limit: int


@dataclass(frozen=True, slots=True)
class Found:
    digest: Digest
    matches: Matches
    explanation: Explanation | None
    seconds: float


async def digest_content(content: Content, scheme: Scheme) -> Digest:
    """InvalidFingerprintError where a given fingerprint has bits that the scheme hasn't."""
    if isinstance(content, Text):
        digest = await digest_text(content.text, scheme)
        # Punctuation alone makes words, if there is enough of it, but no content that two pages could share.
        return digest if digest.content_hash is not None else replace(digest, simhash=None)
    return given(require_bits(content.simhash, scheme.bits, pointer=content.pointer))


async def digest_for(database: Database, collection: Collection, content: Content) -> Digest:
    """InvalidFingerprintError as above; StaleCatalogError where that was by the scheme of a collection that is gone."""
    try:
        return await digest_content(content, collection.scheme)
    except InvalidFingerprintError:
        async with database.connection() as connection:
            await Catalog.require_current(connection, collection)
        raise


async def plan_lookup(
    profiles: Profiles,
    connection: AsyncConnection,
    place: Place,
    digest: Digest,
    options: Options,
    *,
    except_key: str | None,
) -> Lookup:
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
        digest=digest,
        except_key=except_key,
        limit=options.limit,
        fingerprints=profile.fingerprints,
    )


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
                digest = await self._stored_digest(connection, place.collection, query.key)
                found = await self._look_up(connection, place, digest, options, explain=explain, except_key=query.key)
        else:
            digest = await digest_for(self._database, place.collection, query)
            async with self._database.connection() as connection:
                found = await self._look_up(connection, place, digest, options, explain=explain)
        return Found(digest, *found, time.perf_counter() - start)

    async def _look_up(
        self,
        connection: AsyncConnection,
        place: Place,
        digest: Digest,
        options: Options,
        *,
        explain: bool,
        except_key: str | None = None,
    ) -> tuple[Matches, Explanation | None]:
        lookup = await plan_lookup(self._profiles, connection, place, digest, options, except_key=except_key)
        matches = await (await queue_lookup(connection, lookup)).result()
        if not explain or digest.simhash is None:
            return matches, None
        candidates = await count_candidates(connection, lookup)
        return matches, Explanation(lookup.probes, lookup.scan, candidates, lookup.expected)

    async def _stored_digest(self, connection: AsyncConnection, collection: Collection, key: str) -> Digest:
        document = await documents.get(connection, collection.id, key)
        if document is None:
            await self._catalog.require_current(connection, collection)
            raise document_not_found(collection)
        return Digest(document.simhash, document.content_hash, document.words)
