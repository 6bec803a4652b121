from collections.abc import AsyncGenerator

import pytest

from app.runtime import Process, process
from app.settings import Settings


@pytest.fixture
async def service(settings: Settings) -> AsyncGenerator[Process]:
    """The service without HTTP, and the pool under it."""
    async with process(settings) as parts:
        yield parts
