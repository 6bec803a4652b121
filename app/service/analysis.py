"""The analysis of a collection: all near-duplicates and their clusters, as they are at one moment.

One transaction reads the moment and writes what was found, so that a run that is broken off leaves nothing behind and
begins anew. In between it is arithmetic on arrays, in threads, a fraction of a second at a time.
"""

import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from psycopg import AsyncConnection

from app.core.clusters import Clusters, arrange, components, nearest, stars
from app.core.errors import CollectionNotFoundError
from app.core.model import Clustering, Collection, Json, Operation, Preference
from app.core.pairs import (
    SAMPLE,
    Fingerprints,
    PairList,
    PairPlan,
    Selection,
    Step,
    bytes_needed,
    choose_plan,
    differences,
    expected_pairs,
    find_pairs,
)
from app.service.operator import OperationFailedError, Progress
from app.settings import Settings
from app.store import analyses, collections
from app.store.analyses import Others
from app.store.database import snapshot

_REPORT_SECONDS = 0.5
_STEP_SECONDS = 0.2
_MEGABYTE = 1_000_000

# Rows that are written in one go.
_FINGERPRINTS = 50_000
_CLUSTERS = 5_000
_PAIRS = 1 << 20

# Of reading a pair that an earlier analysis has found, and seeking its fingerprints.
_KNOWN_PAIR_SECONDS = 300e-9

ALONE = 64  # as the distance to the nearest: there is none within the threshold


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
    """Tells how far an analysis is, not too often, and so keeps the snapshot from idling."""

    def __init__(self, progress: Progress, connection: AsyncConnection) -> None:
        self._progress = progress
        self._connection = connection
        self._reported = 0.0
        self._phase = ""
        self._began = 0.0
        self.seconds: dict[str, Json] = {}

    async def begin(self, phase: str, total: int | None = None) -> None:
        self.end()
        self._phase, self._began = phase, time.monotonic()
        await self._tell(0, total)

    def end(self) -> None:
        if self._phase:
            self.seconds[self._phase] = round(time.monotonic() - self._began, 3)

    async def note(self, done: int, total: int | None = None) -> None:
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            await self._tell(done, total)

    async def _tell(self, done: int, total: int | None) -> None:
        self._reported = time.monotonic()
        await self._progress.report(self._phase, done=done, total=total)
        await self._connection.execute(b"SELECT")

    async def plan(self, memory_bytes: int, most: int) -> None:
        """States the memory in advance; OperationFailedError where it is more than is allowed."""
        self._progress.checkpoint["memory_bytes"] = memory_bytes
        await self._tell(0, None)
        require_memory(memory_bytes, most)


def require_memory(needed: int, most: int) -> None:
    if needed > most:
        raise OperationFailedError(too_large(needed, most))


