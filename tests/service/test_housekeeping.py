"""What nobody waits for: deleted collections are purged, and documents that nobody indexes any more expire."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random

import anyio
import psycopg
import pytest
from psycopg import sql

from app.core.errors import CollectionNotFoundError, DocumentNotFoundError, UnavailableError
from app.core.layout import cut
from app.core.model import OperationStatus, Outcome
from app.core.scheme import ARTICLE, Scheme, given
from app.runtime import Process
from app.service import housekeeping
from app.service.documents import NewDocument
from app.service.fingerprinting import Simhash
from app.service.housekeeping import Housekeeping
from app.service.near_duplicates import Key
from app.store import layouts
from app.store.documents import Write
from tests.conftest import on_the_newest
from tests.service.operations import Gate, Worker
from tests.store.databases import add_layout, one_value, rows_of_dead_collections
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks

pytestmark = on_the_newest

# Both ends of what a fingerprint of 64 bits may be, and both sides of the middle.
SIMHASHES = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1)


@pytest.fixture
def housekeeper(service: Process) -> Housekeeping:
    return Housekeeping(service.database)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_DOCUMENTS", 2)
    monkeypatch.setattr(housekeeping, "_FINGERPRINTS", 2)


@pytest.fixture
async def wide(pages: Pages, observer: psycopg.Connection) -> Pages:
    """A collection of 64 bits, with documents from one end to the other and two without a fingerprint; two layouts."""
    add_layout(observer, cut(8), "eight", "retired")
    await pages.services.collections.create(pages.name, Scheme(bits=64), store_text=True)
    for number, simhash in enumerate(SIMHASHES):
        await pages.put(str(number), simhash)
    for key in ("short", "shorter"):
        await pages.put(key, "!")
    return pages


@pytest.fixture
async def neighbours(wide: Pages) -> list[Pages]:
    """Collections with the same fingerprints, one made before and one after the others of a test."""
    both = [Pages(wide.services), Pages(wide.services)]
    for each in both:
        await each.services.collections.create(each.name, Scheme(bits=64), store_text=True)
        for number, simhash in enumerate(SIMHASHES):
            await each.put(str(number), simhash)
    return both


def deleted_collections(database: str) -> object:
    return one_value(database, b"SELECT count(*) FROM deleted_collection")


def assert_purged(database: str) -> None:
    assert rows_of_dead_collections(database) == {}
    assert deleted_collections(database) == 0


def rows_in(database: str, table: str) -> object:
    with psycopg.connect(database) as connection:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        assert row
        return row[0]


_GATE = b"""
CREATE FUNCTION stand_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END'
"""


def build_gate(observer: psycopg.Connection, table: str, simhash: int) -> None:
    """Whoever deletes a row of this fingerprint has to wait while another session has shut the gate."""
    observer.execute(_GATE)
    observer.execute(
        sql.SQL(
            "CREATE TRIGGER gate BEFORE DELETE ON {} FOR EACH ROW WHEN (OLD.simhash = {}::bigint)"
            " EXECUTE FUNCTION stand_at_the_gate()"
        ).format(sql.Identifier(table), sql.Literal(str(simhash)))
    )


def shut_gate(session: psycopg.Connection) -> None:
    """Until its transaction ends."""
    session.execute("SELECT pg_advisory_xact_lock(1)")


async def put_many(pages: Pages, simhashes: Mapping[str, int]) -> list[Outcome]:
    news = [NewDocument(key, Simhash(simhash, "/simhash"), None) for key, simhash in simhashes.items()]
    return [outcome for outcome, _ in await pages.services.documents.index_many(pages.name, news)]


# Deleted collections


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 1000])
async def test_what_a_deleted_collection_held_is_purged_from_every_table(
    wide: Pages,
    neighbours: list[Pages],
    housekeeper: Housekeeping,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr(housekeeping, "_DOCUMENTS", size)
    monkeypatch.setattr(housekeeping, "_FINGERPRINTS", size)
    await wide.services.collections.delete(wide.name)
    assert rows_of_dead_collections(database) == {"document": 9, "fingerprint": 7, "eight": 7}
    assert deleted_collections(database) == 1
    await housekeeper.do_what_is_due()
    assert_purged(database)
    assert [rows_in(database, table) for table in ("document", "fingerprint", "eight")] == [14, 14, 14]
    for each in neighbours:
        assert len(await each.keys(0, threshold=63)) == len(await each.keys(-1, threshold=63)) == 6
        assert len(await each.keys(-(2**63), threshold=0)) == len(await each.keys(2**63 - 1, threshold=0)) == 1


async def test_nothing_is_purged_that_was_not_deleted(
    wide: Pages, neighbours: list[Pages], housekeeper: Housekeeping, database: str
) -> None:
    await housekeeper.do_what_is_due()
    assert rows_in(database, "document") == 9 + 14
    assert len(await wide.keys(0, threshold=63)) == len(await neighbours[0].keys(0, threshold=63))


@pytest.mark.usefixtures("small_batches")
async def test_rows_are_deleted_a_few_at_a_time(
    wide: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    build_gate(observer, "document", SIMHASHES[4])  # the third batch holds the keys 4 and 5
    await wide.services.collections.delete(wide.name)
    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        assert rows_of_dead_collections(database) == {"document": 5, "fingerprint": 7, "eight": 7}
        other_session.rollback()
    assert_purged(database)


@pytest.mark.usefixtures("small_batches")
async def test_fingerprints_are_deleted_a_few_at_a_time(
    wide: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    build_gate(observer, "eight", SIMHASHES[4])
    await wide.services.collections.delete(wide.name)
    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        assert rows_of_dead_collections(database) == {"eight": 3}
        other_session.rollback()
    assert_purged(database)


def by_the_process(task: asyncio.Task[None], _: psycopg.Connection) -> None:
    task.cancel()


def by_the_server(_: asyncio.Task[None], observer: psycopg.Connection) -> None:
    observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("break_off", [by_the_process, by_the_server])
@pytest.mark.parametrize("table", ["document", "fingerprint", "eight"])
@pytest.mark.parametrize("simhash", [SIMHASHES[0], 0, SIMHASHES[-1]])
async def test_a_purge_that_is_broken_off_at_any_row_goes_on(
    wide: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
    break_off: Callable[[asyncio.Task[None], psycopg.Connection], None],
    table: str,
    simhash: int,
) -> None:
    build_gate(observer, table, simhash)
    await wide.services.collections.delete(wide.name)
    shut_gate(other_session)
    task = asyncio.create_task(housekeeper.do_what_is_due())
    await until(lambda: waiting_for_locks(observer) == 1)
    break_off(task, observer)
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), UnavailableError)
    other_session.rollback()
    assert rows_of_dead_collections(database) != {}
    assert deleted_collections(database) == 1
    await housekeeper.do_what_is_due()
    assert_purged(database)


@pytest.mark.usefixtures("small_batches")
async def test_another_housekeeper_purges_another_collection_meanwhile(
    wide: Pages,
    service: Process,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    build_gate(observer, "document", SIMHASHES[0])
    other = Pages(wide.services)
    await other.put("a", 7)
    for each in (wide, other):
        await each.services.collections.delete(each.name)
    shut_gate(other_session)
    async with meanwhile(Housekeeping(service.database).do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        await Housekeeping(service.database).do_what_is_due()
        assert rows_of_dead_collections(database) == {"document": 9, "fingerprint": 7, "eight": 7}
        assert deleted_collections(database) == 1
        other_session.rollback()
    assert_purged(database)


@pytest.mark.usefixtures("small_batches")
async def test_four_housekeepers_purge_all_there_is(
    wide: Pages, neighbours: list[Pages], service: Process, database: str
) -> None:
    for each in (wide, *neighbours):
        await each.services.collections.delete(each.name)
    kept = Pages(wide.services)
    await kept.put("a", 7)
    async with meanwhile(*(Housekeeping(service.database).do_what_is_due for _ in range(4))):
        pass
    assert_purged(database)
    assert await kept.keys(7) == ["a"]


async def test_a_name_can_be_used_again_at_once(
    wide: Pages,
    elsewhere: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    build_gate(observer, "document", 0)
    await wide.services.collections.delete(wide.name)
    await wide.services.collections.create(wide.name, Scheme(bits=64), store_text=True)
    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        for each in (wide, elsewhere):
            assert await each.found(0, threshold=63) == []
            assert await each.services.documents.page(each.name, after="", limit=10) == []
            _, counts = await each.services.collections.describe(each.name)
            assert (counts.documents, counts.fingerprints, counts.too_short) == (0, 0, 0)
            with pytest.raises(DocumentNotFoundError):
                await each.services.documents.get(each.name, "0")
            with pytest.raises(DocumentNotFoundError):
                await each.found(Key("0"))
        assert await wide.put("0", 0) == Outcome.CREATED
        assert await put_many(elsewhere, {"0": 0, "1": 1}) == [Outcome.UNCHANGED, Outcome.CREATED]
        other_session.rollback()
    assert_purged(database)
    assert await wide.keys(0) == ["0", "1"]
    assert [rows_in(database, table) for table in ("document", "fingerprint", "eight")] == [2, 2, 2]


async def test_writes_of_every_kind_and_deletions_leave_nothing_of_a_dead_collection(
    pages: Pages, elsewhere: Pages, housekeeper: Housekeeping, observer: psycopg.Connection, database: str
) -> None:
    random = Random(5)
    add_layout(observer, cut(8), "eight", "retired")
    await pages.put("a", 7)

    async def write(writer: int) -> None:
        for number in range(20):
            with suppress(UnavailableError):  # after some deletions in a row it gives up, and has written nothing
                await random.choice([pages, elsewhere]).put(f"{writer} {number % 7}", random.getrandbits(4))

    async def write_many() -> None:
        for _ in range(20):
            keys = random.sample(range(40), 12)
            with suppress(UnavailableError):
                await put_many(random.choice([pages, elsewhere]), {f"{key}": random.getrandbits(4) for key in keys})

    async def delete() -> None:
        for _ in range(12):
            await anyio.sleep(0.01)
            with suppress(CollectionNotFoundError):  # nobody has written since the last one
                await random.choice([pages, elsewhere]).services.collections.delete(pages.name)
            await housekeeper.do_what_is_due()

    async with meanwhile(*(lambda writer=writer: write(writer) for writer in range(3)), *[write_many] * 3, delete):
        pass
    await housekeeper.do_what_is_due()
    assert_purged(database)
    await pages.put("last", 7)
    listed = await pages.services.documents.page(pages.name, after="", limit=1000)
    assert {key for key, _, _ in await pages.found(7, threshold=63, limit=1000)} == {each.key for each in listed}


@pytest.mark.usefixtures("small_batches")
async def test_what_a_rebuild_copies_while_its_collection_is_purged_goes_too(
    wide: Pages, service: Process, observer: psycopg.Connection, housekeeper: Housekeeping, database: str
) -> None:
    """The rows of the new table aren't committed yet when the purge looks for some."""
    observer.execute("DELETE FROM band_layout WHERE table_name = 'eight'")
    observer.execute("DROP TABLE eight")
    worker = Worker(replace(service, settings=service.settings.model_copy(update={"layout_grace": 0})))
    operation_id = await worker.begin(3, 8)
    gate = Gate("copying", done=len(SIMHASHES), in_transaction=True)
    done = anyio.Event()

    async def purge() -> None:
        await housekeeper.do_what_is_due()
        done.set()

    async with worker.performing(operation_id, gate) as task:
        await gate.reached(task)
        await wide.services.collections.delete(wide.name)
        async with meanwhile(purge):
            await until(lambda: done.is_set() or waiting_for_locks(observer) == 1)
            gate.open()
        await task
    assert (await worker.get(operation_id)).status == OperationStatus.SUCCEEDED
    await housekeeper.do_what_is_due()
    assert_purged(database)


