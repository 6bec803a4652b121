"""The rebuild of the bands beside the same work by hand in SQL."""

import time
from dataclasses import dataclass

import anyio
import psycopg
from psycopg import sql

from app.core.layout import cut
from app.core.model import Json, Operation, OperationKind, OperationStatus, StoredLayout
from app.runtime import Process, process
from app.settings import Settings
from app.store import bands

BANDS = 4  # those of the article, built anew
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Seconds: of the copy and the indexes of a rebuild, and of INSERT … SELECT and CREATE INDEX."""

    phases: dict[str, float]
    copy_by_hand: float
    indexes_by_hand: float


async def measure(settings: Settings) -> Rebuilt:
    """By hand first: whoever comes second finds the documents' index in memory."""
    assert settings.database_url is not None  # noqa: S101  the bench has set it
    copy_by_hand, indexes_by_hand = _by_hand(settings.database_url.get_secret_value())
    async with process(settings) as opened, opened.working():
        phases = await _rebuild(opened)
    return Rebuilt(phases, copy_by_hand, indexes_by_hand)


async def _rebuild(opened: Process) -> dict[str, float]:
    parameters: dict[str, Json] = {"threshold": 3, "bands": BANDS, "force": True}
    operation = await opened.services.operations.begin(OperationKind.REBUILD, parameters, idempotency_key=None)
    while operation.finished_at is None:
        await anyio.sleep(_POLL_SECONDS)
        operation = await opened.services.operations.get(OperationKind.REBUILD, operation.id)
    return _seconds(operation)


def _seconds(operation: Operation) -> dict[str, float]:
    if operation.status is not OperationStatus.SUCCEEDED or operation.result is None:
        raise AssertionError(f"the rebuild has {operation.status}: {operation.error}")
    seconds = operation.result["seconds"]
    assert isinstance(seconds, dict)  # noqa: S101  ours
    return {phase: float(str(taken)) for phase, taken in seconds.items()}


def _by_hand(conninfo: str) -> tuple[float, float]:
    """Seconds of the copy, and of the indexes."""
    layout = StoredLayout(0, cut(BANDS), 3, "fingerprint_by_hand", "building")
    table = sql.Identifier(layout.table)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(bands.create(layout))
        start = time.perf_counter()
        connection.execute(
            sql.SQL("""
            INSERT INTO {} (collection_id, simhash)
            SELECT DISTINCT collection_id, simhash FROM document WHERE simhash IS NOT NULL
            """).format(table)
        )
        copied = time.perf_counter()
        for band in layout.layout.bands:
            connection.execute(
                sql.SQL("CREATE INDEX ON {} (collection_id, {}, simhash)").format(table, sql.Identifier(band.column))
            )
        indexed = time.perf_counter()
        connection.execute(bands.drop(layout))
    return copied - start, indexed - copied
