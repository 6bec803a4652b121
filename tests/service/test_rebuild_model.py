"""Requests, steps of rebuilds, and what breaks a rebuild off, in any order, against a model that is a dict.

Two processes serve. Neither reads the layouts again of its own accord, so the one that isn't asked sleeps over whole
rebuilds, and wakes up with what it knew before. To search longer: REBUILD_MODEL_EXAMPLES, with --timeout 0.
"""

import asyncio
import math
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any, Self, TypeVar

import psycopg
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg import AsyncConnection, AsyncCursor, sql

from app.core.errors import (
    CollectionNotFoundError,
    DocumentNotFoundError,
    NotCancelableError,
    RebuildRunningError,
)
from app.core.layout import Layout, cut
from app.core.model import Json, Matches, Operation, OperationKind, Outcome, StoredLayout
from app.core.scheme import Scheme
from app.runtime import Process, process
from app.service.housekeeping import Housekeeping
from app.service.near_duplicates import Key
from app.service.operator import Operator, Progress
from app.service.rebuild import Rebuild
from app.store import layouts, operations
from tests.conftest import Server, on_the_newest
from tests.store.brute_force import LARGEST, Stored, assert_right, flipped, nearest, signed, unsigned
from tests.store.databases import settings_of
from tests.store.pages import Pages
from tests.store.waiting import wait_until, waiting_for_locks

pytestmark = on_the_newest


EXAMPLES = int(os.environ.get("REBUILD_MODEL_EXAMPLES", "12"))
STEPS = 30

SECONDS = 30  # in which whatever is waited for must come

COPYING = ["planning", "creating", "copying"]
COPIED = ["indexing", "vacuuming", "verifying", "switching"]  # the new table must hold all there is
SWITCHED = ["waiting", "dropping"]  # it can't be canceled any more
PHASES = [*COPYING, *COPIED, *SWITCHED]

NAMES = ("first", "second", "third")
SIZES = (8, 63, 64)  # bits of a collection's fingerprints

names = st.sampled_from(NAMES)
sizes = st.sampled_from(SIZES)
keys = st.sampled_from(["a", "b", "B", "b2", "é", "z/ü", "~"])
served_by = st.integers(0, 1)
limits = st.sampled_from([1, 2, 100])
thresholds = st.none() | st.integers(0, 8) | st.integers(0, 63)

# Near ones are common: a few bits from one of a few fingerprints. Bit 63 is the sign, 62 the highest of most
# collections; bands begin at 16, 32 and elsewhere.
bits = st.sampled_from([0, 7, 15, 16, 31, 32, 61, 62, 63]) | st.integers(0, 63)
fingerprints = st.builds(
    flipped, st.sampled_from([0, -1, LARGEST, 0x3D6983305CE858B0, -0x2545F4914F6CDD1D]), st.sets(bits, max_size=3)
)

phases = st.sampled_from(PHASES)
maybe_phases = st.sampled_from([None, *PHASES])
written = fingerprints | st.none()  # None: as it is stored

_numbers = count()


@dataclass
class Collection:
    """What the model believes of one."""

    bits: int
    documents: dict[str, int] = field(default_factory=dict[str, int])

    def stored(self) -> list[Stored]:
        return [Stored(key, simhash) for key, simhash in self.documents.items()]

    def fitting(self, simhash: int) -> int:
        """The fingerprint without the bits that the collection hasn't."""
        return signed(unsigned(simhash) % 2**self.bits)


@dataclass(frozen=True)
class Plan:
    """What a rebuild is asked for."""

    bands: int | None
    threshold: int
    force: bool


@dataclass
class Asked:
    """A rebuild that isn't finished."""

    id: int
    plan: Plan
    before: StoredLayout  # the active one
    cancel: bool = False  # somebody was told that it will be canceled


plans = st.builds(Plan, st.sampled_from([2, 3, 4, 7, None]), st.sampled_from([0, 1, 3, 5, 7, 63]), st.booleans())


