"""python -m bench.layouts: the number of bands that the cost model chooses, beside the best that can be measured.

Builds every layout for uniform fingerprints and for those of one templated site, and takes the median of lookups in
each. Takes a quarter of an hour for a million.
"""

import argparse
import gzip
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import psycopg
import uvloop
from numpy.typing import NDArray
from psycopg import sql
from psycopg.rows import TupleRow
from pydantic import SecretStr

from app.core.cost import MAX_BANDS, MIN_BANDS, Cost, cheapest_bands, costs_by_bands
from app.core.layout import cut
from app.core.model import StoredLayout
from app.core.probes import plan_probes
from app.core.scheme import given
from app.postgres.binaries import best_binaries
from app.postgres.embedded import EmbeddedPostgres
from app.postgres.migrate import migrate
from app.runtime import Process, process
from app.service.near_duplicates import Options, plan_lookup
from app.service.rebuild import sample_collections
from app.settings import Settings
from app.store import bands
from app.store.database import connect_for_operation
from app.store.lookups import Lookup, Sought, parameters
from bench import data

THRESHOLDS = (3, 5, 7, 10)
_LIMIT = 20
_QUERIES = 300
_SECONDS = 2.0  # for a layout and a threshold; at least _LEAST lookups
_LEAST = 15
_MOST_PROBES = 20_000

_REAL = Path(__file__).parent.parent / "tests" / "data" / "real_one_site.hex.gz"


def one_site(size: int, seed: int) -> NDArray[np.int64]:
    """Distinct fingerprints of the shape of one templated site: two real ones, one with a run of bits of the other."""
    with gzip.open(_REAL, "rt") as lines:
        real = np.array([int(line, 16) for line in lines], dtype=np.int64)
    generator = np.random.default_rng(seed)
    crossed = np.unique(real)
    while len(crossed) < size:
        first, second = generator.choice(real, (2, size))
        low, high = np.sort(generator.integers(0, 63, (2, size)), axis=0).astype(np.uint64)
        run = ((np.uint64(1) << high) - (np.uint64(1) << low)).view(np.int64)
        crossed = np.unique(np.concatenate([crossed, (first & ~run) | (second & run)]))
    return generator.permutation(crossed)[:size]


KINDS: dict[str, Callable[[int, int], NDArray[np.int64]]] = {"uniform": data.uniform, "one site": one_site}


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of a lookup, by bands and threshold; what the cost model expects, by the same."""

    seconds: dict[int, dict[int, float]]
    expected: dict[int, dict[int, Cost]]


async def measure(settings: Settings, simhashes: NDArray[np.int64]) -> Measured:
    async with process(settings) as opened:
        with psycopg.connect(opened.conninfo, autocommit=True) as connection:
            data.load(connection, simhashes.tolist())
            queries = [data.near(simhash) for simhash in random.Random(2).sample(simhashes.tolist(), _QUERIES)]
            async with await connect_for_operation(opened.conninfo, settings) as session:
                samples = await sample_collections(session)
            seconds = {
                number: await _measure_layout(opened, connection, number, queries)
                for number in range(MIN_BANDS, MAX_BANDS + 1)
            }
    by_bands = costs_by_bands(samples, THRESHOLDS)
    return Measured(seconds, {number: dict(zip(THRESHOLDS, costs, strict=True)) for number, costs in by_bands.items()})


async def _measure_layout(
    opened: Process, connection: psycopg.Connection, number: int, queries: list[int]
) -> dict[int, float]:
    layout = StoredLayout(number, cut(number), 3, f"fingerprint_of_{number}", "active")
    connection.execute(bands.create(layout))
    connection.execute(
        sql.SQL("INSERT INTO {} (collection_id, simhash) SELECT collection_id, simhash FROM fingerprint").format(
            sql.Identifier(layout.table)
        )
    )
    for band in layout.layout.bands:
        connection.execute(bands.create_index(layout, band))
    connection.execute(bands.vacuum(layout))
    place = await opened.catalog.place(data.COLLECTION)
    place = replace(place, layouts=replace(place.layouts, live=(layout,)))
    session: dict[str, Any] = dict(cast("dict[str, Any]", opened.pool.kwargs))
    medians: dict[int, float] = {}
    with psycopg.Connection[TupleRow].connect(opened.conninfo, **session) as ours:
        for threshold in THRESHOLDS:
            if plan_probes(layout.layout, place.collection.scheme.bits, threshold).probes > _MOST_PROBES:
                continue
            async with opened.database.connection() as pooled:
                lookup = await plan_lookup(opened.profiles, pooled, place, Options(threshold, _LIMIT))
            medians[threshold] = _median(ours, replace(lookup, scan=False), queries)
    connection.execute(bands.drop(layout))
    return medians


def _median(connection: psycopg.Connection, lookup: Lookup, queries: list[int]) -> float:
    """By probing: whether a scan would be cheaper is the same for all layouts."""
    times: list[float] = []
    begun = time.perf_counter()
    for query in queries:
        start = time.perf_counter()
        values = parameters(lookup, Sought(given(query)))
        connection.execute(bands.lookup(lookup.layout, scan=False), values).fetchall()
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begun > _SECONDS and len(times) >= _LEAST:
            break
    return median(times)


def _show(kind: str, size: int, measured: Measured) -> None:
    for threshold in THRESHOLDS:
        seconds = {number: its[threshold] for number, its in measured.seconds.items() if threshold in its}
        best = min(seconds, key=seconds.__getitem__)
        chosen = cheapest_bands({number: its[threshold] for number, its in measured.expected.items()}, now=4)
        expected = measured.expected[chosen][threshold].cheaper / 1e6
        print(
            f"| {kind} | {size:,} | {threshold} | {chosen} | {expected * 1e3:.2f} ms | {seconds[chosen] * 1e3:.2f} ms "
            f"| {best} | {seconds[best] * 1e3:.2f} ms | {seconds[chosen] / seconds[best]:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.layouts", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000], help="documents")
    asked = parser.parse_args()
    print("| fingerprints | number | threshold | bands chosen | expected | measured | best bands | measured | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size in asked.sizes:
        for kind, make in KINDS.items():
            folder = Path(tempfile.mkdtemp(prefix="tiroir-"))
            try:
                with EmbeddedPostgres(folder, best_binaries()) as server:
                    migrate(server.dsn(), connect_timeout=10)
                    settings = Settings(database_url=SecretStr(server.dsn()))
                    _show(kind, size, uvloop.run(measure(settings, make(size, 1))))
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
