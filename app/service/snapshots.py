"""Whole collections as they are at one moment, and the pairs among them: what analyses and comparisons share.

One transaction reads the moment and writes what was found, so that a run that is broken off leaves nothing behind and
begins anew. In between it is arithmetic on arrays, in threads, a fraction of a second at a time.
"""

import asyncio
import random
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from psycopg import AsyncConnection, Error

from app.core.errors import CollectionNotFoundError
from app.core.model import Collection, Json, Operation
from app.core.pairs import SAMPLE, Fingerprints, PairPlan, Step, differences
from app.service.operator import OperationFailedError, Progress, Work
from app.settings import Settings
from app.store import analyses, collections
from app.store.database import snapshot

_REPORT_SECONDS = 0.5
_STEP_SECONDS = 0.2
_AWAKE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FingerprintSet:
    """The distinct fingerprints of a collection in ascending order of the signed integers, and their documents."""

    bits: int
    simhashes: NDArray[np.int64]
    documents: NDArray[np.int32]  # how many have each

    @property
    def values(self) -> Fingerprints:
        return self.simhashes.view(np.uint64)


class Watched:
    """Tells how far an analysis is, not too often."""

    def __init__(self, progress: Progress, connection: AsyncConnection) -> None:
        self._progress = progress
        self._connection = connection
        self._reported = 0.0
        self._told: tuple[int, int | None] = (0, None)
        self._phase = ""
        self._began = 0.0
        self._stopped = threading.Event()
        self.seconds: dict[str, Json] = {}

    def stop(self) -> None:
        """What threads are at is wanted no more."""
        self._stopped.set()

    def go_on(self) -> None:
        """Raises in a thread whose work is wanted no more: cancelling a task doesn't end the thread it waits for."""
        if self._stopped.is_set():
            raise _StoppedError

    async def keep_awake(self) -> None:
        """Without end: neither session is idle for so long that PostgreSQL ends it, however long a step takes."""
        while True:
            await asyncio.sleep(_AWAKE_SECONDS)
            with suppress(Error):  # whoever needs the session will meet it as well
                await self._tell(*self._told)
                if not self._connection.lock.locked():  # else it is busy: we would wait, and the other one idle
                    await self._connection.execute(b"SELECT")

    async def begin(self, phase: str) -> None:
        self.end()
        self._phase, self._began = phase, time.monotonic()
        await self._tell(0, None)

    def end(self) -> None:
        if self._phase:
            self.seconds[self._phase] = round(time.monotonic() - self._began, 3)

    async def note(self, done: int, total: int | None = None) -> None:
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            await self._tell(done, total)

    async def _tell(self, done: int, total: int | None) -> None:
        self._reported, self._told = time.monotonic(), (done, total)
        await self._progress.report(self._phase, done=done, total=total)

    async def plan(self, memory_bytes: int, most: int) -> None:
        """States the memory in advance; OperationFailedError where it is more than is allowed."""
        self._progress.checkpoint["memory_bytes"] = memory_bytes
        await self._tell(0, None)
        if memory_bytes > most:
            raise OperationFailedError(too_large(memory_bytes, most))


class _StoppedError(Exception):
    """Nobody waits for it."""


def too_large(needed: float, most: int) -> str:
    return (
        f"it needs about {needed / 1e6:,.0f} MB, and TIROIR_ANALYSIS_MEMORY allows {most / 1e6:,.0f}:"
        " allow more, or take a lower threshold"
    )


async def read(connection: AsyncConnection, collection: Collection, watched: Watched) -> FingerprintSet:
    simhashes = [np.empty(0, np.int64)]
    documents = [np.empty(0, np.int32)]
    done = 0
    async for part, counts in analyses.fingerprints(connection, collection.id):
        simhashes.append(part)
        documents.append(counts)
        done += len(part)
        await watched.note(done)
    return FingerprintSet(collection.scheme.bits, np.concatenate(simhashes), np.concatenate(documents))


