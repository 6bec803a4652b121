"""What became of the documents of an earlier collection in a later one, as both are at one moment."""

from dataclasses import dataclass

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from psycopg import AsyncConnection

from app.core.model import Change, Json, Operation
from app.core.pairs import Selection, bytes_needed, choose_plan, find_pairs
from app.service.operator import Progress
from app.service.snapshots import (
    FingerprintSet,
    Watched,
    at_one_moment,
    collection_of,
    found,
    read,
    require_collections,
    require_memory,
    sample_differences,
)
from app.settings import Settings
from app.store import analyses

_STARTING, _OTHERS = 1, 2
_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Near:
    """Fingerprints that have a neighbour in the other collection: the nearest one, and how far it is."""

    simhashes: NDArray[np.int64]
    others: NDArray[np.int64]
    distances: NDArray[np.int16]


class Comparison:
    """One comparison, under way. `parameters`: threshold; against_id: the earlier collection."""

    def __init__(
        self, conninfo: str, settings: Settings, session: AsyncConnection, operation: Operation, progress: Progress
    ) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._session = session
        self._operation = operation
        self._progress = progress
        threshold = operation.parameters["threshold"]
        assert isinstance(threshold, int)  # noqa: S101  the row says what we wrote
        self._threshold = threshold
        self._most = settings.analysis_bytes

    async def undo(self) -> None:
        """Nothing: what it writes is there as a whole or not at all."""

    async def run(self) -> dict[str, Json]:
        if (finished := await analyses.finished(self._session, self._operation.id)) is not None:
            return finished
        later = await collection_of(self._session, self._operation.collection_id)
        earlier = await collection_of(self._session, self._operation.parameters["against_id"])
        async with at_one_moment(self._conninfo, self._settings, self._progress) as (connection, moment, watched):
            await watched.begin("reading")
            new, old = await read(connection, later, watched), await read(connection, earlier, watched)
            memory = bytes_needed(len(new.simhashes) + len(old.simhashes), 0, stars=False)
            await watched.plan(memory, self._most)
            await watched.begin("pairing")
            near_new = await self._nearest(new, old, watched)
            near_old = await self._nearest(old, new, watched)
            await watched.begin("writing")
            changes = await analyses.add_differences(
                connection,
                self._operation.id,
                collection_id=later.id,
                against_id=earlier.id,
                threshold=self._threshold,
                near_new=(near_new.simhashes, near_new.others, near_new.distances),
                near_old=near_old.simhashes,
            )
            documents = await analyses.count_documents(connection, later.id)
            before = await analyses.count_documents(connection, earlier.id)
            watched.end()
            result: dict[str, Json] = {
                **self._result(changes, documents, before),
                "memory_bytes": memory,
                "moment": moment.isoformat(),
                "seconds": watched.seconds,
            }
            await analyses.add(
                connection,
                self._operation.id,
                collection_id=later.id,
                against_id=earlier.id,
                threshold=self._threshold,
                moment=moment,
                result=result,
            )
            await require_collections(connection, self._session, [later.id, earlier.id])
        return result

    async def _nearest(self, there: FingerprintSet, others: FingerprintSet, watched: Watched) -> _Near:
        """Of the fingerprints that the others don't have, those that have a neighbour there."""
        alone = await to_thread.run_sync(lambda: np.setdiff1d(there.simhashes, others.simhashes, assume_unique=True))
        both = np.concatenate([alone, others.simhashes])
        values = both.view(np.uint64)
        flags = np.full(len(both), _OTHERS, np.uint8)
        flags[: len(alone)] = _STARTING
        different = await to_thread.run_sync(sample_differences, values)
        plan = await to_thread.run_sync(choose_plan, different, len(both), there.bits, self._threshold, len(alone))
        # The distance in the higher half, so that the least is the nearest, and of several the first.
        least = np.full(len(alone), _NONE)
        async for step in found(find_pairs(values, plan, Selection(flags, _STARTING | _OTHERS)), plan, watched):
            apart = np.bitwise_count(values[step.first] ^ values[step.second]).astype(np.int64)
            np.minimum.at(least, step.first, apart << 32 | step.second)
            require_memory(bytes_needed(len(both), len(step.first), stars=False), self._most)
        near = np.flatnonzero(least < _NONE)
        return _Near(alone[near], both[least[near] & 0xFFFFFFFF], (least[near] >> 32).astype(np.int16))

    def _result(self, changes: dict[tuple[Change, int | None], int], documents: int, before: int) -> dict[str, Json]:
        counts = dict.fromkeys(Change, 0)
        histogram: list[Json] = [0] * (self._threshold + 1)
        for (change, distance), count in changes.items():
            counts[change] += count
            if change is Change.NEARLY_UNCHANGED and distance is not None:
                histogram[distance] = count
        moved = counts[Change.UNCHANGED]
        counts[Change.UNCHANGED] = (
            documents - counts[Change.NEW] - counts[Change.CHANGED] - counts[Change.NEARLY_UNCHANGED]
        )
        return {
            "documents": documents,
            "documents_before": before,
            **{str(change): count for change, count in counts.items()},
            "moved": moved,
            "histogram": histogram,
        }
