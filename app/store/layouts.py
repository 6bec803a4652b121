"""Layouts: their rows, and whether the tables are what the rows say."""

from psycopg import AsyncConnection
from psycopg.rows import kwargs_row

from app.core.errors import StartupError
from app.core.layout import Layout
from app.core.model import StoredLayout
from app.store import bands
from app.store.named_sql import load

_SQL = load("layouts.sql")

# Writes hold it shared, a change of the layouts takes it alone.
LOCK = 0x7469726F69720001  # "tiroir" and a number


def _layout(*, id: int, widths: list[int], threshold: int, table_name: str, state: str) -> StoredLayout:  # noqa: A002
    return StoredLayout(id, Layout(tuple(widths)), threshold, table_name, state)


async def live(connection: AsyncConnection) -> tuple[StoredLayout, ...]:
    """The layouts that writes go to, in the order of their ids."""
    cursor = connection.cursor(row_factory=kwargs_row(_layout))
    return tuple(await (await cursor.execute(_SQL["live"])).fetchall())


async def lock(connection: AsyncConnection) -> None:
    """Until the transaction ends no layout is made or dropped."""
    await connection.execute(_SQL["lock"], {"lock": LOCK})


async def estimate(connection: AsyncConnection, layout: StoredLayout, collection_id: int) -> int:
    """About how many fingerprints the collection has. Takes 0.1 ms whatever the size."""
    cursor = await connection.execute(bands.estimate(layout), {"collection_id": collection_id})
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101  EXPLAIN always answers
    return int(row[0][0]["Plan"]["Plan Rows"])


async def require_as_described(connection: AsyncConnection, layout: StoredLayout) -> None:
    """Raises StartupError unless the table has exactly the band columns and indexes of its layout.

    A column that cuts elsewhere than the probes do would miss fingerprints without a word. Migration tools don't see
    a changed generation expression; PostgreSQL's own rendering of the right one does. The indexes of a layout that is
    being built come last, and nobody reads it before: a process may start without them.
    """
    async with connection.transaction():
        await connection.execute(bands.create_expected(layout.layout))
        expected, actual = [
            await (await connection.execute(bands.COLUMN_EXPRESSIONS, {"table": table})).fetchall()
            for table in ("expected_bands", layout.table)
        ]
        indexes = await (await connection.execute(bands.VALID_INDEXES, {"table": layout.table})).fetchall()
    if actual != expected:
        raise StartupError(
            f"the band columns of table {layout.table} aren't those of its layout {layout.layout.widths}: "
            "lookups would miss fingerprints. Restore the table, or the code that made it"
        )
    if (["collection_id", "simhash"], True) not in indexes:
        raise StartupError(
            f"table {layout.table} has no unique index on collection_id, simhash: "
            "a fingerprint could be stored twice, and found twice"
        )
    covered = [columns for columns, _ in indexes]
    missing = [band.column for band in layout.layout.bands if ["collection_id", band.column, "simhash"] not in covered]
    if missing and layout.state != "building":
        raise StartupError(f"table {layout.table} has no valid covering index on {', '.join(missing)}: rebuild it")