def sample_differences(fingerprints: Fingerprints) -> Fingerprints:
    """Those of some, chosen at random; always the same ones, so that the same set has the same plan."""
    size = len(fingerprints)
    chosen = random.Random(size).sample(range(size), min(size, SAMPLE))  # noqa: S311  no secret
    return differences(fingerprints[chosen])


async def found(steps: Iterator[Step], plan: PairPlan, watched: Watched) -> AsyncGenerator[Step]:
    """The steps of `find_pairs`, taken in a thread while progress is told."""
    while True:
        part = await to_thread.run_sync(_advance, steps)
        for step in part:
            yield step
        if not part:
            return
        await watched.note(round(100 * part[-1].passes / len(plan.passes)), 100)


def _advance(steps: Iterator[Step]) -> list[Step]:
    """As many as take a fraction of a second; none at the end."""
    until = time.monotonic() + _STEP_SECONDS
    taken: list[Step] = []
    for step in steps:
        taken.append(step)
        if time.monotonic() > until:
            break
    return taken


class SnapshotWork(Work):
    """What an analysis or a comparison is around what it finds. `parameters`: threshold; against_id, if it compares."""

    def __init__(
        self, conninfo: str, settings: Settings, session: AsyncConnection, operation: Operation, progress: Progress
    ) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._session = session
        self._progress = progress
        self._collection_id = operation.collection_id
        self._against_id = operation.parameters.get("against_id")
        threshold = operation.parameters["threshold"]
        assert isinstance(threshold, int)  # noqa: S101  the row says what we wrote
        self.id = operation.id
        self.threshold = threshold
        self.most_bytes = settings.analysis_bytes

    @abstractmethod
    async def find(self, connection: AsyncConnection, there: Sequence[Collection], watched: Watched) -> dict[str, Json]:
        """Writes what it finds in the snapshot, and counts it. The earlier one of two collections comes second."""

    async def undo(self) -> None:
        """Nothing: what it writes is there as a whole or not at all."""

    async def run(self) -> dict[str, Json]:
        if (finished := await analyses.finished(self._session, self.id)) is not None:
            return finished
        wanted = [self._collection_id] if self._against_id is None else [self._collection_id, self._against_id]
        there = [await _collection_of(self._session, each) for each in wanted]
        async with _at_one_moment(self._conninfo, self._settings, self._progress) as (connection, moment, watched):
            found = await self.find(connection, there, watched)
            watched.end()
            result: dict[str, Json] = {**found, "moment": moment.isoformat(), "seconds": watched.seconds}
            ids = [collection.id for collection in there]
            await analyses.add(
                connection,
                self.id,
                collection_id=ids[0],
                against_id=ids[1] if len(ids) > 1 else None,
                threshold=self.threshold,
                moment=moment,
                result=result,
            )
            await _require_collections(connection, self._session, ids)
        return result


@asynccontextmanager
async def _at_one_moment(
    conninfo: str, settings: Settings, progress: Progress
) -> AsyncGenerator[tuple[AsyncConnection, datetime, Watched]]:
    async with snapshot(conninfo, settings) as connection:
        moment = await analyses.moment(connection)
        watched = Watched(progress, connection)
        awake = asyncio.create_task(watched.keep_awake())
        try:
            yield connection, moment, watched
        finally:
            watched.stop()
            awake.cancel()
            await asyncio.wait([awake])


async def _require_collections(connection: AsyncConnection, session: AsyncConnection, ids: list[int]) -> None:
    """Keeps them until the transaction of `connection` ends; OperationFailedError where one has gone.

    `session` sees what is there now.
    """
    for collection_id in sorted(ids):
        await collections.lock_shared(connection, collection_id)
    if len(await collections.by_ids(session, ids)) < len(ids):
        raise OperationFailedError("the collection was deleted while it was analysed")


async def _collection_of(connection: AsyncConnection, collection_id: Json) -> Collection:
    assert isinstance(collection_id, int)  # noqa: S101  the row says what we wrote
    there = await collections.by_ids(connection, [collection_id])
    if not there:
        raise CollectionNotFoundError("the collection was deleted before it was analysed")
    return there[0]
