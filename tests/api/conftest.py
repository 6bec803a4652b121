"""HTTP is the same whatever PostgreSQL is behind it, so the newest is enough; service and store are tested on all."""

from collections.abc import Generator

import pytest

from app.postgres.binaries import best_binaries
from tests.conftest import Server, throwaway_server


@pytest.fixture(scope="session", params=[best_binaries()], ids=lambda binaries: f"postgresql-{binaries.version}")
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    with throwaway_server(request.param) as started:
        yield started
