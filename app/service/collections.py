"""Create, describe, list, change and delete collections."""

from dataclasses import dataclass
from functools import partial

from app.core.errors import CollectionExistsError
from app.core.model import Collection, CollectionCounts
from app.core.scheme import Scheme
from app.service.catalog import Catalog, collection_not_found
from app.store import collections
from app.store.database import Database, StaleCatalogError


@dataclass(frozen=True, slots=True)
class Created:
    collection: Collection
    is_new: bool


class Collections:
    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog

    async def create(self, name: str, scheme: Scheme, *, store_text: bool, ttl: int | None = None) -> Created:
        """The new collection, or the one that is there with the same settings; else CollectionExistsError.

        `ttl`: seconds, after which documents go that weren't indexed again; None: they stay.
        """
        return await self._catalog.retry(partial(self._create, name, scheme, store_text=store_text, ttl=ttl))

    async def _create(self, name: str, scheme: Scheme, *, store_text: bool, ttl: int | None) -> Created:
        async with self._database.connection() as connection:
            if created := await collections.create(connection, name, scheme, store_text=store_text, ttl=ttl):
                return Created(created, is_new=True)
            found = await collections.find(connection, name)
        if found is None:
            raise StaleCatalogError  # deleted between the two statements
        if (found.scheme, found.store_text, found.ttl) != (scheme, store_text, ttl):
            raise CollectionExistsError(f"collection {name} exists, with other settings")
        return Created(found, is_new=False)

    async def describe(self, name: str) -> tuple[Collection, CollectionCounts]:
        """The collection as it is now, and what it holds, counted exactly. CollectionNotFoundError where it isn't."""
        async with self._database.connection() as connection:
            while (collection := await collections.find(connection, name)) is not None:
                if (counts := await collections.count(connection, collection.id)) is not None:
                    return collection, counts
        raise collection_not_found(name)

    async def page(self, *, after: str, limit: int) -> list[Collection]:
        """At most `limit` collections whose names come after `after`, in the order of their names."""
        async with self._database.connection() as connection:
            return await collections.page(connection, after, limit)

    async def set_ttl(self, name: str, ttl: int | None) -> Collection:
        """`ttl` as above; documents count as seen in this moment at least."""
        return await self._catalog.retry(partial(self._set_ttl, name, ttl))

    async def _set_ttl(self, name: str, ttl: int | None) -> Collection:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            changed = await collections.set_ttl(connection, collection.id, ttl)
        if changed is None:
            raise StaleCatalogError
        return changed

    async def delete(self, name: str) -> None:
        """The collection and all that it holds can't be found any more; Housekeeping takes that away."""
        await self._catalog.retry(partial(self._delete, name))

    async def _delete(self, name: str) -> None:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection, connection.transaction():
            await collections.lock(connection, collection.id)
            if not await collections.delete(connection, collection.id):
                raise StaleCatalogError
