"""Layouts: their rows and tables, how they come and go, and whether the tables are what the rows say."""

from dataclasses import dataclass

from psycopg import AsyncConnection, sql
from psycopg.rows import kwargs_row

from app.core.errors import StartupError
from app.core.fingerprint import MAX_SIMHASH
from app.core.layout import Band, Layout
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


async def active(connection: AsyncConnection) -> StoredLayout:
    """The layout that lookups read."""
    return next(stored for stored in await live(connection) if stored.state == "active")


async def lock(connection: AsyncConnection) -> None:
    """Until the transaction ends no layout is made or dropped."""
    await connection.execute(_SQL["lock"], {"lock": LOCK})


async def lock_alone(connection: AsyncConnection) -> None:
    """Until the transaction ends no write is under way. Whoever waits for this lock holds up all writes behind it."""
    await connection.execute(_SQL["lock_alone"], {"lock": LOCK})


async def create(connection: AsyncConnection, layout: Layout, threshold: int) -> StoredLayout:
    """A new layout with its empty table, to which all writes go from now on. Call `lock_alone` before."""
    cursor = connection.cursor(row_factory=kwargs_row(_layout))
    values = {"widths": list(layout.widths), "threshold": threshold}
    stored = await (await cursor.execute(_SQL["register"], values)).fetchone()
    assert stored is not None  # noqa: S101  RETURNING
    await connection.execute(bands.create(stored))
    return stored


async def switch(connection: AsyncConnection, stored: StoredLayout) -> None:
    """Makes a layout that was built the active one, and retires the one that was."""
    await connection.execute(_SQL["retire"])
    activated = await connection.execute(_SQL["activate"], {"id": stored.id})
    assert activated.rowcount == 1  # noqa: S101  whoever builds it is alone


async def set_threshold(connection: AsyncConnection, stored: StoredLayout, threshold: int) -> None:
    await connection.execute(_SQL["set_threshold"], {"id": stored.id, "threshold": threshold})


async def drop(connection: AsyncConnection, stored: StoredLayout) -> None:
    """Removes a layout and its table at once: writes go to it as long as anybody can read it. Call `lock_alone` before.

    A process that remembers it meets UndefinedTable, and asks again.
    """
    await connection.execute(_SQL["remove"], {"id": stored.id})
    await connection.execute(bands.drop(stored))


async def index(connection: AsyncConnection, stored: StoredLayout, band: Band) -> None:
    """Builds the index of one band beside writes, unless it is there. The connection is in autocommit mode.

    A build that was broken off leaves an index that is kept up to date and never used: it is dropped first.
    """
    name = {"name": bands.index_name(stored, band)}
    found = await (await connection.execute(_SQL["index_is_valid"], name)).fetchone()
    if found == (True,):
        return
    if found is not None:
        await connection.execute(bands.drop_index(stored, band))
    await connection.execute(bands.create_index(stored, band))


async def vacuum(connection: AsyncConnection, stored: StoredLayout) -> None:
    await connection.execute(bands.vacuum(stored))


async def stale(connection: AsyncConnection, *, rows: int, share: float) -> list[str]:
    """The tables in which at least so many rows, and this share of all, changed since the planner looked at them."""
    found = await (await connection.execute(_SQL["stale"], {"rows": rows, "share": share})).fetchall()
    return [table for (table,) in found]


async def analyze(connection: AsyncConnection, table: str) -> None:
    """New statistics for the planner, from a sample; nothing where somebody else works on the table."""
    await connection.execute(sql.SQL("ANALYZE (SKIP_LOCKED) {}").format(sql.Identifier(table)))


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order in which fingerprints are copied."""

    collection_id: int
    simhash: int


START = Position(0, 0)  # no collection has the id 0


@dataclass(frozen=True, slots=True)
class Copied:
    position: Position
    fingerprints: int


async def copy_batch(
    connection: AsyncConnection, stored: StoredLayout, after: Position, *, last_collection_id: int, size: int
) -> Copied | None:
    """Copies at most `size` fingerprints that documents use and that come `after`; None where there are none."""
    values = {
        "collection_id": after.collection_id,
        "simhash": after.simhash,
        "last_collection_id": last_collection_id,
        "size": size,
    }
    row = await (await connection.execute(bands.copy_batch(stored), values)).fetchone()
    return None if row is None else Copied(Position(row[0], row[1]), row[2])


async def delete_next(
    connection: AsyncConnection, stored: StoredLayout, collection_id: int, start: int, *, size: int
) -> int | None:
    """Deletes the next `size` fingerprints of a collection from `start` on; where to go on, None for nowhere."""
    values = {"collection_id": collection_id, "start": start, "size": size}
    row = await (await connection.execute(bands.delete_next(stored), values)).fetchone()
    last = None if row is None else row[0]
    return None if last is None or last == MAX_SIMHASH else last + 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """`fingerprints`: distinct ones of documents; `missing` of them from the table; `rows` of the table."""

    fingerprints: int
    missing: int
    rows: int


async def compare_with_documents(connection: AsyncConnection, stored: StoredLayout) -> Comparison:
    """Exact, of one snapshot. Reads an index of all documents and one of the table."""
    row = await (await connection.execute(bands.compare_with_documents(stored))).fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return Comparison(*row)


async def count(connection: AsyncConnection, stored: StoredLayout) -> int:
    """The number of rows of its table. Reads an index of the table."""
    row = await (await connection.execute(bands.count(stored))).fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return int(row[0])


@dataclass(frozen=True, slots=True)
class Bucket:
    """Fingerprints of a collection that are equal in one band."""

    collection: str
    band: int
    value: int
    fingerprints: int


async def fullest_buckets(connection: AsyncConnection, stored: StoredLayout, limit: int) -> list[Bucket]:
    """Reads the indexes of all bands: 0.1 s a million and band."""
    rows = await (await connection.execute(bands.fullest_buckets(stored), {"limit": limit})).fetchall()
    return [Bucket(*row) for row in rows]


async def table_bytes(connection: AsyncConnection, stored: StoredLayout) -> int:
    """With its indexes."""
    row = await (await connection.execute(_SQL["table_bytes"], {"table": stored.table})).fetchone()
    assert row is not None  # noqa: S101  one row always
    return int(row[0])


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
    being built come last, and nobody reads it before: it needs none.
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
