"""PostgreSQL goes away and comes back: no answer while it is away, every answer as soon as it is back."""

import resource
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import ExitStack, closing
from pathlib import Path
from shutil import rmtree

import anyio
import psycopg
import pytest
from anyio import to_thread

from app.core.errors import OverloadedError, UnavailableError
from app.postgres.binaries import all_binaries
from app.postgres.embedded import THROWAWAY_SETTINGS, EmbeddedPostgres
from app.postgres.migrate import migrate
from app.runtime import Process, process
from tests.conftest import Server, on_the_newest
from tests.store.databases import settings_of
from tests.store.pages import Pages
from tests.store.waiting import until, waiting_for_locks

pytestmark = on_the_newest


POOL = 8
POOL_TIMEOUT = 1.5  # longer than the pool waits between two attempts to connect


@pytest.fixture(scope="module")
def postgres(server: Server) -> Generator[EmbeddedPostgres]:
    """A server of our own, of the same version, that may be stopped."""
    binaries = next(each for each in all_binaries() if each.version == server.version)
    base = Path(tempfile.mkdtemp(prefix="tiroir-", dir="/tmp"))  # a socket's path must be short
    try:
        with EmbeddedPostgres(base, binaries, options=THROWAWAY_SETTINGS) as started:
            migrate(started.dsn(), connect_timeout=10)
            yield started
    finally:
        rmtree(base)


@pytest.fixture
async def service(postgres: EmbeddedPostgres) -> AsyncGenerator[Process]:
    """All connections of its pool are open, and idle."""
    settings = settings_of(postgres.dsn(), pool_min_size=POOL, pool_max_size=POOL, pool_timeout=POOL_TIMEOUT)
    postgres.start()
    async with process(settings) as parts:
        await parts.pool.wait()
        yield parts


@pytest.fixture
async def pages(service: Process) -> Pages:
    pages = Pages(service.services)
    await pages.put("a", 7)
    return pages


async def stop(postgres: EmbeddedPostgres) -> None:
    await to_thread.run_sync(postgres.stop)


async def start(postgres: EmbeddedPostgres) -> None:
    await to_thread.run_sync(postgres.start)


async def test_an_outage_that_nobody_noticed_costs_no_request(pages: Pages, postgres: EmbeddedPostgres) -> None:
    """Every connection died while it was idle."""
    await stop(postgres)
    await start(postgres)
    with anyio.fail_after(POOL_TIMEOUT):
        assert await pages.keys(7) == ["a"]
        assert await pages.put("b", 8)


async def test_an_outage_that_nobody_noticed_costs_none_of_many_requests(
    pages: Pages, postgres: EmbeddedPostgres
) -> None:
    await stop(postgres)
    await start(postgres)
    with anyio.fail_after(2 * POOL_TIMEOUT):
        async with anyio.create_task_group() as tasks:
            for _ in range(5 * POOL):
                tasks.start_soon(pages.keys, 7)


async def test_while_it_is_away_requests_fail_in_time_and_say_so(pages: Pages, postgres: EmbeddedPostgres) -> None:
    failures: list[UnavailableError] = []

    async def fail(request: Awaitable[object]) -> None:
        with pytest.raises(UnavailableError) as caught:
            await request
        failures.append(caught.value)

    await stop(postgres)
    with anyio.fail_after(POOL_TIMEOUT + 1):
        async with anyio.create_task_group() as tasks:
            for request in (pages.keys(7), pages.put("b", 8), pages.services.health.require_database()):
                tasks.start_soon(fail, request)
    assert not [failure for failure in failures if isinstance(failure, OverloadedError)]
    await start(postgres)
    with anyio.fail_after(POOL_TIMEOUT):
        assert await pages.keys(7, threshold=63) == ["a"]


async def test_after_a_long_outage_no_request_waits_for_the_next_attempt(
    service: Process, pages: Pages, postgres: EmbeddedPostgres
) -> None:
    await stop(postgres)
    with pytest.raises(UnavailableError):
        await pages.keys(7)
    # Each connection is tried for three times, then none is left; then one at a time.
    await until(lambda: service.pool.get_stats()["connections_errors"] > 3 * POOL + 3)
    assert service.pool.get_stats()["pool_size"] <= 1
    await start(postgres)
    with anyio.fail_after(POOL_TIMEOUT):
        assert await pages.keys(7) == ["a"]
    await until(lambda: service.pool.get_stats()["pool_available"] == POOL)


async def test_under_load_every_request_after_the_outage_succeeds(pages: Pages, postgres: EmbeddedPostgres) -> None:
    done = anyio.Event()
    failed: list[float] = []
    succeeded: list[float] = []

    async def ask() -> None:
        while not done.is_set():
            began = time.monotonic()
            try:
                assert await pages.keys(7) == ["a"]
            except UnavailableError:
                failed.append(began)
            else:
                succeeded.append(began)
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        for _ in range(2 * POOL):
            tasks.start_soon(ask)
        await until(lambda: len(succeeded) > 50)
        await stop(postgres)
        await until(lambda: len(failed) >= 2 * POOL)
        await start(postgres)
        back = time.monotonic()
        with anyio.fail_after(POOL_TIMEOUT):
            await until(lambda: sum(began > back for began in succeeded) > 100)
        done.set()
        assert not [began for began in failed if began > back]


async def test_a_request_that_loses_its_connection_fails_and_the_next_does_not(
    pages: Pages, postgres: EmbeddedPostgres
) -> None:
    failures: list[Exception] = []

    async def write() -> None:
        try:
            await pages.put("b", 9)
        except UnavailableError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        with closing(psycopg.connect(postgres.dsn(), autocommit=True)) as obstacle:
            obstacle.execute("BEGIN; INSERT INTO fingerprint (collection_id, simhash) SELECT id, 9 FROM collection")
            tasks.start_soon(write)
            with psycopg.connect(postgres.dsn(), autocommit=True) as observer:
                await until(lambda: waiting_for_locks(observer) == 1)
            await stop(postgres)
    assert len(failures) == 1
    await start(postgres)
    with anyio.fail_after(2):
        assert await pages.keys(7, threshold=63) == ["a"]
        assert await pages.put("b", 9)


@pytest.fixture
def many_open_files() -> Generator[None]:
    """As in a process that serves more than a thousand clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path("/dev/null").open())
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
async def test_connections_are_checked_whatever_their_file_descriptors_are(service: Process) -> None:
    await service.services.health.require_database()
    async with service.database.connection() as connection:
        assert connection.fileno() >= 1024
