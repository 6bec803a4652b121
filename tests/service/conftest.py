from collections.abc import AsyncGenerator, Generator

import psycopg
import pytest

from app.runtime import Process, process
from app.settings import Settings
from tests.store.pages import Pages


@pytest.fixture
async def service(settings: Settings) -> AsyncGenerator[Process]:
    """The service without HTTP, and the pool under it."""
    async with process(settings) as parts:
        yield parts


@pytest.fixture
def pages(service: Process) -> Pages:
    """A collection of the test's own, which the first write makes."""
    return Pages(service.services)


@pytest.fixture
async def elsewhere(settings: Settings, pages: Pages) -> AsyncGenerator[Pages]:
    """The same collection, as another process sees it that knows nothing beforehand."""
    async with process(settings) as others:
        yield Pages(others.services, pages.name)


@pytest.fixture
def other_session(database: str) -> Generator[psycopg.Connection]:
    """A session with a transaction."""
    with psycopg.connect(database) as connection:
        yield connection


@pytest.fixture
def observer(database: str) -> Generator[psycopg.Connection]:
    """A session that sees what others commit, at once."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
