from collections.abc import AsyncGenerator

import pytest

from app.settings import Settings
from tests.store.databases import Opened, opened


@pytest.fixture
async def service(settings: Settings) -> AsyncGenerator[Opened]:
    """The service without HTTP, and the pool under it."""
    async with opened(settings) as parts:
        yield parts