async def test_a_layout_that_is_dropped_during_a_purge_is_passed_over(
    wide: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    await wide.services.collections.delete(wide.name)
    other_session.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [layouts.LOCK])
    other_session.execute("DELETE FROM band_layout WHERE table_name = 'eight'")
    other_session.execute("DROP TABLE eight")
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        other_session.commit()
    assert_purged(database)


async def test_an_audit_asks_those_that_are_not_deleted(wide: Pages, neighbours: list[Pages], service: Process) -> None:
    """The deleted ones are larger, and their documents are there still."""
    kept = Pages(wide.services)
    await kept.put("a", 7)
    for each in (wide, *neighbours):
        await each.services.collections.delete(each.name)
    audited = await Worker(service).audit(sample=3, threshold=3)
    assert audited.result
    assert (audited.result["lookups"], audited.result["misses"]) == (1, 0)  # it has one fingerprint


# Documents that expire

TTL = 3200
NOTED = TTL // 16  # for so long it needn't be noted that a document was seen, and documents stay longer


def let_pass(observer: psycopg.Connection, seconds: float) -> None:
    """As if all that has happened had happened so much earlier."""
    for table, columns in {"document": ("seen_at",), "collection": ("ttl_since", "expired_at")}.items():
        for column in columns:
            observer.execute(
                sql.SQL("UPDATE {0} SET {1} = {1} - make_interval(secs => %s::float)").format(
                    sql.Identifier(table), sql.Identifier(column)
                ),
                [seconds],
            )