class SeenRebuild(Rebuild):
    """Tells how far it is: a cancel has no effect where it only cleans up, or is at its very end."""

    runs = False
    has_run = False

    async def run(self) -> dict[str, Json]:
        self.runs = True
        try:
            return await super().run()
        finally:
            self.runs, self.has_run = False, True


class Worker:
    """Performs rebuilds as a worker does, and holds them before one of their statements until it is told to go on.

    They stand only where they hold no lock: a request that waits for it would wait for ever.
    """

    def __init__(self, of: Process, observer: psycopg.Connection) -> None:
        self._observer = observer
        self._operator = Operator(of.conninfo, of.settings, of.database, {OperationKind.REBUILD: self._rebuild})
        self._settings = of.settings
        self._cancel = of.services.operations.cancel
        self._task: asyncio.Task[None] | None = None
        self._rebuild_under_way: SeenRebuild | None = None
        self._progress: Progress | None = None
        self._pid = 0
        self._go = asyncio.Event()
        self._stops = 0
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._far_enough: Callable[[], bool] = bool
        self._dies = False
        self._passed = 0
        self._next = b""

    @property
    def works(self) -> bool:
        return self._task is not None

    def _rebuild(self, session: AsyncConnection, operation: Operation, progress: Progress) -> Rebuild:
        before = self._before

        class Cursor(AsyncCursor[Any]):
            """What all statements of a session go through."""

            async def execute(self, *arguments: Any, **options: Any) -> Self:
                await before(arguments[0])
                return await super().execute(*arguments, **options)

        session.cursor_factory = Cursor
        self._pid, self._progress = session.info.backend_pid, progress
        self._rebuild_under_way = SeenRebuild(session, operation, progress, self._settings)
        return self._rebuild_under_way

    async def _before(self, statement: bytes | sql.Composed) -> None:
        self._next = statement if isinstance(statement, bytes) else statement.as_bytes()
        if self._far_enough():
            if self._dies:
                self._dies = False
                self.end_session()
            elif not self._is_in_the_way():
                self._go.clear()
                self._stops += 1
                self._stop.set_result(None)
                self._stop = asyncio.get_running_loop().create_future()
                await self._go.wait()
        self._passed += 1

    def _is_in_the_way(self) -> bool:
        """Whether it holds a lock, beside the one that makes it the only worker on its operation."""
        row = self._observer.execute(
            """
            SELECT EXISTS (
                SELECT FROM pg_locks WHERE pid = %s::int AND locktype <> 'virtualxid'
                AND NOT (locktype = 'advisory' AND classid::bigint = %s::bigint))
            """,
            [self._pid, operations.LOCK_CLASS],
        ).fetchone()
        return row != (False,)

    def end_session(self) -> None:
        """As PostgreSQL does when it is shut down: the rebuild's next statement, or the one under way, fails."""
        self._observer.execute("SELECT pg_terminate_backend(%s::int)", [self._pid])
        self._wait_for_the_end_of_its_session()

    def _wait_for_the_end_of_its_session(self) -> None:
        """Until then it holds the lock, and nobody else can go on."""
        query = "SELECT FROM pg_stat_activity WHERE pid = %s::int"
        wait_until(lambda: self._observer.execute(query, [self._pid]).rowcount == 0)

    async def begin(self, operation_id: int) -> None:
        self._far_enough = lambda: True
        stops = self._stops + 1
        self._task = asyncio.create_task(self._operator.perform(operation_id))
        await self._until(stops)

    async def pass_statements(self, number: int) -> None:
        await self._go_on(lambda: self._passed >= number)

    async def reach(self, phase: str) -> None:
        """To where the phase begins; where that is behind, to the next one, or to the end."""
        begun = self._phase()
        await self._go_on(lambda: begun != self._phase() and self._phase() >= PHASES.index(phase))

    async def finish(self) -> None:
        await self._go_on(bool)

    def _phase(self) -> int:
        assert self._progress is not None
        return PHASES.index(self._progress.phase or "planning")

    async def reach_an_index(self) -> None:
        """Or the end, where it builds no more of them."""
        await self._go_on(lambda: b"CREATE INDEX" in self._next)

    async def crash(self, statements: int) -> None:
        """The session ends when so many statements more have passed, in the middle of a transaction or not."""
        self._dies = True
        await self._go_on(lambda: self._passed >= statements)
        self._dies = False

    async def stop(self) -> None:
        """As when its process is told to end."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self._task.cancelled()
        self._task = None
        self._wait_for_the_end_of_its_session()

    async def cancel(self, operation_id: int) -> bool:
        """Whether there was something to cancel: a rebuild under way stands before it cleans up then.

        One that is about to switch goes on in the very moment, so that it has to see by itself that it mustn't.
        """
        stops = self._stops + 1
        rebuild = self._rebuild_under_way if self.works else None
        runs, has_run = (False, False) if rebuild is None else (rebuild.runs, rebuild.has_run)
        await self._cancel(OperationKind.REBUILD, operation_id)
        if runs:
            if self._phase() == PHASES.index("switching"):
                self._far_enough = bool
                self._go.set()
            await self._until(stops)
        return not has_run

    async def offer(self, operation_id: int) -> None:
        """The queue hands the operation out once more, while it is worked on."""
        await asyncio.wait_for(self._operator.perform(operation_id), SECONDS)

    async def _go_on(self, far_enough: Callable[[], bool]) -> None:
        if self._task is None:
            return
        self._passed, self._far_enough = 0, far_enough
        stops = self._stops + 1
        self._go.set()
        await self._until(stops)

    async def _until(self, stops: int) -> None:
        """It has stood so many times, or has ended."""
        assert self._task is not None
        while self._stops < stops and not self._task.done():
            waited_for = {self._task, self._stop}
            done, _ = await asyncio.wait(waited_for, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"the rebuild neither ends nor comes to its next stop: {self._next!r}"
        if self._task.done():
            self._task.result()
            self._task = None


class Serving:
    """A process that serves, until it is started anew."""

    def __init__(self, portal: BlockingPortal, conninfo: str) -> None:
        self._portal, self._conninfo = portal, conninfo
        self._stack = ExitStack()
        # With the layouts' ids: it may go on with the default of each layout that it can have read, while that stands.
        self.defaults: set[tuple[int, int]] = set()
        self.start()

    def start(self) -> None:
        self._stack.close()
        opened = process(settings_of(self._conninfo, pool_min_size=1, layout_grace=0))
        self.process = self._stack.enter_context(self._portal.wrap_async_context_manager(opened))
        self.defaults.clear()

    def stop(self) -> None:
        self._stack.close()

    def note(self, stored: list[StoredLayout]) -> None:
        active = {(each.id, each.threshold) for each in stored if each.state == "active"}
        stand = {each.id for each in stored}
        self.defaults = active | {(layout, default) for layout, default in self.defaults if layout in stand}

    def pages(self, name: str) -> Pages:
        return Pages(self.process.services, name)


Step = TypeVar("Step", bound=Callable[..., None])

steps: list[st.SearchStrategy[tuple[str, dict[str, Any]]]] = []


def step(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """What an example is made of; one with more weight is taken more often.

    These are no rules of hypothesis, which leaves many rules out of each example: what goes wrong here takes several.
    """

    def register(method: Step) -> Step:
        one = st.just(method.__name__)
        steps.extend(st.tuples(one, st.fixed_dictionaries(arguments)) for _ in range(weight))
        return method

    return register


class RebuildMachine(RuleBasedStateMachine):
    def __init__(self, server: Server, portal: BlockingPortal) -> None:
        super().__init__()
        self.portal = portal
        self.stack = ExitStack()
        name = f"rebuild_model_{next(_numbers)}"
        self.conninfo = server.create(name)
        self.stack.callback(server.drop, name)
        self.observer = self.stack.enter_context(psycopg.connect(self.conninfo, autocommit=True))
        # The worker's process is never started anew, so that a rebuild's end is always its own.
        self.working, *self.serving = [Serving(portal, self.conninfo) for _ in range(3)]
        for each in (self.working, *self.serving):
            self.stack.callback(each.stop)
        self.worker = portal.call(Worker, self.working.process, self.observer)
        self.collections: dict[str, Collection] = {}
        self.rebuild: Asked | None = None

    def teardown(self) -> None:
        try:
            if sys.exception() is None:
                self.finish()
        finally:
            if self.worker.works:
                self.portal.call(self.worker.stop)
            self.stack.close()

    @rule(chosen=st.deferred(lambda: st.one_of(steps)))
    def take(self, chosen: tuple[str, dict[str, Any]]) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)

    # Requests

    @initialize(
        documents=st.lists(st.tuples(names, keys, fingerprints), min_size=5, max_size=15),
        plans=st.lists(plans, min_size=1, max_size=4),
    )
    def fill(self, documents: list[tuple[str, str, int]], plans: list[Plan]) -> None:
        for name, size in zip(NAMES, SIZES, strict=True):
            self.create_collection(0, name, size)
        for number, (name, key, simhash) in enumerate(documents):
            self.write(number % 2, name, key, simhash)
        self.plans = cycle(plans)

    @step(by=served_by, name=names, size=sizes)
    def create_collection(self, by: int, name: str, size: int) -> None:
        known = self.collections.get(name)
        if known is not None and known.bits != size:
            return
        create = self.serving[by].process.services.collections.create
        made = self.portal.call(lambda: create(name, Scheme(bits=size), store_text=True))
        assert made.is_new == (known is None)
        self.collections.setdefault(name, Collection(size))

    @step(by=served_by, name=names)
    def delete_collection(self, by: int, name: str) -> None:
        delete = self.serving[by].process.services.collections.delete
        if self.collections.pop(name, None) is None:
            with pytest.raises(CollectionNotFoundError):
                self.portal.call(delete, name)
        else:
            self.portal.call(delete, name)

    @step()
    def purge(self) -> None:
        """A table that is being built may still be copied to, so nothing is forgotten before it is done."""
        self.portal.call(Housekeeping(self.working.process.database).do_what_is_due)
        if all(stored.state != "building" for stored in self.layouts()):
            assert self.observer.execute("SELECT FROM deleted_collection").fetchall() == []

    @step(3, by=served_by, name=names, key=keys, simhash=written)
    def write(self, by: int, name: str, key: str, simhash: int | None) -> None:
        simhash = self.to_be_written(name, key, simhash)
        outcome = self.portal.call(self.serving[by].pages(name).put, key, simhash)
        self.note_write(name, key, simhash, outcome)

    @step(by=served_by, name=names, key=keys, simhash=written, threshold=st.integers(0, 63), limit=limits)
    def write_and_look_up(self, by: int, name: str, key: str, simhash: int | None, threshold: int, limit: int) -> None:
        simhash = self.to_be_written(name, key, simhash)
        indexed = self.portal.call(self.serving[by].pages(name).index, key, simhash, threshold, limit)
        self.note_write(name, key, simhash, indexed.outcome)
        assert indexed.matches
        self.require_right(by, name, indexed.matches, simhash, threshold, limit, except_key=key)

    @step(by=served_by, name=names, key=keys)
    def delete(self, by: int, name: str, key: str) -> None:
        delete = self.serving[by].pages(name).delete
        collection = self.collections.get(name)
        if collection is None:
            with pytest.raises(CollectionNotFoundError):
                self.portal.call(delete, key)
        elif key not in collection.documents:
            with pytest.raises(DocumentNotFoundError):
                self.portal.call(delete, key)
        else:
            self.portal.call(delete, key)
            del collection.documents[key]

    @step(3, by=served_by, name=names, simhash=fingerprints, threshold=thresholds, limit=limits)
    def look_up(self, by: int, name: str, simhash: int, threshold: int | None, limit: int) -> None:
        matches = self.serving[by].pages(name).matches
        if name in self.collections:
            simhash = self.collections[name].fitting(simhash)
            found = self.portal.call(matches, simhash, threshold, limit)
            self.require_right(by, name, found, simhash, threshold, limit)
        else:
            with pytest.raises(CollectionNotFoundError):
                self.portal.call(matches, simhash, threshold, limit)

    @step(by=served_by, name=names, key=keys, threshold=thresholds, limit=limits)
    def look_up_by_key(self, by: int, name: str, key: str, threshold: int | None, limit: int) -> None:
        collection = self.collections.get(name)
        if collection is not None and key in collection.documents:
            found = self.portal.call(self.serving[by].pages(name).matches, Key(key), threshold, limit)
            self.require_right(by, name, found, collection.documents[key], threshold, limit, except_key=key)

    @step(2, by=served_by, name=names, several=st.dictionaries(keys, written, min_size=1))
    def write_many(self, by: int, name: str, several: dict[str, int | None]) -> None:
        writes = {key: self.to_be_written(name, key, simhash) for key, simhash in several.items()}
        outcomes = self.portal.call(self.serving[by].pages(name).put_many, writes)
        for (key, simhash), outcome in zip(writes.items(), outcomes, strict=True):
            self.note_write(name, key, simhash, outcome)

    @step(2, by=served_by, name=names, several=st.lists(fingerprints, min_size=1), threshold=thresholds, limit=limits)
    def look_up_many(self, by: int, name: str, several: list[int], threshold: int | None, limit: int) -> None:
        if name in self.collections:
            simhashes = [self.collections[name].fitting(simhash) for simhash in several]
            found = self.portal.call(self.serving[by].pages(name).matches_of_many, simhashes, threshold, limit)
            for simhash, matches in zip(simhashes, found, strict=True):
                self.require_right(by, name, matches, simhash, threshold, limit)

    @step(by=served_by)
    def start_anew(self, by: int) -> None:
        """It knows nothing then, and must be able to start whatever a rebuild has left."""
        self.serving[by].start()

    def to_be_written(self, name: str, key: str, simhash: int | None) -> int:
        """The first write makes a collection, where there is none. None: what is stored already."""
        collection = self.collections.get(name, Collection(bits=63))
        return collection.documents.get(key, 0) if simhash is None else collection.fitting(simhash)

    def note_write(self, name: str, key: str, simhash: int, outcome: Outcome) -> None:
        documents = self.collections.setdefault(name, Collection(bits=63)).documents
        if key not in documents:
            assert outcome == Outcome.CREATED
        else:
            assert outcome == (Outcome.UNCHANGED if documents[key] == simhash else Outcome.REPLACED)
        documents[key] = simhash

    def require_right(
        self,
        by: int,
        name: str,
        found: Matches,
        simhash: int,
        threshold: int | None,
        limit: int,
        *,
        except_key: str | None = None,
    ) -> None:
        if threshold is None:
            assert found.threshold in {default for _, default in self.serving[by].defaults}
        else:
            assert found.threshold == threshold
        expected = nearest(self.collections[name].stored(), simhash, found.threshold, except_key=except_key)
        assert_right(found, expected, limit=limit)

    # Rebuilds. Each step goes on with the one that there is, whoever has broken it off, or begins the next.

    @step(3, number=st.integers(1, 8))
    def pass_statements(self, number: int) -> None:
        self.be_at_work()
        self.move(self.worker.pass_statements, number)

    @step(3, phase=phases)
    def reach(self, phase: str) -> None:
        self.be_at_work()
        self.move(self.worker.reach, phase)

    @step()
    def finish_the_rebuild(self) -> None:
        self.be_at_work()
        self.move(self.worker.finish)

    @step(2, by=served_by, name=names, key=keys, simhash=written, phase=phases)
    def reach_during_a_write(self, by: int, name: str, key: str, simhash: int | None, phase: str) -> None:
        """The write has seen the layouts already when it is held up, and has written nothing yet."""
        self.be_at_work()
        simhash = self.to_be_written(name, key, simhash)
        with psycopg.connect(self.conninfo) as blocker:
            blocker.execute("LOCK TABLE document IN SHARE MODE")
            writing = self.portal.start_task_soon(self.serving[by].pages(name).put, key, simhash)
            wait_until(lambda: waiting_for_locks(self.observer) == 1)
            moving = self.portal.start_task_soon(self.worker.reach, phase)
            wait_until(lambda: moving.done() or waiting_for_locks(self.observer) == 2)
            blocker.rollback()
        self.note_write(name, key, simhash, writing.result())
        moving.result()
        self.see_whether_it_has_ended()

    @step(3, phase=maybe_phases, after=st.integers(0, 8) | st.integers(9, 25))
    def crash(self, phase: str | None, after: int) -> None:
        """From where it stands, or from where the phase begins."""
        if phase is not None:
            self.reach(phase)
        self.be_at_work()
        self.move(self.worker.crash, after)

    @step()
    def crash_in_the_middle_of_an_index(self) -> None:
        """A writer holds it up; it leaves an index that isn't valid."""
        self.be_at_work()
        self.move(self.worker.reach_an_index)
        if not self.worker.works:
            return
        (building,) = [stored.table for stored in self.layouts() if stored.state == "building"]
        with psycopg.connect(self.conninfo) as blocker:
            blocker.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.Identifier(building)))
            moving = self.portal.start_task_soon(self.worker.pass_statements, 1)
            wait_until(lambda: waiting_for_locks(self.observer) == 1)
            self.portal.call(self.worker.end_session)
            moving.result()
        assert not self.worker.works
        assert self.invalid_indexes() == 1

    @step()
    def stop_the_worker(self) -> None:
        self.be_at_work()
        self.move(self.worker.stop)

    @step()
    def offer_it_to_a_second_worker(self) -> None:
        """The queue may hand it out twice: the second one leaves it alone."""
        operation_id = self.be_at_work()
        self.portal.call(self.worker.offer, operation_id)

    @step()
    def ask_for_a_rebuild(self) -> None:
        """Nobody begins it yet. There is one at a time, whoever works on it."""
        if self.rebuild is None:
            plan, before = next(self.plans), self.active()
            self.rebuild = Asked(self.ask(plan).id, plan, before)
        else:
            with pytest.raises(RebuildRunningError):
                self.ask(next(self.plans))

    @step(2, phase=maybe_phases)
    def cancel(self, phase: str | None) -> None:
        """Whatever there is, or one that has come to the phase."""
        if phase is not None:
            self.reach(phase)
        if self.rebuild is None:
            return
        try:
            has_effect = self.portal.call(self.worker.cancel, self.rebuild.id)
        except NotCancelableError:
            assert self.operation()[1] in SWITCHED
        else:
            self.rebuild.cancel = self.rebuild.cancel or has_effect
        self.see_whether_it_has_ended()

    def ask(self, plan: Plan) -> Operation:
        begin = self.working.process.services.operations.begin
        parameters: dict[str, Json] = {"bands": plan.bands, "threshold": plan.threshold, "force": plan.force}
        return self.portal.call(lambda: begin(OperationKind.REBUILD, parameters, idempotency_key=None))

    def be_at_work(self) -> int:
        """The number of the operation."""
        if self.rebuild is None:
            self.ask_for_a_rebuild()
        assert self.rebuild is not None
        if not self.worker.works:
            self.portal.call(self.worker.begin, self.rebuild.id)
        assert self.worker.works
        return self.rebuild.id

    def move(self, step: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self.portal.call(step, *arguments)
        self.see_whether_it_has_ended()

    def operation(self) -> tuple[str, str | None, str | None]:
        """The status of the rebuild, its phase and its error."""
        assert self.rebuild is not None
        query = "SELECT status, phase, error FROM operation WHERE id = %s::int"
        (found,) = self.observer.execute(query, [self.rebuild.id]).fetchall()
        return found

    def see_whether_it_has_ended(self) -> None:
        if self.rebuild is None:
            return
        asked, (status, _, error) = self.rebuild, self.operation()
        assert error is None, error
        if status in {"queued", "running"}:
            return
        self.rebuild = None
        assert status == ("canceled" if asked.cancel else "succeeded")
        active = self.active()
        if asked.cancel:
            assert active == asked.before
        else:
            assert active.threshold == asked.plan.threshold
            assert asked.plan.bands is None or active.layout == cut(asked.plan.bands)

    # What holds after every step

    def layouts(self) -> list[StoredLayout]:
        query = "SELECT id, widths, threshold, table_name, state FROM band_layout ORDER BY id"
        return [
            StoredLayout(layout, Layout(tuple(widths)), *others)
            for layout, widths, *others in self.observer.execute(query).fetchall()
        ]

    def active(self) -> StoredLayout:
        (active,) = [stored for stored in self.layouts() if stored.state == "active"]
        return active

    def invalid_indexes(self) -> int:
        ((number,),) = self.observer.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchall()
        return number

    @invariant()
    def layouts_are_in_order(self) -> None:
        """One is active, others only while a rebuild is unfinished; each has its table, and each table its row."""
        stored = self.layouts()
        states = [each.state for each in stored]
        assert states.count("active") == 1
        assert states.count("building") <= 1
        assert len(states) == 1 or self.rebuild is not None
        tables = self.observer.execute(
            """
            SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'b0'
            WHERE c.relkind = 'r'
            """
        ).fetchall()
        assert {name for (name,) in tables} == {each.table for each in stored}
        for process_that_serves in self.serving:
            process_that_serves.note(stored)

    @invariant()
    def nothing_is_lost(self) -> None:
        """The documents are those of the model, and every table has their fingerprints.

        There may be others of collections that are to be purged.
        """
        query = """
            SELECT c.name, d.key, d.simhash FROM document d LEFT JOIN collection c ON c.id = d.collection_id
            WHERE d.collection_id NOT IN (SELECT id FROM deleted_collection)
        """
        documents = [
            (name, key, simhash)
            for name, collection in self.collections.items()
            for key, simhash in collection.documents.items()
        ]
        assert sorted(self.observer.execute(query).fetchall()) == sorted(documents)
        expected = {(name, simhash) for name, _, simhash in documents}
        phase = None if self.rebuild is None else self.operation()[1]
        for stored in self.layouts():
            query = """
                SELECT c.name, f.simhash FROM {} f LEFT JOIN collection c ON c.id = f.collection_id
                WHERE f.collection_id NOT IN (SELECT id FROM deleted_collection)
            """
            found = set(self.observer.execute(sql.SQL(query).format(sql.Identifier(stored.table))).fetchall())
            assert None not in {name for name, _ in found}
            if stored.state != "building" or phase in COPIED:
                assert found >= expected, f"{stored.table} is {stored.state}"

    def finish(self) -> None:
        if self.rebuild is not None:
            self.be_at_work()
            self.move(self.worker.finish)
        assert self.rebuild is None
        self.purge()
        self.layouts_are_in_order()
        self.nothing_is_lost()
        assert self.invalid_indexes() == 0
        self.portal.call(self.require_all_indexes)
        for name, collection in self.collections.items():
            for key in collection.documents:
                self.look_up_by_key(0, name, key, None, 100)
                self.look_up_by_key(1, name, key, 7, 100)

    async def require_all_indexes(self) -> None:
        async with self.working.process.database.connection() as connection:
            for stored in self.layouts():
                await layouts.require_as_described(connection, stored)


@pytest.mark.long
def test_a_rebuild_among_requests_and_accidents(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several batches of a few documents; a cancel is seen at once; what a process knows it knows for good.
    monkeypatch.setattr("app.service.rebuild._BATCH", 3)
    monkeypatch.setattr("app.service.rebuild._VERIFIED_LOOKUPS", 2)
    monkeypatch.setattr("app.service.operator._WATCH_SECONDS", 0.05)
    monkeypatch.setattr("app.service.catalog._LAYOUTS_SECONDS", math.inf)
    with start_blocking_portal() as portal:

        class Machine(RebuildMachine):
            def __init__(self) -> None:
                super().__init__(server, portal)

        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            ),
        )
