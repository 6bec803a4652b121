"""The audit: lookups near stored fingerprints, compared with the full scan, on the user's own data."""

import time
from statistics import fmean, quantiles

from psycopg import AsyncConnection
from psycopg.errors import UndefinedTable

from app.core.model import Json, Operation
from app.service.operator import Progress
from app.service.sampled_lookups import Compared, Query, choose_queries, compare_with_scan
from app.store import layouts
from app.store.database import StaleCatalogError

_REPORT_SECONDS = 0.5
_ATTEMPTS = 4


def _result(compared: list[Compared], threshold: int, bands: int) -> dict[str, Json]:
    return {
        "lookups": len(compared),
        "threshold": threshold,
        "bands": bands,
        "misses": sum(each.missed for each in compared),
        "invented": sum(each.invented for each in compared),
        "matches": sum(each.matches for each in compared),
        "probed": sum(each.probed for each in compared),
        "candidates": _summary([float(each.candidates) for each in compared]),
        "lookup_ms": _summary([each.lookup_seconds * 1000 for each in compared]),
        "scan_ms": _summary([each.scan_seconds * 1000 for each in compared]),
    }


def _summary(values: list[float]) -> Json:
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    spelled = {"mean": fmean(values), "p50": cuts[49], "p99": cuts[98], "max": max(values)}
    return {name: round(value, 3) for name, value in spelled.items()}


class Audit:
    """One audit, under way. `parameters`: sample; threshold, null for that of the active layout."""

    def __init__(self, session: AsyncConnection, operation: Operation, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._sample = operation.parameters["sample"]
        self._threshold = operation.parameters["threshold"]

    async def run(self) -> dict[str, Json]:
        """One that was broken off begins anew: what it had measured was another moment's."""
        await self._progress.report("sampling")
        active = await layouts.active(self._session)
        threshold = active.threshold if self._threshold is None else self._threshold
        assert isinstance(threshold, int)  # noqa: S101  the row says what we wrote
        assert isinstance(self._sample, int)  # noqa: S101  as above
        queries = await choose_queries(self._session, self._sample, threshold)
        compared: list[Compared] = []
        reported = 0.0
        for done, query in enumerate(queries):
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                await self._progress.report("comparing", done=done, total=len(queries))
            compared += await self._compare(query, threshold)
        await self._progress.report("comparing", done=len(queries), total=len(queries))
        return _result(compared, threshold, len((await layouts.active(self._session)).layout.bands))

    async def _compare(self, query: Query, threshold: int) -> list[Compared]:
        """Nothing where the collection is gone. A rebuild may switch, and drop a table, at any moment."""
        for _ in range(_ATTEMPTS):
            active = await layouts.active(self._session)
            try:
                return await compare_with_scan(self._session, query, [active], threshold)
            except UndefinedTable:
                continue
            except StaleCatalogError:
                break
        return []

    async def undo(self) -> None:
        """An audit makes nothing."""
