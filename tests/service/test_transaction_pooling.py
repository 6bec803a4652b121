"""Behind a pooler in transaction mode: TIROIR_POOLER_URL is all that it takes.

The defaults of the database are against us throughout: what a use-case doesn't say in its transaction, it doesn't get.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import AsyncConnection, OperationalError, errors, sql
from pydantic import SecretStr, ValidationError

from app.cli import main
from app.core.errors import CollectionNotFoundError, OverloadedError, QueryTimeoutError, TiroirError, UnavailableError
from app.core.layout import cut
from app.core.model import Json, Operation, OperationKind, OperationStatus, Outcome
from app.core.scheme import ARTICLE
from app.runtime import Process, Services, process
from app.service.near_duplicates import Key
from app.settings import Settings
from app.store import layouts
from app.store.database import UnexpectedDatabaseError
from tests.conftest import Server
from tests.service.pooler import Pooler, Transaction, pooling
from tests.service.test_sessions import USE_CASES
from tests.store.brute_force import Stored, assert_right, flipped, nearest, real_fingerprints
from tests.store.databases import add_layout, create_collection, load, settings_of
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks

SESSIONS = 2
CLIENTS = 4
LOOKUPS = 50
LIMIT = 100
THRESHOLDS = (None, 0, 1, 2, 3, 4, 5, 7, 10, 12, 20, 40, 63)
DEFAULT_THRESHOLD = 3
PATIENCE = 60

HOSTILE = {
    "client_encoding": "LATIN1",
    "datestyle": "SQL, DMY",
    "default_transaction_isolation": "repeatable read",
    "idle_in_transaction_session_timeout": "54321",
    "jit": "on",
    "lock_timeout": "54321",
    "max_parallel_workers_per_gather": "4",
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "54321",
    "timezone": "Pacific/Chatham",
}


@contextmanager
def created(server: Server, name: str) -> Generator[str]:
    """The connection string of a database with these defaults."""
    conninfo = server.create(name)
    defaults = [
        sql.SQL("ALTER DATABASE {} SET {} = {}").format(sql.Identifier(name), sql.Identifier(each), sql.Literal(value))
        for each, value in HOSTILE.items()
    ]
    server.execute(sql.SQL("; ").join(defaults))
    yield conninfo
    server.drop(name)


@pytest.fixture(scope="module")
def database(server: Server) -> Generator[str]:
    """For all tests that leave the layouts as they are."""
    with created(server, "pooled") as conninfo:
        yield conninfo


@pytest.fixture
async def pooler(database: str) -> AsyncGenerator[Pooler]:
    async with pooling(database, sessions=SESSIONS) as started:
        yield started


def behind(pooler: Pooler, database: str, **others: float) -> Settings:
    return settings_of(database, **others).model_copy(update={"pooler_url": SecretStr(pooler.conninfo)})


@pytest.fixture
def settings(database: str, pooler: Pooler) -> Settings:
    return behind(pooler, database, pool_min_size=CLIENTS, statement_timeout=6.5, lock_timeout=2.5)


async def connect(pooler: Pooler, prepare_threshold: int | None = None) -> AsyncConnection:
    """Another client, with the parameters that the service has."""
    return await AsyncConnection.connect(
        pooler.conninfo,
        autocommit=True,
        prepare_threshold=prepare_threshold,
        application_name="tiroir",
        client_encoding="UTF8",
    )


async def all_at_once(work: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for client in range(CLIENTS):
            tasks.start_soon(work, client)


# What a pooler does to clients that don't know of it


async def test_what_a_client_prepares_vanishes_and_clashes(pooler: Pooler) -> None:
    """Two transactions each, the one prepares and the other executes: they come to the sessions in turn."""
    async with (
        await connect(pooler, prepare_threshold=0) as first,
        await connect(pooler, prepare_threshold=0) as second,
    ):
        with pytest.raises(errors.InvalidSqlStatementName, match="does not exist"):
            await first.execute("SELECT %s::int", [1])
        with pytest.raises(errors.DuplicatePreparedStatement, match="already exists"):
            await second.execute("SELECT %s::int", [1])
    assert len(pooler.prepared) == 2


async def test_what_a_client_sets_is_left_to_others(pooler: Pooler) -> None:
    async with await connect(pooler) as first, await connect(pooler) as second:
        await first.execute("SET work_mem = '7MB'")
        found = {await value(second, "SHOW work_mem") for _ in range(SESSIONS)}
        assert len(found) == SESSIONS
        assert "7MB" in found


async def test_what_is_the_client_s_own_goes_with_it(pooler: Pooler) -> None:
    async with await connect(pooler) as first, await connect(pooler) as second:
        await first.execute("SET timezone = 'Asia/Tokyo'")
        assert {await value(first, "SHOW timezone") for _ in range(SESSIONS)} == {"Asia/Tokyo"}
        assert {await value(second, "SHOW timezone") for _ in range(SESSIONS)} == {HOSTILE["timezone"]}


async def test_a_transaction_stays_on_its_session_and_the_next_one_does_not(pooler: Pooler) -> None:
    async with await connect(pooler) as connection:
        processes: list[object] = []
        for _ in range(2 * SESSIONS):
            async with connection.transaction(), connection.pipeline():
                cursors = [await connection.execute("SELECT pg_backend_pid()") for _ in range(3)]
                (process_number,) = {await cursor.fetchone() for cursor in cursors}
            processes.append(process_number)
        assert len(set(processes)) == SESSIONS
        assert processes[:SESSIONS] == processes[SESSIONS:]


async def value(connection: AsyncConnection, query: str) -> object:
    row = await (await connection.execute(query.encode())).fetchone()
    assert row
    return row[0]


async def test_a_service_that_is_not_told_of_the_pooler_does_not_start(pooler: Pooler) -> None:
    with pytest.raises(OperationalError, match="unsupported startup parameter: options"):
        await AsyncConnection.connect(pooler.conninfo, options="-c jit=off")
    with pytest.raises(UnavailableError):
        async with process(settings_of(pooler.conninfo, pool_timeout=0.3)):
            pass


# What it doesn't do to ours


def store_pages(database: str) -> list[Stored]:
    """Enough for statements to be prepared, if they were, and for the collection to be sampled."""
    fingerprints = real_fingerprints("real_one_site")[:1200]
    documents = [Stored(f"page {number}", simhash) for number, simhash in enumerate(fingerprints)]
    with psycopg.connect(database, autocommit=True) as connection:
        load(connection, create_collection(connection, "stored"), documents)
        connection.execute("ANALYZE")
    return documents


async def look_up(pages: Pages, stored: list[Stored], random: Random, threshold: int | None) -> None:
    """One lookup of each kind."""
    document = random.choice(stored)
    near = flipped(document.simhash, random.sample(range(63), 2))
    most = DEFAULT_THRESHOLD if threshold is None else threshold
    others = nearest(stored, document.simhash, most, except_key=document.key)
    assert_right(await pages.matches(near, threshold, LIMIT), nearest(stored, near, most), limit=LIMIT)
    assert_right(await pages.matches(Key(document.key), threshold, LIMIT), others, limit=LIMIT)
    explained = await pages.find(Key(document.key), threshold, LIMIT, explain=True)
    assert_right(explained.matches, others, limit=LIMIT)
    assert explained.explanation
    assert explained.explanation.candidates > 0


async def write(pages: Pages, live: dict[str, int], random: Random, threshold: int | None) -> None:
    """A write or a deletion among the documents `live`, and what is found then."""
    centre = 0x5555_5555_5555_5555
    most = DEFAULT_THRESHOLD if threshold is None else threshold
    key = f"page {random.randrange(12)}"
    if key in live and random.random() < 0.4:
        await pages.delete(key)
        del live[key]
    else:
        simhash = flipped(centre, random.sample(range(63), random.randrange(8)))
        new = Outcome.REPLACED if key in live else Outcome.CREATED
        indexed = await pages.index(key, simhash, most, LIMIT)
        assert indexed.outcome == (Outcome.UNCHANGED if live.get(key) == simhash else new)
        assert indexed.matches
        assert_right(indexed.matches, nearest(documents(live), simhash, most, except_key=key), limit=LIMIT)
        live[key] = simhash
    found = await pages.matches(centre, threshold, LIMIT)
    assert_right(found, nearest(documents(live), centre, most), limit=LIMIT)


def documents(live: dict[str, int]) -> list[Stored]:
    return [Stored(key, simhash) for key, simhash in live.items()]


def assert_pooled(pooler: Pooler) -> None:
    """The load was one that breaks what is prepared, and nothing was."""
    assert pooler.prepared == []
    seen: dict[int, set[int]] = {}
    for transaction in pooler.transactions:
        seen.setdefault(transaction.client, set()).add(transaction.process)
    assert len(seen) > SESSIONS
    assert sum(processes == pooler.processes for processes in seen.values()) > SESSIONS


async def test_four_clients_look_up_what_is_stored(service: Process, pooler: Pooler, database: str) -> None:
    stored = store_pages(database)
    await service.pool.wait()
    before = pooler.processes

    async def ask(client: int) -> None:
        random = Random(client)
        for number in range(0, LOOKUPS, 3):
            threshold = THRESHOLDS[(number // 3 + client) % len(THRESHOLDS)]
            await look_up(Pages(service.services, "stored"), stored, random, threshold)

    await all_at_once(ask)
    assert pooler.processes == before
    assert_pooled(pooler)


async def test_four_clients_write_and_delete(service: Process, pooler: Pooler) -> None:
    await service.pool.wait()
    before = pooler.processes

    async def change(client: int) -> None:
        random = Random(client)
        pages = Pages(service.services)
        for _ in range(2):
            made = await service.services.collections.create(pages.name, ARTICLE, store_text=True)
            assert made.is_new
            live: dict[str, int] = {}
            for number in range(10):
                await write(pages, live, random, THRESHOLDS[number % len(THRESHOLDS)])
            _, counts = await service.services.collections.describe(pages.name)
            assert counts.documents == len(live)
            listed = await service.services.documents.page(pages.name, after="", limit=100)
            assert {document.key: document.simhash for document in listed} == live
            await service.services.collections.delete(pages.name)
            with pytest.raises(CollectionNotFoundError):
                await pages.keys(0)

    await all_at_once(change)
    assert pooler.processes == before
    assert_pooled(pooler)


# Settings


IN_A_USE_CASE = {
    "application_name": "tiroir",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, DMY",
    "TimeZone": "UTC",
    "transaction_isolation": "read committed",
    "statement_timeout": "6500",
    "lock_timeout": "2500",
    "idle_in_transaction_session_timeout": "13000",
    "plan_cache_mode": "force_generic_plan",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}

# But for those of a language, which are there from its first use on.
SETTINGS = b"SELECT pg_backend_pid(), name, setting FROM pg_settings WHERE name NOT LIKE '%.%' ORDER BY name"

Configured = dict[str, str]


async def session_settings(connection: AsyncConnection) -> tuple[int, Configured]:
    """By the process of the session."""
    rows = await (await connection.execute(SETTINGS)).fetchall()
    return rows[0][0], {name: setting for _, name, setting in rows}


async def left(pooler: Pooler) -> dict[int, Configured]:
    """The settings of all sessions, as a use-case finds them."""
    found: dict[int, Configured] = {}
    async with await connect(pooler) as connection:
        with anyio.fail_after(PATIENCE):
            while not pooler.processes <= found.keys():
                found |= [await session_settings(connection)]
    return found


def advisory_locks(observer: psycopg.Connection) -> int:
    """Those that a session holds, not a transaction, would stay too."""
    query = b"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = %s::oid"
    database = observer.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert database
    row = observer.execute(query, database).fetchone()
    assert row
    return int(row[0])


async def test_a_use_case_has_its_settings_on_whichever_session(service: Process, pooler: Pooler) -> None:
    usual = await left(pooler)
    assert all(configured["default_transaction_isolation"] == "repeatable read" for configured in usual.values())
    inside: dict[int, Configured] = {}
    with anyio.fail_after(PATIENCE):
        while not pooler.processes <= inside.keys():
            async with service.database.connection() as connection:
                inside |= [await session_settings(connection)]
    for configured in inside.values():
        assert {name: configured[name] for name in IN_A_USE_CASE} == IN_A_USE_CASE
    assert await left(pooler) == usual


AUDIT: dict[str, Json] = {"sample": 50, "threshold": None}


def rebuild_to(bands: int) -> dict[str, Json]:
    return {"threshold": DEFAULT_THRESHOLD, "bands": bands, "force": False}


async def begin(services: Services, kind: OperationKind, parameters: dict[str, Json]) -> Operation:
    return await services.operations.begin(kind, parameters, idempotency_key=None)


async def cancel_the_youngest_rebuild(services: Services) -> None:
    youngest, *_ = await services.operations.page(OperationKind.REBUILD, before=2**31, limit=1)
    await services.operations.cancel(OperationKind.REBUILD, youngest.id)


POOLED_USE_CASES: dict[str, Callable[[Pages], Awaitable[object]]] = {
    **USE_CASES,
    "begin a rebuild": lambda pages: begin(pages.services, OperationKind.REBUILD, rebuild_to(8)),
    "begin another one": lambda pages: begin(pages.services, OperationKind.REBUILD, rebuild_to(3)),
    "list rebuilds": lambda pages: pages.services.operations.page(OperationKind.REBUILD, before=2**31, limit=10),
    "cancel a rebuild": lambda pages: cancel_the_youngest_rebuild(pages.services),
    "cancel it again": lambda pages: cancel_the_youngest_rebuild(pages.services),
    "begin an audit": lambda pages: begin(pages.services, OperationKind.AUDIT, AUDIT),
    "report the layouts": lambda pages: pages.services.layout_reports.report(),
}


async def test_no_use_case_speaks_before_its_settings_and_none_leaves_them(
    service: Process, pooler: Pooler, observer: psycopg.Connection
) -> None:
    usual = await left(pooler)
    pages = Pages(service.services)
    for name, use_case in POOLED_USE_CASES.items():
        await pages.put("a", 7)
        pooler.transactions.clear()
        with suppress(TiroirError, UnexpectedDatabaseError):
            await use_case(pages)
        assert pooler.transactions, name
        for transaction in pooler.transactions:
            assert_transaction(transaction, name)
        assert await left(pooler) == usual, name
        assert advisory_locks(observer) == 0, name


def assert_transaction(transaction: Transaction, name: str) -> None:
    first, second, *_, last = transaction.statements
    assert first == "BEGIN ISOLATION LEVEL READ COMMITTED", name
    assert second.startswith("SELECT set_config("), name
    assert last in {"COMMIT", "ROLLBACK"}, name


# Layouts


async def test_a_write_sees_what_was_done_to_the_layouts_while_it_waited(server: Server) -> None:
    """With one snapshot a transaction it would miss the layout that is being built, and lookups the document later."""
    with created(server, "pooled_layouts") as database:
        async with (
            pooling(database, sessions=SESSIONS) as pooler,
            process(behind(pooler, database)) as service,
        ):
            pages = Pages(service.services)
            await pages.put("a", 7)
            with psycopg.connect(database) as other, psycopg.connect(database, autocommit=True) as observer:
                other.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [layouts.LOCK])
                add_layout(other, cut(8), "eight", "building")
                async with meanwhile(lambda: pages.put("b", 8)):
                    await until(lambda: waiting_for_locks(observer) == 1)
                    other.commit()
                assert observer.execute("SELECT simhash FROM eight ORDER BY simhash").fetchall() == [(7,), (8,)]


# What goes to PostgreSQL itself: sessions of their own, or statements that no transaction may hold.
ROUND_THE_POOLER = ("CREATE TABLE", "CREATE INDEX", "VACUUM", "LISTEN", "pg_try_advisory_lock", "fetch_job")


async def test_a_rebuild_under_lookups_and_writes(server: Server) -> None:
    with created(server, "pooled_rebuild") as database:
        stored = store_pages(database)
        async with (
            pooling(database, sessions=SESSIONS) as pooler,
            process(behind(pooler, database, pool_min_size=CLIENTS, layout_grace=0)) as service,
        ):
            await service.pool.wait()
            await rebuild_under_load(service, pooler, stored)


async def rebuild_under_load(service: Process, pooler: Pooler, stored: list[Stored]) -> None:
    finished = anyio.Event()
    operations: list[Operation] = []

    async def ask(client: int) -> None:
        random = Random(client)
        own, live = Pages(service.services), dict[str, int]()
        number, last = client, False
        while not last:
            last = finished.is_set()  # once more, on the new bands alone
            threshold = THRESHOLDS[number % len(THRESHOLDS)]
            await write(own, live, random, threshold)
            await look_up(Pages(service.services, "stored"), stored, random, threshold)
            number += 1

    async with service.working(), anyio.create_task_group() as tasks:
        for client in range(CLIENTS):
            tasks.start_soon(ask, client)
        operations.append(await ended(service.services, OperationKind.REBUILD, rebuild_to(8)))
        finished.set()
        operations.append(await ended(service.services, OperationKind.AUDIT, AUDIT))
    rebuild, audit = operations
    assert (rebuild.status, rebuild.error, rebuild.runs) == (OperationStatus.SUCCEEDED, None, 1)
    assert audit.result
    assert (audit.result["bands"], audit.result["misses"], audit.result["invented"]) == (8, 0, 0)
    async with service.database.connection() as connection:
        assert [layout.layout for layout in await layouts.live(connection)] == [cut(8)]
    assert_pooled(pooler)
    pooled = [statement for transaction in pooler.transactions for statement in transaction.statements]
    assert not [statement for statement in pooled if any(word in statement for word in ROUND_THE_POOLER)]


async def ended(services: Services, kind: OperationKind, parameters: dict[str, Json]) -> Operation:
    operation = await begin(services, kind, parameters)
    with anyio.fail_after(PATIENCE):
        while operation.finished_at is None:
            await anyio.sleep(0.02)
            operation = await services.operations.get(kind, operation.id)
    return operation


# What is broken off


@dataclass(frozen=True)
class Alone:
    """A process with one connection: were it lost or stuck, the next use-case would get none."""

    service: Process
    pages: Pages
    pooler: Pooler
    usual: Configured

    async def assert_goes_on(self) -> None:
        """What was broken off has changed nothing, and has left nothing on a session."""
        assert await self.pages.keys(7, threshold=63) == ["a"]
        assert all(configured == self.usual for configured in (await left(self.pooler)).values())
        assert await self.pages.put("c", 9) == Outcome.CREATED
        await self.pages.delete("c")
        statistics = self.service.pool.get_stats()
        assert (statistics["pool_size"], statistics["pool_available"]) == (1, 1)


@asynccontextmanager
async def alone(pooler: Pooler, database: str, **others: float) -> AsyncGenerator[Alone]:
    async with process(behind(pooler, database, pool_max_size=1, pool_timeout=5, **others)) as service:
        pages = Pages(service.services)
        await pages.put("a", 7)
        usual, *rest = (await left(pooler)).values()
        assert rest == [usual] * (SESSIONS - 1)
        yield Alone(service, pages, pooler, usual)


@contextmanager
def obstacle(database: str, pages: Pages) -> Generator[None]:
    """A transaction that is writing the document "b": whoever writes it too has to wait."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO document (collection_id, key, metadata)"
            " SELECT id, 'b', '{}' FROM collection WHERE name = %s::text",
            [pages.name],
        )
        yield
        connection.rollback()


