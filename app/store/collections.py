"""Collections: their rows."""

from datetime import datetime

from psycopg import AsyncConnection
from psycopg.rows import class_row, kwargs_row

from app.core.model import Collection, CollectionCounts, StoredLayout
from app.core.scheme import Scheme
from app.store import bands
from app.store.named_sql import load

_SQL = load("collections.sql")

# The first of the two numbers of an advisory lock that concerns one collection; its id is the second.
LOCK_CLASS = 0x7469726F  # "tiro"


def _collection(
    *,
    id: int,  # noqa: A002  the name of the column
    name: str,
    tokenizer: str,
    shingle_size: int,
    bits: int,
    min_words: int,
    store_text: bool,
    created_at: datetime,
) -> Collection:
    return Collection(id, name, Scheme(tokenizer, shingle_size, bits, min_words), store_text, created_at)


async def find(connection: AsyncConnection, name: str) -> Collection | None:
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    return await (await cursor.execute(_SQL["find"], {"name": name})).fetchone()


async def page(connection: AsyncConnection, after: str, limit: int) -> list[Collection]:
    """At most `limit` collections whose names come after `after`, in the order of their names."""
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    return await (await cursor.execute(_SQL["page"], {"after": after, "limit": limit})).fetchall()


async def by_ids(connection: AsyncConnection, ids: list[int]) -> list[Collection]:
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    return await (await cursor.execute(_SQL["by_ids"], {"ids": ids})).fetchall()


async def create(connection: AsyncConnection, name: str, scheme: Scheme, *, store_text: bool) -> Collection | None:
    """The new collection; None where the name is taken."""
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    parameters = {
        "name": name,
        "tokenizer": scheme.tokenizer,
        "shingle_size": scheme.shingle_size,
        "bits": scheme.bits,
        "min_words": scheme.min_words,
        "store_text": store_text,
    }
    return await (await cursor.execute(_SQL["create"], parameters)).fetchone()


async def last_id(connection: AsyncConnection) -> int:
    """The highest there is, 0 where there is none."""
    row = await (await connection.execute(_SQL["last_id"])).fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return int(row[0])


async def count(connection: AsyncConnection, collection_id: int) -> CollectionCounts:
    """Exact counts, of one snapshot. Reads two indexes of the collection from end to end."""
    cursor = connection.cursor(row_factory=class_row(CollectionCounts))
    counts = await (await cursor.execute(_SQL["count"], {"id": collection_id})).fetchone()
    assert counts is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return counts


async def lock(connection: AsyncConnection, collection_id: int) -> None:
    """Until the transaction ends: no write to the collection is under way, and none begins."""
    await connection.execute(_SQL["lock"], {"class": LOCK_CLASS, "id": collection_id})


async def delete(connection: AsyncConnection, collection_id: int, layouts: tuple[StoredLayout, ...]) -> bool:
    """Deletes the collection with all that it holds; False where it is gone already. Call `lock` before."""
    parameters = {"id": collection_id, "collection_id": collection_id}
    deleted = await connection.execute(_SQL["delete"], parameters)
    await connection.execute(_SQL["delete_documents"], parameters)
    for layout in layouts:
        await connection.execute(bands.delete_all(layout), parameters)
    return deleted.rowcount == 1
