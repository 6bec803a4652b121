"""The composition root: what a process is made of, in the order in which it starts and stops."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from app.postgres.binaries import best_binaries
from app.postgres.embedded import EmbeddedPostgres
from app.service.catalog import Catalog
from app.service.collections import Collections
from app.service.documents import Documents
from app.service.health import Health
from app.service.near_duplicates import NearDuplicates
from app.settings import Settings
from app.store import layouts
from app.store.database import Database, create_pool


@dataclass(frozen=True, slots=True)
class Services:
    """The use-cases, ready to serve."""

    collections: Collections
    documents: Documents
    near_duplicates: NearDuplicates
    health: Health


@contextmanager
def database(settings: Settings) -> Generator[str]:
    """The connection string that is set, or that of the embedded server, which runs as long as somebody uses it."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    with EmbeddedPostgres(settings.data_dir, best_binaries()) as server:
        yield server.dsn()


@asynccontextmanager
async def services(settings: Settings) -> AsyncGenerator[Services]:
    """The use-cases on an open pool. The schema must be there: `tiroir serve` migrates before it serves."""
    with database(settings) as conninfo:
        async with create_pool(conninfo, settings) as pool:
            opened = Database(pool)
            async with opened.connection() as connection:
                for layout in await layouts.live(connection):
                    await layouts.require_as_described(connection, layout)
            catalog = Catalog(opened)
            yield Services(
                collections=Collections(opened, catalog),
                documents=Documents(opened, catalog),
                near_duplicates=NearDuplicates(opened, catalog),
                health=Health(opened),
            )
