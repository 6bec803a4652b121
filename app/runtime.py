"""The composition root: what a process is made of, in the order in which it starts and stops."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from app.core.model import Operation, OperationKind
from app.postgres.binaries import best_binaries
from app.postgres.embedded import EmbeddedPostgres
from app.service import profiles
from app.service.analyses import Analyses
from app.service.analysis import Analysis
from app.service.audit import Audit
from app.service.background import working
from app.service.catalog import Catalog
from app.service.collections import Collections
from app.service.comparison import Comparison
from app.service.documents import Documents
from app.service.health import Health
from app.service.housekeeping import Housekeeping
from app.service.imports import Imports
from app.service.layout_report import LayoutReports
from app.service.near_duplicates import NearDuplicates
from app.service.operations import Operations
from app.service.operator import Operator, Progress
from app.service.profiles import Profiles
from app.service.queue import Queue
from app.service.rebuild import Rebuild
from app.settings import Settings
from app.store import layouts
from app.store.database import Database, create_pool, transaction_settings


@dataclass(frozen=True, slots=True)
class Services:
    """The use-cases, ready to serve."""

    collections: Collections
    documents: Documents
    imports: Imports
    near_duplicates: NearDuplicates
    operations: Operations
    analyses: Analyses
    layout_reports: LayoutReports
    health: Health


@dataclass(frozen=True, slots=True)
class Process:
    """What a process that serves, or works on operations, has open."""

    conninfo: str
    settings: Settings
    pool: AsyncConnectionPool[AsyncConnection]
    database: Database
    catalog: Catalog
    profiles: Profiles
    queue: Queue
    services: Services

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """Works on operations beside the body."""

        def analysis(session: AsyncConnection, operation: Operation, progress: Progress) -> Analysis | Comparison:
            kind = Comparison if "against" in operation.parameters else Analysis
            return kind(self.conninfo, self.settings, session, operation, progress)

        def rebuild(session: AsyncConnection, operation: Operation, progress: Progress) -> Rebuild:
            return Rebuild(session, operation, progress, self.settings)

        operator = Operator(
            self.conninfo,
            self.settings,
            self.database,
            {OperationKind.REBUILD: rebuild, OperationKind.AUDIT: Audit, OperationKind.ANALYSIS: analysis},
        )
        async with self.queue.working(self.database, operator.perform), working(Housekeeping(self.database).run):
            yield


@contextmanager
def database(settings: Settings) -> Generator[str]:
    """The connection string that is set, or that of the embedded server, which runs as long as somebody uses it."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    with EmbeddedPostgres(settings.data_dir, best_binaries()) as server:
        yield server.dsn()


@asynccontextmanager
async def process(settings: Settings) -> AsyncGenerator[Process]:
    """The use-cases on an open pool. The schema must be there: `tiroir serve` migrates before it serves."""
    with database(settings) as conninfo:
        async with create_pool(conninfo, settings) as pool:
            opened = Database(pool, transaction_settings(settings))
            async with opened.connection() as connection:
                for layout in await layouts.live(connection):
                    await layouts.require_as_described(connection, layout)
            catalog = Catalog(opened)
            queue = Queue(conninfo, settings)
            async with profiles.opened(opened) as known:
                documents = Documents(opened, catalog, known)
                operations = Operations(opened, queue)
                yield Process(
                    conninfo,
                    settings,
                    pool,
                    opened,
                    catalog,
                    known,
                    queue,
                    Services(
                        collections=Collections(opened, catalog),
                        documents=documents,
                        imports=Imports(documents, most_line_bytes=settings.max_body_bytes),
                        near_duplicates=NearDuplicates(opened, catalog, known),
                        operations=operations,
                        analyses=Analyses(opened, catalog, known, operations, settings),
                        layout_reports=LayoutReports(opened, catalog),
                        health=Health(opened),
                    ),
                )