async def create(pages: Pages, ttl: int | None = TTL) -> None:
    await pages.services.collections.create(pages.name, ARTICLE, store_text=True, ttl=ttl)


async def stored(pages: Pages) -> list[str]:
    return [document.key for document in await pages.services.documents.page(pages.name, after="", limit=1000)]


async def written_alone(pages: Pages, key: str, simhash: int) -> Outcome:
    return await pages.put(key, simhash)


async def written_and_looked_up(pages: Pages, key: str, simhash: int) -> Outcome:
    return (await pages.index(key, simhash)).outcome


async def written_with_others(pages: Pages, key: str, simhash: int) -> Outcome:
    outcomes = await put_many(pages, {key: simhash, "z": 1})
    return outcomes[0]


async def imported(pages: Pages, key: str, simhash: int) -> Outcome:
    outcomes = await pages.services.documents.write_by_scheme(
        pages.name, ARTICLE, [Write(key, given(simhash), None, None)]
    )
    assert outcomes
    return outcomes[0]


WriteOne = Callable[[Pages, str, int], Awaitable[Outcome]]
every_write = pytest.mark.parametrize(
    "write", [written_alone, written_and_looked_up, written_with_others, imported], ids=lambda write: write.__name__
)


@pytest.mark.usefixtures("small_batches")
async def test_documents_go_that_were_not_seen_for_their_ttl(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    await create(pages)
    old = {key: number for number, key in enumerate("bdfhj")}
    await put_many(pages, old)
    let_pass(observer, TTL - 10)
    await put_many(pages, {key: number for number, key in enumerate("acegi")})
    await housekeeper.do_what_is_due()
    assert await stored(pages) == list("abcdefghij")
    let_pass(observer, NOTED + 20)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == list("acegi")
    assert set(await pages.keys(0, threshold=63)) == set("acegi")
    assert await pages.put("b", 0) == Outcome.CREATED


@every_write
async def test_an_unchanged_document_that_is_written_again_is_seen(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection, write: WriteOne
) -> None:
    await create(pages)
    assert await write(pages, "a", 7) == Outcome.CREATED
    before = await pages.services.documents.get(pages.name, "a")
    for _ in range(3):
        let_pass(observer, TTL - 10)
        assert await write(pages, "a", 7) == Outcome.UNCHANGED
        await housekeeper.do_what_is_due()
        assert await pages.services.documents.get(pages.name, "a") == before
    let_pass(observer, TTL + NOTED + 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


@every_write
async def test_a_document_that_is_replaced_is_seen(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection, write: WriteOne
) -> None:
    await create(pages)
    await write(pages, "a", 7)
    let_pass(observer, TTL - 10)
    assert await write(pages, "a", 6) == Outcome.REPLACED
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert "a" in await stored(pages)


async def test_none_goes_before_its_ttl_and_each_soon_after(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    random = Random(7)
    step = 97
    await create(pages)
    seen: dict[str, int] = {}
    gone = 0
    for now in range(0, 12 * TTL, step):
        if random.random() < 0.4:
            write = random.choice([written_alone, written_and_looked_up, imported])
            key = random.choice("abcdef")
            outcome = await write(pages, key, 7)
            assert (outcome == Outcome.UNCHANGED) == (key in seen)
            seen[key] = now
        await housekeeper.do_what_is_due()
        remaining = set(await stored(pages))
        for key in sorted(seen.keys() - remaining):
            assert now - seen.pop(key) >= TTL
            gone += 1
        assert all(now - seen[key] <= TTL + 2 * NOTED + step for key in remaining)
        let_pass(observer, step)
    assert gone > 3


async def test_a_document_that_was_seen_again_soon_stays_for_its_ttl_from_then(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    """That it was seen the second time isn't noted."""
    await create(pages)
    let_pass(observer, 2 * TTL)
    await pages.put("a", 7)
    let_pass(observer, NOTED - 10)
    assert await pages.put("a", 7) == Outcome.UNCHANGED
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["a"]
    let_pass(observer, NOTED + 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


async def test_a_ttl_that_is_set_later_counts_from_then(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    await create(pages, ttl=None)
    await pages.put("a", 7)
    let_pass(observer, 10 * TTL)
    assert (await pages.services.collections.set_ttl(pages.name, TTL)).ttl == TTL
    await housekeeper.do_what_is_due()
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["a"]
    let_pass(observer, NOTED + 20)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


async def test_a_shorter_ttl_counts_from_then(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    await create(pages, ttl=100 * TTL)
    await pages.put("a", 7)
    let_pass(observer, 50 * TTL)
    await housekeeper.do_what_is_due()
    await pages.services.collections.set_ttl(pages.name, TTL)
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["a"]
    let_pass(observer, NOTED + 20)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


async def test_a_ttl_that_is_taken_away_counts_no_more(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    await create(pages)
    await pages.put("a", 7)
    await pages.services.collections.set_ttl(pages.name, None)
    let_pass(observer, 10 * TTL)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["a"]


async def test_documents_of_a_collection_without_a_ttl_stay(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    short_lived = Pages(pages.services)
    await create(short_lived)
    for each in (pages, short_lived):
        await each.put("a", 7)
    let_pass(observer, 100 * 366 * 24 * 3600)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["a"]
    assert await stored(short_lived) == []


@every_write
@pytest.mark.parametrize("remembered", [None, 100 * TTL])
async def test_a_process_that_remembers_another_ttl_notes_what_it_sees(
    pages: Pages,
    elsewhere: Pages,
    housekeeper: Housekeeping,
    observer: psycopg.Connection,
    write: WriteOne,
    remembered: int | None,
) -> None:
    await create(pages, ttl=remembered)
    await write(pages, "a", 7)
    await elsewhere.services.collections.set_ttl(pages.name, TTL)
    let_pass(observer, TTL - 10)
    assert await write(pages, "a", 7) == Outcome.UNCHANGED
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert "a" in await stored(pages)
    let_pass(observer, NOTED + 20)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


async def test_what_was_looked_through_is_looked_through_again(
    pages: Pages, housekeeper: Housekeeping, observer: psycopg.Connection
) -> None:
    await create(pages)
    await pages.put("a", 7)
    let_pass(observer, NOTED + 10)
    await pages.put("b", 8)
    let_pass(observer, TTL)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == ["b"]
    let_pass(observer, NOTED + 10)
    await housekeeper.do_what_is_due()
    assert await stored(pages) == []


# At the same moment


@pytest.fixture
async def due(pages: Pages, observer: psycopg.Connection) -> Pages:
    """Three documents that are due to go; whoever deletes "a" has to pass the gate."""
    await create(pages)
    await put_many(pages, {"a": 7, "b": 6, "z": 1})
    build_gate(observer, "document", 7)
    let_pass(observer, TTL + NOTED + 10)
    return pages


@every_write
@pytest.mark.parametrize("key", ["a", "b"])
async def test_a_document_that_is_written_while_it_expires_is_not_lost(
    due: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    write: WriteOne,
    key: str,
) -> None:
    outcomes: list[Outcome] = []

    async def write_again() -> None:
        outcomes.append(await write(due, key, {"a": 7, "b": 6}[key]))

    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        async with meanwhile(write_again):
            await until(lambda: bool(outcomes) or waiting_for_locks(observer) == 2)
            other_session.rollback()
    assert len(outcomes) == 1
    assert key in await stored(due)
    assert key in await due.keys(7, threshold=1)
    let_pass(observer, TTL - 10)
    await housekeeper.do_what_is_due()
    assert key in await stored(due)


async def test_a_document_that_is_being_written_does_not_expire(
    due: Pages, housekeeper: Housekeeping, other_session: psycopg.Connection, observer: psycopg.Connection
) -> None:
    outcomes: list[Outcome] = []

    async def write_again() -> None:
        outcomes.extend(await put_many(due, {"a": 7, "new": 9}))

    other_session.execute("INSERT INTO fingerprint (collection_id, simhash) SELECT id, 9 FROM collection")
    async with meanwhile(write_again):
        await until(lambda: waiting_for_locks(observer) == 1)
        await housekeeper.do_what_is_due()
        other_session.rollback()
    assert outcomes == [Outcome.UNCHANGED, Outcome.CREATED]
    assert await stored(due) == ["a", "new"]


@pytest.mark.parametrize("ttl", [None, 100 * TTL])
async def test_nothing_expires_any_more_once_a_longer_ttl_is_set(
    due: Pages,
    elsewhere: Pages,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    ttl: int | None,
) -> None:
    """The collection is being looked through, and "b" comes in the batch after that of "a"."""
    monkeypatch.setattr(housekeeping, "_DOCUMENTS", 1)
    outcomes: list[Outcome] = []

    async def keep() -> None:
        await elsewhere.services.collections.set_ttl(due.name, ttl)
        outcomes.append(await elsewhere.put("b", 6))

    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        async with meanwhile(keep):
            await until(lambda: bool(outcomes) or waiting_for_locks(observer) == 2)
            other_session.rollback()
    assert len(outcomes) == 1
    assert "b" in await stored(due)


async def test_a_collection_may_be_deleted_while_its_documents_expire(
    due: Pages,
    service: Process,
    housekeeper: Housekeeping,
    other_session: psycopg.Connection,
    observer: psycopg.Connection,
    database: str,
) -> None:
    shut_gate(other_session)
    async with meanwhile(housekeeper.do_what_is_due):
        await until(lambda: waiting_for_locks(observer) == 1)
        await due.services.collections.delete(due.name)
        other_session.rollback()
    await Housekeeping(service.database).do_what_is_due()
    assert_purged(database)


async def test_several_housekeepers_and_writers_lose_nothing_that_was_just_seen(
    pages: Pages, elsewhere: Pages, service: Process, observer: psycopg.Connection
) -> None:
    await create(pages)
    keys = [f"{number}" for number in range(30)]
    for _ in range(5):
        await put_many(pages, dict.fromkeys(keys, 7))
        let_pass(observer, TTL + NOTED + 10)

        async def write(with_others: Pages, half: list[str]) -> None:
            for key in half:
                await with_others.put(key, 7)

        async with meanwhile(
            lambda: write(pages, keys[:15]),
            lambda: write(elsewhere, keys[10:20]),
            lambda: put_many(elsewhere, dict.fromkeys(keys[5:25], 7)),
            *(Housekeeping(service.database).do_what_is_due for _ in range(2)),
        ):
            pass
        assert set(await stored(pages)) >= set(keys[:25])
