"""Documents: how they are written, read and deleted."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import TupleRow, class_row
from psycopg.types.json import Jsonb

from app.core.model import Collection, Document, ExactGroup, Expiring, Exported, Metadata, Outcome, StoredLayout
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
    _guard: "_QueuedGuard"
    _upsert: AsyncCursor[TupleRow]
    _document: AsyncCursor[Document]

    async def result(self) -> tuple[Outcome, Document]:
        """Raises StaleCatalogError where the write relied on what isn't true any more: roll back."""
        await self._guard.require()
        upserted = await self._upsert.fetchone()
        document = await self._document.fetchone()
        if document is None:  # unchanged when it was seen, which locks nothing, and deleted since
            raise StaleCatalogError
        if upserted is None:
            if (document.simhash, document.content_hash) != (self._digest.simhash, self._digest.content_hash):
                raise StaleCatalogError  # it was the same; another client has replaced it since
            return Outcome.UNCHANGED, document
        return Outcome.CREATED if upserted[0] else Outcome.REPLACED, document


@dataclass(frozen=True, slots=True)
class _QueuedGuard:
    """What a write relies on, asked for in a pipeline."""

    _cursor: AsyncCursor[TupleRow]
    _expected: tuple[list[int], list[int]]

    async def require(self) -> None:
        """StaleCatalogError where the layouts or the collection aren't those that the caller remembers."""
        if await self._cursor.fetchone() != self._expected:
            raise StaleCatalogError


async def _queue_guard(
    connection: AsyncConnection, collection: Collection, live: tuple[StoredLayout, ...]
) -> _QueuedGuard:
    """Comes first in the transaction of a write.

    The lock, and then what the write relies on by a statement of its own: only its snapshot is younger than the lock.
    """
    await connection.execute(
        _SQL["lock"],
        {"layouts": layouts.LOCK, "collections": collections.LOCK_CLASS, "collection_id": collection.id},
    )
    guard = await connection.execute(_SQL["guard"], {"collection_id": collection.id})
    return _QueuedGuard(guard, ([layout.id for layout in live], [collection.ttl or 0]))


def _seen_seconds(collection: Collection) -> float | None:
    """After so many seconds it is noted that a document was seen again; None where nobody wants to know."""
    return None if collection.ttl is None else collection.ttl * collections.SEEN_SHARE


async def queue_write(
    connection: AsyncConnection, collection: Collection, live: tuple[StoredLayout, ...], write: Write
) -> QueuedWrite:
    """Sends a write inside the pipeline and the transaction of `connection`.

    `live` is what the caller remembers; QueuedWrite.result tells whether it is still so.
    """
    identity = {"collection_id": collection.id, "key": write.key}
    guard = await _queue_guard(connection, collection, live)
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
    if (seen_seconds := _seen_seconds(collection)) is not None:
        await connection.execute(_SQL["touch"], {**identity, "seen_seconds": seen_seconds})
    if write.digest.simhash is not None:
        for layout in live:
            await connection.execute(
                bands.insert(layout), {"collection_id": collection.id, "simhash": write.digest.simhash}
            )
    document = await connection.cursor(row_factory=class_row(Document)).execute(_SQL["get"], identity)
    return QueuedWrite(write.digest, guard, upsert, document)


async def write_many(
    connection: AsyncConnection,
    collection: Collection,
    live: tuple[StoredLayout, ...],
    layers: Sequence[Sequence[Write]],
) -> list[list[Outcome]]:
    """Writes documents inside the transaction of `connection`, a layer after the other; what became of each.

    The keys of a layer differ, and the first one has all of them: it locks them in their order, and at the end all
    fingerprints are written in theirs. So writers that overlap wait for one another, and never both ways.
    StaleCatalogError as above.
    """
    async with connection.pipeline():
        guard = await _queue_guard(connection, collection, live)
        await guard.require()
    outcomes: list[list[Outcome]] = []
    simhashes: set[int] = set()
    for layer in layers:
        outcomes.append(await _write_layer(connection, collection, layer))
        simhashes |= {
            write.digest.simhash
            for write, outcome in zip(layer, outcomes[-1], strict=True)
            if outcome is not Outcome.UNCHANGED and write.digest.simhash is not None
        }
    if simhashes:
        values = {"collection_id": collection.id, "simhashes": sorted(simhashes)}
        async with connection.pipeline():
            for layout in live:
                await connection.execute(bands.insert_many(layout), values)
    return outcomes


