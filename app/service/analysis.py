"""The analysis of a collection: all near-duplicates and their clusters, as they are at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from psycopg import AsyncConnection

from app.core.clusters import Clusters, GoOn, arrange, components, nearest, stars
from app.core.model import Clustering, Collection, Json, Operation, Preference
from app.core.pairs import (
    PairList,
    Selection,
    bytes_needed,
    choose_plan,
    expected_pairs,
    find_pairs,
    pairs_that_fit,
)
from app.service.operator import OperationFailedError, Progress
from app.service.snapshots import (
    FingerprintSet,
    SnapshotWork,
    Watched,
    found,
    read,
    sample_differences,
    too_large,
)
from app.settings import Settings
from app.store import analyses
from app.store.analyses import Base, Others

# Rows that are written in one go.
_FINGERPRINTS = 50_000
_CLUSTERS = 5_000
# Pairs that are looked at together.
_PAIRS = 1 << 20

# Of reading a pair that an earlier analysis has found, and seeking its fingerprints.
_KNOWN_PAIR_SECONDS = 300e-9

_ALONE = 64  # as the distance to the nearest: there is none within the threshold


class Analysis(SnapshotWork):
    """One analysis, under way. `parameters`: threshold, clusters, representative."""

    def __init__(
        self, conninfo: str, settings: Settings, session: AsyncConnection, operation: Operation, progress: Progress
    ) -> None:
        super().__init__(conninfo, settings, session, operation, progress)
        self._clustering = Clustering(str(operation.parameters["clusters"]))
        self._preference = Preference(str(operation.parameters["representative"]))

    async def find(self, connection: AsyncConnection, there: Sequence[Collection], watched: Watched) -> dict[str, Json]:
        [collection] = there
        await watched.begin("reading")
        stored = await read(connection, collection, watched)
        others = await analyses.others(connection, collection.id)
        pairs, plan = await self._pairs(connection, collection, stored, watched)
        await watched.begin("clustering")
        clustered = await self._clustered(connection, collection, stored, pairs, watched)
        await watched.begin("writing")
        await self._write(connection, collection, stored, clustered, watched)
        return {**clustered.result(stored, others), **plan}

    def _needed(self, fingerprints: int, pairs: float) -> int:
        return bytes_needed(fingerprints, pairs, stars=self._clustering is Clustering.STAR)

    async def _pairs(
        self, connection: AsyncConnection, collection: Collection, there: FingerprintSet, watched: Watched
    ) -> tuple[PairList, dict[str, Json]]:
        """All pairs, and how they were found."""
        await watched.begin("pairing")
        size = len(there.simhashes)
        different = await to_thread.run_sync(sample_differences, there.values)
        needed = self._needed(size, expected_pairs(different, size, there.bits, self.threshold))
        await watched.plan(needed, self.most_bytes)
        plan = await to_thread.run_sync(choose_plan, different, size, there.bits, self.threshold)
        stars = self._clustering is Clustering.STAR
        pairs, selection = PairList(size + pairs_that_fit(size, self.most_bytes, stars=stars)), None
        based_on = await analyses.base(connection, collection.id, self.threshold)
        if based_on is not None:
            known = await analyses.known_fingerprints(connection, based_on.id)
            fresh = ~await to_thread.run_sync(_among, there.simhashes, known)
            fresh_plan = await to_thread.run_sync(
                choose_plan, different, size, there.bits, self.threshold, int(fresh.sum())
            )
            if fresh_plan.seconds + based_on.pairs * _KNOWN_PAIR_SECONDS < plan.seconds:
                await self._add_known(connection, based_on, there, pairs, watched)
                plan, selection = fresh_plan, Selection(fresh.astype(np.uint8), wanted=1)
            else:
                based_on = None
        async for step in found(find_pairs(there.values, plan, selection), plan, watched):
            if not pairs.add(step.first, step.second):
                raise self._too_many(size, len(pairs), share=step.passes / len(plan.passes))
        told: dict[str, Json] = {
            "plan": {"kind": plan.kind, "parts": plan.parts, "passes": len(plan.passes)},
            "based_on": None if based_on is None else based_on.id,
        }
        return pairs, told

    def _too_many(self, fingerprints: int, pairs: int, *, share: float) -> OperationFailedError:
        """There is no room for more; `share`: about how many of all these are."""
        return OperationFailedError(too_large(self._needed(fingerprints, pairs / max(share, 0.01)), self.most_bytes))

    async def _add_known(
        self, connection: AsyncConnection, based_on: Base, there: FingerprintSet, pairs: PairList, watched: Watched
    ) -> None:
        """The pairs of an earlier analysis whose fingerprints are both still there."""
        numbered = await analyses.numbered(connection, based_on.id)
        index = await to_thread.run_sync(np.searchsorted, there.simhashes, numbered)
        is_there = await to_thread.run_sync(_among, numbered, there.simhashes)

        def still_there(part: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            first, second = part[:, 0], part[:, 1]
            kept = is_there[first] & is_there[second] & (first != second)
            a, b = index[first[kept]], index[second[kept]]
            near = np.bitwise_count(there.values[a] ^ there.values[b]) <= self.threshold
            return np.minimum(a[near], b[near]), np.maximum(a[near], b[near])

        start = 0
        while len(part := await analyses.pairs(connection, based_on.id, start=start, limit=_PAIRS)):
            if not pairs.add(*await to_thread.run_sync(still_there, part)):
                raise self._too_many(len(there.simhashes), len(pairs), share=start / based_on.pairs)
            start += len(part)
            await watched.note(0)

    async def _clustered(
        self,
        connection: AsyncConnection,
        collection: Collection,
        there: FingerprintSet,
        pairs: PairList,
        watched: Watched,
    ) -> "_Clustered":
        least, histogram = await to_thread.run_sync(_distances, there, pairs, self.threshold)
        flagged = np.flatnonzero((least < _ALONE) | (there.documents > 1))
        rank = await analyses.ranking(connection, collection.id, there.simhashes[flagged], self._preference)
        return await to_thread.run_sync(
            _cluster, there, pairs, flagged, rank, least[flagged], histogram, self._clustering, watched.go_on
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
            await analyses.add_fingerprints(connection, self.id, start, part)
            await watched.note(start, rows)
        clusters = clustered.clusters
        for start in range(0, len(clusters.starts), _CLUSTERS):
            part = slice(start, start + _CLUSTERS)
            starts = clusters.starts[part]
            keys = await analyses.preferred(connection, collection.id, clustered.simhashes[starts], self._preference)
            await analyses.add_clusters(
                connection,
                self.id,
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
        await analyses.add_pairs(connection, self.id, clustered.pairs)
        await analyses.add_known_fingerprints(connection, self.id, there.simhashes)


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
        widest = int(clusters.diameters.bits.max(initial=0))
        are_widest = clusters.diameters.bits == widest
        return {
            "documents": int(there.documents.sum()) + others.too_short,
            "fingerprints": len(there.simhashes),
            "too_short": others.too_short,
            "near_duplicated": int(self.documents.sum()),
            "exact_duplicated": others.exact_duplicated,
            "exact_groups": others.exact_groups,
            "clusters": len(clusters.starts),
            "largest_cluster": int(clusters.documents[0]) if len(clusters.starts) else 0,
            "widest_cluster": widest,
            "widest_cluster_is_exact": not len(are_widest) or bool(clusters.diameters.exact[are_widest].any()),
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
    go_on: GoOn,
) -> _Clustered:
    place = np.zeros(len(there.simhashes), np.int64)
    place[flagged] = np.arange(len(flagged))
    pairs.renumber(place)
    if clustering is Clustering.STAR:
        labels = stars(rank, pairs.first, pairs.second, go_on)
    else:
        labels = components(len(flagged), pairs.first, pairs.second, go_on)
    documents = there.documents[flagged]
    go_on()
    clusters = arrange(there.values[flagged], documents, labels, rank)
    place = np.empty(len(flagged), np.int64)
    place[clusters.order] = np.arange(len(flagged))
    pairs.renumber(place)
    go_on()
    shared = np.flatnonzero(documents[clusters.order] > 1)
    assert pairs.add(shared, shared)  # noqa: S101  there is room for a pair of each
    return _Clustered(
        clusters,
        there.simhashes[flagged][clusters.order],
        least[clusters.order],
        documents[clusters.order],
        pairs.sorted(),
        histogram,
    )
