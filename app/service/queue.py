"""Hands operations to whoever works on them: procrastinate, a queue in PostgreSQL itself.

The queue carries the number of an operation and nothing else. What an operation is, how far it came and how it ended
stands in its own row, and who works on it is told by a lock that goes with the worker's session. So a job may be lost
or come twice: `attend` puts every unfinished operation that nobody works on back into the queue.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from anyio import CancelScope
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import DeleteJobCondition, Status
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from app.service.background import working
from app.settings import Settings
from app.store import operations
from app.store.database import Database

_QUEUE = "operations"
_TASK = "operation"

# A rebuild runs for hours; an audit needn't wait for it.
_AT_ONCE = 2
_POLL_SECONDS = 1.0
_ATTEND_SECONDS = 5.0
_STALLED_SECONDS = 60.0
_CONNECTIONS = 4

Perform = Callable[[int], Awaitable[None]]


# Its functions name its tables without their schema.
_IN_QUEUE = b"SET LOCAL search_path = tiroir_queue"
_OUT_OF_QUEUE = b"SET LOCAL search_path TO DEFAULT"


class Queue:
    def __init__(self, conninfo: str, settings: Settings) -> None:
        given = conninfo_to_dict(conninfo)
        session: dict[str, Any] = {
            "connect_timeout": settings.connect_timeout,
            "client_encoding": "UTF8",
            "application_name": given.get("application_name") or "tiroir worker",
            "options": f"{given.get('options') or ''} -c search_path=tiroir_queue".strip(),
        }
        self._app = App(
            connector=PsycopgConnector(
                conninfo=conninfo, kwargs=session, min_size=1, max_size=_CONNECTIONS, timeout=settings.pool_timeout
            )
        )

    async def put(self, connection: AsyncConnection, operation_id: int) -> None:
        """In the transaction of `connection`, if it has one."""
        try:
            async with connection.transaction():
                await connection.execute(_IN_QUEUE)
                job = self._app.configure_task(_TASK, queue=_QUEUE, connection=connection)
                await job.defer_async(operation_id=operation_id)
                await connection.execute(_OUT_OF_QUEUE)
        except ConnectorException as error:  # what it wraps is what those who hold a connection expect
            raise error.__cause__ or error from None

    @asynccontextmanager
    async def working(self, database: Database, perform: Perform) -> AsyncGenerator[None]:
        """Performs operations beside the body, whatever the database does meanwhile; at its end it breaks them off."""

        async def task(operation_id: int) -> None:
            await perform(operation_id)

        self._app.task(name=_TASK)(task)
        try:
            async with working(self._work, partial(self._attend, database)):
                yield
        finally:
            with CancelScope(shield=True):
                await self._app.close_async()  # left open where opening it failed

    async def _work(self) -> None:
        async with self._app.open_async():
            await self._app.run_worker_async(
                queues=[_QUEUE],
                concurrency=_AT_ONCE,
                install_signal_handlers=False,
                delete_jobs=DeleteJobCondition.ALWAYS,
                # Its listener has a connection of its own, and ends with it; asking once a second survives all.
                listen_notify=False,
                fetch_job_polling_interval=_POLL_SECONDS,
                shutdown_graceful_timeout=0,
            )

    async def _attend(self, database: Database) -> None:
        """Puts back what nobody works on. Jobs of workers that were killed are forgotten: they stand for nothing."""
        while True:
            async with database.connection() as connection:
                for operation_id in await operations.unattended(connection):
                    await self.put(connection, operation_id)
            jobs = self._app.job_manager
            for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=_STALLED_SECONDS):
                await jobs.finish_job(job, Status.ABORTED, delete_job=True)
            await asyncio.sleep(_ATTEND_SECONDS)
