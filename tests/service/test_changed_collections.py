"""A process remembers the collections, others change them: its answers and writes are right all the same."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from itertools import count
from random import Random

import anyio
import psycopg
import pytest

from app.core.errors import (
    CollectionExistsError,
    CollectionNotFoundError,
    DocumentNotFoundError,
    InvalidFingerprintError,
    TiroirError,
    UnavailableError,
)
from app.core.model import Outcome
from app.core.scheme import ARTICLE, Scheme
from app.runtime import Process
from app.service.housekeeping import Housekeeping
from app.service.near_duplicates import Key
from app.store.database import StaleCatalogError
from tests.conftest import Server
from tests.store.databases import one_value, rows_of_dead_collections
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks

TEXT = " ".join(f"word{number}" for number in range(30))


@pytest.fixture(scope="module")
def database(server: Server) -> Generator[str]:
    """One database: each test has a collection of its own."""
    yield server.create("changed_collections")
    server.drop("changed_collections")


@pytest.fixture
async def pages(service: Process) -> Pages:
    """A collection with a document "a" of fingerprint 7, of which the process knows all that it remembers."""
    pages = Pages(service.services)
    await pages.put("a", 7)
    assert await pages.keys(7) == ["a"]
    return pages


async def assert_nothing_is_left_of_the_dead(service: Process, database: str) -> None:
    await Housekeeping(service.database).do_what_is_due()
    assert rows_of_dead_collections(database) == {}


def begin_to_write(session: psycopg.Connection, pages: Pages, simhash: int) -> None:
    """A transaction that is writing the fingerprint: whoever writes it too has to wait for its end."""
    session.execute(
        "INSERT INTO fingerprint (collection_id, simhash) SELECT id, %s::bigint FROM collection WHERE name = %s::text",
        [simhash, pages.name],
    )


async def remade(elsewhere: Pages, scheme: Scheme = ARTICLE) -> None:
    """The collection is deleted by another process, and made again."""
    await elsewhere.services.collections.delete(elsewhere.name)
    await elsewhere.services.collections.create(elsewhere.name, scheme, store_text=True)


async def test_a_write_goes_to_the_collection_that_has_the_name_now(pages: Pages, elsewhere: Pages) -> None:
    await remade(elsewhere)
    assert await pages.put("a", 7) == Outcome.CREATED
    assert await elsewhere.keys(7) == ["a"]


async def test_a_write_makes_a_collection_anew_that_was_deleted(pages: Pages, elsewhere: Pages) -> None:
    await elsewhere.services.collections.delete(pages.name)
    assert await pages.put("b", 7) == Outcome.CREATED
    assert await elsewhere.keys(7) == ["b"]


async def test_lookups_see_the_collection_that_has_the_name_now(pages: Pages, elsewhere: Pages) -> None:
    await remade(elsewhere)
    assert await pages.keys(7) == []
    await remade(elsewhere)
    await elsewhere.put("z", 7)
    assert await pages.keys(7) == ["z"]
    assert await pages.keys(Key("z")) == []


async def test_a_new_scheme_holds_at_once(pages: Pages, elsewhere: Pages) -> None:
    await remade(elsewhere, Scheme(bits=8))
    with pytest.raises(InvalidFingerprintError):
        await pages.put("b", 256)
    await remade(elsewhere, Scheme(bits=64))
    assert await pages.keys(-1) == []
    await remade(elsewhere)
    await remade(elsewhere, Scheme(bits=64))
    assert await pages.put("b", -1) == Outcome.CREATED
    with pytest.raises(CollectionExistsError):
        await pages.services.collections.create(pages.name, ARTICLE, store_text=True)


# Each sees for itself that what it remembers is gone: none comes after another that has noticed.
READERS: dict[str, Callable[[Pages], Awaitable[object]]] = {
    "find": lambda pages: pages.keys(7),
    "find by text": lambda pages: pages.keys(TEXT),
    "find by a short text": lambda pages: pages.keys("short"),
    "find by key": lambda pages: pages.keys(Key("a")),
    "get": lambda pages: pages.services.documents.get(pages.name, "a"),
    "list": lambda pages: pages.services.documents.page(pages.name, after="", limit=10),
    "delete a document": lambda pages: pages.delete("a"),
    "describe": lambda pages: pages.services.collections.describe(pages.name),
    "set a ttl": lambda pages: pages.services.collections.set_ttl(pages.name, 3600),
    "delete": lambda pages: pages.services.collections.delete(pages.name),
}


@pytest.mark.parametrize("reader", READERS)
async def test_a_deleted_collection_is_not_found(pages: Pages, elsewhere: Pages, reader: str) -> None:
    await elsewhere.services.collections.delete(pages.name)
    with pytest.raises(CollectionNotFoundError):
        await READERS[reader](pages)


@pytest.mark.parametrize("reader", ["find by key", "get", "delete a document"])
async def test_a_document_of_the_old_collection_is_not_found(pages: Pages, elsewhere: Pages, reader: str) -> None:
    await remade(elsewhere)
    with pytest.raises(DocumentNotFoundError):
        await READERS[reader](pages)


async def test_the_new_collection_is_listed_and_described(pages: Pages, elsewhere: Pages) -> None:
    await remade(elsewhere, Scheme(bits=8))
    collection, counts = await pages.services.collections.describe(pages.name)
    assert (collection.scheme.bits, counts.documents) == (8, 0)
    await remade(elsewhere)
    assert await pages.services.documents.page(pages.name, after="", limit=10) == []


# At the same moment


async def test_a_deletion_takes_along_what_is_being_written(
    service: Process, pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection, database: str
) -> None:
    begin_to_write(other_session, pages, 8)
    async with meanwhile(lambda: pages.put("b", 8)):
        await until(lambda: waiting_for_locks(observer) == 1)
        async with meanwhile(lambda: pages.services.collections.delete(pages.name)):
            await until(lambda: waiting_for_locks(observer) == 2)
            other_session.rollback()
    with pytest.raises(CollectionNotFoundError):
        await pages.keys(8)
    await assert_nothing_is_left_of_the_dead(service, database)


async def test_a_write_during_a_deletion_goes_to_a_new_collection(
    service: Process, pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection, database: str
) -> None:
    other_session.execute("SELECT FROM collection WHERE name = %s::text FOR UPDATE", [pages.name])
    async with meanwhile(lambda: pages.services.collections.delete(pages.name)):
        await until(lambda: waiting_for_locks(observer) == 1)
        async with meanwhile(lambda: pages.put("b", 8)):
            await until(lambda: waiting_for_locks(observer) == 2)
            other_session.rollback()
    assert await pages.keys(8, threshold=63) == ["b"]
    await assert_nothing_is_left_of_the_dead(service, database)


async def test_many_writes_and_deletions_leave_nothing_of_a_dead_collection(
    service: Process, pages: Pages, elsewhere: Pages, database: str
) -> None:
    random = Random(5)

    async def write(writer: int) -> None:
        for number in range(25):
            with suppress(UnavailableError):  # after some deletions in a row it gives up, and has written nothing
                await random.choice([pages, elsewhere]).put(f"{writer} {number % 7}", random.getrandbits(4))

    async def delete() -> None:
        for _ in range(12):
            await anyio.sleep(0.01)
            with suppress(CollectionNotFoundError):  # nobody has written since the last one
                await random.choice([pages, elsewhere]).services.collections.delete(pages.name)

    async with meanwhile(*(lambda writer=writer: write(writer) for writer in range(6)), delete):
        pass
    await assert_nothing_is_left_of_the_dead(service, database)
    await pages.put("last", 7)
    listed = await pages.services.documents.page(pages.name, after="", limit=1000)
    assert {key for key, _, _ in await pages.found(7, threshold=63, limit=1000)} == {each.key for each in listed}


async def test_an_unchanged_document_may_be_deleted_while_it_is_written(
    pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection
) -> None:
    """It isn't locked then. The write has to notice, and to write."""
    other_session.execute("DELETE FROM fingerprint")
    other_session.commit()
    begin_to_write(other_session, pages, 7)
    outcomes: list[Outcome] = []

    async def write() -> None:
        outcomes.append(await pages.put("a", 7))

    async with meanwhile(write):
        await until(lambda: waiting_for_locks(observer) == 1)
        await pages.delete("a")
        other_session.commit()
    assert outcomes == [Outcome.CREATED]
    assert await pages.keys(7) == ["a"]


