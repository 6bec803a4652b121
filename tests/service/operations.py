"""How the tests work on operations themselves, step by step, and what the bands must be like before and after."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from random import Random

import anyio
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus

from app.core.layout import cut
from app.core.model import Json, Operation, OperationKind, OperationStatus, Outcome, StoredLayout
from app.runtime import Process, Services, process
from app.service.analysis import Analysis
from app.service.audit import Audit
from app.service.comparison import Comparison
from app.service.documents import NewDocument
from app.service.fingerprinting import Simhash
from app.service.near_duplicates import Options
from app.service.operator import Operator, Progress
from app.service.rebuild import Rebuild
from app.settings import Settings
from app.store import layouts
from tests.store.brute_force import SMALLEST, Stored, assert_right, nearest, planted, signed, uniform, within
from tests.store.databases import create_collection
from tests.store.waiting import until

LIMIT = 1000
SECONDS = 30

# In the order in which a rebuild goes through them; from the moment in which it waits it can't be canceled.
BEFORE_THE_SWITCH = ("planning", "creating", "copying", "indexing", "vacuuming", "verifying", "switching")
PHASES = (*BEFORE_THE_SWITCH, "waiting", "dropping")


# Working on operations


@dataclass(frozen=True)
class Moment:
    """What an operation is about to tell, or has told, of itself."""

    phase: str
    done: int = 0
    told: bool = True
    in_transaction: bool = False


At = Callable[[Moment], Awaitable[None]]


async def go_on(_: Moment) -> None:
    """For whoever wants nothing of an operation but its end."""


# Moments that are no report: the operation has done its work, or has removed what it made, and its row doesn't say so.
WORK_DONE = Moment("dropping", done=1, told=False)
UNDOING = Moment("undoing", told=False)
UNDONE = Moment("undoing")


class WatchedProgress(Progress):
    """Lets a test do what it likes around each report, in the task and in the transaction of the operation."""

    def __init__(self, session: AsyncConnection, operation: Operation, at: At) -> None:
        super().__init__(session, operation)
        self._session_of_ours = session
        self._at = at

    async def report(self, phase: str, *, done: int = 0, total: int | None = None) -> None:
        in_transaction = self._session_of_ours.info.transaction_status == TransactionStatus.INTRANS
        moment = Moment(phase, done, told=False, in_transaction=in_transaction)
        await self._at(moment)
        await super().report(phase, done=done, total=total)
        await self._at(replace(moment, told=True))


class WatchedRebuild(Rebuild):
    def __init__(self, session: AsyncConnection, operation: Operation, settings: Settings, at: At) -> None:
        super().__init__(session, operation, WatchedProgress(session, operation, at), settings)
        self._at = at
        self._runs = False

    async def run(self) -> dict[str, Json]:
        self._runs = True
        try:
            result = await super().run()
            await self._at(WORK_DONE)
            return result
        finally:
            self._runs = False

    async def undo(self) -> None:
        if self._runs:  # one that begins cleans up as well
            await super().undo()
            return
        await self._at(UNDOING)
        await super().undo()
        await self._at(UNDONE)


class Worker:
    """Works on the operations that a test hands it, as a process does that the queue gives them to."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.services: Services = process.services

    async def perform(self, operation_id: int, at: At = go_on) -> None:
        def rebuild(session: AsyncConnection, operation: Operation, _: Progress) -> Rebuild:
            return WatchedRebuild(session, operation, self.process.settings, at)

        def audit(session: AsyncConnection, operation: Operation, _: Progress) -> Audit:
            return Audit(session, operation, WatchedProgress(session, operation, at))

        def analysis(session: AsyncConnection, operation: Operation, _: Progress) -> Analysis | Comparison:
            kind = Comparison if "against" in operation.parameters else Analysis
            progress = WatchedProgress(session, operation, at)
            return kind(self.process.conninfo, self.process.settings, session, operation, progress)

        kinds = {OperationKind.REBUILD: rebuild, OperationKind.AUDIT: audit, OperationKind.ANALYSIS: analysis}
        operator = Operator(self.process.conninfo, self.process.settings, self.process.database, kinds)
        with anyio.fail_after(2 * SECONDS):
            await operator.perform(operation_id)

    @asynccontextmanager
    async def performing(self, operation_id: int, at: At = go_on) -> AsyncGenerator[asyncio.Task[None]]:
        """Works beside the body; what is under way at its end is broken off."""
        task = asyncio.create_task(self.perform(operation_id, at))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def begin(self, threshold: int = 3, bands: int | None = 8, *, force: bool = False) -> int:
        return (await self.begin_with(rebuild_of(threshold, bands, force=force))).id

    async def begin_with(self, parameters: dict[str, Json], idempotency_key: str | None = None) -> Operation:
        return await self.services.operations.begin(OperationKind.REBUILD, parameters, idempotency_key=idempotency_key)

    async def rebuild(
        self, threshold: int = 3, bands: int | None = 8, *, force: bool = False, at: At = go_on
    ) -> Operation:
        """A rebuild as it ended."""
        operation_id = await self.begin(threshold, bands, force=force)
        await self.perform(operation_id, at)
        return await self.get(operation_id)

    async def audit(self, sample: int = 100, threshold: int | None = None, at: At = go_on) -> Operation:
        """An audit as it ended."""
        operation_id = await self.begin_audit(sample, threshold)
        await self.perform(operation_id, at)
        return await self.get(operation_id, OperationKind.AUDIT)

    async def begin_audit(self, sample: int = 100, threshold: int | None = None) -> int:
        parameters: dict[str, Json] = {"sample": sample, "threshold": threshold}
        operation = await self.services.operations.begin(OperationKind.AUDIT, parameters, idempotency_key=None)
        return operation.id

    async def get(self, operation_id: int, kind: OperationKind = OperationKind.REBUILD) -> Operation:
        return await self.services.operations.get(kind, operation_id)

    async def cancel(self, operation_id: int, kind: OperationKind = OperationKind.REBUILD) -> Operation:
        return await self.services.operations.cancel(kind, operation_id)


