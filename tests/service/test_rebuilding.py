"""Rebuilds of the bands: whatever interrupts them, nothing is missed, and nothing is left behind."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from types import ModuleType

import anyio
import psycopg
import pytest
from psycopg import AsyncConnection, sql

from app.core.errors import (
    IdempotencyKeyReusedError,
    NotCancelableError,
    OperationNotFoundError,
    RebuildRunningError,
    TiroirError,
)
from app.core.layout import cut
from app.core.model import Json, Operation, OperationKind, OperationStatus, StoredLayout
from app.core.scheme import given
from app.runtime import Process
from app.service import audit, operator, queue, rebuild
from app.service.documents import NewDocument
from app.service.fingerprinting import Simhash
from app.service.housekeeping import Housekeeping
from app.service.near_duplicates import Options, plan_lookup
from app.settings import Settings
from app.store import documents, layouts
from app.store.layouts import Copied, Position
from app.store.lookups import Sought, queue_lookup
from tests.conftest import Server, on_the_newest
from tests.service.operations import (
    BEFORE_THE_SWITCH,
    LIMIT,
    PHASES,
    SECONDS,
    UNDOING,
    UNDONE,
    WAYS,
    WORK_DONE,
    At,
    BreakOff,
    BrokenOffEverywhere,
    Documents,
    Expected,
    Gate,
    Moment,
    Seen,
    Traffic,
    Worker,
    active_layout,
    assert_exact,
    assert_no_orphans,
    assert_nothing_was_made,
    assert_only_layout,
    assert_rebuilt,
    broken_off,
    fill,
    invalid_indexes,
    opened,
    operation_sessions,
    rebuild_of,
    rows_of,
    tables_of_fingerprints,
    write,
)
from tests.store.brute_force import answers, nearest
from tests.store.databases import create_collection, settings_of
from tests.store.waiting import meanwhile, until, waiting_for_locks

pytestmark = on_the_newest

_TEMPLATE = "template_rebuild"
_numbers = count()


@pytest.fixture(scope="module")
def template(server: Server) -> Generator[Expected]:
    with psycopg.connect(server.create(_TEMPLATE)) as connection:
        filled = fill(connection)
    yield filled
    server.drop(_TEMPLATE)


@pytest.fixture
def database(server: Server, template: Expected) -> Generator[str]:  # noqa: ARG001  it must be filled
    """The connection string of a filled database of the test's own."""
    name = f"rebuild_{next(_numbers)}"
    yield server.create(name, _TEMPLATE)
    server.drop(name)


@pytest.fixture
def expected(template: Expected) -> Expected:
    """What that database holds."""
    return deepcopy(template)


@pytest.fixture
def settings(database: str) -> Settings:
    return settings_of(database, layout_grace=0, pool_min_size=1)


@pytest.fixture
def worker(service: Process) -> Worker:
    return Worker(service)


@pytest.fixture(autouse=True)
def few_verified_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are most of the time that a small rebuild takes."""
    monkeypatch.setattr(rebuild, "_VERIFIED_LOOKUPS", 10)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "_BATCH", 200)


@pytest.fixture
def seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That somebody has asked to cancel."""
    monkeypatch.setattr(operator, "_WATCH_SECONDS", 0.01)


def first_value(connection: psycopg.Connection, query: bytes) -> object:
    row = connection.execute(query).fetchone()
    assert row
    return row[0]


def jobs(connection: psycopg.Connection) -> object:
    return first_value(connection, b"SELECT count(*) FROM tiroir_queue.procrastinate_jobs")


def assert_succeeded(operation: Operation, *, runs: int = 1) -> dict[str, Json]:
    """Its result."""
    assert (operation.status, operation.error, operation.runs) == (OperationStatus.SUCCEEDED, None, runs)
    assert operation.finished_at is not None
    assert operation.result is not None
    return operation.result


@dataclass(frozen=True)
class Site:
    """A filled database, and what must be there when a rebuild has ended."""

    settings: Settings
    observer: psycopg.Connection
    expected: Expected

    def another(self) -> AbstractAsyncContextManager[Worker]:
        """Another process on it."""
        return opened(self.settings)

    async def assert_rebuilt(self, *, bands: int, threshold: int, expected: Expected | None = None) -> None:
        """The bands that were asked for alone, with all that documents use, and lookups are exact."""
        expected = self.expected if expected is None else expected
        await assert_rebuilt(self.settings, self.observer, expected, bands=bands, threshold=threshold)

    async def assert_ended(self, worker: Worker, operation_id: int, status: OperationStatus) -> Operation:
        """It ended so, nothing is left of it, the bands are exact that there were, and another rebuild may begin."""
        operation = await worker.get(operation_id)
        assert (operation.status, operation.result) == (status, None)
        assert operation.finished_at is not None
        assert (operation.error is None) == (status == OperationStatus.CANCELED)
        assert_nothing_was_made(self.observer)
        await assert_exact(worker.services, self.expected)
        await worker.cancel(await worker.begin())
        return operation


@pytest.fixture
def site(settings: Settings, observer: psycopg.Connection, expected: Expected) -> Site:
    return Site(settings, observer, expected)


# To the end


SNAPSHOTS = b"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""


@pytest.mark.parametrize("bands", [2, 3, 5, 8, 16])
async def test_a_rebuild_leaves_the_new_bands_alone(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected, bands: int
) -> None:
    assert set(rows_of(observer, "fingerprint")) > expected.fingerprints()  # there are orphans
    await assert_exact(worker.services, expected)
    result = assert_succeeded(await worker.rebuild(6, bands))
    await site.assert_rebuilt(bands=bands, threshold=6)
    assert_no_orphans(observer, assert_only_layout(observer, bands, 6), expected)
    # This process remembers the table that is gone.
    await assert_exact(worker.services, expected, thresholds=(0, 1, 3, 4, 6, 7, 10, 20, 63), queries=2)
    assert result["changed"] is result["rebuilt"] is True
    assert (result["bands"], result["threshold"]) == (bands, 6)
    assert result["before"] == {"bands": 4, "threshold": 3}
    assert "choice" not in result
    verified, seconds = result["verified"], result["seconds"]
    assert isinstance(verified, dict)
    assert isinstance(seconds, dict)
    assert verified["fingerprints"] == verified["rows"] == len(expected.fingerprints())
    assert isinstance(verified["lookups"], int)
    assert verified["lookups"] > 0
    assert set(seconds) == set(PHASES)


async def test_lookups_probe_the_new_bands(worker: Worker, expected: Expected) -> None:
    assert_succeeded(await worker.rebuild(3, 8))
    for name in expected.documents:
        simhash = Simhash(expected.queries[name][0], "/simhash")
        found = await worker.services.near_duplicates.find(name, simhash, Options(3, LIMIT), explain=True)
        assert found.explanation
        assert found.explanation.probes.layout == cut(8)
        assert not found.explanation.scan


async def test_the_new_table_has_statistics_and_needs_no_visits_to_the_heap(
    worker: Worker, observer: psycopg.Connection, expected: Expected
) -> None:
    async def wait_for_others(moment: Moment) -> None:
        """A snapshot that is older than the rows keeps their pages from being all-visible."""
        if moment == Moment("vacuuming"):
            await until(lambda: first_value(observer, SNAPSHOTS) == 0)

    # Nor are they where the server doesn't know yet that the commit of the rows is on the disk.
    database = sql.Identifier(observer.info.dbname)
    observer.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = on").format(database))
    assert_succeeded(await worker.rebuild(3, 5, at=wait_for_others))
    row = observer.execute(
        "SELECT reltuples, relallvisible = relpages FROM pg_class WHERE relname = %s::text",
        [assert_only_layout(observer, 5, 3)],
    ).fetchone()
    assert row == (len(expected.fingerprints()), True)


