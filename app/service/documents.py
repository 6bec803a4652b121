"""Index documents and say what they resemble; read, list, export and delete them."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from anyio import CancelScope
from psycopg import AsyncConnection

from app.core.errors import CollectionNotFoundError
from app.core.model import Collection, Document, ExactGroup, Exported, Matches, Metadata, Outcome
from app.core.scheme import ARTICLE, Digest, Scheme
from app.service.catalog import Catalog, Place, document_not_found
from app.service.fingerprinting import Content, Text, digest_contents
from app.service.near_duplicates import Options, digests_for, plan_lookup
from app.service.profiles import Profiles
from app.store import collections, documents, layouts
from app.store.database import Database, StaleCatalogError
from app.store.documents import Write, queue_write, write_many
from app.store.lookups import Sought, queue_lookup

# Keys that a group of exact duplicates is shown with.
_SOME_KEYS = 10

# Of an export, at once: many documents, unless they are large.
_EXPORTED_DOCUMENTS = 1000
_EXPORTED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NewDocument:
    """`metadata` None: a stored document keeps its own."""

    key: str
    content: Content
    metadata: Metadata | None

    def write(self, digest: Digest) -> Write:
        text = self.content.text if isinstance(self.content, Text) else None
        return Write(self.key, digest, text, self.metadata)


@dataclass(frozen=True, slots=True)
class Indexed:
    outcome: Outcome
    document: Document
    matches: Matches | None  # None: nobody asked


class Documents:
    def __init__(self, database: Database, catalog: Catalog, profiles: Profiles) -> None:
        self._database = database
        self._catalog = catalog
        self._profiles = profiles

    async def index(self, name: str, new: NewDocument, look_up: Options | None) -> Indexed:
        """Writes the document and its fingerprint and looks up its neighbours, in one transaction.

        A collection that doesn't exist is made, with the default scheme. The document is findable when this returns;
        two that are written at the same moment needn't see one another.
        """
        return await self._catalog.retry(partial(self._index, name, new, look_up))

    async def _index(self, name: str, new: NewDocument, look_up: Options | None) -> Indexed:
        place, [digest] = await self._prepare(name, [new.content])
        async with self._database.connection() as connection:
            lookup = None
            if look_up is not None:
                lookup = await plan_lookup(self._profiles, connection, place, look_up)
            async with connection.pipeline(), connection.transaction():
                written = await queue_write(connection, place.collection, place.layouts.live, new.write(digest))
                found = None
                if lookup is not None:
                    found = await queue_lookup(connection, lookup, Sought(digest, except_key=new.key))
                outcome, document = await written.result()
                matches = None if found is None else await found.result()
        return Indexed(outcome, document, matches)

    async def _prepare(self, name: str, contents: Sequence[Content]) -> tuple[Place, list[Digest]]:
        """A collection is made only for content that can be stored in it: bad input changes nothing."""
        try:
            place = await self._catalog.place(name)
        except CollectionNotFoundError:
            await digest_contents(contents, ARTICLE)
            await self._create(name)
            raise StaleCatalogError from None  # it exists now: from the start
        return place, await digests_for(self._database, place.collection, contents)

    async def _create(self, name: str) -> None:
        async with self._database.connection() as connection:
            await collections.create(connection, name, ARTICLE, store_text=True, ttl=None)

    async def index_many(self, name: str, news: Sequence[NewDocument]) -> list[tuple[Outcome, Digest]]:
        """Writes documents with different keys, all or none of them; what became of each, in order."""
        return await self._catalog.retry(partial(self._index_many, name, news))

    async def _index_many(self, name: str, news: Sequence[NewDocument]) -> list[tuple[Outcome, Digest]]:
        place, digests = await self._prepare(name, [new.content for new in news])
        outcomes = await self._write_many(place, [new.write(digest) for new, digest in zip(news, digests, strict=True)])
        return list(zip(outcomes, digests, strict=True))

    async def _write_many(self, place: Place, writes: Sequence[Write]) -> list[Outcome]:
        """All of them in one transaction, as if one after the other."""
        layers = _layers(writes)
        async with self._database.connection() as connection, connection.transaction():
            written = await write_many(
                connection,
                place.collection,
                place.layouts.live,
                [[writes[number] for number in layer] for layer in layers],
            )
        outcomes = {
            number: outcome
            for layer, of_layer in zip(layers, written, strict=True)
            for number, outcome in zip(layer, of_layer, strict=True)
        }
        return [outcomes[number] for number in range(len(writes))]

    async def known(self, name: str, keys: Sequence[str]) -> tuple[Scheme, dict[str, Digest]]:
        """By what a text for the collection becomes a fingerprint, and what that has made of the texts under `keys`.

        The default scheme where there is no collection.
        """
        try:
            collection = await self._catalog.collection(name)
        except CollectionNotFoundError:
            return ARTICLE, {}
        if not keys:
            return collection.scheme, {}
        async with self._database.connection() as connection:
            return collection.scheme, await documents.digests(connection, collection.id, keys, of_texts=True)

    async def has_scheme(self, name: str, scheme: Scheme) -> bool:
        """Whether what `scheme` refuses would be refused now: the collection may be another one than remembered."""
        return await self._catalog.retry(partial(self._has_scheme, name, scheme))

    async def _has_scheme(self, name: str, scheme: Scheme) -> bool:
        try:
            collection = await self._catalog.collection(name)
        except CollectionNotFoundError:
            return scheme == ARTICLE
        async with self._database.connection() as connection:
            await self._catalog.require_current(connection, collection)
        return collection.scheme == scheme

    async def write_by_scheme(self, name: str, scheme: Scheme, writes: Sequence[Write]) -> list[Outcome] | None:
        """Writes documents whose digests were made before, by `scheme`; None if it isn't the right one now.

        All of them in one transaction, as if one after the other: of those with one key the last one wins. A collection
        that doesn't exist is made for the first.
        """
        if not writes:
            return []
        return await self._catalog.retry(partial(self._write_by_scheme, name, scheme, writes))

    async def _write_by_scheme(self, name: str, scheme: Scheme, writes: Sequence[Write]) -> list[Outcome] | None:
        try:
            place = await self._catalog.place(name)
        except CollectionNotFoundError:
            if scheme != ARTICLE:
                return None
            await self._create(name)
            raise StaleCatalogError from None
        if place.collection.scheme != scheme:
            async with self._database.connection() as connection:
                await self._catalog.require_current(connection, place.collection)
            return None
        return await self._write_many(place, writes)

    async def analyze(self) -> None:
        """Tells the planner of a large load, which would else take the tables for what they were."""
        tables = [layout.table for layout in (await self._catalog.layouts()).live]
        async with self._database.connection() as connection:
            for table in ("document", *tables):
                await layouts.analyze(connection, table)

    async def get(self, name: str, key: str) -> Document:
        """DocumentNotFoundError where there is none."""
        return await self._catalog.retry(partial(self._get, name, key))

    async def _get(self, name: str, key: str) -> Document:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            document = await documents.get(connection, collection.id, key)
            if document is None:
                await self._catalog.require_current(connection, collection)
                raise document_not_found(collection)
        return document

    async def page(self, name: str, *, after: str, limit: int) -> list[Document]:
        """At most `limit` documents whose keys come after `after`, in bytewise order of the keys."""
        return await self._catalog.retry(partial(self._page, name, after, limit))

    async def _page(self, name: str, after: str, limit: int) -> list[Document]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            found = await documents.page(connection, collection.id, after, limit)
            if not found:
                await self._catalog.require_current(connection, collection)
        return found

    async def exact_groups(self, name: str, *, after: tuple[int, bytes], limit: int) -> list[ExactGroup]:
        """At most `limit` groups of documents of the same content, the largest first, after one of them.

        `after`: its number of documents and its content hash.
        """
        return await self._catalog.retry(partial(self._exact_groups, name, after, limit))

    async def _exact_groups(self, name: str, after: tuple[int, bytes], limit: int) -> list[ExactGroup]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            found = await documents.exact_groups(connection, collection.id, after=after, limit=limit, keys=_SOME_KEYS)
            if not found:
                await self._catalog.require_current(connection, collection)
        return found

    async def keys_of_content(self, name: str, content_hash: bytes, *, after: str, limit: int) -> list[str]:
        """At most `limit` keys after one, of the documents with this content."""
        return await self._catalog.retry(partial(self._keys_of_content, name, content_hash, after, limit))

    async def _keys_of_content(self, name: str, content_hash: bytes, after: str, limit: int) -> list[str]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            found = await documents.keys_of_content(connection, collection.id, content_hash, after=after, limit=limit)
            if not found:
                await self._catalog.require_current(connection, collection)
        return found

    async def export(self, name: str, *, with_text: bool) -> AsyncGenerator[list[Exported]]:
        """All documents in bytewise order of their keys, a part at a time: what is stored when its part is read.

        No connection is held between two parts. CollectionNotFoundError before the first of them, also where the
        collection goes later: what came before it is then not all.
        """
        collection, part = await self._catalog.retry(partial(self._begin_export, name, with_text=with_text))
        while part:
            yield part
            # A client that goes away would else cost the connection on which its part is read.
            with CancelScope(shield=True):
                async with self._database.connection() as connection:
                    part = await self._export(connection, collection, part[-1].key, with_text=with_text)
                    if not part and not await self._catalog.is_current(connection, collection):
                        raise CollectionNotFoundError(f"collection {name} was deleted while it was exported")

    async def _begin_export(self, name: str, *, with_text: bool) -> tuple[Collection, list[Exported]]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            part = await self._export(connection, collection, "", with_text=with_text)
            if not part:
                await self._catalog.require_current(connection, collection)
        return collection, part

    @staticmethod
    async def _export(
        connection: AsyncConnection, collection: Collection, after: str, *, with_text: bool
    ) -> list[Exported]:
        return await documents.export(
            connection,
            collection.id,
            after,
            limit=_EXPORTED_DOCUMENTS,
            most_bytes=_EXPORTED_BYTES,
            with_text=with_text,
        )

    async def delete(self, name: str, key: str) -> None:
        """DocumentNotFoundError where there is none."""
        await self._catalog.retry(partial(self._delete, name, key))

    async def _delete(self, name: str, key: str) -> None:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            if not await documents.delete(connection, collection.id, key):
                await self._catalog.require_current(connection, collection)
                raise document_not_found(collection)

    async def delete_many(self, name: str, keys: Sequence[str]) -> int:
        """How many of the documents there were: all that there were are gone."""
        return await self._catalog.retry(partial(self._delete_many, name, keys))

    async def _delete_many(self, name: str, keys: Sequence[str]) -> int:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            deleted = await documents.delete_many(connection, collection.id, keys)
            if not deleted:
                await self._catalog.require_current(connection, collection)
        return deleted


def _layers(writes: Sequence[Write]) -> list[list[int]]:
    """The numbers of the first write of each key, then those of the second ones, and so on."""
    layers: list[list[int]] = []
    seen: Counter[str] = Counter()
    for number, write in enumerate(writes):
        if seen[write.key] == len(layers):
            layers.append([])
        layers[seen[write.key]].append(number)
        seen[write.key] += 1
    return layers