def rebuild_of(threshold: int, bands: int | None, *, force: bool = False) -> dict[str, Json]:
    return {"threshold": threshold, "bands": bands, "force": force}


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Worker]:
    """A process."""
    async with process(settings) as parts:
        yield Worker(parts)


class Seen:
    """Remembers the moments of an operation."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    async def __call__(self, moment: Moment) -> None:
        self.moments.append(moment)

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(moment.phase for moment in self.moments))


class Gate:
    """Holds an operation when it comes to this moment first, until it is opened."""

    def __init__(self, phase: str, *, told: bool = True, done: int = 0, in_transaction: bool = False) -> None:
        self._moment = Moment(phase, done, told, in_transaction)
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self, moment: Moment) -> None:
        if moment == self._moment and not self._reached.is_set():
            self._reached.set()
            await self._opened.wait()

    async def reached(self, task: asyncio.Task[None]) -> None:
        """Waits until `task` stands at the gate; it is an error if it ends before."""
        waiting = asyncio.create_task(self._reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS)
        waiting.cancel()
        assert self._reached.is_set(), f"it has not come to {self._moment}"

    def open(self) -> None:
        self._opened.set()


OPERATION_SESSIONS = b"""
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tiroir operation'
"""


def operation_sessions(observer: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in observer.execute(OPERATION_SESSIONS)]


# What is stored


Documents = dict[str, int | None]
"""The fingerprint of each document of a collection, None where it has none; by key."""


@dataclass
class Expected:
    """What the database holds, kept beside it."""

    bits: dict[str, int] = field(default_factory=dict[str, int])
    documents: dict[str, Documents] = field(default_factory=dict[str, Documents])
    queries: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def fingerprints(self) -> set[tuple[str, int]]:
        """Distinct, of all collections."""
        return {
            (name, simhash)
            for name, documents in self.documents.items()
            for simhash in documents.values()
            if simhash is not None
        }

    def stored(self, name: str) -> list[Stored]:
        return [Stored(key, simhash) for key, simhash in self.documents[name].items() if simhash is not None]


ORPHANS = 15
# Several collections hold the fingerprints of others, so that a mistake of a collection doesn't stay unseen.
_COLLECTIONS = {"pages": 63, "wide": 64, "narrow": 8, "twin": 63}


def fill(connection: psycopg.Connection) -> Expected:
    """Collections with pages that stand several times, pages without a fingerprint, and rows that nothing uses."""
    random = Random(11)
    expected = Expected()
    queries = {
        "pages": uniform(random, 2, 63),
        "wide": [*uniform(random, 1, 64), SMALLEST],
        "narrow": [0, 0b10101010],
    }
    queries["twin"] = queries["pages"]
    fingerprints = {
        "pages": [each for query in queries["pages"] for each in planted(random, query, 63)] + uniform(random, 70, 63),
        "wide": [each for query in queries["wide"] for each in planted(random, query, 64)] + uniform(random, 20, 64),
        "narrow": list(range(0, 256, 3)),
    }
    fingerprints["twin"] = fingerprints["pages"][::3]
    for name, bits in _COLLECTIONS.items():
        expected.bits[name] = bits
        expected.queries[name] = queries[name]
        documents: Documents = {
            f"{number} {copy}": simhash
            for number, simhash in enumerate(fingerprints[name])
            for copy in range(4 if number % 9 == 0 else 1)
        }
        documents |= {f"short {number}": None for number in range(3)}
        expected.documents[name] = documents
        collection_id = create_collection(connection, name, bits=bits)
        write(connection, collection_id, bits, documents, uniform(random, ORPHANS, bits))
    return expected


def write(
    connection: psycopg.Connection, collection_id: int, bits: int, documents: Documents, orphans: Iterable[int] = ()
) -> None:
    """The rows that the service would write before anything was rebuilt."""
    with connection.cursor().copy("COPY document (collection_id, key, simhash, bits, metadata) FROM STDIN") as copy:
        for key, simhash in documents.items():
            copy.write_row((collection_id, key, simhash, bits, "{}"))
    with connection.cursor().copy("COPY fingerprint (collection_id, simhash) FROM STDIN") as copy:
        for simhash in {each for each in documents.values() if each is not None} | set(orphans):
            copy.write_row((collection_id, simhash))


# What must be


_TABLES = b"""
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relname LIKE 'fingerprint%'
ORDER BY c.relname
"""
_INVALID = b"SELECT count(*) FROM pg_index WHERE NOT (indisvalid AND indisready AND indislive)"
_INDEXES = b"SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass"


def _value(connection: psycopg.Connection, query: bytes, *parameters: object) -> object:
    row = connection.execute(query, parameters).fetchone()
    assert row
    return row[0]


def tables_of_fingerprints(connection: psycopg.Connection) -> list[str]:
    return [name for (name,) in connection.execute(_TABLES)]


def invalid_indexes(connection: psycopg.Connection) -> int:
    count = _value(connection, _INVALID)
    assert isinstance(count, int)
    return count


def rows_of(connection: psycopg.Connection, table: str) -> list[tuple[str | None, int]]:
    """By the name of the collection, None where it is gone."""
    query = sql.SQL("SELECT c.name, f.simhash FROM {} f LEFT JOIN collection c ON c.id = f.collection_id")
    return [(name, simhash) for name, simhash in connection.execute(query.format(sql.Identifier(table)))]


def assert_only_layout(connection: psycopg.Connection, bands: int, threshold: int) -> str:
    """One layout, one table, and no index that isn't valid or isn't its own. The name of the table."""
    found = connection.execute("SELECT widths, threshold, state, table_name FROM band_layout").fetchall()
    assert [row[:3] for row in found] == [(list(cut(bands).widths), threshold, "active")]
    table = str(found[0][3])
    assert tables_of_fingerprints(connection) == [table]
    assert invalid_indexes(connection) == 0
    assert _value(connection, _INDEXES, table) == bands + 1
    return table


def assert_nothing_was_made(connection: psycopg.Connection) -> None:
    """The bands are those that a new database has, and nothing else is left of a rebuild."""
    assert assert_only_layout(connection, 4, 3) == "fingerprint"


def assert_no_orphans(connection: psycopg.Connection, table: str, expected: Expected) -> None:
    """The table holds what documents use, each once, and nothing else."""
    assert sorted(rows_of(connection, table), key=str) == sorted(expected.fingerprints(), key=str)


async def assert_exact(
    services: Services, expected: Expected, thresholds: Iterable[int] = (0, 3, 8), queries: int = 1
) -> None:
    """Lookups find what comparing all documents finds."""
    for name, documents in expected.documents.items():
        stored = [Stored(key, simhash) for key, simhash in documents.items() if simhash is not None]
        for simhash in expected.queries[name][:queries]:
            everything = nearest(stored, simhash, 64)
            for threshold in thresholds:
                found = await services.near_duplicates.find(
                    name, Simhash(simhash, "/simhash"), Options(threshold, LIMIT), explain=False
                )
                assert_right(found.matches, within(everything, threshold), limit=LIMIT)


async def default_threshold(services: Services, name: str = "pages") -> int:
    found = await services.near_duplicates.find(name, Simhash(0, "/simhash"), Options(None, 1), explain=False)
    return found.matches.threshold


async def assert_rebuilt(
    settings: Settings, connection: psycopg.Connection, expected: Expected, *, bands: int, threshold: int
) -> None:
    """What a rebuild leaves: the bands that were asked for alone, all that documents use, and exact lookups."""
    table = assert_only_layout(connection, bands, threshold)
    assert set(rows_of(connection, table)) >= expected.fingerprints()
    async with process(settings) as fresh:  # one that remembers nothing, and that checks the bands when it starts
        async with fresh.database.connection() as pooled:
            await layouts.require_as_described(pooled, await layouts.active(pooled))
        await assert_exact(fresh.services, expected, thresholds=(0, threshold, 12))
        if expected.documents:
            assert await default_threshold(fresh.services, next(iter(expected.documents))) == threshold


async def active_layout(process: Process) -> StoredLayout:
    async with process.database.connection() as connection:
        return await layouts.active(connection)


# Breaking them off


async def by_the_process(task: asyncio.Task[None], _: psycopg.Connection) -> None:
    """As a process that is stopped breaks off what it works on."""
    task.cancel()


async def by_the_server(_: asyncio.Task[None], observer: psycopg.Connection) -> None:
    """As a server that is stopped, or a network that fails, breaks it off."""
    for pid in operation_sessions(observer):
        observer.execute("SELECT pg_terminate_backend(%s::int)", [pid])
    await until(lambda: not operation_sessions(observer))


BreakOff = Callable[[asyncio.Task[None], psycopg.Connection], Awaitable[None]]
WAYS: dict[str, BreakOff] = {"by_the_process": by_the_process, "by_the_server": by_the_server}


async def broken_off(task: asyncio.Task[None], observer: psycopg.Connection, break_off: BreakOff) -> None:
    """Until nothing of the session is left."""
    await break_off(task, observer)
    await asyncio.wait([task], timeout=SECONDS)
    assert task.cancelled() or task.exception() is None
    await until(lambda: not operation_sessions(observer))


class BrokenOffEverywhere:
    """Breaks an operation off once at each of its moments, before and after its row tells of them."""

    def __init__(self, observer: psycopg.Connection, break_off: BreakOff) -> None:
        self._observer = observer
        self._break_off = break_off
        self._task: asyncio.Task[None] | None = None
        self._broken_off = False
        self.moments: list[Moment] = []

    async def __call__(self, moment: Moment) -> None:
        again = moment in self.moments or (moment.phase == "verifying" and moment.done > 1)
        if again or self._broken_off:  # it may come to the next moment before it uses its session, and notices
            return
        self.moments.append(moment)
        self._broken_off = True
        assert self._task
        await self._break_off(self._task, self._observer)
        if self._task.cancelling():
            await anyio.sleep_forever()

    async def perform(self, worker: Worker, operation_id: int, expected: Expected) -> Operation:
        """Again and again until it is finished."""
        while True:
            before, self._broken_off = len(self.moments), False
            self._task = asyncio.create_task(worker.perform(operation_id, self))
            await asyncio.wait([self._task], timeout=SECONDS)
            assert self._task.cancelled() or self._task.exception() is None
            await until(lambda: not operation_sessions(self._observer))
            operation = await worker.get(operation_id)
            if operation.finished_at is not None:
                return operation
            assert len(self.moments) == operation.runs == before + 1
            assert (operation.status, operation.error) == (OperationStatus.RUNNING, None)
            await assert_exact(worker.services, expected, thresholds=[3])


# While others write


class Traffic:
    """Writes of every kind by processes that remember what they know, and what must be found after them."""

    def __init__(self, expected: Expected, *processes: Services) -> None:
        self._expected = expected
        self._processes = cycle(processes)
        self._random = Random(3)
        self._numbers = count()

    async def __call__(self) -> None:
        """A write of each kind, each by another process."""
        for name, bits in self._expected.bits.items():
            documents = self._expected.documents[name]
            fresh = signed(self._random.getrandbits(bits))
            self._expected.queries[name].append(fresh)
            assert await self._put(name, f"new {next(self._numbers)}", fresh) == Outcome.CREATED
            same, other, gone = self._random.sample(
                [key for key, simhash in documents.items() if simhash is not None], 3
            )
            assert await self._put(name, same, documents[same]) == Outcome.UNCHANGED
            replaced = signed(self._random.getrandbits(bits))
            assert await self._put(name, other, replaced) in (Outcome.REPLACED, Outcome.UNCHANGED)
            await next(self._processes).documents.delete(name, gone)
            del documents[gone]
        await self._delete_a_collection()

    async def _put(self, name: str, key: str, simhash: int | None) -> Outcome:
        assert simhash is not None
        new = NewDocument(key, Simhash(simhash, "/simhash"), None)
        indexed = await next(self._processes).documents.index(name, new, None)
        self._expected.documents[name][key] = simhash
        return indexed.outcome

    async def _delete_a_collection(self) -> None:
        """One that has come since, and a new one comes in its place."""
        documents = self._expected.documents.setdefault("short-lived", {})
        if documents:
            await next(self._processes).collections.delete("short-lived")
            documents.clear()
        for number in range(3):
            await self._put("short-lived", f"{next(self._numbers)} {number}", number)
        self._expected.queries["short-lived"] = [0]
