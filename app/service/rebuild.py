"""The rebuild of the bands: another table beside the one in use, filled, indexed, verified, and switched to.

Each phase can be broken off at any moment and begun again: what it changes and how far it is are committed together.
From the moment in which the new table exists every write goes to it too, so nothing that is copied later is missed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
from anyio import to_thread
from psycopg import AsyncConnection, errors

from app.core.cost import Cost, Sample, cheapest_bands, costs_by_bands
from app.core.errors import StartupError
from app.core.layout import cut
from app.core.model import Json, Operation, StoredLayout
from app.service.operator import OperationFailedError, Progress
from app.service.profiles import SAMPLE
from app.service.sampled_lookups import Compared, choose_queries, compare_with_scan
from app.settings import Settings
from app.store import collections, documents, layouts
from app.store.database import StaleCatalogError
from app.store.layouts import Position

_log = logging.getLogger(__name__)

_BATCH = 20_000  # fingerprints a transaction
_LEAST_SAMPLED = 200  # fingerprints
_SAMPLED_COLLECTIONS = 8  # the largest ones decide how many bands are best
_VERIFIED_LOOKUPS = 32

# Whoever waits for the layouts' lock, or for a table that readers hold, keeps others waiting behind. So we give way
# soon, and come again.
_LOCK_MILLISECONDS = 250
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds


async def sample_collections(session: AsyncConnection) -> list[Sample]:
    """Of the largest collections."""
    sizes = await documents.sizes(session)
    largest = list(sizes)[:_SAMPLED_COLLECTIONS]
    samples: list[Sample] = []
    for collection in await collections.by_ids(session, largest):
        size = sizes[collection.id]
        # A handful says nothing: two near-duplicates among three fingerprints would be a third of all pairs.
        enough = size >= _LEAST_SAMPLED
        sampled = await documents.sample(session, collection.id, size=size, most=SAMPLE) if enough else []
        samples.append(Sample(collection.scheme.bits, size, np.array(sampled, dtype=np.int64)))
    return samples


class Rebuild:
    """One rebuild, under way. `parameters`: threshold; bands, null for the cheapest; force."""

    def __init__(self, session: AsyncConnection, operation: Operation, progress: Progress, settings: Settings) -> None:
        self._session = session
        self._progress = progress
        self._grace = settings.layout_grace
        self._threshold = _integer(operation.parameters["threshold"])
        self._bands = operation.parameters["bands"]
        self._force = operation.parameters["force"] is True
        self._checkpoint = progress.checkpoint

    async def run(self) -> dict[str, Json]:
        if self._progress.phase is None or self._progress.phase == "planning":
            await self._do("planning", self._plan)
        phases = self._phases()
        names = list(phases)
        reached = names.index(self._progress.phase) if self._progress.phase in phases else 0
        for name in names[reached:]:
            await self._do(name, phases[name])
        return self._result()

    def _phases(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is left to do after the plan: the bands that are wanted may be those that there are."""
        phases: dict[str, Callable[[], Awaitable[None]]] = {}
        if self._checkpoint["rebuilt"]:
            phases |= {
                "creating": self._create,
                "copying": self._copy,
                "indexing": self._index,
                "vacuuming": self._vacuum,
                "verifying": self._verify,
            }
        if self._checkpoint["changed"]:
            phases |= {"switching": self._switch, "waiting": self._wait}
        return phases | {"dropping": self._drop}

    async def _do(self, name: str, phase: Callable[[], Awaitable[None]]) -> None:
        await self._progress.report(name, **_at(self._checkpoint, name))
        start = time.monotonic()
        await phase()
        seconds = self._checkpoint.setdefault("seconds", {})
        assert isinstance(seconds, dict)  # noqa: S101  ours
        seconds[name] = round(time.monotonic() - start, 3)

    def _result(self) -> dict[str, Json]:
        told = ("changed", "rebuilt", "bands", "threshold", "before", "choice", "verified", "seconds")
        return {name: self._checkpoint[name] for name in told if name in self._checkpoint}

    async def _building(self) -> StoredLayout:
        """The one that this rebuild builds."""
        for stored in await layouts.live(self._session):
            if stored.id == self._checkpoint["layout_id"]:
                return stored
        raise OperationFailedError("the layout that is being built is gone: somebody has deleted its row")

    async def _plan(self) -> None:
        active = await layouts.active(self._session)
        now = len(active.layout.bands)
        if isinstance(self._bands, int):
            bands = self._bands
        else:
            samples = await sample_collections(self._session)
            costs = await to_thread.run_sync(costs_by_bands, samples, [self._threshold])
            bands, choice = _choice({bands: of_thresholds[0] for bands, of_thresholds in costs.items()}, now)
            self._checkpoint["choice"] = choice
        rebuilt = self._force or cut(bands) != active.layout
        self._checkpoint |= {
            "bands": bands,
            "threshold": self._threshold,
            "before": {"bands": now, "threshold": active.threshold},
            "rebuilt": rebuilt,
            "changed": rebuilt or self._threshold != active.threshold,
            "fingerprints": sum((await documents.sizes(self._session)).values()),
        }

    async def _create(self) -> None:
        async def create() -> None:
            created = await layouts.create(self._session, cut(_integer(self._checkpoint["bands"])), self._threshold)
            self._checkpoint["layout_id"] = created.id
            self._checkpoint["last_collection_id"] = await collections.last_id(self._session)
            await self._progress.report("copying")

        await self.undo()  # of a rebuild whose row somebody has deleted
        await self._alone(create)

    async def _copy(self) -> None:
        building = await self._building()
        total = _integer(self._checkpoint["fingerprints"])
        last_collection_id = _integer(self._checkpoint["last_collection_id"])
        while True:
            position = self._checkpoint.get("position")
            after = Position(*map(_integer, position)) if isinstance(position, list) else layouts.START
            async with self._session.transaction():
                copied = await layouts.copy_batch(
                    self._session, building, after, last_collection_id=last_collection_id, size=_BATCH
                )
                if copied is None:
                    return
                done = _integer(self._checkpoint.get("copied", 0)) + copied.fingerprints
                self._checkpoint["position"] = [copied.position.collection_id, copied.position.simhash]
                self._checkpoint["copied"] = done
                await self._progress.report("copying", done=done, total=max(done, total))

    async def _index(self) -> None:
        building = await self._building()
        bands = building.layout.bands
        for band in bands:
            await self._progress.report("indexing", done=band.index, total=len(bands))
            await layouts.index(self._session, building, band)

    async def _vacuum(self) -> None:
        await layouts.vacuum(self._session, await self._building())

    async def _verify(self) -> None:
        """That the table holds what the documents use, and that its bands find what a scan finds."""
        building = await self._building()
        active = await layouts.active(self._session)
        await self._require_structure(building)
        compared = await layouts.compare_with_documents(self._session, building)
        if compared.missing:
            raise OperationFailedError(
                f"{compared.missing} of {compared.fingerprints} fingerprints are missing from the new table"
            )
        self._checkpoint["verified"] = {
            "fingerprints": compared.fingerprints,
            "rows": compared.rows,
            **await self._verify_lookups(building, active),
        }

    async def _require_structure(self, building: StoredLayout) -> None:
        try:
            await layouts.require_as_described(self._session, replace(building, state="active"))  # as it is to be
        except StartupError as error:
            raise OperationFailedError(str(error)) from None

    async def _verify_lookups(self, building: StoredLayout, active: StoredLayout) -> dict[str, Json]:
        """By the new bands and by the old ones, against a scan of the documents.

        Where the new bands differ, nothing is switched. Where the old ones do, a rebuild is what mends them.
        """
        thresholds = sorted({self._threshold, active.threshold})
        agreed = missed_by_old = 0
        for threshold in thresholds:
            queries = await choose_queries(self._session, _VERIFIED_LOOKUPS, threshold)
            for query in queries:
                await self._progress.report("verifying", done=agreed, total=len(queries) * len(thresholds))
                try:
                    new, old = await compare_with_scan(self._session, query, (building, active), threshold)
                except StaleCatalogError:
                    continue  # the collection was deleted
                _require_same(new, threshold)
                missed_by_old += old.missed
                agreed += 1
        if missed_by_old:
            _log.error("the bands in use miss documents: %d in %d lookups", missed_by_old, agreed)
        return {"lookups": agreed, "missed_by_old_bands": missed_by_old}

    async def _switch(self) -> None:
        """The new bands, or the new threshold of the bands there are, in one transaction with the checkpoint."""
        async with self._session.transaction():
            if not await self._progress.commit():
                raise asyncio.CancelledError  # asked for in this very moment: as if it had been seen before
            if self._checkpoint["rebuilt"]:
                await layouts.switch(self._session, await self._building())
            else:
                await layouts.set_threshold(self._session, await layouts.active(self._session), self._threshold)
            await self._progress.report("waiting")

    async def _wait(self) -> None:
        """Until every process has read the layouts again; one that hasn't meets a table that is gone, and does then."""
        start = time.monotonic()
        while (waited := time.monotonic() - start) < self._grace:
            await self._progress.report("waiting", done=int(waited), total=int(self._grace))
            await asyncio.sleep(min(1.0, self._grace - waited))

    async def _drop(self) -> None:
        await self._drop_all("retired")

    async def undo(self) -> None:
        await self._drop_all("building")

    async def _drop_all(self, state: str) -> None:
        """There may be more than one, where an earlier rebuild could not drop its own."""
        for stored in await layouts.live(self._session):
            if stored.state == state:
                await self._alone(lambda stored=stored: layouts.drop(self._session, stored))

    async def _alone(self, change: Callable[[], Awaitable[None]]) -> None:
        """Changes the layouts while nobody writes; gives way where it doesn't get the locks at once."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._session.transaction():
                    await self._session.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}".encode())
                    await layouts.lock_alone(self._session)
                    await change()
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                _log.info("readers or writers hold what a rebuild needs for a moment; trying again in %.1f s", pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return


def _choice(costs: dict[int, Cost], now: int) -> tuple[int, dict[str, Json]]:
    """The number of bands, and what decided it."""
    bands = cheapest_bands(costs, now)
    expected: dict[str, Json] = {
        str(each): {
            "microseconds": round(its.cheaper),
            "candidates": round(its.candidates),
            "scan": its.scan_is_cheaper,
        }
        for each, its in costs.items()
    }
    cheapest = cheapest_bands(costs)
    if costs[bands].cheaper == costs[cheapest].cheaper:
        reason = f"no number of bands is expected to be cheaper than {bands}"
    else:
        reason = f"{cheapest} bands would be cheaper than the {now} there are, but not by enough to be worth a rebuild"
    return bands, {"reason": reason, "expected": expected}


def _require_same(compared: Compared, threshold: int) -> None:
    if compared.missed or compared.invented:
        raise OperationFailedError(
            f"a lookup at threshold {threshold} in the new bands missed {compared.missed} and invented "
            f"{compared.invented} of the documents that a scan finds: nothing was switched"
        )


def _integer(value: Json) -> int:
    assert isinstance(value, int)  # noqa: S101  the row says what we wrote
    return value


def _at(checkpoint: dict[str, Json], phase: str) -> dict[str, int]:
    """How far a phase was when it was broken off."""
    if phase == "copying" and "copied" in checkpoint:
        return {"done": _integer(checkpoint["copied"]), "total": _integer(checkpoint["fingerprints"])}
    return {}
