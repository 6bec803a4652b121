"""Analyses: what they read in one snapshot, and what they find."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from app.core.fingerprint import MAX_SIMHASH, MIN_SIMHASH
from app.core.model import (
    Change,
    Cluster,
    Difference,
    Document,
    Json,
    Member,
    Preference,
    SharedFingerprint,
    WithoutFingerprint,
)
from app.store.named_sql import load

_SQL = load("analyses.sql")

_ORDERS = {
    Preference.OLDEST: b"created_at, key",
    Preference.LONGEST: b"words DESC NULLS LAST, key",
    Preference.SHORTEST_KEY: b"length(key), key",
    Preference.FIRST_KEY: b"key",
}
_RANKING = {each: _SQL["ranking"].replace(b"{order}", order) for each, order in _ORDERS.items()}
_PREFERRED = {each: _SQL["preferred"].replace(b"{order}", order) for each, order in _ORDERS.items()}

# Fingerprints, read in one go: a megabyte.
_READ = 100_000
_COUNTED = np.dtype([("simhash", ">i8"), ("documents", ">i4")])
_KNOWN = np.dtype("<i8")
_NUMBER = np.dtype("<u4")  # two a pair
_PAIR_BYTES = 2 * _NUMBER.itemsize
# Bytes of a row of analysis_block: a whole number of items of either kind.
_BLOCK_BYTES = 1 << 16
_PURGED = 10_000
# Temporary tables of documents whose key only the later, or only the earlier collection has.
_SET_APART = ("arrived", "left_behind")


@dataclass(frozen=True, slots=True)
class Others:
    """What there is beside the fingerprints: documents without one, and documents of the same content."""

    too_short: int
    exact_groups: int
    exact_duplicated: int


@dataclass(frozen=True, slots=True)
class Base:
    """An earlier analysis. `pairs`: how many it has found."""

    id: int
    pairs: int


async def moment(connection: AsyncConnection) -> datetime:
    """Of the snapshot, in a transaction that has just begun."""
    row = await (await connection.execute(_SQL["moment"])).fetchone()
    assert row is not None  # noqa: S101  one row always
    return row[0]


async def fingerprints(
    connection: AsyncConnection, collection_id: int
) -> AsyncGenerator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """The distinct fingerprints of a collection in ascending order, and how many documents have each; in parts."""
    start = MIN_SIMHASH
    while True:
        values = {"collection_id": collection_id, "start": start, "limit": _READ}
        row = await (await connection.execute(_SQL["fingerprints"], values, binary=True)).fetchone()
        assert row is not None  # noqa: S101  an aggregate
        part = np.frombuffer(row[0], _COUNTED)
        if len(part):
            yield part["simhash"].astype(np.int64), part["documents"].astype(np.int32)
        if len(part) < _READ or part["simhash"][-1] == MAX_SIMHASH:
            return
        start = int(part["simhash"][-1]) + 1


async def others(connection: AsyncConnection, collection_id: int) -> Others:
    row = await (await connection.execute(_SQL["others"], {"collection_id": collection_id})).fetchone()
    assert row is not None  # noqa: S101  an aggregate
    return Others(*row)


async def count_documents(connection: AsyncConnection, collection_id: int) -> int:
    row = await (await connection.execute(_SQL["documents"], {"collection_id": collection_id})).fetchone()
    assert row is not None  # noqa: S101  an aggregate
    return row[0]


async def ranking(
    connection: AsyncConnection, collection_id: int, simhashes: NDArray[np.int64], preference: Preference
) -> NDArray[np.int64]:
    """The rank of each fingerprint, from 0, by the best of its documents: the best one has the lowest."""
    values = {"collection_id": collection_id, "simhashes": simhashes}
    row = await (await connection.execute(_RANKING[preference], values, binary=True)).fetchone()
    assert row is not None  # noqa: S101  an aggregate
    order = np.frombuffer(row[0], ">i4")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


async def preferred(
    connection: AsyncConnection, collection_id: int, simhashes: NDArray[np.int64], preference: Preference
) -> list[str]:
    """The key of the best document of each fingerprint."""
    values = {"collection_id": collection_id, "simhashes": simhashes}
    return [row[0] for row in await (await connection.execute(_PREFERRED[preference], values)).fetchall()]


async def add(
    connection: AsyncConnection,
    analysis_id: int,
    *,
    collection_id: int,
    against_id: int | None,
    threshold: int,
    moment: datetime,
    result: Mapping[str, Json],
) -> None:
    values = {
        "id": analysis_id,
        "collection_id": collection_id,
        "against_id": against_id,
        "threshold": threshold,
        "moment": moment,
        "result": Jsonb(dict(result)),
    }
    await connection.execute(_SQL["add"], values)


async def add_fingerprints(
    connection: AsyncConnection, analysis_id: int, first_number: int, columns: Mapping[str, NDArray[Any]]
) -> None:
    """Some fingerprints, numbered from `first_number` on. `columns`: simhash, cluster, distance, nearest, documents."""
    size = len(columns["simhash"])
    given = {
        "analysis_id": np.full(size, analysis_id, np.int32),
        "number": np.arange(first_number, first_number + size, dtype=np.int32),
    } | dict(columns)
    types = {"simhash": ">i8", "distance": ">i2", "nearest": ">i2"}
    # PostgreSQL's binary format: the number of columns, then each one's length and value; all big-endian.
    fields = [("columns", ">i2")]
    for name in given:
        fields += [(f"{name}_length", ">i4"), (name, types.get(name, ">i4"))]
    rows = np.empty(size, np.dtype(fields))
    rows["columns"] = len(given)
    for name, values in given.items():
        rows[name] = values
        rows[f"{name}_length"] = rows.dtype[name].itemsize
    statement = f"COPY analysis_fingerprint ({', '.join(given)}) FROM STDIN (FORMAT BINARY)"
    async with connection.cursor().copy(statement.encode()) as copy:
        await copy.write(b"PGCOPY\n\xff\r\n\x00" + bytes(8) + rows.tobytes() + b"\xff\xff")


async def add_clusters(
    connection: AsyncConnection, analysis_id: int, clusters: Sequence[tuple[int, int, int, int, int, bool, str]]
) -> None:
    """Of each its number, first fingerprint, fingerprints, documents, diameter, whether exact, and representative."""
    statement = (
        b"COPY analysis_cluster (analysis_id, number, first, fingerprints, documents, diameter, diameter_is_exact,"
        b" representative) FROM STDIN"
    )
    async with connection.cursor().copy(statement) as copy:
        for cluster in clusters:
            await copy.write_row((analysis_id, *cluster))


async def add_pairs(connection: AsyncConnection, analysis_id: int, pairs: NDArray[np.uint32]) -> None:
    """Pairs of numbers of fingerprints, in their order, a row each."""
    await _add_blocks(connection, analysis_id, "pairs", pairs.astype(_NUMBER, copy=False), _PAIR_BYTES)


async def add_known_fingerprints(connection: AsyncConnection, analysis_id: int, simhashes: NDArray[np.int64]) -> None:
    """All distinct fingerprints of the collection, in ascending order."""
    await _add_blocks(connection, analysis_id, "fingerprints", simhashes.astype(_KNOWN, copy=False), _KNOWN.itemsize)


async def _add_blocks(
    connection: AsyncConnection, analysis_id: int, kind: str, items: NDArray[Any], item_bytes: int
) -> None:
    size = _BLOCK_BYTES // item_bytes
    for number, start in enumerate(range(0, len(items), size)):
        values = {"id": analysis_id, "kind": kind, "number": number, "numbers": items[start : start + size].tobytes()}
        await connection.execute(_SQL["add_block"], values)


async def finished(connection: AsyncConnection, analysis_id: int) -> dict[str, Json] | None:
    """What was found by a run that was broken off before its operation ended; None where there is none."""
    row = await (await connection.execute(_SQL["finished"], {"id": analysis_id})).fetchone()
    return None if row is None else row[0]


async def base(connection: AsyncConnection, collection_id: int, threshold: int) -> Base | None:
    """The latest analysis that has found all pairs within the threshold."""
    values = {"collection_id": collection_id, "threshold": threshold}
    row = await (await connection.execute(_SQL["base"], values)).fetchone()
    return None if row is None else Base(*row)


async def numbered(connection: AsyncConnection, analysis_id: int) -> NDArray[np.int64]:
    """The fingerprints in clusters, in the order of their numbers."""
    row = await (await connection.execute(_SQL["numbered"], {"id": analysis_id}, binary=True)).fetchone()
    assert row is not None  # noqa: S101  an aggregate
    return np.frombuffer(row[0], ">i8").astype(np.int64)


async def known_fingerprints(connection: AsyncConnection, analysis_id: int) -> NDArray[np.int64]:
    """All distinct fingerprints that the collection had, in ascending order."""
    values = {"id": analysis_id, "kind": "fingerprints", "number": 0, "limit": None}
    rows = await (await connection.execute(_SQL["blocks"], values, binary=True)).fetchall()
    return np.frombuffer(b"".join(numbers for _, numbers in rows), _KNOWN).astype(np.int64)


async def pairs(connection: AsyncConnection, analysis_id: int, *, start: int, limit: int) -> NDArray[np.uint32]:
    """At most `limit` pairs of numbers of fingerprints from the `start`-th on, a row each."""
    size = _BLOCK_BYTES // _PAIR_BYTES
    first = start // size
    values = {
        "id": analysis_id,
        "kind": "pairs",
        "number": first,
        "limit": (start + limit - 1) // size - first + 1,
    }
    rows = await (await connection.execute(_SQL["blocks"], values, binary=True)).fetchall()
    numbers = np.frombuffer(b"".join(numbers for _, numbers in rows), _NUMBER)
    return numbers.reshape(-1, 2)[start - first * size :][:limit]


@dataclass(frozen=True, slots=True)
class Near:
    """Fingerprints that have a neighbour elsewhere: the nearest one, and how far it is."""

    simhashes: NDArray[np.int64]
    others: NDArray[np.int64]
    distances: NDArray[np.int16]

    @property
    def values(self) -> dict[str, NDArray[Any]]:
        return {"simhashes": self.simhashes, "others": self.others, "distances": self.distances}


async def add_same_keys(
    connection: AsyncConnection, analysis_id: int, *, collection_id: int, against_id: int, threshold: int
) -> None:
    """Documents whose key both collections have, with another content."""
    values = {"id": analysis_id, "collection_id": collection_id, "against_id": against_id, "threshold": threshold}
    await connection.execute(_SQL["add_same_keys"], values)


async def set_apart(connection: AsyncConnection, *, collection_id: int, against_id: int) -> None:
    """Documents whose key only one of the collections has, for the statements below, until the transaction ends."""
    for name in _SET_APART:
        await connection.execute(_SQL[name], {"collection_id": collection_id, "against_id": against_id})


async def add_moved(connection: AsyncConnection, analysis_id: int, near: Near | None = None) -> None:
    """Documents that have arrived with the content of one that was left behind; `near`: or with something near it.

    One that has moved, and what it was, is set apart no more.
    """
    values = {"id": analysis_id}
    if near is None:
        await connection.execute(_SQL["add_moved"], values)
    else:
        await connection.execute(_SQL["add_nearly_moved"], values | near.values)
    for name in _SET_APART:
        await connection.execute(_SQL[f"remove_moved_from_{name}"], values)


async def fingerprints_set_apart(
    connection: AsyncConnection,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct fingerprints that have arrived, and those that were left behind, in ascending order."""
    found: list[NDArray[np.int64]] = []
    for table in _SET_APART:
        row = await (await connection.execute(_of_set_apart("fingerprints_set_apart", table), binary=True)).fetchone()
        assert row is not None  # noqa: S101  an aggregate
        found.append(np.frombuffer(row[0], ">i8").astype(np.int64))
    arrived, left_behind = found
    return arrived, left_behind


