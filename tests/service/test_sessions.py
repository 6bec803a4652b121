"""No use-case, whatever becomes of it, leaves anything on the connection that the next one gets."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress

import anyio
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from app.core.errors import CollectionNotFoundError, QueryTimeoutError, TiroirError
from app.core.scheme import ARTICLE, Scheme
from app.runtime import Process, process
from app.service.near_duplicates import Key
from app.settings import Settings
from app.store import layouts
from app.store.database import UnexpectedDatabaseError
from tests.conftest import Server, on_the_newest
from tests.store.databases import settings_of
from tests.store.pages import Pages
from tests.store.waiting import until, waiting_for_locks

pytestmark = on_the_newest


STATEMENT_TIMEOUT = 0.6
LOCK_TIMEOUT = 0.2

CONFIGURED = {
    "statement_timeout": "600",
    "lock_timeout": "200",
    "idle_in_transaction_session_timeout": "1200",
    "plan_cache_mode": "force_generic_plan",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "application_name": "tiroir",
}


@pytest.fixture(scope="module")
def database(server: Server) -> Generator[str]:
    yield server.create("sessions")
    server.drop("sessions")


@pytest.fixture
def settings(database: str) -> Settings:
    return settings_of(
        database, pool_max_size=1, pool_timeout=2, statement_timeout=STATEMENT_TIMEOUT, lock_timeout=LOCK_TIMEOUT
    )


@pytest.fixture
async def pages(service: Process) -> Pages:
    pages = Pages(service.services)
    await pages.put("a", 7)
    return pages


@pytest.fixture
def obstacle(database: str, pages: Pages) -> Generator[psycopg.Connection]:
    """A transaction that is writing the fingerprint 8: whoever writes it too has to wait."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO fingerprint (collection_id, simhash) SELECT id, 8 FROM collection WHERE name = %s::text",
            [pages.name],
        )
        yield connection
        connection.rollback()


async def session(service: Process) -> dict[str, str]:
    """All settings of the pool's only connection, which must be between transactions."""
    async with service.database.connection() as connection:
        assert connection.info.transaction_status == TransactionStatus.IDLE
        cursor = await connection.execute("SELECT name, setting FROM pg_settings ORDER BY name")
        return dict(await cursor.fetchall())


async def test_sessions_have_the_settings_that_are_configured(service: Process) -> None:
    found = await session(service)
    assert {name: found[name] for name in CONFIGURED} == CONFIGURED


async def test_options_of_the_connection_string_hold_too(database: str) -> None:
    conninfo = make_conninfo(database, options="-c work_mem=7MB -c jit=on", application_name="crawler")
    async with process(settings_of(conninfo, pool_max_size=1)) as service:
        found = await session(service)
    assert (found["work_mem"], found["application_name"]) == ("7168", "crawler")
    assert found["jit"] == "off"  # what lookups rely on is ours


USE_CASES: dict[str, Callable[[Pages], Awaitable[object]]] = {
    "create": lambda pages: pages.services.collections.create("new", ARTICLE, store_text=True),
    "create one that exists": lambda pages: pages.services.collections.create(
        pages.name, Scheme(bits=8), store_text=True
    ),
    "describe": lambda pages: pages.services.collections.describe(pages.name),
    "describe what is not there": lambda pages: pages.services.collections.describe("nowhere"),
    "list collections": lambda pages: pages.services.collections.page(after="", limit=10),
    "delete": lambda pages: pages.services.collections.delete(pages.name),
    "delete what is not there": lambda pages: pages.services.collections.delete("nowhere"),
    "write": lambda pages: pages.put("b", "word " * 30),
    "write and look up": lambda pages: pages.index("b", 6),
    "write the same": lambda pages: pages.index("a", 7),
    "write what has too many bits": lambda pages: pages.index("a", -1),
    "write what the database refuses": lambda pages: pages.index("NUL \0", 7),
    "write a key that is too long": lambda pages: pages.index("é" * 1025, 7),
    "get": lambda pages: pages.services.documents.get(pages.name, "a"),
    "get what is not there": lambda pages: pages.services.documents.get(pages.name, "b"),
    "list documents": lambda pages: pages.services.documents.page(pages.name, after="", limit=10),
    "delete a document": lambda pages: pages.delete("a"),
    "delete a document that is not there": lambda pages: pages.delete("b"),
    "find": lambda pages: pages.find(7, threshold=20),
    "find and explain": lambda pages: pages.find(7, explain=True),
    "find by key": lambda pages: pages.find(Key("a")),
    "find by a key that is not there": lambda pages: pages.find(Key("b")),
    "find a short text": lambda pages: pages.find("short"),
    "health": lambda pages: pages.services.health.require_database(),
}


