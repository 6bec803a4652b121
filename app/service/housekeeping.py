"""What is to be done without anybody waiting for it: deleted collections are purged, documents expire, the planner is
told of large loads.

In small transactions, so that nothing else waits for long. Any number of processes may do it at once, and any may be
killed: what is left is due again.
"""

import asyncio
import logging
from collections.abc import Sequence

from psycopg import AsyncConnection

from app.core.fingerprint import MIN_SIMHASH
from app.core.model import Expiring, StoredLayout
from app.store import analyses, collections, documents, layouts, operations
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
        async with self._database.connection() as connection:
            deleted = await collections.deleted(connection)
        for collection_id in deleted:
            purge = _Purge(collection_id)
            while await self._purge(purge):
                pass
        while (expiring := await self._begin_expiry()) is not None:
            await self._expire(expiring)
        await self._purge_analyses()
        await self._analyze()

    async def _purge_analyses(self) -> None:
        """Those that a later one has superseded, and the results of those that were deleted or didn't succeed."""
        async with self._database.connection() as connection:
            await operations.delete_superseded(connection)
            orphans = await analyses.orphans(connection)
        for analysis_id in orphans:
            while await self._purge_analysis(analysis_id):
                pass

    async def _purge_analysis(self, analysis_id: int) -> bool:
        async with self._database.connection() as connection, connection.transaction():
            return await analyses.purge_some(connection, analysis_id)

    async def _purge(self, purge: "_Purge") -> bool:
        """Deletes some of what a deleted collection held; False where nothing is left, or somebody else does it."""
        async with self._database.connection() as connection, connection.transaction():
            if not await collections.lock_deleted(connection, purge.collection_id):
                return False
            await layouts.lock(connection)  # else a table may be dropped before we come to it
            live = await layouts.live(connection)
            if await purge.delete_some(connection, live):
                return True
            # What is being built is copied to from what was there a moment ago: it is looked through again. And an
            # analysis that runs would leave its row behind.
            is_alone = await operations.delete_of_collection(connection, purge.collection_id)
            if is_alone and all(layout.state != "building" for layout in live):
                await collections.forget_deleted(connection, purge.collection_id)
                _log.info("collection %d is purged", purge.collection_id)
        return False

    async def _begin_expiry(self) -> Expiring | None:
        async with self._database.connection() as connection:
            return await collections.begin_expiry(connection)

    async def _expire(self, expiring: Expiring) -> None:
        expired = 0
        after: str | None = ""
        while after is not None:
            async with self._database.connection() as connection:
                after, deleted = await documents.delete_next(
                    connection, expiring.id, after, size=_DOCUMENTS, expiring=expiring
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

    def __init__(self, collection_id: int) -> None:
        self.collection_id = collection_id
        self._after = ""
        self._starts: dict[int, int] = {}

    async def delete_some(self, connection: AsyncConnection, live: Sequence[StoredLayout]) -> bool:
        """False where nothing is left: a look from the beginning, too, has found nothing."""
        after, self._after = self._after, ""
        last, _ = await documents.delete_next(connection, self.collection_id, after, size=_DOCUMENTS)
        if last is not None:
            self._after = last
        if last is not None or after:
            return True
        for layout in live:
            start = self._starts.pop(layout.id, MIN_SIMHASH)
            following = await layouts.delete_next(connection, layout, self.collection_id, start, size=_FINGERPRINTS)
            if following is not None:
                self._starts[layout.id] = following
            if following is not None or start > MIN_SIMHASH:
                return True
        return False