async def test_writers_of_one_document_do_not_fail(pages: Pages, elsewhere: Pages) -> None:
    async def write(with_others: Pages) -> None:
        for number in range(20):
            await with_others.put("same", number % 3)

    async with meanwhile(*(lambda each=each: write(each) for each in [pages, elsewhere] * 3)):
        pass
    assert [key for key, _, _ in await pages.found(0, threshold=63)].count("same") == 1


async def test_many_first_writes_make_one_collection(service: Process, elsewhere: Pages, database: str) -> None:
    new = Pages(service.services)
    both = [new, Pages(elsewhere.services, new.name)]
    failed: list[TiroirError] = []

    async def write(number: int) -> None:
        try:
            await both[number % 2].put(str(number), number)
        except TiroirError as error:
            failed.append(error)

    async with meanwhile(*(lambda number=number: write(number) for number in range(16))):
        pass
    assert failed == []
    assert len(await new.found(0, threshold=63)) == 16
    assert one_value(database, b"SELECT count(*) FROM collection WHERE name = %s::text", (new.name,)) == 1


async def test_what_one_request_learns_another_may_forget_meanwhile(service: Process, pages: Pages) -> None:
    async def learn() -> None:
        for _ in range(50):
            place = await service.catalog.place(pages.name)
            assert place.layouts.active in place.layouts.live

    def stale_at_first() -> Callable[[], Awaitable[object]]:
        attempts = count()

        async def use_case() -> None:
            if next(attempts) == 0:
                raise StaleCatalogError
            await service.catalog.collection(pages.name)

        return use_case

    async def forget() -> None:
        for _ in range(50):
            await service.catalog.retry(stale_at_first())

    async with meanwhile(*[learn, forget] * 8):
        pass
