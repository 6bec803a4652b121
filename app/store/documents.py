"""Documents: how they are written, read and deleted."""

import random
from dataclasses import dataclass

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import TupleRow, class_row
from psycopg.types.json import Jsonb

from app.core.model import Collection, Document, Metadata, Outcome, StoredLayout
from app.core.scheme import Digest
from app.store import bands, collections, layouts
from app.store.database import StaleCatalogError
from app.store.named_sql import load

_SQL = load("documents.sql")

# A sample that comes out this many times as large as is wanted is drawn anew, thinner.
_TOO_MANY = 8


@dataclass(frozen=True, slots=True)
class Write:
    """What is to be stored. `metadata` None: a stored document keeps its own."""

    key: str
    digest: Digest
    text: str | None
    metadata: Metadata | None


@dataclass(frozen=True, slots=True)
class QueuedWrite:
    """Statements under way in a pipeline, whose answers are still to be read."""

    _digest: Digest
    _expected_layouts: list[int]
    _guard: AsyncCursor[TupleRow]
    _upsert: AsyncCursor[TupleRow]
    _document: AsyncCursor[Document]

    async def result(self) -> tuple[Outcome, Document]:
        """Raises StaleCatalogError where the write relied on what isn't true any more: roll back."""
        if await self._guard.fetchone() != (self._expected_layouts, True):
            raise StaleCatalogError
        upserted = await self._upsert.fetchone()
        document = await self._document.fetchone()
        if document is None:  # unchanged when it was seen, which locks nothing, and deleted since
            raise StaleCatalogError
        if upserted is None:
            if (document.simhash, document.content_hash) != (self._digest.simhash, self._digest.content_hash):
                raise StaleCatalogError  # it was the same; another client has replaced it since
            return Outcome.UNCHANGED, document
        return Outcome.CREATED if upserted[0] else Outcome.REPLACED, document


async def queue_write(
    connection: AsyncConnection, collection: Collection, live: tuple[StoredLayout, ...], write: Write
) -> QueuedWrite:
    """Sends a write inside the pipeline and the transaction of `connection`.

    The lock comes first, and what the write relies on is read by a statement of its own: only its snapshot is younger
    than the lock. `live` is what the caller remembers; QueuedWrite.result tells whether it is still so.
    """
    identity = {"collection_id": collection.id, "key": write.key}
    await connection.execute(
        _SQL["lock"],
        {"layouts": layouts.LOCK, "collections": collections.LOCK_CLASS, "collection_id": collection.id},
    )
    guard = await connection.execute(_SQL["guard"], {"collection_id": collection.id})
    upsert = await connection.execute(
        _SQL["upsert"],
        {
            **identity,
            "content_hash": write.digest.content_hash,
            "simhash": write.digest.simhash,
            "bits": collection.scheme.bits,
            "words": write.digest.words,
            "text": write.text if collection.store_text else None,
            "metadata": None if write.metadata is None else Jsonb(write.metadata),
        },
    )
    if write.digest.simhash is not None:
        for layout in live:
            await connection.execute(
                bands.insert(layout), {"collection_id": collection.id, "simhash": write.digest.simhash}
            )
    document = await connection.cursor(row_factory=class_row(Document)).execute(_SQL["get"], identity)
    return QueuedWrite(write.digest, [layout.id for layout in live], guard, upsert, document)


async def get(connection: AsyncConnection, collection_id: int, key: str) -> Document | None:
    cursor = connection.cursor(row_factory=class_row(Document))
    return await (await cursor.execute(_SQL["get"], {"collection_id": collection_id, "key": key})).fetchone()


async def page(connection: AsyncConnection, collection_id: int, after: str, limit: int) -> list[Document]:
    """At most `limit` documents whose keys come after `after`, in bytewise order."""
    cursor = connection.cursor(row_factory=class_row(Document))
    return await (
        await cursor.execute(_SQL["page"], {"collection_id": collection_id, "after": after, "limit": limit})
    ).fetchall()


async def sizes(connection: AsyncConnection) -> dict[int, int]:
    """The number of distinct fingerprints by collection id, the largest first. Reads an index of all documents."""
    return dict(await (await connection.execute(_SQL["sizes"])).fetchall())


async def sample(connection: AsyncConnection, collection_id: int, *, size: int, most: int) -> list[int]:
    """At most `most` distinct fingerprints of a collection of about `size`, chosen at random, in random order.

    Reads an index of the collection: 0.1 s a million documents.
    """
    one_in = 1 << max(0, (size // (2 * most)).bit_length() - 1)  # two to four times as many as are wanted
    while True:
        values = {
            "collection_id": collection_id,
            "seed": random.getrandbits(63),
            "one_in": one_in,
            "limit": _TOO_MANY * most,
        }
        rows = await (await connection.execute(_SQL["sample"], values)).fetchall()
        if len(rows) >= _TOO_MANY * most:
            one_in *= _TOO_MANY  # the size was an estimate, and far too low
        elif len(rows) < most and one_in > 1:
            one_in //= 2
        else:
            return [simhash for (simhash,) in random.sample(rows, min(most, len(rows)))]


async def scan(
    connection: AsyncConnection, collection_id: int, simhash: int, threshold: int, limit: int
) -> list[tuple[str, int, int]]:
    """Key, simhash and distance of the `limit` nearest documents within the threshold: no layout has a part in it."""
    values = {"collection_id": collection_id, "simhash": simhash, "threshold": threshold, "limit": limit}
    return [(row[0], row[1], row[2]) for row in await (await connection.execute(_SQL["scan"], values)).fetchall()]


async def delete(connection: AsyncConnection, collection_id: int, key: str) -> bool:
    """Whether there was such a document. Its fingerprint's row stays: the join to documents hides it."""
    cursor = await connection.execute(_SQL["delete"], {"collection_id": collection_id, "key": key})
    return cursor.rowcount == 1