@pytest.mark.parametrize("use_case", USE_CASES)
async def test_a_use_case_leaves_the_session_as_it_was(service: Process, pages: Pages, use_case: str) -> None:
    before = await session(service)
    with suppress(TiroirError, UnexpectedDatabaseError):
        await USE_CASES[use_case](pages)
    assert await session(service) == before


async def test_a_write_that_waits_too_long_for_a_row_fails_and_leaves_nothing(
    service: Process, pages: Pages, obstacle: psycopg.Connection
) -> None:
    assert obstacle
    before = await session(service)
    with pytest.raises(QueryTimeoutError):
        await pages.put("b", 8)
    assert await session(service) == before
    assert await pages.keys(7, threshold=63) == ["a"]  # the document went with the transaction


async def test_a_write_that_waits_too_long_for_the_layouts_fails_and_leaves_nothing(
    service: Process, pages: Pages, database: str
) -> None:
    before = await session(service)
    with psycopg.connect(database) as rebuild:
        rebuild.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [layouts.LOCK])
        with pytest.raises(QueryTimeoutError):
            await pages.index("b", 8)
    assert await session(service) == before
    assert await pages.keys(7, threshold=63) == ["a"]


@pytest.fixture
async def patient(database: str) -> AsyncGenerator[Process]:
    """Statements that wait for locks until they have run for too long."""
    settings = settings_of(database, pool_max_size=1, statement_timeout=LOCK_TIMEOUT, lock_timeout=60)
    async with process(settings) as service:
        yield service


async def test_a_statement_that_takes_too_long_fails_and_leaves_nothing(
    patient: Process, pages: Pages, obstacle: psycopg.Connection
) -> None:
    assert obstacle
    with_others = Pages(patient.services, pages.name)
    before = await session(patient)
    with pytest.raises(QueryTimeoutError):
        await with_others.put("b", 8)
    assert await session(patient) == before
    assert await pages.keys(7, threshold=63) == ["a"]


async def test_a_use_case_that_is_cancelled_leaves_nothing(
    service: Process, pages: Pages, obstacle: psycopg.Connection, observer: psycopg.Connection
) -> None:
    """As when a client goes away while its request waits."""
    assert obstacle
    before = await session(service)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pages.put, "b", 8)
        await until(lambda: waiting_for_locks(observer) == 1)
        tasks.cancel_scope.cancel()
    assert await session(service) == before
    assert await pages.keys(7, threshold=63) == ["a"]
    await until(lambda: waiting_for_locks(observer) == 0)


async def test_use_cases_that_are_cancelled_at_any_moment_lose_no_connection(service: Process, pages: Pages) -> None:
    before = await session(service)
    for number in range(100):
        async with anyio.create_task_group() as tasks:
            for key in ("b", "c", "d"):
                tasks.start_soon(pages.index, key, number)
            await anyio.sleep(number / 10_000)
            tasks.cancel_scope.cancel()
    assert await session(service) == before


async def test_a_deletion_that_fails_leaves_everything(service: Process, pages: Pages, database: str) -> None:
    before = await session(service)
    with psycopg.connect(database) as reader:
        reader.execute("SELECT FROM collection FOR UPDATE")
        with pytest.raises(QueryTimeoutError):
            await pages.services.collections.delete(pages.name)
    assert await session(service) == before
    assert await pages.keys(7) == ["a"]
    await pages.services.collections.delete(pages.name)
    with pytest.raises(CollectionNotFoundError):
        await pages.keys(7)
