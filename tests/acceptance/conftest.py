"""Places for embedded servers, and one server that tests may stop."""

from collections.abc import Generator
from pathlib import Path

import pytest
from service import short_folder

from app.postgres.binaries import best_binaries
from app.postgres.embedded import THROWAWAY_SETTINGS, EmbeddedPostgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.acceptance)


@pytest.fixture
def short_path() -> Generator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture
def postgres(short_path: Path) -> Generator[EmbeddedPostgres]:
    """A server of the test's own, for it to stop and start again."""
    with EmbeddedPostgres(short_path / "postgres", best_binaries()) as server:
        yield server


@pytest.fixture(scope="session")
def server() -> Generator[EmbeddedPostgres]:
    """A server for databases, which have other names in each module."""
    with (
        short_folder() as folder,
        EmbeddedPostgres(folder / "postgres", best_binaries(), options=THROWAWAY_SETTINGS) as postgres,
    ):
        yield postgres
