"""The real thing for every test: a PostgreSQL of each version that the machine has, and the real application."""

import signal
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from shutil import rmtree

import psycopg
import pytest
from httpx2 import ASGITransport, AsyncClient
from psycopg import sql
from starlette.types import Receive, Scope, Send

from app.main import create_app
from app.postgres.binaries import Binaries, all_binaries, best_binaries
from app.postgres.embedded import THROWAWAY_SETTINGS, EmbeddedPostgres
from app.postgres.migrate import migrate
from app.runtime import Services, process
from app.settings import Settings

DATA = Path(__file__).parent / "data"

_TEMPLATE = "template_tiroir"


def pytest_configure() -> None:
    """A shell that starts us in the background has us ignore Ctrl-C, and so would the processes that we start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _one_of_each_version() -> list[Binaries]:
    by_version: dict[int, Binaries] = {}
    for binaries in all_binaries():
        by_version.setdefault(binaries.version, binaries)
    return list(by_version.values())


@dataclass(frozen=True)
class Server:
    """A throw-away server with a migrated template, which a new database is cloned from in 20 ms."""

    postgres: EmbeddedPostgres
    version: int

    def execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.postgres.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def create(self, name: str, template: str = _TEMPLATE) -> str:
        """The connection string of a new database."""
        # Copying the files is several times faster than the default of the versions that have another.
        strategy = sql.SQL("STRATEGY FILE_COPY" if self.version >= 15 else "")
        self.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(
                sql.Identifier(name), sql.Identifier(template), strategy
            )
        )
        return self.postgres.dsn(name)

    def drop(self, name: str) -> None:
        self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def throwaway_server(binaries: Binaries) -> Generator[Server]:
    base = Path(tempfile.mkdtemp(prefix="tiroir-", dir="/tmp"))
    try:
        with EmbeddedPostgres(base, binaries, options=THROWAWAY_SETTINGS) as postgres:
            started = Server(postgres, binaries.version)
            template = started.create(_TEMPLATE, template="template0")
            migrate(template, connect_timeout=10)
            yield started
    finally:
        rmtree(base)


Servers = Callable[[Binaries], Server]


@pytest.fixture(scope="session")
def servers() -> Generator[Servers]:
    """Each is started when it is first asked for and runs until the last test has ended, whoever asks for it next."""
    with ExitStack() as running:

        @cache
        def started(binaries: Binaries) -> Server:
            return running.enter_context(throwaway_server(binaries))

        yield started


@pytest.fixture(scope="session", params=_one_of_each_version(), ids=lambda binaries: f"postgresql-{binaries.version}")
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    return servers(request.param)


# For a module of tests whose statements others try on all versions.
on_the_newest = pytest.mark.parametrize(
    "server",
    [best_binaries()],
    indirect=True,
    ids=lambda binaries: f"postgresql-{binaries.version}",
    scope="session",
)

_numbers = count()


@pytest.fixture
def empty_database(server: Server) -> Generator[str]:
    """The connection string of a database without a schema."""
    name = f"empty_{next(_numbers)}"
    yield server.create(name, template="template0")
    server.drop(name)


@pytest.fixture
def database(server: Server) -> Generator[str]:
    """The connection string of a migrated database of the test's own."""
    name = f"test_{next(_numbers)}"
    yield server.create(name)
    server.drop(name)


@pytest.fixture
def settings(database: str) -> Settings:
    """Operations are run by the tests that are about them: starting a worker takes longer than most tests."""
    return Settings(database_url=database, run_operations=False)  # pyright: ignore[reportArgumentType]  pydantic makes it a secret


@pytest.fixture
async def use_cases(settings: Settings) -> AsyncGenerator[Services]:
    """The service without HTTP."""
    async with process(settings) as opened:
        yield opened.services


@asynccontextmanager
async def client_of(settings: Settings, *, raise_app_exceptions: bool = False) -> AsyncGenerator[AsyncClient]:
    """An HTTP client of an application of its own in this process. The transport runs no lifespan, so we do."""
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = ASGITransport(with_state, raise_app_exceptions=raise_app_exceptions)
        async with AsyncClient(transport=transport, base_url="http://tiroir") as client:
            yield client


@pytest.fixture
async def client(settings: Settings) -> AsyncGenerator[AsyncClient]:
    async with client_of(settings) as opened:
        yield opened
