"""Collections: their rows."""

from datetime import datetime

from psycopg import AsyncConnection
from psycopg.rows import class_row, kwargs_row

from app.core.model import Collection, CollectionCounts, Expiring
from app.core.scheme import Scheme
from app.store.named_sql import load

_SQL = load("collections.sql")

# How much of its ttl may pass until it is noted that a document was seen again, and until the documents are looked
# through again. So a document may stay this much longer; it never goes earlier.
SEEN_SHARE = 1 / 16

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
    ttl: int | None,
    created_at: datetime,
) -> Collection:
    return Collection(id, name, Scheme(tokenizer, shingle_size, bits, min_words), store_text, ttl, created_at)


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


async def create(
    connection: AsyncConnection, name: str, scheme: Scheme, *, store_text: bool, ttl: int | None
) -> Collection | None:
    """The new collection; None where the name is taken."""
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    parameters = {
        "name": name,
        "tokenizer": scheme.tokenizer,
        "shingle_size": scheme.shingle_size,
        "bits": scheme.bits,
        "min_words": scheme.min_words,
        "store_text": store_text,
        "ttl": ttl,
    }
    return await (await cursor.execute(_SQL["create"], parameters)).fetchone()


async def last_id(connection: AsyncConnection) -> int:
    """The highest that documents may have, 0 where there is none."""
    row = await (await connection.execute(_SQL["last_id"])).fetchone()
    assert row is not None  # noqa: S101  an aggregate without GROUP BY is one row
    return int(row[0])


async def count(connection: AsyncConnection, collection_id: int) -> CollectionCounts | None:
    """Exact counts, of one snapshot; None where the collection is gone. Reads two of its indexes from end to end."""
    cursor = connection.cursor(row_factory=class_row(CollectionCounts))
    return await (await cursor.execute(_SQL["count"], {"id": collection_id})).fetchone()


async def lock(connection: AsyncConnection, collection_id: int) -> None:
    """Until the transaction ends: no write to the collection is under way, and none begins."""
    await connection.execute(_SQL["lock"], {"class": LOCK_CLASS, "id": collection_id})


async def lock_shared(connection: AsyncConnection, collection_id: int) -> None:
    """Until the transaction ends the collection isn't deleted, if it is there after this."""
    await connection.execute(_SQL["lock_shared"], {"class": LOCK_CLASS, "id": collection_id})


async def delete(connection: AsyncConnection, collection_id: int) -> bool:
    """Deletes the collection; False where it is gone already. Call `lock` before.

    Nobody finds what it held any more; Housekeeping takes that away.
    """
    return (await connection.execute(_SQL["delete"], {"id": collection_id})).rowcount == 1


async def set_ttl(connection: AsyncConnection, collection_id: int, ttl: int | None) -> Collection | None:
    """None where the collection is gone. Documents count as seen in this moment at least."""
    cursor = connection.cursor(row_factory=kwargs_row(_collection))
    return await (await cursor.execute(_SQL["set_ttl"], {"id": collection_id, "ttl": ttl})).fetchone()


async def deleted(connection: AsyncConnection) -> list[int]:
    """The ids of collections that were deleted and aren't purged."""
    return [row[0] for row in await (await connection.execute(_SQL["deleted"])).fetchall()]


async def lock_deleted(connection: AsyncConnection, collection_id: int) -> bool:
    """Until the transaction ends nobody else purges it; False where somebody does, or has."""
    return (await connection.execute(_SQL["lock_deleted"], {"id": collection_id})).rowcount == 1


async def forget_deleted(connection: AsyncConnection, collection_id: int) -> None:
    """Nothing is left of it."""
    await connection.execute(_SQL["forget_deleted"], {"id": collection_id})


async def begin_expiry(connection: AsyncConnection) -> Expiring | None:
    """A collection whose documents are due to be looked through, which is noted; None where there is none."""
    values = {"share": SEEN_SHARE}
    return await (
        await connection.cursor(row_factory=class_row(Expiring)).execute(_SQL["begin_expiry"], values)
    ).fetchone()
