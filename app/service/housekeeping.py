"""What is to be done without anybody waiting for it: deleted collections are purged, documents expire, the planner is
told of large loads.

In small transactions, so that nothing else waits for long. Any number of processes may do it at once, and any may be
killed: what is left is due again.
"""

import asyncio
import logging

from psycopg import AsyncConnection

from app.core.fingerprint import MIN_SIMHASH
from app.store import collections, documents, layouts
from app.store.collections import Expiring
from app.store.database import Database

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_DOCUMENTS = 2000  # a transaction
_FINGERPRINTS = 10_000

# Autovacuum would come within minutes. Until then PostgreSQL takes a collection for a two-hundredth of what it is, or
# for empty, and so would our choice between probing and a scan.
_STALE_ROWS, _STALE_SHARE = 10_000, 0.1


class Housekeeping:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Without end."""
        while True:
            await self.do_what_is_due()
            await asyncio.sleep(_EVERY_SECONDS)

    async def do_what_is_due(self) -> None:
        purge = _Purge()
        while await self._purge(purge):
            pass
        while (expiring := await self._begin_expiry()) is not None:
            await self._expire(expiring)
        await self._analyze()

    async def _purge(self, purge: "_Purge") -> bool:
        """Deletes some of what a deleted collection held; False where there is none that nobody else works on."""
        async with self._database.connection() as connection, connection.transaction():
            collection_id = await collections.lock_deleted(connection)
            if collection_id is None:
                return False
            if not await purge.delete_some(connection, collection_id):
                await collections.forget_deleted(connection, collection_id)
                _log.info("collection %d is purged", collection_id)
        return True

    async def _begin_expiry(self) -> Expiring | None:
        async with self._database.connection() as connection:
            return await collections.begin_expiry(connection)

    async def _expire(self, expiring: Expiring) -> None:
        expired = 0
        after: str | None = ""
        while after is not None:
            async with self._database.connection() as connection:
                after, deleted = await documents.delete_next(
                    connection, expiring.id, after, size=_DOCUMENTS, seen_before=expiring.seen_before
                )
            expired += deleted
        if expired:
            _log.info("%d documents of collection %d have expired", expired, expiring.id)

    async def _analyze(self) -> None:
        async with self._database.connection() as connection:
            for table in await layouts.stale(connection, rows=_STALE_ROWS, share=_STALE_SHARE):
                await layouts.analyze(connection, table)


class _Purge:
    """Remembers how far each table is, so that what was deleted isn't read again."""

    def __init__(self) -> None:
        self._documents: dict[int, str] = {}
        self._fingerprints: dict[tuple[int, int], int] = {}

    async def delete_some(self, connection: AsyncConnection, collection_id: int) -> bool:
        """False where nothing is left: a look from the beginning, too, has found nothing."""
        after = self._documents.pop(collection_id, "")
        last, _ = await documents.delete_next(connection, collection_id, after, size=_DOCUMENTS)
        if last is not None:
            self._documents[collection_id] = last
        if last is not None or after:
            return True
        for layout in await layouts.live(connection):
            reached = (collection_id, layout.id)
            start = self._fingerprints.pop(reached, MIN_SIMHASH)
            following = await layouts.delete_next(connection, layout, collection_id, start, size=_FINGERPRINTS)
            if following is not None:
                self._fingerprints[reached] = following
            if following is not None or start > MIN_SIMHASH:
                return True
        return False
