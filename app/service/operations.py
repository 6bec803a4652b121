"""Operations as users see them: begin one, watch it, list them, cancel it."""

from psycopg import AsyncConnection

from app.core.errors import (
    IdempotencyKeyReusedError,
    NotCancelableError,
    OperationNotFoundError,
    RebuildRunningError,
    UnavailableError,
)
from app.core.model import Json, Operation, OperationKind
from app.service.queue import Queue
from app.store import operations
from app.store.database import Database

_ATTEMPTS = 4


class Operations:
    def __init__(self, database: Database, queue: Queue) -> None:
        self._database = database
        self._queue = queue

    async def begin(
        self,
        kind: OperationKind,
        parameters: dict[str, Json],
        *,
        idempotency_key: str | None,
        collection_id: int | None = None,
    ) -> Operation:
        """Queues an operation, or finds the one that this key made before.

        RebuildRunningError where another rebuild is unfinished, IdempotencyKeyReusedError where the key came with
        something else.
        """
        for _ in range(_ATTEMPTS):
            async with self._database.connection() as connection, connection.transaction():
                created = await operations.create(connection, kind, parameters, idempotency_key, collection_id)
                if created is not None:
                    await self._queue.put(connection, created.id)
                    return created
                if found := await self._in_the_way(connection, kind, parameters, idempotency_key, collection_id):
                    return found
        raise UnavailableError("other rebuilds come and go; try again")

    @staticmethod
    async def _in_the_way(
        connection: AsyncConnection,
        kind: OperationKind,
        parameters: dict[str, Json],
        idempotency_key: str | None,
        collection_id: int | None,
    ) -> Operation | None:
        if idempotency_key is not None:
            earlier = await operations.by_idempotency_key(connection, idempotency_key)
            if earlier is not None:
                if (earlier.kind, earlier.parameters, earlier.collection_id) != (kind, parameters, collection_id):
                    raise IdempotencyKeyReusedError(
                        "this Idempotency-Key came with another request before", pointer="/Idempotency-Key"
                    )
                return earlier
        if kind is OperationKind.REBUILD and (running := await operations.unfinished(connection, kind)) is not None:
            raise RebuildRunningError(
                f"rebuild {running.id} is {running.status}: wait for it, or cancel it", operation_id=running.id
            )
        return None  # it has ended since

    async def get(self, kind: OperationKind, operation_id: int) -> Operation:
        """OperationNotFoundError where there is none of this kind."""
        async with self._database.connection() as connection:
            found = await operations.get(connection, kind, operation_id)
        if found is None:
            raise OperationNotFoundError(f"there is no {kind} {operation_id}")
        return found

    async def page(self, kind: OperationKind, *, before: int, limit: int) -> list[Operation]:
        """At most `limit` operations with ids under `before`, the youngest first."""
        async with self._database.connection() as connection:
            return await operations.page(connection, kind, before=before, limit=limit)

    async def cancel(self, kind: OperationKind, operation_id: int) -> Operation:
        """What nobody has begun is canceled when this returns, what runs soon after, and leaves nothing behind.

        OperationNotFoundError as above; NotCancelableError where it is finished, or has done what it was to do.
        """
        async with self._database.connection() as connection:
            canceled = await operations.request_cancel(connection, kind, operation_id)
        if canceled is not None:
            return canceled
        found = await self.get(kind, operation_id)
        if found.finished_at is not None:
            raise NotCancelableError(f"{kind} {operation_id} is {found.status} already")
        raise NotCancelableError(f"{kind} {operation_id} has switched to its bands already, and only cleans up")