def _of_set_apart(name: str, table: str) -> bytes:
    return _SQL[name].replace(b"{set_apart}", table.encode())


async def add_new_and_gone(
    connection: AsyncConnection,
    analysis_id: int,
    *,
    collection_id: int,
    against_id: int,
    near_new: Near,
    near_old: Near,
) -> dict[tuple[Change, int | None], int]:
    """All that is still set apart; then how many documents there are of each change, by distance.

    `near_new`: fingerprints of the later collection alone, with the nearest of the earlier; `near_old`: the reverse.
    """
    remaining = ((Change.NEW, against_id, near_new), (Change.GONE, collection_id, near_old))
    for table, (change, among_id, near) in zip(_SET_APART, remaining, strict=True):
        values = {"id": analysis_id, "status": change, "among_id": among_id} | near.values
        await connection.execute(_of_set_apart("add_set_apart", table), values)
    rows = await (await connection.execute(_SQL["count_differences"], {"id": analysis_id})).fetchall()
    return {(Change(status), distance): count for status, distance, count in rows}


async def latest(connection: AsyncConnection, collection_id: int) -> int | None:
    """The id of the latest analysis of a collection."""
    row = await (await connection.execute(_SQL["latest"], {"collection_id": collection_id})).fetchone()
    return None if row is None else row[0]


