"""Operations: their rows, and who works on them."""

from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from app.core.model import Json, Operation, OperationKind, OperationStatus
from app.store.named_sql import load

_COLUMNS = (
    "id, kind, collection_id, parameters, status, phase, done, total, checkpoint, result, error, runs,"
    " created_at, started_at, finished_at"
)
_SQL = {name: statement.replace(b"{columns}", _COLUMNS.encode()) for name, statement in load("operations.sql").items()}

# The first of the two numbers of the advisory lock that a session holds while it works on an operation; the
# operation's id is the second.
LOCK_CLASS = 0x7469726E


def _operation(*, kind: str, status: str, **others: Any) -> Operation:
    return Operation(kind=OperationKind(kind), status=OperationStatus(status), **others)


def _cursor(connection: AsyncConnection) -> AsyncCursor[Operation]:
    return connection.cursor(row_factory=kwargs_row(_operation))


async def create(
    connection: AsyncConnection,
    kind: OperationKind,
    parameters: dict[str, Json],
    idempotency_key: str | None,
    collection_id: int | None = None,
) -> Operation | None:
    """None where the Idempotency-Key was used before, or where another rebuild is unfinished."""
    values = {
        "kind": kind,
        "parameters": Jsonb(parameters),
        "idempotency_key": idempotency_key,
        "collection_id": collection_id,
    }
    return await (await _cursor(connection).execute(_SQL["create"], values)).fetchone()


async def by_idempotency_key(connection: AsyncConnection, idempotency_key: str) -> Operation | None:
    values = {"idempotency_key": idempotency_key}
    return await (await _cursor(connection).execute(_SQL["by_key"], values)).fetchone()


async def unfinished(connection: AsyncConnection, kind: OperationKind) -> Operation | None:
    return await (await _cursor(connection).execute(_SQL["unfinished"], {"kind": kind})).fetchone()


async def get(connection: AsyncConnection, kind: OperationKind, operation_id: int) -> Operation | None:
    return await (await _cursor(connection).execute(_SQL["get"], {"kind": kind, "id": operation_id})).fetchone()


async def page(connection: AsyncConnection, kind: OperationKind, *, before: int, limit: int) -> list[Operation]:
    """At most `limit` operations with ids under `before`, the youngest first."""
    values = {"kind": kind, "before": before, "limit": limit}
    return await (await _cursor(connection).execute(_SQL["page"], values)).fetchall()


async def page_of_collection(
    connection: AsyncConnection, collection_id: int, kind: OperationKind, *, before: int, limit: int
) -> list[Operation]:
    """The same, of one collection."""
    values = {"collection_id": collection_id, "kind": kind, "before": before, "limit": limit}
    return await (await _cursor(connection).execute(_SQL["of_collection"], values)).fetchall()


async def delete_finished(
    connection: AsyncConnection, collection_id: int, kind: OperationKind, operation_id: int
) -> bool:
    """Whether there was such an operation, and it was finished."""
    values = {"collection_id": collection_id, "kind": kind, "id": operation_id}
    return (await connection.execute(_SQL["delete_finished"], values)).rowcount == 1


async def delete_superseded(connection: AsyncConnection) -> None:
    """Finished analyses after which one of the same collection with the same settings has succeeded."""
    await connection.execute(_SQL["delete_superseded"])


async def delete_of_collection(connection: AsyncConnection, collection_id: int) -> bool:
    """Deletes what is finished; whether that was all."""
    await connection.execute(_SQL["delete_of_collection"], {"collection_id": collection_id})
    row = await (await connection.execute(_SQL["has_unfinished"], {"collection_id": collection_id})).fetchone()
    return row == (False,)


async def request_cancel(connection: AsyncConnection, kind: OperationKind, operation_id: int) -> Operation | None:
    """None where there is no such operation, or nothing left to cancel."""
    values = {"kind": kind, "id": operation_id}
    return await (await _cursor(connection).execute(_SQL["request_cancel"], values)).fetchone()


async def is_cancel_requested(connection: AsyncConnection, operation_id: int) -> bool:
    row = await (await connection.execute(_SQL["is_cancel_requested"], {"id": operation_id})).fetchone()
    return row == (True,)


async def unattended(connection: AsyncConnection) -> list[int]:
    """The ids of unfinished operations that no session works on."""
    return [row[0] for row in await (await connection.execute(_SQL["unattended"], {"class": LOCK_CLASS})).fetchall()]


async def lock(connection: AsyncConnection, operation_id: int) -> bool:
    """Whether the session has become the only one that works on the operation."""
    row = await (await connection.execute(_SQL["lock"], {"class": LOCK_CLASS, "id": operation_id})).fetchone()
    return row == (True,)


async def begin(connection: AsyncConnection, operation_id: int) -> Operation | None:
    """None where it is finished, or was deleted."""
    return await (await _cursor(connection).execute(_SQL["begin"], {"id": operation_id})).fetchone()


async def report(
    connection: AsyncConnection,
    operation_id: int,
    phase: str,
    checkpoint: dict[str, Json],
    *,
    done: int = 0,
    total: int | None = None,
) -> None:
    values = {
        "id": operation_id,
        "phase": phase,
        "done": done,
        "total": total,
        "checkpoint": Jsonb(checkpoint),
    }
    await connection.execute(_SQL["report"], values)


async def commit(connection: AsyncConnection, operation_id: int) -> bool:
    """Makes the operation one that can't be cancelled any more; False where that was asked for before."""
    return (await connection.execute(_SQL["commit"], {"id": operation_id})).rowcount == 1


async def note_failure(connection: AsyncConnection, operation_id: int, error: str) -> None:
    await connection.execute(_SQL["note_failure"], {"id": operation_id, "error": error})


async def finish(
    connection: AsyncConnection,
    operation_id: int,
    status: OperationStatus,
    *,
    result: dict[str, Json] | None = None,
    error: str | None = None,
) -> None:
    values = {
        "id": operation_id,
        "status": status,
        "result": None if result is None else Jsonb(result),
        "error": error,
    }
    await connection.execute(_SQL["finish"], values)
