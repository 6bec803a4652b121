"""What a request needs to know beforehand, remembered by the process: collections and layouts.

Remembering is safe, since all of it is checked where it is used. A statement that reads asks whether the collection
still is, since what it held may be there for a while; a write checks collection, ttl and layouts behind its lock, and a
table that was dropped raises UndefinedTable. A retired layout that is still remembered stays exact as long as its table
stands: writes go to it.
Layouts are read again every few seconds all the same, so that a rebuild takes effect before its old table goes.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from psycopg import AsyncConnection
from psycopg.errors import UndefinedTable

from app.core.errors import CollectionNotFoundError, DocumentNotFoundError, UnavailableError
from app.core.model import Collection, StoredLayout
from app.store import collections, layouts
from app.store.database import Database, StaleCatalogError

T = TypeVar("T")

_ATTEMPTS = 4
_LAYOUTS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Layouts:
    """`live`: those that writes go to. `active`: the one that lookups read."""

    live: tuple[StoredLayout, ...]

    @property
    def active(self) -> StoredLayout:
        return next(layout for layout in self.live if layout.state == "active")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request reads and writes."""

    collection: Collection
    layouts: Layouts


def collection_not_found(name: str) -> CollectionNotFoundError:
    return CollectionNotFoundError(f"there is no collection named {name}")


def document_not_found(collection: Collection, *, pointer: str | None = None) -> DocumentNotFoundError:
    """Without the key: it may be a private URL, and it is in the request anyway."""
    return DocumentNotFoundError(f"collection {collection.name} holds no document with this key", pointer=pointer)


class Catalog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._collections: dict[str, Collection] = {}
        self._layouts: Layouts | None = None
        self._layouts_until = 0.0

    async def retry(self, use_case: Callable[[], Awaitable[T]]) -> T:
        """Runs `use_case`, and again from the start with fresh knowledge where what it remembered was stale."""
        for _ in range(_ATTEMPTS):
            try:
                return await use_case()
            except (StaleCatalogError, UndefinedTable):
                self._forget()
        raise UnavailableError("collections or layouts keep changing; try again")

    def _forget(self) -> None:
        self._collections.clear()
        self._layouts = None

    async def collection(self, name: str) -> Collection:
        """CollectionNotFoundError where there is none."""
        if (known := self._collections.get(name)) is not None:
            return known
        async with self._database.connection() as connection:
            found = await collections.find(connection, name)
        if found is None:
            raise collection_not_found(name)
        self._collections[name] = found
        return found

    @staticmethod
    async def require_current(connection: AsyncConnection, collection: Collection) -> None:
        """For use-cases that found nothing: StaleCatalogError if that is since the collection is gone."""
        if not await Catalog.is_current(connection, collection):
            raise StaleCatalogError

    @staticmethod
    async def is_current(connection: AsyncConnection, collection: Collection) -> bool:
        """Whether the collection still exists."""
        found = await collections.find(connection, collection.name)
        return found is not None and found.id == collection.id

    async def place(self, name: str) -> Place:
        """CollectionNotFoundError where there is none. To be asked before a connection is held: it may take one."""
        return Place(await self.collection(name), await self.layouts())

    async def layouts(self) -> Layouts:
        known = self._layouts
        if known is None or self._layouts_until < time.monotonic():
            until = time.monotonic() + _LAYOUTS_SECONDS
            async with self._database.connection() as connection:
                known = self._layouts = Layouts(await layouts.live(connection))
            self._layouts_until = until
        return known  # another request may have forgotten them again meanwhile