async def clusters(
    connection: AsyncConnection, analysis_id: int, *, after: int, limit: int, most_members: int
) -> list[Cluster]:
    """At most `limit` clusters with numbers over `after`, each with at most so many members."""
    values = {"id": analysis_id, "after": after, "limit": limit, "members": most_members}
    rows = await (await connection.execute(_SQL["clusters"], values)).fetchall()
    found: list[Cluster] = []
    for number, fingerprints, documents, diameter, is_exact, representative, *listed in rows:
        # Where all its documents have gone since, the outer join leaves one without a key.
        members = [each for each in zip(*listed, strict=True) if each[0] is not None]
        found.append(Cluster(number, fingerprints, documents, diameter, is_exact, representative, members))
    return found


async def cluster_range(connection: AsyncConnection, analysis_id: int, number: int) -> tuple[int, int] | None:
    """The first number of the fingerprints of a cluster, and the one behind the last; None where there is no such."""
    row = await (await connection.execute(_SQL["cluster"], {"id": analysis_id, "number": number})).fetchone()
    return None if row is None else (row[0], row[0] + row[1])


async def members(
    connection: AsyncConnection, analysis_id: int, *, number: int, after: str, end: int, limit: int
) -> list[Member]:
    """The next documents of fingerprints with numbers under `end`, after a key of one of them."""
    values = {"id": analysis_id, "number": number, "after": after, "end": end, "limit": limit}
    return await (await connection.cursor(row_factory=class_row(Member)).execute(_SQL["members"], values)).fetchall()