async def test_rebuilds_follow_one_another(site: Site, worker: Worker, expected: Expected) -> None:
    for bands, threshold in ((3, 1), (8, 7), (4, 3)):
        assert_succeeded(await worker.rebuild(threshold, bands))
        await assert_exact(worker.services, expected)
        await site.assert_rebuilt(bands=bands, threshold=threshold)


async def test_the_old_table_stays_for_the_time_of_grace(
    site: Site, database: str, observer: psycopg.Connection
) -> None:
    settings = settings_of(database, layout_grace=0.3)
    gate = Gate("dropping", told=False)
    async with opened(settings) as worker:
        place = await worker.process.catalog.place("pages")
        operation_id = await worker.begin(5, 8)
        async with worker.performing(operation_id, gate) as task:
            await gate.reached(task)
            assert place.layouts.active.table == "fingerprint"
            assert tables_of_fingerprints(observer)[0] == "fingerprint"
            gate.open()
            await task
        result = assert_succeeded(await worker.get(operation_id))
        seconds = result["seconds"]
        assert isinstance(seconds, dict)
        assert float(str(seconds["waiting"])) >= settings.layout_grace
        await site.assert_rebuilt(bands=8, threshold=5)


# Broken off


@pytest.fixture(params=WAYS)
def break_off(request: pytest.FixtureRequest) -> BreakOff:
    return WAYS[request.param]


@pytest.fixture
def copied_from(monkeypatch: pytest.MonkeyPatch) -> list[Position]:
    """From where each batch was copied."""
    positions: list[Position] = []
    copy_batch = layouts.copy_batch

    async def remember(
        connection: AsyncConnection, stored: StoredLayout, after: Position, **limits: int
    ) -> Copied | None:
        positions.append(after)
        return await copy_batch(connection, stored, after, **limits)

    monkeypatch.setattr(layouts, "copy_batch", remember)
    return positions


@pytest.mark.usefixtures("small_batches")
async def test_broken_off_at_every_moment_it_goes_on_from_there(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    expected: Expected,
    break_off: BreakOff,
    copied_from: list[Position],
) -> None:
    breaks = BrokenOffEverywhere(observer, break_off)
    operation = await breaks.perform(worker, await worker.begin(6, 3), expected)
    result = assert_succeeded(operation, runs=len(breaks.moments) + 1)
    assert list(dict.fromkeys(moment.phase for moment in breaks.moments)) == list(PHASES)
    assert {WORK_DONE, Moment("copying", 400, in_transaction=True), Moment("indexing", 2)} <= set(breaks.moments)
    assert Moment("waiting", in_transaction=True) in breaks.moments  # the switch itself
    assert [(each.collection_id, each.simhash) for each in copied_from] == sorted(
        (each.collection_id, each.simhash) for each in copied_from
    )
    assert len(set(copied_from)) in (3, 4)  # of at most 200 each, and the one after the last
    assert operation.checkpoint["copied"] == len(expected.fingerprints())
    assert set(result["seconds"] if isinstance(result["seconds"], dict) else ()) <= set(PHASES)
    await site.assert_rebuilt(bands=3, threshold=6)
    assert_no_orphans(observer, assert_only_layout(observer, 3, 6), expected)


async def test_a_change_of_the_threshold_alone_is_broken_off_as_well(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected, break_off: BreakOff
) -> None:
    breaks = BrokenOffEverywhere(observer, break_off)
    operation = await breaks.perform(worker, await worker.begin(6, 4), expected)
    assert_succeeded(operation, runs=len(breaks.moments) + 1)
    assert {moment.phase for moment in breaks.moments} == {"planning", "switching", "waiting", "dropping"}
    await site.assert_rebuilt(bands=4, threshold=6)


async def begin_to_wait(task: asyncio.Task[None], gate: Gate, observer: psycopg.Connection) -> None:
    """Opens the gate to where the operation has to wait for the lock of another session."""
    await gate.reached(task)
    gate.open()
    await until(lambda: waiting_for_locks(observer) == 1)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("done", [0, 200])
async def test_broken_off_in_the_middle_of_a_batch(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    other_session: psycopg.Connection,
    expected: Expected,
    break_off: BreakOff,
    copied_from: list[Position],
    done: int,
) -> None:
    operation_id = await worker.begin(3, 8)
    before_the_copy = Gate("copying")
    async with worker.performing(operation_id, before_the_copy) as task:
        await before_the_copy.reached(task)
        if done:  # a fingerprint that another session is writing: its batch waits, those before it are copied
            other_session.execute(
                sql.SQL(
                    "INSERT INTO {} (collection_id, simhash)"
                    " SELECT collection_id, simhash FROM fingerprint WHERE collection_id = (SELECT max(id) FROM"
                    " collection) AND simhash IN (SELECT simhash FROM document)"
                ).format(sql.Identifier(tables_of_fingerprints(observer)[-1]))
            )
        else:
            other_session.execute(
                sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(tables_of_fingerprints(observer)[-1]))
            )
        await begin_to_wait(task, before_the_copy, observer)
        await broken_off(task, observer, break_off)
    other_session.rollback()
    operation = await worker.get(operation_id)
    assert (operation.phase, operation.done >= done, operation.runs) == ("copying", True, 1)
    table = tables_of_fingerprints(observer)[-1]
    assert len(rows_of(observer, table)) == operation.done
    from_where = len(copied_from)
    await worker.perform(operation_id)
    assert copied_from[from_where] == copied_from[from_where - 1]
    assert_succeeded(await worker.get(operation_id), runs=2)
    await site.assert_rebuilt(bands=8, threshold=3)
    assert_no_orphans(observer, table, expected)


def begin_to_read(session: psycopg.Connection, *, as_a_backup: bool = True) -> None:
    """A transaction that stays open: of one snapshot, as that of a backup, or of a snapshot a statement."""
    if as_a_backup:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    for table in ("document", "collection", "band_layout", "fingerprint", "operation"):
        session.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))


async def test_broken_off_in_the_middle_of_an_index(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    other_session: psycopg.Connection,
    expected: Expected,
    break_off: BreakOff,
) -> None:
    operation_id = await worker.begin(3, 8)
    gate = Gate("indexing", done=1)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        begin_to_read(other_session)
        await begin_to_wait(task, gate, observer)
        await broken_off(task, observer, break_off)
    assert invalid_indexes(observer) == 1
    assert (await worker.get(operation_id)).phase == "indexing"
    await assert_exact(worker.services, expected)
    other_session.rollback()
    await worker.perform(operation_id)
    assert_succeeded(await worker.get(operation_id), runs=2)
    await site.assert_rebuilt(bands=8, threshold=3)


async def test_broken_off_while_it_waits_for_readers_of_the_old_table(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    other_session: psycopg.Connection,
    expected: Expected,
    break_off: BreakOff,
) -> None:
    begin_to_read(other_session, as_a_backup=False)
    operation_id = await worker.begin(5, 8)
    gate = Gate("dropping")
    async with worker.performing(operation_id, gate) as task:
        await begin_to_wait(task, gate, observer)
        await broken_off(task, observer, break_off)
    await assert_exact(worker.services, expected)
    other_session.rollback()
    await worker.perform(operation_id)
    assert_succeeded(await worker.get(operation_id), runs=2)
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_one_session_alone_works_on_an_operation(site: Site, worker: Worker) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate("vacuuming")
    async with site.another() as second, worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        await second.perform(operation_id)
        assert (await second.get(operation_id)).status == OperationStatus.RUNNING
        gate.open()
        await task
        await second.perform(operation_id)  # what is finished stays so
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_one_that_is_broken_off_again_and_again_fails_at_last(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate("indexing")
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
    observer.execute("UPDATE operation SET runs = %s::int", [operator.MOST_RUNS])
    await until(lambda: not operation_sessions(observer))
    await worker.perform(operation_id)
    operation = await site.assert_ended(worker, operation_id, OperationStatus.FAILED)
    assert operation.error == f"it was broken off {operator.MOST_RUNS} times"


# Canceled


async def test_canceled_before_anybody_has_begun_it(site: Site, worker: Worker) -> None:
    operation_id = await worker.begin(5, 8)
    canceled = await worker.cancel(operation_id)
    assert (canceled.id, canceled.status) == (operation_id, OperationStatus.CANCELED)
    await worker.perform(operation_id)  # its job is still in the queue
    operation = await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)
    assert (operation.runs, operation.phase) == (0, None)


