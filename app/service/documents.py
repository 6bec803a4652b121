"""Index a document and say what it resembles; read, list and delete documents."""

from dataclasses import dataclass
from functools import partial

from app.core.errors import CollectionNotFoundError
from app.core.model import Document, Matches, Metadata, Outcome
from app.core.scheme import ARTICLE, Digest
from app.service.catalog import Catalog, Place, document_not_found
from app.service.near_duplicates import Content, Options, Text, digest_content, digest_for, plan_lookup
from app.service.profiles import Profiles
from app.store import collections, documents
from app.store.database import Database, StaleCatalogError
from app.store.documents import Write, queue_write
from app.store.lookups import queue_lookup


@dataclass(frozen=True, slots=True)
class NewDocument:
    """`metadata` None: a stored document keeps its own."""

    key: str
    content: Content
    metadata: Metadata | None


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
        place, digest = await self._prepare(name, new.content)
        text = new.content.text if isinstance(new.content, Text) else None
        write = Write(new.key, digest, text, new.metadata)
        async with self._database.connection() as connection:
            lookup = None
            if look_up is not None:
                lookup = await plan_lookup(self._profiles, connection, place, digest, look_up, except_key=new.key)
            async with connection.pipeline(), connection.transaction():
                written = await queue_write(connection, place.collection, place.layouts.live, write)
                found = None if lookup is None else await queue_lookup(connection, lookup)
                outcome, document = await written.result()
                matches = None if found is None else await found.result()
        return Indexed(outcome, document, matches)

    async def _prepare(self, name: str, content: Content) -> tuple[Place, Digest]:
        """A collection is made only for content that can be stored in it: bad input changes nothing."""
        try:
            place = await self._catalog.place(name)
        except CollectionNotFoundError:
            await digest_content(content, ARTICLE)
            async with self._database.connection() as connection:
                await collections.create(connection, name, ARTICLE, store_text=True)
            raise StaleCatalogError from None  # it exists now: from the start
        return place, await digest_for(self._database, place.collection, content)

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

    async def delete(self, name: str, key: str) -> None:
        """DocumentNotFoundError where there is none."""
        await self._catalog.retry(partial(self._delete, name, key))

    async def _delete(self, name: str, key: str) -> None:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            if not await documents.delete(connection, collection.id, key):
                await self._catalog.require_current(connection, collection)
                raise document_not_found(collection)
