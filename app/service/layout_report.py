"""What the bands look like from outside: the layouts there are, the fullest buckets, and what lookups should cost."""

from dataclasses import dataclass

from anyio import to_thread

from app.core.cost import Cost, cheapest_bands, costs_by_bands, grown, mean_costs
from app.core.model import StoredLayout
from app.core.probes import plan_probes
from app.service.catalog import Catalog, Layouts
from app.service.rebuild import sample_collections
from app.store import layouts
from app.store.database import Database
from app.store.layouts import Bucket

THRESHOLDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20)
_BUCKETS = 10


@dataclass(frozen=True, slots=True)
class ThresholdCost:
    """A lookup at this threshold: the values of 63-bit fingerprints that it looks up, its cost, the best layout."""

    threshold: int
    probes: int
    cost: Cost
    cheapest_bands: int


@dataclass(frozen=True, slots=True)
class LayoutReport:
    active: StoredLayout
    live: tuple[StoredLayout, ...]
    rows: int
    bytes: int
    fullest_buckets: list[Bucket]
    costs: list[ThresholdCost]


class LayoutReports:
    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog

    async def report(self) -> LayoutReport:
        """Exact but for the costs. Reads the indexes of all bands: half a second a million fingerprints."""
        return await self._catalog.retry(self._report)

    async def _report(self) -> LayoutReport:
        async with self._database.connection() as connection:
            known = Layouts(await layouts.live(connection))
            active = known.active
            rows = await layouts.count(connection, active)
            table_bytes = await layouts.table_bytes(connection, active)
            buckets = await layouts.fullest_buckets(connection, active, _BUCKETS)
            samples = await sample_collections(connection)
        by_bands = await to_thread.run_sync(costs_by_bands, samples, THRESHOLDS)
        now = len(active.layout.bands)
        costs_now = await to_thread.run_sync(mean_costs, samples or grown([]), active.layout, THRESHOLDS)
        costs = [
            ThresholdCost(
                threshold=threshold,
                probes=plan_probes(active.layout, 63, threshold).probes,
                cost=costs_now[index],
                cheapest_bands=cheapest_bands({bands: its[index] for bands, its in by_bands.items()}, now),
            )
            for index, threshold in enumerate(THRESHOLDS)
        ]
        return LayoutReport(active, known.live, rows, table_bytes, buckets, costs)
