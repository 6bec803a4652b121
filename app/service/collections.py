"""Create, describe, list and delete collections."""

from dataclasses import dataclass
from functools import partial

from app.core.errors import CollectionExistsError
from app.core.model import Collection, CollectionCounts
from app.core.scheme import Scheme
from app.service.catalog import Catalog
from app.store import collections, layouts
from app.store.database import Database, StaleCatalogError


@dataclass(frozen=True, slots=True)
class Created:
    collection: Collection
    is_new: bool


class Collections:
    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog

    async def create(self, name: str, scheme: Scheme, *, store_text: bool) -> Created:
        """The new collection, or the one that is there with the same settings; else CollectionExistsError."""
        return await self._catalog.retry(partial(self._create, name, scheme, store_text=store_text))

    async def _create(self, name: str, scheme: Scheme, *, store_text: bool) -> Created:
        async with self._database.connection() as connection:
            if created := await collections.create(connection, name, scheme, store_text=store_text):
                return Created(created, is_new=True)
            found = await collections.find(connection, name)
        if found is None:
            raise StaleCatalogError  # deleted between the two statements
        if (found.scheme, found.store_text) != (scheme, store_text):
            raise CollectionExistsError(f"collection {name} exists, with other settings")
        return Created(found, is_new=False)

    async def describe(self, name: str) -> tuple[Collection, CollectionCounts]:
        """The collection and what it holds, counted exactly."""
        return await self._catalog.retry(partial(self._describe, name))

    async def _describe(self, name: str) -> tuple[Collection, CollectionCounts]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            counts = await collections.count(connection, collection.id)
            if not counts.documents:
                await self._catalog.require_current(connection, collection)
        return collection, counts

    async def page(self, *, after: str, limit: int) -> list[Collection]:
        """At most `limit` collections whose names come after `after`, in the order of their names."""
        async with self._database.connection() as connection:
            return await collections.page(connection, after, limit)

    async def delete(self, name: str) -> None:
        """Deletes the collection and all that it holds, in one transaction."""
        await self._catalog.retry(partial(self._delete, name))

    async def _delete(self, name: str) -> None:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection, connection.transaction():
            await layouts.lock(connection)
            await collections.lock(connection, collection.id)
            live = await layouts.live(connection)
            if not await collections.delete(connection, collection.id, live):
                raise StaleCatalogError
