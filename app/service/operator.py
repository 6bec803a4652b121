"""Works on operations, each in a session of its own, the only one that does; a later run goes on where one ended."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psycopg
from psycopg import AsyncConnection

from app.core.errors import TiroirError, UnavailableError
from app.core.model import Json, Operation, OperationKind, OperationStatus
from app.settings import Settings
from app.store import operations
from app.store.database import Database, UnexpectedDatabaseError, connect_for_operation, is_lost

_log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5
# An operation that takes its process or its server down each time must end.
MOST_RUNS = 100


class OperationFailedError(TiroirError):
    """An operation can't go on; the message is what its `error` says."""


class Progress:
    """What an operation tells of itself while it works."""

    def __init__(self, session: AsyncConnection, operation: Operation) -> None:
        self._session = session
        self._id = operation.id
        self.phase = operation.phase
        self.checkpoint = dict(operation.checkpoint)

    async def report(self, phase: str, *, done: int = 0, total: int | None = None) -> None:
        """In the transaction of the session, if there is one: the checkpoint is then as old as what it speaks of."""
        self.phase = phase
        await operations.report(self._session, self._id, phase, self.checkpoint, done=done, total=total)

    async def commit(self) -> bool:
        """The point of no return; False where somebody has asked to cancel before."""
        return await operations.commit(self._session, self._id)


class Work(Protocol):
    """One kind of operation, under way."""

    async def run(self) -> dict[str, Json]:
        """Does it, from where `Progress.checkpoint` says, and returns the result."""
        ...

    async def undo(self) -> None:
        """Removes what an operation that doesn't succeed has made; may be called again when it was broken off."""
        ...


Kind = Callable[[AsyncConnection, Operation, Progress], Work]


class Operator:
    def __init__(
        self, conninfo: str, settings: Settings, database: Database, kinds: Mapping[OperationKind, Kind]
    ) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._database = database
        self._kinds = kinds

    async def perform(self, operation_id: int) -> None:
        """Works on an operation until it is finished or the database goes away: then it stays as it is, to be resumed.

        Nothing happens where another session works on it, or where it is finished.
        """
        try:
            async with await connect_for_operation(self._conninfo, self._settings) as session:
                if not await operations.lock(session, operation_id):
                    return
                operation = await operations.begin(session, operation_id)
                if operation is not None:
                    await self._finish(session, operation)
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            _log.warning("operation %d was broken off, and will go on: %s", operation_id, type(error).__name__)

    async def _finish(self, session: AsyncConnection, operation: Operation) -> None:
        _log.info("%s %d begins, run %d", operation.kind, operation.id, operation.runs)
        work = self._kinds[operation.kind](session, operation, Progress(session, operation))
        result, error = None, operation.error
        if error is None:  # else an earlier run has failed, and was broken off while it cleaned up
            result, error = await self._run(session, operation, work)
        if result is not None:
            await operations.finish(session, operation.id, OperationStatus.SUCCEEDED, result=result)
            status = OperationStatus.SUCCEEDED
        else:
            status = OperationStatus.CANCELED if error is None else OperationStatus.FAILED
            await work.undo()
            await operations.finish(session, operation.id, status, error=error)
        _log.info("%s %d is %s%s", operation.kind, operation.id, status, "" if error is None else f": {error}")

    async def _run(
        self, session: AsyncConnection, operation: Operation, work: Work
    ) -> tuple[dict[str, Json] | None, str | None]:
        """The result, or the reason why there is none; neither where it was canceled."""
        if await operations.is_cancel_requested(session, operation.id):
            return None, None
        if operation.runs > MOST_RUNS:
            return None, await self._note(session, operation, f"it was broken off {MOST_RUNS} times")
        try:
            return await self._run_until_canceled(operation, work), None
        except psycopg.Error as error:
            if is_lost(error):
                raise
            reason = _reason(error)
        except TiroirError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  an operation must end, whatever we did wrong
            _log.exception("a defect in %s %d", operation.kind, operation.id)
            reason = f"a defect: {type(error).__name__}; the log has more"
        return None, await self._note(session, operation, reason)

    @staticmethod
    async def _note(session: AsyncConnection, operation: Operation, reason: str) -> str:
        """So that a run that is broken off while it cleans up doesn't begin anew."""
        await operations.note_failure(session, operation.id, reason)
        return reason

    async def _run_until_canceled(self, operation: Operation, work: Work) -> dict[str, Json] | None:
        """None where it was canceled.

        A task that is cancelled once, not a scope: psycopg then breaks off the statement and rolls back, which takes
        awaits of its own.
        """
        running = asyncio.create_task(work.run())
        watching = asyncio.create_task(self._watch(operation.id, running))
        try:
            return await running
        except asyncio.CancelledError:
            if running.cancelled() and not _is_being_cancelled():
                return None
            raise
        finally:
            watching.cancel()

    async def _watch(self, operation_id: int, running: asyncio.Task[Any]) -> None:
        """Cancels `running`, in the middle of a statement if need be, when somebody has asked for it."""
        while True:
            try:
                async with self._database.connection() as connection:
                    if await operations.is_cancel_requested(connection, operation_id):
                        running.cancel()
                        return
            except (UnavailableError, UnexpectedDatabaseError):
                _log.warning("can't ask whether operation %d is to be canceled", operation_id)
            await asyncio.sleep(_WATCH_SECONDS)


def _is_being_cancelled() -> bool:
    """Whether the process wants this very task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: psycopg.Error) -> str:
    """PostgreSQL's message without its details, which quote rows."""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "a statement took longer than TIROIR_OPERATION_STATEMENT_TIMEOUT allows"
    return f"PostgreSQL: {error.diag.message_primary}"