MOMENTS_BEFORE_THE_SWITCH = [
    *map(Moment, BEFORE_THE_SWITCH),
    # A batch is copied and not committed. When it is told too, whoever cancels has to wait for its commit.
    Moment("copying", 200, told=False, in_transaction=True),
    Moment("indexing", 7),
    Moment("verifying", 5),
]


@pytest.mark.usefixtures("small_batches", "seen_at_once")
async def test_canceled_before_the_switch_nothing_is_left_of_it(site: Site, worker: Worker) -> None:
    for moment in MOMENTS_BEFORE_THE_SWITCH:
        operation_id = await worker.begin(5, 8)
        gate = Gate(moment.phase, told=moment.told, done=moment.done, in_transaction=moment.in_transaction)
        async with worker.performing(operation_id, gate) as task:
            await gate.reached(task)
            assert (await worker.cancel(operation_id)).status == OperationStatus.RUNNING
            await task
        await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


@pytest.mark.usefixtures("seen_at_once")
async def test_canceled_in_the_middle_of_an_index(
    site: Site, worker: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    """The statement is broken off: nobody has to wait for the end of what it waits for."""
    operation_id = await worker.begin(5, 8)
    gate = Gate("indexing", done=3)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        begin_to_read(other_session)
        await begin_to_wait(task, gate, observer)
        await worker.cancel(operation_id)
        await task
    await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


@pytest.mark.usefixtures("seen_at_once")
async def test_canceled_while_it_waits_for_a_writer(
    site: Site, worker: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    other_session.execute("SELECT pg_advisory_xact_lock_shared(%s::bigint)", [layouts.LOCK])
    operation_id = await worker.begin(5, 8)
    gate = Gate("creating")
    async with worker.performing(operation_id, gate) as task:
        await begin_to_wait(task, gate, observer)
        await worker.cancel(operation_id)
        await task
        other_session.rollback()
    await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


async def test_canceled_in_the_moment_of_the_switch(
    site: Site, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks any more whether somebody has asked for it, but the switch itself."""
    monkeypatch.setattr(operator, "_WATCH_SECONDS", SECONDS)
    operation_id = await worker.begin(5, 8)

    async def cancel(moment: Moment) -> None:
        if moment == Moment("switching"):
            await worker.cancel(operation_id)

    await worker.perform(operation_id, cancel)
    await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


@pytest.mark.usefixtures("small_batches")
async def test_canceled_while_nobody_works_on_it(site: Site, worker: Worker, observer: psycopg.Connection) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate("copying", done=400, in_transaction=True)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
    await worker.cancel(operation_id)
    await until(lambda: not operation_sessions(observer))
    await worker.perform(operation_id)
    await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


@pytest.mark.usefixtures("seen_at_once")
@pytest.mark.parametrize("moment", [UNDOING, UNDONE], ids=["before", "after"])
async def test_broken_off_while_it_cleans_up_it_is_canceled_all_the_same(
    site: Site, database: str, observer: psycopg.Connection, moment: Moment
) -> None:
    """Whatever comes first: what is left to do, or that somebody sees that it is to be canceled."""
    in_the_middle = Gate("copying")
    cleaning_up = Gate(moment.phase, told=moment.told)

    async def both(reached: Moment) -> None:
        await in_the_middle(reached)
        await cleaning_up(reached)

    async with opened(settings_of(database, layout_grace=0, pool_max_size=1)) as worker:
        operation_id = await worker.begin(5, 8)
        async with worker.performing(operation_id, both) as task:
            await in_the_middle.reached(task)
            await worker.cancel(operation_id)
            await cleaning_up.reached(task)
        await until(lambda: not operation_sessions(observer))
        async with worker.process.database.connection():  # the only one: nobody can look whether it is to be canceled
            await worker.perform(operation_id)
        await site.assert_ended(worker, operation_id, OperationStatus.CANCELED)


@pytest.mark.parametrize("phase", ["waiting", "dropping"])
async def test_after_the_switch_it_cannot_be_canceled(site: Site, worker: Worker, phase: str) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate(phase)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        with pytest.raises(NotCancelableError, match="switched"):
            await worker.cancel(operation_id)
        gate.open()
        await task
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_who_cancels_during_the_switch_waits_for_it_and_learns_that_it_is_done(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate("waiting", in_transaction=True)
    refused: list[str] = []

    async def cancel() -> None:
        with pytest.raises(NotCancelableError) as caught:
            await worker.cancel(operation_id)
        refused.append(str(caught.value))

    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        async with meanwhile(cancel):
            await until(lambda: waiting_for_locks(observer) == 1)
            gate.open()
        await task
    assert len(refused) == 1
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_what_is_finished_cannot_be_canceled(worker: Worker) -> None:
    succeeded = (await worker.rebuild(5, 8)).id
    canceled = await worker.begin(4, 4)
    await worker.cancel(canceled)
    failed = await worker.begin(4, 4)

    async def fail(moment: Moment) -> None:
        if moment == Moment("planning"):
            raise RuntimeError

    await worker.perform(failed, fail)
    audit = (await worker.audit()).id
    for operation_id, word in ((succeeded, "succeeded"), (canceled, "canceled"), (failed, "failed")):
        with pytest.raises(NotCancelableError, match=word):
            await worker.cancel(operation_id)
        assert (await worker.get(operation_id)).status == word
    with pytest.raises(NotCancelableError, match="succeeded"):
        await worker.cancel(audit, OperationKind.AUDIT)


async def test_what_is_not_there_is_not_found(worker: Worker) -> None:
    audit = (await worker.audit(sample=1)).id
    begun = await worker.begin()
    for operation_id, kind in (
        (audit, OperationKind.REBUILD),
        (begun, OperationKind.AUDIT),
        (2**31 - 1, OperationKind.REBUILD),
    ):
        with pytest.raises(OperationNotFoundError):
            await worker.get(operation_id, kind)
        with pytest.raises(OperationNotFoundError):
            await worker.cancel(operation_id, kind)
    assert (await worker.get(begun)).status == OperationStatus.QUEUED


# Failing


TOO_LONG = "a statement took longer than TIROIR_OPERATION_STATEMENT_TIMEOUT allows"


@pytest.fixture
async def impatient(database: str) -> AsyncGenerator[Worker]:
    """Its statements are cut off soon, though not so soon that a slow machine would notice."""
    async with opened(settings_of(database, layout_grace=0, operation_statement_timeout=1)) as worker:
        yield worker


async def test_a_batch_that_takes_too_long_ends_it(
    site: Site, impatient: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    operation_id = await impatient.begin(5, 8)

    async def hold_up(moment: Moment) -> None:
        if moment == Moment("copying"):
            table = sql.Identifier(tables_of_fingerprints(observer)[-1])
            other_session.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(table))
        if moment == UNDOING:
            other_session.rollback()

    await impatient.perform(operation_id, hold_up)
    operation = await site.assert_ended(impatient, operation_id, OperationStatus.FAILED)
    assert operation.error == TOO_LONG


async def test_an_index_that_takes_too_long_ends_it(
    site: Site, impatient: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    operation_id = await impatient.begin(5, 8)
    invalid: list[int] = []

    async def hold_up(moment: Moment) -> None:
        if moment == Moment("indexing", 2):
            begin_to_read(other_session)
        if moment == UNDOING:
            invalid.append(invalid_indexes(observer))

    await impatient.perform(operation_id, hold_up)
    assert invalid == [1]
    operation = await site.assert_ended(impatient, operation_id, OperationStatus.FAILED)
    assert operation.error == TOO_LONG


def limit_temporary_files(connection: psycopg.Connection, memory: str) -> None:
    """So that whatever needs more than this memory fails, as on a disk that is full."""
    database = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET temp_file_limit = 0").format(database))
    setting, _, value = memory.partition("=")
    connection.execute(
        sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, sql.Identifier(setting), sql.Literal(value))
    )


def add_many(connection: psycopg.Connection, pages: int) -> None:
    """In a collection that nothing else asks."""
    connection.execute(
        """
        INSERT INTO document (collection_id, key, simhash, metadata)
        SELECT %s::int, i::text, hashint8extended(i, 7) & ((1::bigint << 62) - 1), '{}'
        FROM generate_series(1, %s::int) i
        """,
        [create_collection(connection, "many"), pages],
    )


@pytest.mark.parametrize(
    ("memory", "pages", "phase"),
    [("work_mem=64kB", 4_000, "copying"), ("maintenance_work_mem=1MB", 30_000, "indexing")],
    ids=["copying", "indexing"],
)
async def test_where_the_server_has_no_room_it_ends(
    site: Site, worker: Worker, observer: psycopg.Connection, memory: str, pages: int, phase: str
) -> None:
    add_many(observer, pages)
    limit_temporary_files(observer, memory)
    operation = await worker.rebuild(5, 8)
    await site.assert_ended(worker, operation.id, OperationStatus.FAILED)
    assert operation.phase == phase
    assert operation.error
    assert operation.error.startswith("PostgreSQL: temporary file size exceeds")


@asynccontextmanager
async def a_full_disk(connection: psycopg.Connection, command: str) -> AsyncGenerator[None]:
    """PostgreSQL refuses such commands, as it does where the disk is full."""
    connection.execute("""
        CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full', DETAIL = 'secret'; END $$
    """)
    connection.execute(
        sql.SQL("CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ({}) EXECUTE FUNCTION refuse()").format(
            sql.Literal(command)
        )
    )
    yield
    connection.execute("DROP EVENT TRIGGER refuse")
    connection.execute("DROP FUNCTION refuse")


@pytest.mark.parametrize(
    ("command", "phase"), [("CREATE TABLE", "creating"), ("CREATE INDEX", "indexing")], ids=["creating", "indexing"]
)
async def test_where_the_disk_is_full_it_ends(
    site: Site, worker: Worker, observer: psycopg.Connection, command: str, phase: str
) -> None:
    async with a_full_disk(observer, command):
        operation = await worker.rebuild(5, 8)
    await site.assert_ended(worker, operation.id, OperationStatus.FAILED)
    assert (operation.phase, operation.error) == (phase, "PostgreSQL: no space left on device")


async def test_a_failure_after_the_switch_leaves_the_new_bands_and_the_next_rebuild_cleans_up(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected
) -> None:
    async with a_full_disk(observer, "DROP TABLE"):
        operation = await worker.rebuild(5, 8)
    assert (operation.status, operation.phase) == (OperationStatus.FAILED, "dropping")
    assert operation.error == "PostgreSQL: no space left on device"
    active = await active_layout(worker.process)
    assert (active.layout, active.threshold) == (cut(8), 5)
    await assert_exact(worker.services, expected)
    assert_succeeded(await worker.rebuild(5, 3))
    await site.assert_rebuilt(bands=3, threshold=5)


@pytest.mark.usefixtures("small_batches")
async def test_a_defect_in_a_phase_ends_it_and_is_logged(
    site: Site, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    for moment in MOMENTS_BEFORE_THE_SWITCH:
        caplog.clear()

        async def fail(reached: Moment, moment: Moment = moment) -> None:
            if reached == moment:
                raise RuntimeError("what nobody thought of")

        operation = await worker.rebuild(5, 8, at=fail)
        assert operation.error == "a defect: RuntimeError; the log has more"
        await site.assert_ended(worker, operation.id, OperationStatus.FAILED)
        logged = [record for record in caplog.records if record.exc_info]
        assert [record.getMessage() for record in logged] == [f"a defect in rebuild {operation.id}"]
        assert "what nobody thought of" in caplog.text


@pytest.mark.parametrize("moment", [UNDOING, UNDONE], ids=["before", "after"])
async def test_broken_off_while_it_cleans_up_it_fails_all_the_same(
    site: Site, worker: Worker, observer: psycopg.Connection, break_off: BreakOff, moment: Moment
) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate(moment.phase, told=moment.told)

    async def fail(reached: Moment) -> None:
        await gate(reached)
        if reached == Moment("vacuuming"):
            raise RuntimeError

    async with worker.performing(operation_id, fail) as task:
        await gate.reached(task)
        await break_off(task, observer)
        gate.open()
        await asyncio.wait([task])
    await until(lambda: not operation_sessions(observer))
    await worker.perform(operation_id)
    operation = await site.assert_ended(worker, operation_id, OperationStatus.FAILED)
    assert (operation.error, operation.runs) == ("a defect: RuntimeError; the log has more", 2)


# Verification


Damage = Callable[[psycopg.Connection, sql.Identifier], None]


def run(*statements: str) -> Damage:
    def damage(connection: psycopg.Connection, table: sql.Identifier) -> None:
        for statement in statements:
            query = sql.SQL(statement)  # pyright: ignore[reportArgumentType]  a test's own words
            connection.execute(query.format(table=table, name=sql.Literal(table.as_string().strip('"'))))

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a row is gone": (
        run("DELETE FROM {table} WHERE simhash = (SELECT min(simhash) FROM {table})"),
        "1 of 500 fingerprints are missing from the new table",
    ),
    "all rows are gone": (run("TRUNCATE {table}"), "500 of 500 fingerprints are missing from the new table"),
    "a row is wrong": (
        run("UPDATE {table} SET simhash = simhash + 1 WHERE simhash = (SELECT min(simhash) FROM {table})"),
        "1 of 500 fingerprints are missing from the new table",
    ),
    "an index is gone": (
        run("DO $$ BEGIN EXECUTE 'DROP INDEX ' || {name} || '_b3_idx'; END $$"),
        "no valid covering index on b3",
    ),
    "an index is not valid": (
        run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = ({name} || '_b0_idx')::regclass"),
        "no valid covering index on b0",
    ),
    "two indexes are of the same band": (
        run(
            "DO $$ BEGIN EXECUTE 'DROP INDEX ' || {name} || '_b7_idx'; END $$",
            "CREATE INDEX ON {table} (collection_id, b6, simhash)",
        ),
        "no valid covering index on b7",
    ),
    "the unique index is gone": (
        run("DO $$ BEGIN EXECUTE 'ALTER TABLE ' || {name} || ' DROP CONSTRAINT ' || {name} || '_pkey'; END $$"),
        "no unique index",
    ),
    "a band is cut elsewhere": (
        run(
            "ALTER TABLE {table} DROP COLUMN b2",
            "ALTER TABLE {table} ADD COLUMN b2 integer NOT NULL GENERATED ALWAYS AS ((simhash >> 41) & 255) STORED",
            "CREATE INDEX ON {table} (collection_id, b2, simhash)",
        ),
        "the band columns of table",
    ),
}


def spoiled(connection: psycopg.Connection, damage: Damage) -> At:
    """Before the new table is verified."""

    async def at(moment: Moment) -> None:
        if moment == Moment("vacuuming", told=False):
            damage(connection, sql.Identifier(tables_of_fingerprints(connection)[-1]))

    return at


async def test_what_is_not_right_is_not_switched_to(site: Site, worker: Worker, observer: psycopg.Connection) -> None:
    for name, (damage, reason) in DAMAGES.items():
        operation = await worker.rebuild(5, 8, at=spoiled(observer, damage))
        await site.assert_ended(worker, operation.id, OperationStatus.FAILED)
        assert operation.error
        assert reason in operation.error, name


async def test_a_table_that_somebody_has_dropped_ends_it(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    """There is nothing left to remove, and its row goes: else no write would find its tables any more."""
    operation = await worker.rebuild(5, 8, at=spoiled(observer, run("DROP TABLE {table}")))
    await site.assert_ended(worker, operation.id, OperationStatus.FAILED)


MANY = 3_000
FILL = b"""
INSERT INTO fingerprint (collection_id, simhash)
SELECT collection_id, simhash FROM document WHERE simhash IS NOT NULL
ON CONFLICT DO NOTHING
"""

# As an index is that a defect of the server or of the disk has lost rows of. It is large, so that no scan reads it.
empty_an_index = run(
    "DO $$ BEGIN EXECUTE 'ALTER INDEX ' || {name} || '_b0_idx SET (fillfactor = 10)'; END $$",
    "DO $$ BEGIN EXECUTE 'REINDEX INDEX ' || {name} || '_b0_idx'; END $$",
    "UPDATE pg_index SET indisready = false WHERE indexrelid = ({name} || '_b0_idx')::regclass",
    "CREATE TEMPORARY TABLE kept AS SELECT collection_id, simhash FROM {table}",
    "DELETE FROM {table}",
    "INSERT INTO {table} (collection_id, simhash) SELECT collection_id, simhash FROM kept",
    "UPDATE pg_index SET indisready = true WHERE indexrelid = ({name} || '_b0_idx')::regclass",
    "DROP TABLE kept",
)


async def test_bands_that_miss_are_not_switched_to(site: Site, worker: Worker, observer: psycopg.Connection) -> None:
    add_many(observer, MANY)

    async def meddle(moment: Moment) -> None:
        if moment == Moment("verifying", told=False) and not meddled:
            meddled.append(tables_of_fingerprints(observer)[-1])
            empty_an_index(observer, sql.Identifier(meddled[0]))

    meddled: list[str] = []
    operation = await worker.rebuild(5, 8, at=meddle)
    await site.assert_ended(worker, operation.id, OperationStatus.FAILED)
    assert operation.error
    assert operation.error.endswith("nothing was switched")


async def test_bands_in_use_that_miss_are_mended(site: Site, worker: Worker, observer: psycopg.Connection) -> None:
    add_many(observer, MANY)
    observer.execute(FILL)
    empty_an_index(observer, sql.Identifier("fingerprint"))
    verified = assert_succeeded(await worker.rebuild(3, 4, force=True))["verified"]
    assert isinstance(verified, dict)
    assert isinstance(verified["missed_by_old_bands"], int)
    assert verified["missed_by_old_bands"] > 0
    await site.assert_rebuilt(bands=4, threshold=3)


async def test_rows_that_the_bands_in_use_lack_are_in_the_new_ones(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    observer.execute("DELETE FROM fingerprint WHERE simhash <> 0")
    assert_succeeded(await worker.rebuild(3, 4, force=True))
    await site.assert_rebuilt(bands=4, threshold=3)


# What is asked for


def made_layouts(connection: psycopg.Connection) -> object:
    """How many layouts there were ever: numbers aren't used again, not even those of what was rolled back."""
    return first_value(connection, b"SELECT last_value FROM band_layout_id_seq")


async def test_what_is_there_already_is_not_made_anew(
    worker: Worker, observer: psycopg.Connection, expected: Expected
) -> None:
    seen, rows, made = Seen(), rows_of(observer, "fingerprint"), made_layouts(observer)
    result = assert_succeeded(await worker.rebuild(3, 4, at=seen))
    assert result["changed"] is result["rebuilt"] is False
    assert (result["bands"], result["threshold"]) == (4, 3)
    assert set(seen.phases) == {"planning", WORK_DONE.phase}
    assert_nothing_was_made(observer)
    assert made_layouts(observer) == made
    assert rows_of(observer, "fingerprint") == rows
    await assert_exact(worker.services, expected)


async def test_where_the_bands_stay_the_threshold_alone_changes(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    seen, rows, made = Seen(), rows_of(observer, "fingerprint"), made_layouts(observer)
    result = assert_succeeded(await worker.rebuild(7, 4, at=seen))
    assert (result["changed"], result["rebuilt"]) == (True, False)
    assert result["before"] == {"bands": 4, "threshold": 3}
    assert set(seen.phases) == {"planning", "switching", "waiting", WORK_DONE.phase}
    assert made_layouts(observer) == made
    assert rows_of(observer, "fingerprint") == rows
    await site.assert_rebuilt(bands=4, threshold=7)


@pytest.mark.parametrize("bands", [4, None])
async def test_by_force_the_same_bands_are_made_anew_without_orphans(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected, bands: int | None
) -> None:
    result = assert_succeeded(await worker.rebuild(3, bands, force=True))
    assert result["changed"] is result["rebuilt"] is True
    table = assert_only_layout(observer, 4, 3)
    assert table != "fingerprint"
    assert_no_orphans(observer, table, expected)
    await site.assert_rebuilt(bands=4, threshold=3)


def expected_costs(result: dict[str, Json]) -> tuple[str, dict[int, int]]:
    """Why this number of bands was chosen, and the microseconds that lookups cost with each."""
    choice = result["choice"]
    assert isinstance(choice, dict)
    costs: dict[int, int] = {}
    assert isinstance(choice["expected"], dict)
    for bands, cost in choice["expected"].items():
        assert isinstance(cost, dict)
        assert isinstance(cost["microseconds"], int)
        costs[int(bands)] = cost["microseconds"]
    assert list(costs) == list(range(2, 17))
    assert isinstance(choice["reason"], str)
    return choice["reason"], costs


async def test_the_cheapest_bands_are_chosen(site: Site, worker: Worker) -> None:
    assert_succeeded(await worker.rebuild(3, 12))
    result = assert_succeeded(await worker.rebuild(3, None))
    reason, costs = expected_costs(result)
    bands = result["bands"]
    assert isinstance(bands, int)
    assert bands != 12
    assert costs[bands] == min(costs.values())
    assert reason == f"no number of bands is expected to be cheaper than {bands}"
    assert result["changed"] is result["rebuilt"] is True
    await site.assert_rebuilt(bands=bands, threshold=3)


async def test_the_cost_decides_for_what_is_stored(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected
) -> None:
    """Pages that are alike in their upper half have no use for bands there."""
    documents: Documents = {f"alike {number}": 0x5A5A5A5A << 32 | number * 0x9E3779B1 % 2**32 for number in range(900)}
    collection_id = create_collection(observer, "alike")
    write(observer, collection_id, 63, documents)
    expected.documents["alike"], expected.queries["alike"] = documents, [0x5A5A5A5A << 32]
    uniform_first = expected_costs(assert_succeeded(await worker.rebuild(3, None)))[1]
    observer.execute("DELETE FROM document WHERE collection_id <> %s::int", [collection_id])
    for name in expected.documents:
        if name != "alike":
            expected.documents[name] = {}
    assert_succeeded(await worker.rebuild(3, 4, force=True))  # without the others' rows
    result = assert_succeeded(await worker.rebuild(3, None))
    alike_alone = expected_costs(result)[1]
    assert alike_alone[4] > uniform_first[4]
    bands = result["bands"]
    assert isinstance(bands, int)
    await site.assert_rebuilt(bands=bands, threshold=3)


async def test_bands_that_are_hardly_cheaper_are_not_worth_a_rebuild(
    worker: Worker, observer: psycopg.Connection
) -> None:
    for threshold in range(1, 10):
        costs = expected_costs(assert_succeeded(await worker.rebuild(threshold, None)))[1]
        cheapest, hardly_dearer = sorted(costs, key=lambda bands: costs[bands])[:2]
        if 1 < costs[hardly_dearer] / costs[cheapest] < 1.15:
            break
    else:
        pytest.fail("costs differ more than the test expects")
    assert_succeeded(await worker.rebuild(threshold, hardly_dearer))
    made = made_layouts(observer)
    result = assert_succeeded(await worker.rebuild(threshold, None))
    assert (result["bands"], result["changed"]) == (hardly_dearer, False)
    assert expected_costs(result)[0] == (
        f"{cheapest} bands would be cheaper than the {hardly_dearer} there are, but not by enough to be worth a rebuild"
    )
    assert made_layouts(observer) == made


STORED: dict[str, str] = {
    "nothing": "DELETE FROM fingerprint; DELETE FROM document; DELETE FROM collection",
    "collections alone": "DELETE FROM fingerprint; DELETE FROM document",
    "documents without a fingerprint": "DELETE FROM fingerprint; DELETE FROM document WHERE simhash IS NOT NULL",
    "orphans alone": "DELETE FROM document",
}


def delete(connection: psycopg.Connection, all_but: str) -> None:
    for statement in STORED[all_but].split(";"):
        connection.execute(sql.SQL(statement))  # pyright: ignore[reportArgumentType]  a test's own words


@pytest.mark.parametrize("stored", STORED)
async def test_where_no_fingerprints_are_used_a_rebuild_leaves_an_empty_table(
    site: Site, worker: Worker, observer: psycopg.Connection, stored: str
) -> None:
    delete(observer, stored)
    assert_succeeded(await worker.rebuild(5, None))
    assert_succeeded(await worker.rebuild(5, 8))
    await site.assert_rebuilt(bands=8, threshold=5, expected=Expected())
    assert rows_of(observer, assert_only_layout(observer, 8, 5)) == []
    result = assert_succeeded(await worker.rebuild(5, None, force=True))
    made = result["bands"]
    assert isinstance(made, int)
    await site.assert_rebuilt(bands=made, threshold=5, expected=Expected())
    await worker.services.documents.index("first", NewDocument("a", Simhash(7, "/simhash"), None), None)
    first = Expected({"first": 63}, {"first": {"a": 7}}, {"first": [6]})
    await site.assert_rebuilt(bands=made, threshold=5, expected=first)


# One at a time


async def test_of_ten_rebuilds_at_the_same_moment_one_begins(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    begun: list[int] = []
    refused: list[int] = []

    async def begin(by: Worker, threshold: int) -> None:
        try:
            begun.append(await by.begin(threshold, 8))
        except RebuildRunningError as error:
            refused.append(error.operation_id)

    async with site.another() as second, anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(begin, (worker, second)[number % 2], number)
    assert len(begun) == 1
    assert refused == begun * 9
    assert jobs(observer) == 1
    assert first_value(observer, b"SELECT count(*) FROM operation") == 1


async def test_while_a_rebuild_is_unfinished_no_other_begins(worker: Worker) -> None:
    operation_id = await worker.begin(5, 8)
    gate = Gate("waiting")
    with pytest.raises(RebuildRunningError) as queued:
        await worker.begin(5, 8)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        with pytest.raises(RebuildRunningError) as running:
            await worker.begin(3, 4)
        await worker.begin_audit()  # audits need not wait
        gate.open()
        await task
    assert queued.value.operation_id == running.value.operation_id == operation_id
    assert str(running.value) == f"rebuild {operation_id} is running: wait for it, or cancel it"
    assert await worker.begin(3, 4) > operation_id


async def test_the_same_idempotency_key_finds_the_same_operation(worker: Worker, observer: psycopg.Connection) -> None:
    parameters = rebuild_of(5, 8)
    first = await worker.begin_with(parameters, "once")
    assert (await worker.begin_with(parameters, "once")).id == first.id
    assert jobs(observer) == 1
    await worker.perform(first.id)
    again = await worker.begin_with(parameters, "once")
    assert (again.id, again.status) == (first.id, OperationStatus.SUCCEEDED)
    assert jobs(observer) == 1
    assert (await worker.begin_with(parameters, "twice")).id > first.id


async def test_an_idempotency_key_is_for_one_request(worker: Worker) -> None:
    first = await worker.begin_with(rebuild_of(5, 8), "once")
    audit: dict[str, Json] = {"sample": 1, "threshold": None}
    for _ in range(2):
        for other in (rebuild_of(4, 8), rebuild_of(5, 9), rebuild_of(5, None), rebuild_of(5, 8, force=True)):
            with pytest.raises(IdempotencyKeyReusedError):
                await worker.begin_with(other, "once")
        with pytest.raises(IdempotencyKeyReusedError):
            await worker.services.operations.begin(OperationKind.AUDIT, audit, idempotency_key="once")
        await worker.perform(first.id)  # the same when it is finished
    assert_succeeded(await worker.get(first.id))


@pytest.mark.parametrize("kind", OperationKind)
async def test_the_same_idempotency_key_at_the_same_moment_makes_one_operation(
    site: Site, worker: Worker, observer: psycopg.Connection, kind: OperationKind
) -> None:
    audit: dict[str, Json] = {"sample": 3, "threshold": 5}
    parameters = rebuild_of(5, 8) if kind == OperationKind.REBUILD else audit
    begun: list[int] = []

    async def begin(by: Worker) -> None:
        operation = await by.services.operations.begin(kind, parameters, idempotency_key="once")
        begun.append(operation.id)

    async with site.another() as second, anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(begin, (worker, second)[number % 2])
    assert begun == [begun[0]] * 10
    assert jobs(observer) == 1
    assert first_value(observer, b"SELECT count(*) FROM operation") == 1


# While others write


@pytest.fixture
def before_each_batch(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Awaitable[None]]]:
    """What is put here is done between the batches of a copy."""
    done: list[Callable[[], Awaitable[None]]] = []
    copy_batch = layouts.copy_batch

    async def copy_after(
        connection: AsyncConnection, stored: StoredLayout, after: Position, **limits: int
    ) -> Copied | None:
        for each in done:
            await each()
        return await copy_batch(connection, stored, after, **limits)

    monkeypatch.setattr(layouts, "copy_batch", copy_after)
    return done


async def test_a_copy_ends_though_new_collections_keep_coming(
    site: Site, worker: Worker, expected: Expected, before_each_batch: list[Callable[[], Awaitable[None]]]
) -> None:
    """They come last in the order of the copy, but all that is written meanwhile is in the new table anyway."""
    batches = count()

    async def write_to_another() -> None:
        number = next(batches)
        assert number < 20, "it runs after what is written"
        name = f"new-{number}"
        await worker.services.documents.index(name, NewDocument("a", Simhash(number, "/simhash"), None), None)
        expected.documents[name], expected.queries[name] = {"a": number}, [0]

    before_each_batch.append(write_to_another)
    assert_succeeded(await worker.rebuild(5, 8))
    await site.assert_rebuilt(bands=8, threshold=5)


@pytest.mark.usefixtures("small_batches")
async def test_writes_at_every_moment_are_in_the_new_bands(
    site: Site, worker: Worker, expected: Expected, before_each_batch: list[Callable[[], Awaitable[None]]]
) -> None:
    async with site.another() as second:
        both = (worker.services, second.services)
        traffic = Traffic(expected, *both)
        batches = count()

        async def write_and_look_up() -> None:
            await traffic()
            for services in both:
                await assert_exact(services, expected, thresholds=(0, 3))

        async def between_batches() -> None:
            if next(batches) < 4:
                await write_and_look_up()

        async def at(moment: Moment) -> None:
            in_a_batch = moment.in_transaction and moment.phase == "copying"
            if moment.told and moment.done in (0, 4) and not in_a_batch:
                await write_and_look_up()

        before_each_batch.append(between_batches)
        assert_succeeded(await worker.rebuild(5, 8, at=at))
        assert next(batches) >= 3
        await write_and_look_up()
        for services in both:
            await assert_exact(services, expected, queries=10)
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_writes_that_go_on_meanwhile_are_in_the_new_bands(
    site: Site, worker: Worker, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "_BATCH", 10)
    operation_id = await worker.begin(5, 8)
    async with site.another() as second:
        traffic = Traffic(expected, worker.services, second.services)
        writes = 0
        async with worker.performing(operation_id) as task:
            while not task.done():
                await traffic()
                writes += 1
            await task
        assert writes > 1
    assert_succeeded(await worker.get(operation_id))
    await assert_exact(worker.services, expected, queries=10)
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_a_collection_that_is_deleted_during_a_rebuild_leaves_no_rows(
    site: Site, worker: Worker, observer: psycopg.Connection, expected: Expected
) -> None:
    gone = {Moment("copying"): "wide", Moment("verifying"): "twin"}

    async def delete(moment: Moment) -> None:
        if name := gone.pop(moment, None):
            await worker.services.collections.delete(name)
            del expected.documents[name]

    assert_succeeded(await worker.rebuild(5, 8, at=delete))
    await site.assert_rebuilt(bands=8, threshold=5)
    await Housekeeping(worker.process.database).do_what_is_due()
    assert_no_orphans(observer, assert_only_layout(observer, 8, 5), expected)


# Locks


class Attempts:
    """How many times a rebuild has given way, by its log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self) -> int:
        return sum("trying again" in record.getMessage() for record in self._caplog.records)


@pytest.fixture
def attempts(caplog: pytest.LogCaptureFixture) -> Attempts:
    caplog.set_level(logging.INFO, logger=rebuild.__name__)
    return Attempts(caplog)


async def test_a_backup_holds_up_an_index_and_nobody_else(
    site: Site, worker: Worker, observer: psycopg.Connection, other_session: psycopg.Connection, expected: Expected
) -> None:
    begin_to_read(other_session)
    operation_id = await worker.begin(5, 8)
    async with site.another() as second, worker.performing(operation_id) as task:
        await until(lambda: waiting_for_locks(observer) == 1)
        assert (await worker.get(operation_id)).phase == "indexing"
        traffic = Traffic(expected, worker.services, second.services)
        for _ in range(3):
            await traffic()
            await assert_exact(second.services, expected)
        assert waiting_for_locks(observer) == 1
        assert not task.done()
        other_session.rollback()
        await task
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_a_reader_holds_up_the_drop_and_nobody_else(
    site: Site, worker: Worker, other_session: psycopg.Connection, expected: Expected, attempts: Attempts
) -> None:
    """It reads all along, so nothing before the drop has needed the tables in use for itself alone."""
    begin_to_read(other_session, as_a_backup=False)
    old = await worker.process.catalog.place("pages")
    operation_id = await worker.begin(5, 8)
    async with site.another() as second, worker.performing(operation_id) as task:
        await until(lambda: attempts() > 0)
        assert (await worker.get(operation_id)).phase == "dropping"
        traffic = Traffic(expected, worker.services, second.services)
        simhash = expected.queries["pages"][0]
        before = attempts()
        while attempts() < before + 2:
            assert not task.done()
            await traffic()
            await assert_exact(second.services, expected)
            async with second.process.database.connection() as connection:
                planned = await plan_lookup(second.process.profiles, connection, old, Options(3, LIMIT))
                assert planned.layout.table == "fingerprint"
                for scan in (False, True):
                    matches = await (
                        await queue_lookup(connection, replace(planned, scan=scan), Sought(given(simhash)))
                    ).result()
                    assert answers(matches) == nearest(expected.stored("pages"), simhash, 3)
        other_session.rollback()
        await task
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_a_long_write_holds_up_the_new_table_and_nobody_else(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    other_session: psycopg.Connection,
    expected: Expected,
    attempts: Attempts,
) -> None:
    other_session.execute("SELECT pg_advisory_xact_lock_shared(%s::bigint)", [layouts.LOCK])
    operation_id = await worker.begin(5, 8)
    async with site.another() as second, worker.performing(operation_id) as task:
        traffic = Traffic(expected, worker.services, second.services)
        while attempts() < 2:
            assert not task.done()
            await traffic()
            await assert_exact(second.services, expected)
        assert (await worker.get(operation_id)).phase == "creating"
        assert_nothing_was_made(observer)
        other_session.rollback()
        await task
    assert_succeeded(await worker.get(operation_id))
    await site.assert_rebuilt(bands=8, threshold=5)


async def test_a_reader_of_what_is_to_be_removed_holds_up_nobody_else(
    site: Site,
    worker: Worker,
    observer: psycopg.Connection,
    other_session: psycopg.Connection,
    expected: Expected,
    attempts: Attempts,
) -> None:
    operation_id = await worker.begin(5, 8)

    async def fail(moment: Moment) -> None:
        if moment == Moment("verifying"):
            table = sql.Identifier(tables_of_fingerprints(observer)[-1])
            other_session.execute(sql.SQL("SELECT FROM {}").format(table))
            raise RuntimeError

    async with site.another() as second, worker.performing(operation_id, fail) as task:
        traffic = Traffic(expected, worker.services, second.services)
        while attempts() < 2:
            assert not task.done()
            await traffic()
            await assert_exact(second.services, expected)
        assert (await worker.get(operation_id)).status == OperationStatus.RUNNING
        other_session.rollback()
        await task
    await site.assert_ended(worker, operation_id, OperationStatus.FAILED)


# By the queue


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_ATTEND_SECONDS", 0.1)


async def finished(worker: Worker, operation_id: int, kind: OperationKind = OperationKind.REBUILD) -> Operation:
    """As soon as it is."""
    with anyio.fail_after(SECONDS):
        while (operation := await worker.get(operation_id, kind)).finished_at is None:  # noqa: ASYNC110  another process finishes it
            await anyio.sleep(0.01)
    return operation


async def in_phase(worker: Worker, operation_id: int, phase: str) -> None:
    with anyio.fail_after(SECONDS):
        while (await worker.get(operation_id)).phase != phase:  # noqa: ASYNC110  as above
            await anyio.sleep(0.01)


async def test_the_queue_hands_out_what_is_begun(site: Site, worker: Worker, observer: psycopg.Connection) -> None:
    early = await worker.begin(5, 8)
    async with worker.process.working():
        assert_succeeded(await finished(worker, early))
        late = await worker.begin(3, 4)
        assert_succeeded(await finished(worker, late))
        audit = await worker.begin_audit(20)
        assert_succeeded(await finished(worker, audit, OperationKind.AUDIT))
        await until(lambda: jobs(observer) == 0)
    await site.assert_rebuilt(bands=4, threshold=3)


LOST: dict[str, str] = {
    "the job is gone": "DELETE FROM procrastinate_jobs",
    "its worker is gone": "UPDATE procrastinate_jobs SET status = 'doing'",
}


@pytest.mark.usefixtures("small_batches", "attentive")
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("begun", [False, True])
async def test_what_nobody_works_on_is_put_back(
    site: Site, worker: Worker, observer: psycopg.Connection, lost: str, begun: bool
) -> None:
    operation_id = await worker.begin(5, 8)
    if begun:
        gate = Gate("copying", done=200, in_transaction=True)
        async with worker.performing(operation_id, gate) as task:
            await gate.reached(task)
    with observer.transaction():
        observer.execute("SET LOCAL search_path = tiroir_queue")
        observer.execute(sql.SQL(LOST[lost]))  # pyright: ignore[reportArgumentType]  a test's own words
    async with worker.process.working():
        assert_succeeded(await finished(worker, operation_id), runs=1 + begun)
    await site.assert_rebuilt(bands=8, threshold=5)


@pytest.mark.usefixtures("attentive")
async def test_what_is_lost_while_workers_run_is_put_back(
    site: Site, worker: Worker, observer: psycopg.Connection
) -> None:
    async with site.another() as second, worker.process.working(), second.process.working():
        for _ in range(3):
            observer.execute(
                "INSERT INTO operation (kind, parameters)"
                """ VALUES ('rebuild', '{"threshold": 5, "bands": 8, "force": true}')"""
            )
            number = first_value(observer, b"SELECT max(id) FROM operation")
            assert isinstance(number, int)
            assert_succeeded(await finished(worker, number))
    await site.assert_rebuilt(bands=8, threshold=5)


@pytest.mark.usefixtures("attentive")
async def test_a_session_that_is_lost_is_followed_by_another(
    site: Site, worker: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    begin_to_read(other_session)
    operation_id = await worker.begin(5, 8)
    async with worker.process.working():
        await in_phase(worker, operation_id, "indexing")
        for pid in operation_sessions(observer):
            observer.execute("SELECT pg_terminate_backend(%s::int)", [pid])
        with anyio.fail_after(SECONDS):
            while (await worker.get(operation_id)).runs < 2:  # noqa: ASYNC110  the queue knows no event of ours
                await anyio.sleep(0.01)
        other_session.rollback()
        assert_succeeded(await finished(worker, operation_id), runs=2)
    await site.assert_rebuilt(bands=8, threshold=5)


@pytest.mark.usefixtures("attentive")
async def test_a_process_that_ends_breaks_it_off_and_the_next_goes_on(
    site: Site, worker: Worker, observer: psycopg.Connection, other_session: psycopg.Connection
) -> None:
    begin_to_read(other_session)
    operation_id = await worker.begin(5, 8)
    async with site.another() as first, first.process.working():
        await in_phase(worker, operation_id, "indexing")
        await until(lambda: waiting_for_locks(observer) == 1)
    assert operation_sessions(observer) == []
    assert (await worker.get(operation_id)).status == OperationStatus.RUNNING
    other_session.rollback()
    async with site.another() as next_one, next_one.process.working():
        assert_succeeded(await finished(worker, operation_id), runs=2)
    await site.assert_rebuilt(bands=8, threshold=5)


# Audits


def assert_audited(audit: Operation, *, misses: bool = False) -> dict[str, Json]:
    """Its result."""
    result = assert_succeeded(audit)
    assert isinstance(result["misses"], int)
    assert (result["misses"] > 0) == misses
    assert result["invented"] == 0
    return result


@pytest.mark.parametrize("bands", [2, 4, 16])
async def test_an_audit_finds_no_misses(worker: Worker, bands: int) -> None:
    if bands != 4:
        assert_succeeded(await worker.rebuild(3, bands))
    for threshold in (0, 3, 10, 63):
        result = assert_audited(await worker.audit(30, threshold))
        assert (result["threshold"], result["bands"]) == (threshold, bands)
        lookups, matches, probed = result["lookups"], result["matches"], result["probed"]
        assert isinstance(lookups, int)
        assert isinstance(matches, int)
        assert isinstance(probed, int)
        assert 0 < lookups <= 30
        assert matches > 0
        assert 0 < probed <= lookups
        assert set(result) >= {"candidates", "lookup_ms", "scan_ms"}


async def test_an_audit_is_at_the_default_threshold_unless_another_is_asked_for(worker: Worker) -> None:
    assert assert_audited(await worker.audit(5))["threshold"] == 3
    assert_succeeded(await worker.rebuild(6, 4))
    assert assert_audited(await worker.audit(5))["threshold"] == 6


async def test_an_audit_finds_what_an_index_lacks(worker: Worker, observer: psycopg.Connection) -> None:
    add_many(observer, MANY)
    observer.execute(FILL)
    empty_an_index(observer, sql.Identifier("fingerprint"))
    assert_audited(await worker.audit(100, 3), misses=True)


async def test_an_audit_finds_rows_that_are_gone(worker: Worker, observer: psycopg.Connection) -> None:
    observer.execute("DELETE FROM fingerprint WHERE simhash %% 2 = 0", [])
    assert_audited(await worker.audit(1000, 3), misses=True)


@pytest.mark.parametrize("stored", STORED)
async def test_an_audit_of_nothing(worker: Worker, observer: psycopg.Connection, stored: str) -> None:
    delete(observer, stored)
    for sample in (1, 100):
        result = assert_audited(await worker.audit(sample))
        assert result["matches"] == 0
        if stored != "orphans alone":
            assert result["lookups"] == 0


@pytest.mark.parametrize("phase", ["sampling", "comparing"])
async def test_an_audit_goes_on_while_a_rebuild_switches_and_drops(site: Site, worker: Worker, phase: str) -> None:
    async def rebuild_meanwhile(moment: Moment) -> None:
        if moment == Moment(phase):
            assert_succeeded(await worker.rebuild(5, 8))

    result = assert_audited(await worker.audit(20, at=rebuild_meanwhile))
    assert result["lookups"] != 0
    assert result["bands"] == 8
    await site.assert_rebuilt(bands=8, threshold=5)


@pytest.mark.parametrize(
    ("module", "step"),
    [(documents, "sizes"), (documents, "sample"), (audit, "compare_with_scan")],
    ids=["counted", "sampled", "compared"],
)
async def test_an_audit_goes_on_where_the_table_is_gone_that_is_to_be(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    """It knows the table already, and reads it by several statements: before each it may be dropped."""
    original: Callable[..., Awaitable[object]] = getattr(module, step)
    dropped: list[str] = []

    async def after_a_rebuild(*arguments: object, **named: object) -> object:
        if not dropped:
            dropped.append("fingerprint")
            assert_succeeded(await worker.rebuild(5, 8))
        return await original(*arguments, **named)

    monkeypatch.setattr(module, step, after_a_rebuild)
    result = assert_audited(await worker.audit(20, 3))
    assert dropped
    assert result["lookups"] != 0
    assert result["bands"] == 8


async def test_an_audit_leaves_out_a_collection_that_is_deleted_meanwhile(worker: Worker) -> None:
    async def delete(moment: Moment) -> None:
        if moment == Moment("comparing"):
            await worker.services.collections.delete("wide")

    audit = await worker.audit(100, at=delete)
    assert_audited(audit)
    assert audit.total is not None
    lookups = assert_succeeded(audit)["lookups"]
    assert isinstance(lookups, int)
    assert 0 < lookups < audit.total


@pytest.mark.usefixtures("seen_at_once")
@pytest.mark.parametrize("phase", ["sampling", "comparing"])
async def test_an_audit_is_canceled(worker: Worker, phase: str) -> None:
    queued = await worker.begin_audit()
    assert (await worker.cancel(queued, OperationKind.AUDIT)).status == OperationStatus.CANCELED
    operation_id = await worker.begin_audit()
    gate = Gate(phase)
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        await worker.cancel(operation_id, OperationKind.AUDIT)
        await task
    audit = await worker.get(operation_id, OperationKind.AUDIT)
    assert (audit.status, audit.result, audit.error) == (OperationStatus.CANCELED, None, None)


async def test_an_audit_that_was_broken_off_begins_anew(
    worker: Worker, observer: psycopg.Connection, break_off: BreakOff
) -> None:
    operation_id = await worker.begin_audit(20)
    gate = Gate("comparing")
    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        await break_off(task, observer)
        gate.open()
        await asyncio.wait([task])
    await until(lambda: not operation_sessions(observer))
    await worker.perform(operation_id)
    assert_succeeded(await worker.get(operation_id, OperationKind.AUDIT), runs=2)


async def test_many_audits_run_beside_rebuilds(site: Site, worker: Worker, expected: Expected) -> None:
    failures: list[TiroirError] = []

    async def audit(by: Worker) -> None:
        for _ in range(4):
            try:
                assert_audited(await by.audit(20))
            except TiroirError as error:
                failures.append(error)

    async with site.another() as second, anyio.create_task_group() as tasks:
        tasks.start_soon(audit, second)
        tasks.start_soon(audit, worker)
        for bands in (8, 3, 4):
            assert_succeeded(await worker.rebuild(3, bands))
    assert failures == []
    await assert_exact(worker.services, expected)