async def without_fingerprint(
    connection: AsyncConnection, analysis_id: int, *, after: str, limit: int
) -> list[WithoutFingerprint]:
    """The next documents without a fingerprint that share their content with another one."""
    values = {"id": analysis_id, "after": after, "limit": limit}
    rows = await (await connection.execute(_SQL["without_fingerprint"], values)).fetchall()
    return [WithoutFingerprint(*row) for row in rows]


async def described(
    connection: AsyncConnection, analysis_id: int, numbers: Sequence[int], *, keys: int
) -> dict[int, SharedFingerprint]:
    """Fingerprints by their numbers, with at most so many keys each."""
    values = {"id": analysis_id, "numbers": list(numbers), "keys": keys}
    rows = await (await connection.execute(_SQL["described"], values)).fetchall()
    return {number: SharedFingerprint(*described) for number, *described in rows}


async def differences(
    connection: AsyncConnection, analysis_id: int, *, change: Change | None, after: str, limit: int
) -> list[Difference]:
    """The next documents with this change; None: with any but `unchanged`."""
    values = {"id": analysis_id, "after": after, "status": change, "limit": limit}
    statement = _SQL["unchanged" if change is Change.UNCHANGED else "differences"]
    rows = await (await connection.execute(statement, values)).fetchall()
    return [Difference(key, Change(status), distance, counterpart) for key, status, distance, counterpart in rows]


async def flagged(
    connection: AsyncConnection,
    analysis_id: int,
    collection_id: int,
    *,
    is_flagged: bool,
    after: str,
    read: int,
    limit: int,
) -> tuple[list[Document], str | None]:
    """Of the next `read` documents at most `limit` that are flagged, or aren't; after which key the next part begins.

    None: there are no more documents.
    """
    values = {
        "id": analysis_id,
        "collection_id": collection_id,
        "flagged": is_flagged,
        "after": after,
        "read": read,
        "limit": limit,
    }
    found = await (await connection.cursor(row_factory=class_row(Document)).execute(_SQL["flagged"], values)).fetchall()
    if len(found) == limit:
        return found, found[-1].key
    row = await (await connection.execute(_SQL["after"], values)).fetchone()
    return found, None if row is None else row[0]


async def orphans(connection: AsyncConnection) -> list[int]:
    """The ids of analyses whose results nobody can ask for any more."""
    return [row[0] for row in await (await connection.execute(_SQL["orphans"])).fetchall()]


async def purge_some(connection: AsyncConnection, analysis_id: int) -> bool:
    """Deletes some of an orphan in the transaction of `connection`; False where it is gone, or another does it."""
    values = {"id": analysis_id, "limit": _PURGED}
    if (await connection.execute(_SQL["lock_orphan"], values)).rowcount != 1:
        return False
    for part in ("purge_fingerprints", "purge_clusters", "purge_differences", "purge_blocks"):
        if (await connection.execute(_SQL[part], values)).rowcount:
            return True
    await connection.execute(_SQL["forget"], values)
    return False