async def _write_layer(connection: AsyncConnection, collection: Collection, writes: Sequence[Write]) -> list[Outcome]:
    """The documents alone."""
    ordered = sorted(writes, key=lambda write: write.key)  # code points order as the bytes of UTF-8 do
    inserted = await connection.execute(_SQL["insert_many"], _columns(collection, ordered))
    created = {key for (key,) in await inserted.fetchall()}
    differs: dict[str, bool] = {}
    if stored := [write for write in ordered if write.key not in created]:
        compared = await connection.execute(_SQL["compare_many"], _columns(collection, stored))
        differs = dict(await compared.fetchall())
    if changed := [write for write in stored if differs.get(write.key)]:
        await connection.execute(_SQL["update_many"], _columns(collection, changed))
    if seen := [key for key, its in differs.items() if not its]:
        await connection.execute(_SQL["touch_many"], {"collection_id": collection.id, "keys": seen})
    return [_outcome(is_new=write.key in created, differs=differs.get(write.key, False)) for write in writes]


def _outcome(*, is_new: bool, differs: bool) -> Outcome:
    if is_new:
        return Outcome.CREATED
    return Outcome.REPLACED if differs else Outcome.UNCHANGED


def _columns(collection: Collection, writes: Sequence[Write]) -> dict[str, Any]:
    """One array a column."""
    return {
        "collection_id": collection.id,
        "bits": collection.scheme.bits,
        "seen_seconds": _seen_seconds(collection),
        "keys": [write.key for write in writes],
        "content_hashes": [write.digest.content_hash for write in writes],
        "simhashes": [write.digest.simhash for write in writes],
        "words": [write.digest.words for write in writes],
        "texts": [write.text if collection.store_text else None for write in writes],
        "texts_without_hash": [
            write.text if collection.store_text and write.digest.content_hash is None else None for write in writes
        ],
        "with_text": [write.text is not None and collection.store_text for write in writes],
        "metadata": [None if write.metadata is None else Jsonb(write.metadata) for write in writes],
    }


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


async def delete_many(connection: AsyncConnection, collection_id: int, keys: Sequence[str]) -> int:
    """How many of these documents there were."""
    values = {"collection_id": collection_id, "keys": list(keys)}
    return (await connection.execute(_SQL["delete_many"], values)).rowcount


async def delete_next(
    connection: AsyncConnection, collection_id: int, after: str, *, size: int, expiring: Expiring | None = None
) -> tuple[str | None, int]:
    """Of the `size` documents after a key, in key order, deletes those that expire, or all.

    The last key of the `size`, None where there are none; and how many were deleted.
    """
    values = {
        "collection_id": collection_id,
        "after": after,
        "size": size,
        "ttl": None if expiring is None else expiring.ttl,
        "seen_before": None if expiring is None else expiring.seen_before,
    }
    row = await (await connection.execute(_SQL["delete_next"], values)).fetchone()
    assert row is not None  # noqa: S101  one row always
    return row[0], row[1]


async def digests(
    connection: AsyncConnection, collection_id: int, keys: Sequence[str], *, of_texts: bool = False
) -> dict[str, Digest]:
    """What is known of those of the documents that there are, by key; or of those alone whose texts are stored."""
    values = {"collection_id": collection_id, "keys": list(keys), "of_texts": of_texts}
    rows = await (await connection.execute(_SQL["digests"], values)).fetchall()
    return {key: Digest(*digest) for key, *digest in rows}


async def export(
    connection: AsyncConnection, collection_id: int, after: str, *, limit: int, most_bytes: int, with_text: bool
) -> list[Exported]:
    """The next documents after a key, in bytewise order: at most `limit`, and of about `most_bytes` together."""
    values = {
        "collection_id": collection_id,
        "after": after,
        "limit": limit,
        "bytes": most_bytes,
        "with_text": with_text,
    }
    rows = await (await connection.execute(_SQL["export"], values)).fetchall()
    return [Exported(key, Digest(*digest), metadata, text) for key, *digest, metadata, text in rows]


async def exact_groups(
    connection: AsyncConnection, collection_id: int, *, after: tuple[int, bytes], limit: int, keys: int
) -> list[ExactGroup]:
    """Contents that several documents share, those that most have first, each with at most so many keys.

    `after`: number of documents and content hash of the last one before. Reads an index of the collection.
    """
    documents, content_hash = after
    values = {
        "collection_id": collection_id,
        "documents": documents,
        "content_hash": content_hash,
        "limit": limit,
        "keys": keys,
    }
    rows = await (await connection.execute(_SQL["exact_groups"], values)).fetchall()
    return [ExactGroup(*row) for row in rows]


async def keys_of_content(
    connection: AsyncConnection, collection_id: int, content_hash: bytes, *, after: str, limit: int
) -> list[str]:
    """At most `limit` keys after one, of the documents with this content."""
    values = {"collection_id": collection_id, "content_hash": content_hash, "after": after, "limit": limit}
    return [row[0] for row in await (await connection.execute(_SQL["keys_of_content"], values)).fetchall()]
