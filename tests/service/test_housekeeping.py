"""What nobody waits for: deleted collections are purged, and documents that nobody indexes any more expire."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
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
from app.store.documents import Write
from tests.service.operations import Gate, Worker
from tests.store.databases import add_layout, one_value, rows_of_dead_collections
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks

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
    add_layout(observer, cut(8), "eight", "building")
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
@pytest.mark.parametrize("simhash", SIMHASHES)
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
