"""Waits for what happens elsewhere: in another thread, or in a session of PostgreSQL."""

import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg

_SECONDS = 20
_POLL = 0.01

_WAITING = b"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL)


async def until(condition: Callable[[], bool]) -> None:
    """The same, while other tasks go on."""
    with anyio.fail_after(_SECONDS):
        while not condition():  # noqa: ASYNC110  what is waited for knows no event of ours
            await anyio.sleep(_POLL)


def waiting_for_locks(observer: psycopg.Connection) -> int:
    """How many other sessions of the database wait for a lock. `observer` must be in autocommit mode."""
    row = observer.execute(_WAITING).fetchone()
    assert row
    return int(row[0])


@asynccontextmanager
async def meanwhile(*use_cases: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[None]:
    """Runs the use-cases beside the body of the context, and waits for them at its end."""
    async with anyio.create_task_group() as tasks:
        for use_case in use_cases:
            tasks.start_soon(use_case)
        yield