@pytest.mark.parametrize(
    "timeouts",
    [
        pytest.param({"lock_timeout": 0.2, "statement_timeout": 60.0}, id="for a lock"),
        pytest.param({"lock_timeout": 60.0, "statement_timeout": 0.5}, id="for a statement"),
    ],
)
async def test_a_use_case_that_waits_too_long_fails_and_leaves_nothing(
    pooler: Pooler, database: str, timeouts: dict[str, float]
) -> None:
    before = pooler.processes
    async with alone(pooler, database, **timeouts) as opened:
        with obstacle(database, opened.pages), pytest.raises(QueryTimeoutError):
            await opened.pages.put("b", 8)
        await opened.assert_goes_on()
        assert pooler.processes == before


async def test_a_use_case_that_is_cancelled_is_cancelled_in_postgresql(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    """The request to cancel comes on a connection of its own, by the key that the pooler gave."""
    async with alone(pooler, database, lock_timeout=600, statement_timeout=600) as opened:
        with obstacle(database, opened.pages):
            task = asyncio.create_task(opened.pages.put("b", 8))
            await until(lambda: waiting_for_locks(observer) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: waiting_for_locks(observer) == 0)
        assert pooler.cancels == 1
        await opened.assert_goes_on()


async def test_a_use_case_whose_scope_is_cancelled_leaves_nothing(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    """As when a client goes away while its request waits. PostgreSQL goes on waiting, for nobody."""
    async with alone(pooler, database, lock_timeout=600, statement_timeout=600) as opened:
        with obstacle(database, opened.pages):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opened.pages.put, "b", 8)
                await until(lambda: waiting_for_locks(observer) == 1)
                tasks.cancel_scope.cancel()
            await opened.assert_goes_on()
        await until(lambda: waiting_for_locks(observer) == 0)
        await opened.assert_goes_on()


async def test_use_cases_that_are_cancelled_at_any_moment_lose_no_connection(pooler: Pooler, database: str) -> None:
    async with alone(pooler, database) as opened:
        for number in range(40):
            async with anyio.create_task_group() as tasks:
                for key in ("b", "c", "d"):
                    tasks.start_soon(opened.pages.index, key, number)
                await anyio.sleep(number / 4_000)
                tasks.cancel_scope.cancel()
        for key in ("b", "c", "d"):
            await opened.pages.put(key, 7)
            await opened.pages.delete(key)
        await opened.assert_goes_on()


async def test_a_use_case_whose_session_ends_fails_and_the_next_ones_do_not(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    async with alone(pooler, database) as opened:
        before = pooler.processes
        with obstacle(database, opened.pages):
            async with meanwhile(lambda: fails(opened.pages.put("b", 8))):
                await until(lambda: waiting_for_locks(observer) == 1)
                (ended_process,) = terminate(observer, before, waiting=True)
        await opened.assert_goes_on()
        assert len(pooler.processes) == SESSIONS
        assert pooler.processes & before == before - {ended_process}


async def test_sessions_that_end_between_transactions_cost_no_request(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    async with alone(pooler, database) as opened:
        before = pooler.processes
        assert terminate(observer, before, waiting=False) == before
        await until(lambda: not pooler.processes)
        await opened.assert_goes_on()
        assert pooler.processes.isdisjoint(before)


async def test_a_use_case_that_gets_a_session_that_ends_fails_and_the_next_ones_do_not(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    """Its BEGIN is answered twice: PostgreSQL says that it ends the session, then the pooler that it is gone."""
    async with alone(pooler, database) as opened:
        before = pooler.processes
        asked = len(pooler.transactions)
        async with meanwhile(lambda: fails(opened.pages.keys(7))):
            with stopped(before):
                await until(lambda: len(pooler.transactions) > asked)
                assert terminate(observer, before, waiting=False) == before
        assert pooler.transactions[asked].statements == ["BEGIN ISOLATION LEVEL READ COMMITTED"]
        await until(lambda: pooler.processes.isdisjoint(before))
        await opened.assert_goes_on()


async def test_a_use_case_whose_session_ends_before_its_commit_fails_and_the_next_ones_do_not(
    pooler: Pooler, database: str, observer: psycopg.Connection
) -> None:
    async with alone(pooler, database) as opened:

        async def use_case() -> None:
            async with opened.service.database.connection() as connection:
                await connection.execute("SELECT")
                terminate(observer, pooler.processes, waiting=False)
                await until(lambda: not pooler.processes)

        await fails(use_case())
        await opened.assert_goes_on()


@contextmanager
def stopped(processes: set[int]) -> Generator[None]:
    """They do nothing in the block, and after it first what a signal has asked for."""
    for process_number in processes:
        os.kill(process_number, signal.SIGSTOP)
    try:
        yield
    finally:
        for process_number in processes:
            os.kill(process_number, signal.SIGCONT)


async def fails(use_case: Awaitable[object]) -> None:
    with pytest.raises(UnavailableError) as caught:
        await use_case
    assert not isinstance(caught.value, OverloadedError)


TERMINATE = b"""
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = ANY(%s::int[]) AND (wait_event_type = 'Lock' OR NOT %s::boolean)
"""


def terminate(observer: psycopg.Connection, processes: set[int], *, waiting: bool) -> set[int]:
    """Ends those of the processes that wait for a lock, or all of them."""
    return {process_number for process_number, _ in observer.execute(TERMINATE, [list(processes), waiting])}


# Settings that can't be


URL = "postgresql://tiroir:hunter2@pooler.invalid:6432/tiroir"


def test_a_pooler_without_a_database_is_refused() -> None:
    with pytest.raises(ValidationError, match="TIROIR_POOLER_URL needs TIROIR_DATABASE_URL") as caught:
        Settings(database_url=None, pooler_url=SecretStr(URL))
    assert "hunter2" not in str(caught.value)


def test_a_pooler_without_a_database_is_one_line_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIROIR_DATABASE_URL", "")
    monkeypatch.setenv("TIROIR_POOLER_URL", URL)
    monkeypatch.setattr("sys.argv", ["tiroir", "layout"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("tiroir: TIROIR_POOLER_URL needs TIROIR_DATABASE_URL: ")
    assert said.count("\n") == 1
    assert "hunter2" not in said


@pytest.mark.parametrize("url", [URL.replace("hunter2", "hunt@r2"), f"{URL}?nonsense=1"])
def test_a_pooler_that_can_not_be_read_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="pooler_url") as caught:
        Settings(database_url=SecretStr("postgresql:///tiroir"), pooler_url=SecretStr(url))
    assert "r2" not in str(caught.value)
