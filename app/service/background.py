"""Work beside the requests, that goes on whatever the database does meanwhile."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from anyio import CancelScope
from procrastinate.exceptions import AppNotOpen, ConnectorException
from psycopg import Error

from app.core.errors import UnavailableError

_log = logging.getLogger(__name__)

_BEGIN_ANEW_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0

Job = Callable[[], Awaitable[None]]


@asynccontextmanager
async def working(*jobs: Job) -> AsyncGenerator[None]:
    """Does each of them beside the body, again and again; at its end they are broken off."""
    ending = asyncio.Event()
    tasks = [asyncio.create_task(_until(ending, job)) for job in jobs]
    try:
        yield
    finally:
        ending.set()
        with CancelScope(shield=True):
            await _cancel(tasks)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Procrastinate's worker ends its jobs when it is cancelled, if it is left the time.

    But where it fails at that moment it forgets that it was cancelled, and one of its tasks may not hear it: again.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_PATIENCE_SECONDS)


async def _until(ending: asyncio.Event, job: Job) -> None:
    """Does it again and again, whatever goes wrong, until `ending` is set."""
    while not ending.is_set():
        try:
            await job()
        except (ConnectorException, AppNotOpen, UnavailableError, Error) as error:
            _log.warning("background work can't reach the database: %s", type(error).__name__)
        except Exception:  # noqa: BLE001  whatever we did wrong, the rest must go on
            _log.exception("a defect in background work; it goes on")
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), _BEGIN_ANEW_SECONDS)
