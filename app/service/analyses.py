"""Analyses as users see them: begin one, watch it, read what it has found."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from anyio import to_thread
from psycopg import AsyncConnection

from app.core.errors import (
    AnalysisNotFoundError,
    AnalysisTooLargeError,
    AnalysisUnfinishedError,
    CollectionNotFoundError,
    InvalidInputError,
    SchemesDifferError,
)
from app.core.fingerprint import distance
from app.core.model import (
    Change,
    Cluster,
    Clustering,
    Collection,
    Difference,
    Document,
    Flagged,
    Json,
    Member,
    Operation,
    OperationKind,
    OperationStatus,
    Pair,
    Preference,
)
from app.core.pairs import SAMPLE, bytes_needed, differences, expected_pairs
from app.service.catalog import Catalog
from app.service.operations import Operations
from app.service.profiles import Profiles
from app.service.snapshots import too_large
from app.settings import Settings
from app.store import analyses, documents, operations
from app.store.database import Database

T = TypeVar("T")

# Keys that a fingerprint or a cluster is shown with: the first of them.
_SOME_KEYS = 10
# Where documents without a fingerprint stand in the order of the others: behind the numbers of all fingerprints.
WITHOUT_FINGERPRINT = 2**31 - 1
# Documents that are read for a page of those that are flagged, or aren't.
_READ = 20_000


@dataclass(frozen=True, slots=True)
class NewAnalysis:
    """`threshold` None: that of the active bands. `against`: the earlier collection of a comparison."""

    threshold: int | None
    clusters: Clustering
    representative: Preference
    against: str | None


class Analyses:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        profiles: Profiles,
        operations_of_all: Operations,
        settings: Settings,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._profiles = profiles
        self._operations = operations_of_all
        self._most = settings.analysis_bytes

    async def begin(self, name: str, new: NewAnalysis, *, idempotency_key: str | None) -> Operation:
        """CollectionNotFoundError, SchemesDifferError, or AnalysisTooLargeError where memory can't hold it."""
        return await self._catalog.retry(partial(self._begin, name, new, idempotency_key))

    async def _begin(self, name: str, new: NewAnalysis, idempotency_key: str | None) -> Operation:
        place = await self._catalog.place(name)
        collection = place.collection
        threshold = place.layouts.active.threshold if new.threshold is None else new.threshold
        parameters: dict[str, Json] = {"threshold": threshold}
        if new.against is None:
            parameters |= {"clusters": new.clusters, "representative": new.representative}
        else:
            earlier = await self._earlier(collection, new.against)
            parameters |= {"against": earlier.name, "against_id": earlier.id}
        async with self._database.connection() as connection:
            await self._catalog.require_current(connection, collection)
            size = (await self._profiles.of(connection, place.layouts.active, collection)).fingerprints
            sampled = await documents.sample(connection, collection.id, size=size, most=SAMPLE)
        if new.against is None:
            stars = new.clusters is Clustering.STAR
            await to_thread.run_sync(self._require_memory, collection, sampled, size, threshold, stars)
        return await self._operations.begin(
            OperationKind.ANALYSIS, parameters, idempotency_key=idempotency_key, collection_id=collection.id
        )

    async def _earlier(self, collection: Collection, against: str) -> Collection:
        if against == collection.name:
            raise InvalidInputError("a collection is compared with another one", pointer="/against")
        try:
            earlier = await self._catalog.collection(against)
        except CollectionNotFoundError as error:
            raise CollectionNotFoundError(str(error), pointer="/against") from None
        async with self._database.connection() as connection:
            await self._catalog.require_current(connection, earlier)
        if earlier.scheme != collection.scheme:
            raise SchemesDifferError(
                f"{collection.name} and {against} have different schemes: their fingerprints are never compared",
                pointer="/against",
            )
        return earlier

    def _require_memory(
        self, collection: Collection, sampled: list[int], size: int, threshold: int, stars: bool
    ) -> None:
        """By what is known before it begins; the operation itself asks again."""
        different = differences(np.array(sampled, np.int64).view(np.uint64))
        pairs = expected_pairs(different, size, collection.scheme.bits, threshold)
        needed = bytes_needed(size, pairs, stars=stars)
        if needed > self._most:
            raise AnalysisTooLargeError(too_large(needed, self._most), pointer="/threshold")

    async def page(self, name: str, *, before: int, limit: int) -> list[Operation]:
        """At most `limit` analyses of a collection with ids under `before`, the youngest first."""
        return await self._catalog.retry(partial(self._page, name, before, limit))

    async def _page(self, name: str, before: int, limit: int) -> list[Operation]:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            found = await operations.page_of_collection(
                connection, collection.id, OperationKind.ANALYSIS, before=before, limit=limit
            )
            await self._catalog.require_current(connection, collection)
        return found

    async def get(self, name: str, analysis_id: int) -> Operation:
        """AnalysisNotFoundError where the collection has none of this id."""
        return await self._catalog.retry(partial(self._get, name, analysis_id))

    async def _get(self, name: str, analysis_id: int) -> Operation:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            return await self._operation(connection, collection, analysis_id)

    async def _operation(self, connection: AsyncConnection, collection: Collection, analysis_id: int) -> Operation:
        operation = await operations.get(connection, OperationKind.ANALYSIS, analysis_id)
        await self._catalog.require_current(connection, collection)
        if operation is None or operation.collection_id != collection.id:
            raise AnalysisNotFoundError(f"collection {collection.name} has no analysis {analysis_id}")
        return operation

    async def cancel(self, name: str, analysis_id: int) -> Operation:
        """NotCancelableError where it is finished."""
        await self.get(name, analysis_id)
        return await self._operations.cancel(OperationKind.ANALYSIS, analysis_id)

    async def delete(self, name: str, analysis_id: int) -> None:
        """Its results can't be found any more; Housekeeping takes them away. AnalysisUnfinishedError where it runs."""
        await self._catalog.retry(partial(self._delete, name, analysis_id))

    async def _delete(self, name: str, analysis_id: int) -> None:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            if await operations.delete_finished(connection, collection.id, OperationKind.ANALYSIS, analysis_id):
                return
            operation = await self._operation(connection, collection, analysis_id)
        raise AnalysisUnfinishedError(f"analysis {analysis_id} is {operation.status}: cancel it first")

    async def _read(
        self,
        name: str,
        analysis_id: int,
        read: Callable[[AsyncConnection], Awaitable[T]],
        *,
        compares: bool = False,
    ) -> T:
        """What `read` finds in the results of an analysis that has succeeded, and is still there afterwards."""
        return await self._catalog.retry(partial(self._read_once, name, analysis_id, read, compares))

    async def _read_once(
        self, name: str, analysis_id: int, read: Callable[[AsyncConnection], Awaitable[T]], compares: bool
    ) -> T:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            result = await read(connection)
            operation = await self._operation(connection, collection, analysis_id)
        if operation.status is not OperationStatus.SUCCEEDED:
            why = f": {operation.error}" if operation.error else ""
            raise AnalysisUnfinishedError(f"analysis {analysis_id} is {operation.status}{why}")
        if ("against" in operation.parameters) is not compares:
            other = "compares two collections: it has differences" if not compares else "has clusters, no differences"
            raise AnalysisNotFoundError(f"analysis {analysis_id} {other}")
        return result

    async def clusters(self, name: str, analysis_id: int, *, after: int, limit: int) -> list[Cluster]:
        """At most `limit` clusters after one, the largest first, each with its first documents."""
        read = partial(analyses.clusters, analysis_id=analysis_id, after=after, limit=limit, most_members=_SOME_KEYS)
        return await self._read(name, analysis_id, read)

    async def members(
        self, name: str, analysis_id: int, cluster: int, *, after: tuple[int, str], limit: int
    ) -> list[Member]:
        """The next documents of a cluster, the nearest to the representative first. AnalysisNotFoundError."""
        found = await self._read(name, analysis_id, partial(self._members, analysis_id, cluster, after, limit))
        if found is None:
            raise AnalysisNotFoundError(f"analysis {analysis_id} has no cluster {cluster}")
        return found

    @staticmethod
    async def _members(
        analysis_id: int, cluster: int, after: tuple[int, str], limit: int, connection: AsyncConnection
    ) -> list[Member] | None:
        numbers = await analyses.cluster_range(connection, analysis_id, cluster)
        if numbers is None:
            return None
        first, end = numbers
        number, key = max(after, (first, ""))
        return await analyses.members(connection, analysis_id, number=number, after=key, end=end, limit=limit)

    async def documents_in_clusters(
        self, name: str, analysis_id: int, *, after: tuple[int, str], limit: int
    ) -> list[Member]:
        """The next documents of all clusters, one cluster after the other."""
        number, key = after
        read = partial(
            analyses.members, analysis_id=analysis_id, number=number, after=key, end=WITHOUT_FINGERPRINT, limit=limit
        )
        return await self._read(name, analysis_id, read)

    async def documents(self, name: str, analysis_id: int, *, after: tuple[int, str], limit: int) -> list[Flagged]:
        """The next documents that are flagged, cluster by cluster; those without a fingerprint at the end.

        `after`: the number of the fingerprint of the last one before, WITHOUT_FINGERPRINT where it has none, and its
        key.
        """
        return await self._read(name, analysis_id, partial(self._documents, analysis_id, after, limit))

    @staticmethod
    async def _documents(
        analysis_id: int, after: tuple[int, str], limit: int, connection: AsyncConnection
    ) -> list[Flagged]:
        number, key = after
        found: list[Flagged] = []
        if number < WITHOUT_FINGERPRINT:
            found += await analyses.members(
                connection, analysis_id, number=number, after=key, end=WITHOUT_FINGERPRINT, limit=limit
            )
            key = ""
        if len(found) < limit:
            found += await analyses.without_fingerprint(connection, analysis_id, after=key, limit=limit - len(found))
        return found

    async def pairs(self, name: str, analysis_id: int, *, start: int, limit: int) -> list[Pair]:
        """At most `limit` pairs from the `start`-th on, cluster by cluster."""
        return await self._read(name, analysis_id, partial(self._pairs, analysis_id, start, limit))

    @staticmethod
    async def _pairs(analysis_id: int, start: int, limit: int, connection: AsyncConnection) -> list[Pair]:
        numbers = (await analyses.pairs(connection, analysis_id, start=start, limit=limit)).tolist()
        wanted = {number for pair in numbers for number in pair}
        described = await analyses.described(connection, analysis_id, sorted(wanted), keys=_SOME_KEYS)
        return [
            Pair(
                number,
                distance(described[a].simhash, described[b].simhash),
                described[a],
                None if a == b else described[b],
            )
            for number, (a, b) in enumerate(numbers, start)
            if a in described and b in described  # else the analysis has just been deleted, and `_read` says so
        ]

    async def differences(
        self, name: str, analysis_id: int, *, change: Change | None, after: str, limit: int
    ) -> list[Difference]:
        """The next documents that differ, in the order of their keys; None: however they differ."""
        read = partial(analyses.differences, analysis_id=analysis_id, change=change, after=after, limit=limit)
        return await self._read(name, analysis_id, read, compares=True)

    async def flagged(
        self, name: str, analysis_id: int | None, *, is_flagged: bool, after: str, limit: int
    ) -> tuple[list[Document], str | None]:
        """Documents that an analysis has flagged as near-duplicates, or hasn't; where to go on. None: the latest one.

        A part of the collection is read for it, so there may be fewer than `limit` though there are more behind.
        AnalysisNotFoundError where there is no analysis.
        """
        if analysis_id is None:
            analysis_id = await self._catalog.retry(partial(self._latest, name))
        collection = await self._catalog.collection(name)
        read = partial(
            analyses.flagged,
            analysis_id=analysis_id,
            collection_id=collection.id,
            is_flagged=is_flagged,
            after=after,
            read=_READ,
            limit=limit,
        )
        return await self._read(name, analysis_id, read)

    async def _latest(self, name: str) -> int:
        collection = await self._catalog.collection(name)
        async with self._database.connection() as connection:
            latest = await analyses.latest(connection, collection.id)
            await self._catalog.require_current(connection, collection)
        if latest is None:
            raise AnalysisNotFoundError(f"collection {name} has no finished analysis: begin one")
        return latest
