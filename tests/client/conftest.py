"""HTTP again, from the other side: one PostgreSQL is enough."""

from tests.api.conftest import server as server
