"""What became of the documents of an earlier collection in a later one, as both are at one moment."""

from collections.abc import Sequence

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from psycopg import AsyncConnection

from app.core.model import Change, Collection, Json
from app.core.pairs import Selection, bytes_needed, choose_plan, find_pairs
from app.service.snapshots import SnapshotWork, Watched, found, read, sample_differences
from app.store import analyses
from app.store.analyses import Near

_STARTING, _OTHERS = 1, 2
_NONE = np.iinfo(np.int64).max


class Comparison(SnapshotWork):
    """One comparison, under way. `parameters`: threshold; against_id: the earlier collection."""

    async def find(self, connection: AsyncConnection, there: Sequence[Collection], watched: Watched) -> dict[str, Json]:
        later, earlier = there
        await watched.begin("reading")
        new, old = await read(connection, later, watched), await read(connection, earlier, watched)
        await watched.plan(bytes_needed(len(new.simhashes) + len(old.simhashes), 0, stars=False), self.most_bytes)
        await watched.begin("pairing")
        near_new = await self._nearest(new.bits, new.simhashes, old.simhashes, watched)
        near_old = await self._nearest(new.bits, old.simhashes, new.simhashes, watched)
        await watched.begin("comparing")
        changes = await self._compare(connection, later, earlier, near_new, near_old, watched)
        documents = await analyses.count_documents(connection, later.id)
        before = await analyses.count_documents(connection, earlier.id)
        return self._result(changes, documents, before)

    async def _compare(
        self,
        connection: AsyncConnection,
        later: Collection,
        earlier: Collection,
        near_new: Near,
        near_old: Near,
        watched: Watched,
    ) -> dict[tuple[Change, int | None], int]:
        """Writes what has become of each document, and counts."""
        analysis_id = self.id
        both = {"collection_id": later.id, "against_id": earlier.id}
        await analyses.add_same_keys(connection, analysis_id, **both, threshold=self.threshold)
        await analyses.set_apart(connection, **both)
        await analyses.add_moved(connection, analysis_id)
        arrived, left_behind = await analyses.fingerprints_set_apart(connection)
        nearest = await self._nearest(later.scheme.bits, arrived, left_behind, watched)
        same = np.intersect1d(arrived, left_behind)  # of other words
        near = Near(
            np.concatenate([same, nearest.simhashes]),
            np.concatenate([same, nearest.others]),
            np.concatenate([np.zeros(len(same), np.int16), nearest.distances]),
        )
        await analyses.add_moved(connection, analysis_id, near)
        return await analyses.add_new_and_gone(connection, analysis_id, **both, near_new=near_new, near_old=near_old)

    async def _nearest(
        self, bits: int, simhashes: NDArray[np.int64], others: NDArray[np.int64], watched: Watched
    ) -> Near:
        """Of the fingerprints that the others don't have, those that have a neighbour there."""
        alone = await to_thread.run_sync(lambda: np.setdiff1d(simhashes, others, assume_unique=True))
        both = np.concatenate([alone, others])
        values = both.view(np.uint64)
        flags = np.full(len(both), _OTHERS, np.uint8)
        flags[: len(alone)] = _STARTING
        different = await to_thread.run_sync(sample_differences, values)
        plan = await to_thread.run_sync(choose_plan, different, len(both), bits, self.threshold, len(alone))
        # The distance in the higher half, so that the least is the nearest, and of several the first.
        least = np.full(len(alone), _NONE)
        async for step in found(find_pairs(values, plan, Selection(flags, _STARTING | _OTHERS)), plan, watched):
            apart = np.bitwise_count(values[step.first] ^ values[step.second]).astype(np.int64)
            np.minimum.at(least, step.first, apart << 32 | step.second)
        near = np.flatnonzero(least < _NONE)
        return Near(alone[near], both[least[near] & 0xFFFFFFFF], (least[near] >> 32).astype(np.int16))

    def _result(self, changes: dict[tuple[Change, int | None], int], documents: int, before: int) -> dict[str, Json]:
        counts = dict.fromkeys(Change, 0)
        histogram: list[Json] = [0] * (self.threshold + 1)
        for (change, distance), count in changes.items():
            counts[change] += count
            if change is Change.NEARLY_UNCHANGED and distance is not None:
                histogram[distance] = count
        still_there = (Change.NEW, Change.MOVED, Change.CHANGED, Change.NEARLY_UNCHANGED)
        counts[Change.UNCHANGED] = documents - sum(counts[change] for change in still_there)
        return {
            "documents": documents,
            "documents_before": before,
            **{str(change): count for change, count in counts.items()},
            "histogram": histogram,
        }
