"""HTTP is the same whatever PostgreSQL is behind it, so the newest is enough; service and store are tested on all."""

import pytest

from app.postgres.binaries import best_binaries
from tests.conftest import Server, Servers


@pytest.fixture(scope="session", params=[best_binaries()], ids=lambda binaries: f"postgresql-{binaries.version}")
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    return servers(request.param)
