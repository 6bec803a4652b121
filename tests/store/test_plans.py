"""A lookup reads the band indexes and nothing else, whatever PostgreSQL knows about the table when it plans."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from random import Random

import psycopg
import pytest
from psycopg import AsyncConnection

from app.core.scheme import given
from app.runtime import Process, process
from app.service.fingerprinting import Simhash
from app.service.near_duplicates import Options, plan_lookup
from app.settings import Settings
from app.store.lookups import Lookup, Sought, queue_lookup
from tests.conftest import Server
from tests.store.brute_force import Stored, assert_right, flipped, nearest, uniform
from tests.store.databases import create_collection, load, settings_of
from tests.store.plans import Node, entries_read, executed_plan, statements, telling_its_statements

SIZE = 100_000
BAND_INDEXES = [f"fingerprint_b{band}_idx" for band in range(4)]
QUERY = 5560564293996351713
SOUGHT = Sought(given(QUERY))

# Statistics and visibility are what the tests make them.
NO_AUTOVACUUM = """
    ALTER TABLE fingerprint SET (autovacuum_enabled = off);
    ALTER TABLE document SET (autovacuum_enabled = off);
"""


@cache
def documents(count: int) -> list[Stored]:
    random = Random(3)
    near = [flipped(QUERY, random.sample(range(63), away)) for away in range(1, 8)]
    others = uniform(random, count - len(near), 63)
    return [Stored(f"page {number}", simhash) for number, simhash in enumerate([*near, *others])]


def new_collection(connection: psycopg.Connection) -> int:
    """What a bulk load adds to it has no statistics, and no page of it is marked as visible to all."""
    connection.execute(NO_AUTOVACUUM.encode())
    return create_collection(connection, "pages")


@pytest.fixture(scope="module")
def states(server: Server) -> Generator[dict[str, str]]:
    """The same documents as PostgreSQL has them right after a load, and when it knows all about them."""
    just_loaded = server.create("just_loaded")
    with psycopg.connect(just_loaded) as connection:
        load(connection, new_collection(connection), documents(SIZE))
    vacuumed = server.create("vacuumed", template="just_loaded")
    with psycopg.connect(vacuumed, autocommit=True) as connection:
        # Rows are visible to all once their commit is surely on disk: the last one takes the others along.
        connection.execute("SET synchronous_commit = on")
        connection.execute("CREATE TABLE last ()")
        connection.execute("VACUUM (ANALYZE)")
    yield {"just_loaded": just_loaded, "vacuumed": vacuumed}
    server.drop("just_loaded")
    server.drop("vacuumed")


@pytest.fixture(params=["just_loaded", "vacuumed"])
def settings(request: pytest.FixtureRequest, states: dict[str, str]) -> Settings:
    return settings_of(telling_its_statements(states[request.param]), pool_max_size=1)


@asynccontextmanager
async def planned(service: Process, threshold: int) -> AsyncGenerator[tuple[AsyncConnection, Lookup]]:
    """A lookup, and the only connection of the pool."""
    place = await service.catalog.place("pages")
    async with service.database.connection() as connection:
        options = Options(threshold, 20)
        lookup = await plan_lookup(service.profiles, connection, place, options)
        yield connection, lookup


def assert_reads_the_band_indexes_alone(plan: Node) -> None:
    reads = plan.on("fingerprint")
    assert [node.kind for node in reads] == ["Index Only Scan"] * 4
    assert [node.index for node in reads] == BAND_INDEXES
    for band, node in enumerate(reads):
        # Looked up, whatever their values are: as a filter the probes would let the whole index be read.
        assert f"(b{band} = ANY ($" in node.condition
        assert node.rows < SIZE / 100
    assert {node.index for node in plan.on("document")} == {"document_simhash_idx"}
    assert_starts_no_worker(plan)


def assert_starts_no_worker(plan: Node) -> None:
    kinds = {node.kind for node in plan.all()}
    assert not {kind for kind in kinds if "Gather" in kind or "Seq" in kind or "Bitmap" in kind}
    assert not [node for node in plan.all() if node.properties.get("Parallel Aware")]


@pytest.mark.parametrize("threshold", [0, 3, 7])
async def test_a_lookup_reads_the_band_indexes_alone(service: Process, threshold: int) -> None:
    found = await service.services.near_duplicates.find(
        "pages", Simhash(QUERY, "/simhash"), Options(threshold, 20), explain=True
    )
    assert_right(found.matches, nearest(documents(SIZE), QUERY, threshold), limit=20)
    assert found.explanation
    assert not found.explanation.scan
    async with planned(service, threshold) as (connection, lookup):
        assert_reads_the_band_indexes_alone(await executed_plan(connection, lookup, SOUGHT))


@pytest.mark.parametrize("settings", ["vacuumed"], indirect=True)
async def test_after_a_vacuum_a_lookup_visits_no_page_of_the_table(service: Process) -> None:
    async with planned(service, threshold=7) as (connection, lookup):
        await (await queue_lookup(connection, lookup, SOUGHT)).result()
        plan = await executed_plan(connection, lookup, SOUGHT)
    assert sum(node.rows for node in plan.on("fingerprint")) > 0
    assert sum(node.heap_fetches for node in plan.on("fingerprint")) == 0


async def test_a_scan_reads_one_index(service: Process) -> None:
    async with planned(service, threshold=40) as (connection, planned_lookup):
        lookup = replace(planned_lookup, scan=True)
        matches = await (await queue_lookup(connection, lookup, SOUGHT)).result()
        plan = await executed_plan(connection, lookup, SOUGHT)
    assert_right(matches, nearest(documents(SIZE), QUERY, 40), limit=20)
    (read,) = plan.on("fingerprint")
    assert (read.kind, read.rows) == ("Index Only Scan", SIZE)
    assert_starts_no_worker(plan)


@pytest.mark.parametrize("threshold", [3, 7, 40])
async def test_a_lookup_is_one_statement(service: Process, threshold: int) -> None:
    async def find() -> None:
        await service.services.near_duplicates.find(
            "pages", Simhash(QUERY, "/simhash"), Options(threshold, 20), explain=False
        )

    await find()  # the first one learns what the process remembers
    async with service.database.connection() as the_only_one:
        pass
    with statements(the_only_one) as executed:
        await find()
    (statement,) = executed
    assert "LEFT JOIN LATERAL" in statement


@pytest.mark.parametrize("size", [0, 10, 60, 300])
async def test_after_lookups_in_a_small_table_those_in_a_large_one_probe(database: str, size: int) -> None:
    """No plan is kept that reads all of an index, as PostgreSQL does gladly where all is a page."""
    few, many = documents(SIZE)[:size], documents(SIZE)[size : SIZE // 5]
    with psycopg.connect(database, autocommit=True) as connection:
        collection_id = new_collection(connection)
        load(connection, collection_id, few)
        connection.execute("ANALYZE")
    async with (
        process(settings_of(database, pool_max_size=1)) as service,
        planned(service, threshold=7) as (pooled, lookup),
    ):
        matches = await (await queue_lookup(pooled, lookup, SOUGHT)).result()
        assert_right(matches, nearest(few, QUERY, 7), limit=20)

        with psycopg.connect(database) as connection:
            load(connection, collection_id, many)

        async with pooled.transaction():
            matches = await (await queue_lookup(pooled, lookup, SOUGHT)).result()
            read = await entries_read(pooled)
        assert_right(matches, nearest([*few, *many], QUERY, 7), limit=20)
        by_table = {name: entries for name, entries in read.items() if name.startswith("fingerprint")}
        assert set(by_table) <= set(BAND_INDEXES)
        assert sum(by_table.values()) < SIZE / 100


async def test_sessions_are_set_for_plans_of_one_shape(database: str) -> None:
    async with process(settings_of(database)) as service, service.database.connection() as connection:
        cursor = await connection.execute(
            "SELECT name, setting FROM pg_settings WHERE source = 'client' AND name ~ 'enable|plan|jit|parallel'"
        )
        assert dict(await cursor.fetchall()) == {
            "plan_cache_mode": "force_generic_plan",
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
        }
