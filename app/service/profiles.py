"""What each process knows of the collections beforehand, to tell whether probing or a scan is cheaper.

All of it may be old or missing: a lookup is then slower than it could be, never wrong. So samples are taken beside the
lookups, which don't wait for them.
"""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from anyio import create_task_group, to_thread
from anyio.abc import TaskGroup
from psycopg import AsyncConnection, Error

from app.core.cost import Likeness, Profile, likeness, uniform
from app.core.errors import TiroirError
from app.core.layout import Layout
from app.core.model import Collection, StoredLayout
from app.store import documents, layouts
from app.store.database import Database, UnexpectedDatabaseError

_log = logging.getLogger(__name__)

# Fingerprints: a million pairs, of which bands of 16 bits have sixteen equal ones where fingerprints are uniform.
SAMPLE = 1500

_SIZE_SECONDS = 5.0
_SAMPLE_SECONDS = 3600.0
_ANOTHER_TRY_SECONDS = 300.0
# Below, all ways are cheap.
_SAMPLED_FROM = 1000
# Collections and layouts, a kilobyte each: those that are gone are remembered too.
_REMEMBERED = 10_000
# A sample holds until the collection has grown or shrunk by this factor.
_GROWTH = 1.25


@dataclass(slots=True)
class _Known:
    size: int
    size_until: float
    likeness: Likeness
    sampled_size: int = 0
    sampled_until: float = 0.0

    def profile(self) -> Profile:
        return Profile(self.size, self.likeness)

    def needs_sample(self, now: float) -> bool:
        if self.size < _SAMPLED_FROM:
            return False
        grown = max(self.size, self.sampled_size) > _GROWTH * min(self.size, self.sampled_size)
        return grown or self.sampled_until < now


class Profiles:
    """Made by `opened`."""

    def __init__(self, database: Database, tasks: TaskGroup) -> None:
        self._database = database
        self._tasks = tasks
        self._known: dict[tuple[int, Layout, int], _Known] = {}

    async def of(self, connection: AsyncConnection, stored: StoredLayout, collection: Collection) -> Profile:
        """The size is a few seconds old at most, and the planner's estimate; the likeness comes later."""
        now = time.monotonic()
        # The bands too: an id may come back, where a server that crashed has set its sequence back.
        key = (stored.id, stored.layout, collection.id)
        known = self._known.get(key)
        if known is None or known.size_until < now:
            size = await layouts.estimate(connection, stored, collection.id)
            if known is None:
                known = _Known(size, 0.0, uniform(stored.layout, collection.scheme.bits))
            known.size, known.size_until = size, now + _SIZE_SECONDS
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = known
            if known.needs_sample(now):
                known.sampled_size, known.sampled_until = size, now + _SAMPLE_SECONDS
                self._tasks.start_soon(self._sample, known, stored, collection)
        return known.profile()

    async def _sample(self, known: _Known, stored: StoredLayout, collection: Collection) -> None:
        try:
            async with self._database.connection() as connection:
                sampled = await documents.sample(connection, collection.id, size=known.size, most=SAMPLE)
        except (
            TiroirError,
            UnexpectedDatabaseError,
            Error,
        ) as error:  # the database is away, the layout is gone, or it takes too long
            known.sampled_until = time.monotonic() + _ANOTHER_TRY_SECONDS
            _log.info("no sample of collection %d: %s", collection.id, type(error).__name__)
            return
        chosen = np.array(sampled, dtype=np.int64)
        known.likeness = await to_thread.run_sync(likeness, chosen, stored.layout, collection.scheme.bits)


@asynccontextmanager
async def opened(database: Database) -> AsyncGenerator[Profiles]:
    """For as long as the service runs; ends the sampling that is under way."""
    async with create_task_group() as tasks:
        yield Profiles(database, tasks)
        tasks.cancel_scope.cancel()