def too_large(needed: int, most: int) -> str:
    return (
        f"it needs about {needed / _MEGABYTE:,.0f} MB, and TIROIR_ANALYSIS_MEMORY allows {most / _MEGABYTE:,.0f}:"
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
        await watched.note(part[-1].passes, len(plan.passes))


def _advance(steps: Iterator[Step]) -> list[Step]:
    """As many as take a fraction of a second; none at the end."""
    until = time.monotonic() + _STEP_SECONDS
    taken: list[Step] = []
    for step in steps:
        taken.append(step)
        if time.monotonic() > until:
            break
    return taken


@asynccontextmanager
async def at_one_moment(
    conninfo: str, settings: Settings, progress: Progress
) -> AsyncGenerator[tuple[AsyncConnection, datetime, Watched]]:
    async with snapshot(conninfo, settings) as connection:
        moment = await analyses.moment(connection)
        yield connection, moment, Watched(progress, connection)


async def require_collections(connection: AsyncConnection, session: AsyncConnection, ids: list[int]) -> None:
    """Keeps them until the transaction of `connection` ends; OperationFailedError where one has gone.

    `session` sees what is there now.
    """
    for collection_id in sorted(ids):
        await collections.lock_shared(connection, collection_id)
    if len(await collections.by_ids(session, ids)) < len(ids):
        raise OperationFailedError("the collection was deleted while it was analysed")


async def collection_of(connection: AsyncConnection, collection_id: Json) -> Collection:
    assert isinstance(collection_id, int)  # noqa: S101  the row says what we wrote
    there = await collections.by_ids(connection, [collection_id])
    if not there:
        raise CollectionNotFoundError("the collection was deleted before it was analysed")
    return there[0]


class Analysis:
    """One analysis, under way. `parameters`: threshold, clusters, representative."""

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
        self._clustering = Clustering(str(operation.parameters["clusters"]))
        self._preference = Preference(str(operation.parameters["representative"]))
        self._most = settings.analysis_memory * _MEGABYTE

    async def undo(self) -> None:
        """Nothing: what it writes is there as a whole or not at all."""

    async def run(self) -> dict[str, Json]:
        if (finished := await analyses.finished(self._session, self._operation.id)) is not None:
            return finished
        collection = await collection_of(self._session, self._operation.collection_id)
        async with at_one_moment(self._conninfo, self._settings, self._progress) as (connection, moment, watched):
            await watched.begin("reading")
            there = await read(connection, collection, watched)
            others = await analyses.others(connection, collection.id)
            pairs, plan = await self._pairs(connection, collection, there, watched)
            await watched.begin("clustering")
            clustered = await self._clustered(connection, collection, there, pairs)
            await watched.begin("writing")
            await self._write(connection, collection, there, clustered, watched)
            watched.end()
            result: dict[str, Json] = {
                **clustered.result(there, others),
                **plan,
                "moment": moment.isoformat(),
                "seconds": watched.seconds,
            }
            await analyses.add(
                connection,
                self._operation.id,
                collection_id=collection.id,
                against_id=None,
                threshold=self._threshold,
                moment=moment,
                result=result,
            )
            await require_collections(connection, self._session, [collection.id])
        return result

    def _needed(self, fingerprints: int, pairs: float) -> int:
        return bytes_needed(fingerprints, pairs, stars=self._clustering is Clustering.STAR)

    async def _pairs(
        self, connection: AsyncConnection, collection: Collection, there: FingerprintSet, watched: Watched
    ) -> tuple[PairList, dict[str, Json]]:
        """All pairs, and how they were found."""
        await watched.begin("pairing")
        size = len(there.simhashes)
        different = await to_thread.run_sync(sample_differences, there.values)
        needed = self._needed(size, expected_pairs(different, size, there.bits, self._threshold))
        await watched.plan(needed, self._most)
        plan = await to_thread.run_sync(choose_plan, different, size, there.bits, self._threshold)
        pairs, selection = PairList(), None
        based_on = await analyses.base(connection, collection.id, self._threshold)
        if based_on is not None:
            known = await analyses.known_fingerprints(connection, based_on.id)
            fresh = ~await to_thread.run_sync(_among, there.simhashes, known)
            fresh_plan = await to_thread.run_sync(
                choose_plan, different, size, there.bits, self._threshold, int(fresh.sum())
            )
            if fresh_plan.seconds + based_on.pairs * _KNOWN_PAIR_SECONDS < plan.seconds:
                await self._add_known(connection, based_on.id, there, pairs, watched)
                plan, selection = fresh_plan, Selection(fresh.astype(np.uint8), wanted=1)
            else:
                based_on = None
        async for step in found(find_pairs(there.values, plan, selection), plan, watched):
            pairs.add(step.first, step.second)
            require_memory(self._needed(size, len(pairs)), self._most)
        told: dict[str, Json] = {
            "plan": {"kind": plan.kind, "parts": plan.parts, "passes": len(plan.passes)},
            "based_on": None if based_on is None else based_on.id,
            "memory_bytes": self._needed(size, len(pairs)),
        }
        return pairs, told

    async def _add_known(
        self, connection: AsyncConnection, based_on: int, there: FingerprintSet, pairs: PairList, watched: Watched
    ) -> None:
        """The pairs of an earlier analysis whose fingerprints are both still there."""
        numbered = await analyses.numbered(connection, based_on)
        index = await to_thread.run_sync(np.searchsorted, there.simhashes, numbered)
        is_there = await to_thread.run_sync(_among, numbered, there.simhashes)

        def still_there(part: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            first, second = part[:, 0], part[:, 1]
            kept = is_there[first] & is_there[second] & (first != second)
            a, b = index[first[kept]], index[second[kept]]
            near = np.bitwise_count(there.values[a] ^ there.values[b]) <= self._threshold
            return np.minimum(a[near], b[near]), np.maximum(a[near], b[near])

        start = 0
        while len(part := await analyses.pairs(connection, based_on, start=start, limit=_PAIRS)):
            pairs.add(*await to_thread.run_sync(still_there, part))
            require_memory(self._needed(len(there.simhashes), len(pairs)), self._most)
            start += len(part)
            await watched.note(0)

    async def _clustered(
        self, connection: AsyncConnection, collection: Collection, there: FingerprintSet, pairs: PairList
    ) -> "_Clustered":
        least, histogram = await to_thread.run_sync(_distances, there, pairs, self._threshold)
        flagged = np.flatnonzero((least < ALONE) | (there.documents > 1))
        rank = await analyses.ranking(connection, collection.id, there.simhashes[flagged], self._preference)
        return await to_thread.run_sync(
            _cluster, there, pairs, flagged, rank, least[flagged], histogram, self._clustering
        )

    async def _write(
        self,
        connection: AsyncConnection,
        collection: Collection,
        there: FingerprintSet,
        clustered: "_Clustered",
        watched: Watched,
    ) -> None:
        rows = len(clustered.simhashes)
        columns: dict[str, NDArray[Any]] = {
            "simhash": clustered.simhashes,
            "cluster": clustered.clusters.cluster + 1,
            "distance": clustered.clusters.distance,
            "nearest": clustered.nearest,
            "documents": clustered.documents,
        }
        for start in range(0, rows, _FINGERPRINTS):
            part = {name: values[start : start + _FINGERPRINTS] for name, values in columns.items()}
            await analyses.add_fingerprints(connection, self._operation.id, start, part)
            await watched.note(start, rows)
        clusters = clustered.clusters
        for start in range(0, len(clusters.starts), _CLUSTERS):
            part = slice(start, start + _CLUSTERS)
            starts = clusters.starts[part]
            keys = await analyses.preferred(connection, collection.id, clustered.simhashes[starts], self._preference)
            await analyses.add_clusters(
                connection,
                self._operation.id,
                list(
                    zip(
                        range(start + 1, start + 1 + len(starts)),
                        starts.tolist(),
                        clusters.sizes[part].tolist(),
                        clusters.documents[part].tolist(),
                        clusters.diameters.bits[part].tolist(),
                        clusters.diameters.exact[part].tolist(),
                        keys,
                        strict=True,
                    )
                ),
            )
            await watched.note(rows, rows)
        await analyses.add_pairs(connection, self._operation.id, clustered.pairs)
        await analyses.add_known_fingerprints(connection, self._operation.id, there.simhashes)


def _among(values: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the values stand in the other array."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[places] == values


@dataclass(frozen=True, slots=True)
class _Clustered:
    """What is written: by places, the fingerprints of clusters in their order."""

    clusters: Clusters
    simhashes: NDArray[np.int64]
    nearest: NDArray[np.int16]
    documents: NDArray[np.int32]
    pairs: NDArray[np.uint32]  # two places each, in order; twice the same: its documents share the fingerprint
    histogram: list[Json]

    def result(self, there: FingerprintSet, others: Others) -> dict[str, Json]:
        clusters = self.clusters
        widest = int(np.argmax(clusters.diameters.bits)) if len(clusters.starts) else None
        return {
            "documents": int(there.documents.sum()) + others.too_short,
            "fingerprints": len(there.simhashes),
            "too_short": others.too_short,
            "near_duplicated": int(self.documents.sum()),
            "exact_duplicated": others.exact_duplicated,
            "exact_groups": others.exact_groups,
            "clusters": len(clusters.starts),
            "largest_cluster": int(clusters.documents[0]) if len(clusters.starts) else 0,
            "widest_cluster": 0 if widest is None else int(clusters.diameters.bits[widest]),
            "widest_cluster_is_exact": bool(clusters.diameters.exact.all()),
            "pairs": len(self.pairs),
            "histogram": self.histogram,
        }


def _distances(there: FingerprintSet, pairs: PairList, threshold: int) -> tuple[NDArray[np.int16], list[Json]]:
    """The distance of each fingerprint to its nearest, and how many pairs have each distance."""
    histogram = np.zeros(threshold + 1, np.int64)
    histogram[0] = np.count_nonzero(there.documents > 1)
    for start in range(0, len(pairs), _PAIRS):
        first, second = pairs.first[start : start + _PAIRS], pairs.second[start : start + _PAIRS]
        apart = np.bitwise_count(there.values[first] ^ there.values[second])
        histogram += np.bincount(apart, minlength=threshold + 1)
    least = nearest(len(there.simhashes), pairs.first, pairs.second, there.values)
    return least, [int(count) for count in histogram]


def _cluster(
    there: FingerprintSet,
    pairs: PairList,
    flagged: NDArray[np.int64],
    rank: NDArray[np.int64],
    least: NDArray[np.int16],
    histogram: list[Json],
    clustering: Clustering,
) -> _Clustered:
    place = np.zeros(len(there.simhashes), np.int64)
    place[flagged] = np.arange(len(flagged))
    pairs.renumber(place)
    if clustering is Clustering.STAR:
        labels = stars(rank, pairs.first, pairs.second)
    else:
        labels = components(len(flagged), pairs.first, pairs.second)
    documents = there.documents[flagged]
    clusters = arrange(there.values[flagged], documents, labels, rank)
    place = np.empty(len(flagged), np.int64)
    place[clusters.order] = np.arange(len(flagged))
    pairs.renumber(place)
    shared = np.flatnonzero(documents[clusters.order] > 1)
    pairs.add(shared, shared)
    return _Clustered(
        clusters,
        there.simhashes[flagged][clusters.order],
        least[clusters.order],
        documents[clusters.order],
        pairs.sorted(),
        histogram,
    )
