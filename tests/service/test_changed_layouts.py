"""A process remembers the layouts, others change them: its answers and writes are right all the same."""

import psycopg
import pytest
from psycopg import sql

from app.core.errors import CollectionNotFoundError
from app.core.layout import cut
from app.core.model import Outcome
from app.runtime import Process
from app.service.housekeeping import Housekeeping
from app.service.near_duplicates import Key
from app.store import layouts
from tests.store.databases import add_layout
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks


@pytest.fixture
async def pages(service: Process) -> Pages:
    """A collection with a document "a" of fingerprint 7, of which the process knows all that it remembers."""
    pages = Pages(service.services)
    await pages.put("a", 7)
    assert await pages.keys(7) == ["a"]
    return pages


def fingerprints(database: str, table: str) -> set[int]:
    with psycopg.connect(database) as connection:
        query = sql.SQL("SELECT simhash FROM {}").format(sql.Identifier(table))
        return {simhash for (simhash,) in connection.execute(query)}


async def test_a_write_goes_to_a_layout_that_is_being_built_since(
    pages: Pages, other_session: psycopg.Connection, database: str
) -> None:
    add_layout(other_session, cut(8), "eight", "building")
    other_session.commit()
    assert await pages.put("b", 8) == Outcome.CREATED
    assert fingerprints(database, "fingerprint") == fingerprints(database, "eight") == {7, 8}


async def test_an_unchanged_document_s_fingerprint_goes_there_too(
    pages: Pages, other_session: psycopg.Connection, database: str
) -> None:
    add_layout(other_session, cut(8), "eight", "building")
    other_session.execute("TRUNCATE eight")
    other_session.commit()
    assert await pages.put("a", 7) == Outcome.UNCHANGED
    assert fingerprints(database, "eight") == {7}


async def test_a_write_waits_for_a_change_of_the_layouts(
    pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection, database: str
) -> None:
    other_session.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [layouts.LOCK])
    add_layout(other_session, cut(8), "eight", "building")
    async with meanwhile(lambda: pages.put("b", 8)):
        await until(lambda: waiting_for_locks(observer) == 1)
        other_session.commit()
    assert fingerprints(database, "fingerprint") == fingerprints(database, "eight") == {7, 8}


async def test_a_change_of_the_layouts_waits_for_a_write(
    pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection
) -> None:
    other_session.execute("INSERT INTO fingerprint (collection_id, simhash) SELECT id, 8 FROM collection")
    async with meanwhile(lambda: pages.put("b", 8)):
        await until(lambda: waiting_for_locks(observer) == 1)
        row = observer.execute("SELECT pg_try_advisory_xact_lock(%s::bigint)", [layouts.LOCK]).fetchone()
        assert row == (False,)
        other_session.rollback()


def switch_to_another_layout(connection: psycopg.Connection) -> None:
    """As a rebuild ends, its grace period included: the old table is gone."""
    layout = add_layout(connection, cut(3), "three", "building")
    connection.execute("DELETE FROM band_layout WHERE state = 'active'")
    connection.execute("UPDATE band_layout SET state = 'active', threshold = 7 WHERE id = %s::int", [layout.id])
    connection.execute("DROP TABLE fingerprint")
    connection.commit()


async def test_lookups_go_on_in_a_retired_layout(
    pages: Pages, elsewhere: Pages, other_session: psycopg.Connection
) -> None:
    layout = add_layout(other_session, cut(3), "three", "building")
    other_session.execute("UPDATE band_layout SET state = 'retired' WHERE state = 'active'")
    other_session.execute("UPDATE band_layout SET state = 'active' WHERE id = %s::int", [layout.id])
    other_session.commit()
    await elsewhere.put("b", 6)
    assert await pages.keys(7) == await elsewhere.keys(7) == ["a", "b"]


@pytest.mark.parametrize("threshold", [3, 12, 40])
async def test_a_lookup_in_a_table_that_was_dropped_goes_to_the_new_one(
    pages: Pages, other_session: psycopg.Connection, threshold: int
) -> None:
    switch_to_another_layout(other_session)
    assert await pages.keys(7, threshold) == ["a"]


async def test_a_lookup_by_key_and_one_explained_go_to_the_new_table(
    pages: Pages, elsewhere: Pages, other_session: psycopg.Connection
) -> None:
    await pages.put("b", 6)
    await elsewhere.keys(7)
    switch_to_another_layout(other_session)
    assert await pages.keys(Key("a")) == ["b"]
    explained = await elsewhere.find(7, explain=True)
    assert explained.explanation
    assert explained.explanation.probes.layout == cut(3)


async def test_the_threshold_of_the_new_layout_holds(pages: Pages, other_session: psycopg.Connection) -> None:
    switch_to_another_layout(other_session)
    assert (await pages.matches(7, threshold=None)).threshold == 7


async def test_a_write_whose_table_was_dropped_goes_to_the_new_one(
    pages: Pages, elsewhere: Pages, other_session: psycopg.Connection, database: str
) -> None:
    assert await elsewhere.keys(7) == ["a"]
    switch_to_another_layout(other_session)
    indexed = await pages.index("b", 8)
    assert indexed.outcome == Outcome.CREATED
    assert await elsewhere.put("c", 9) == Outcome.CREATED
    assert fingerprints(database, "three") == {7, 8, 9}
    assert await pages.keys(8, threshold=1) == ["b", "c"]


async def test_a_collection_is_purged_from_the_new_table(
    service: Process, pages: Pages, other_session: psycopg.Connection, database: str
) -> None:
    switch_to_another_layout(other_session)
    await pages.services.collections.delete(pages.name)
    with pytest.raises(CollectionNotFoundError):
        await pages.keys(7)
    await Housekeeping(service.database).do_what_is_due()
    assert fingerprints(database, "three") == set()
