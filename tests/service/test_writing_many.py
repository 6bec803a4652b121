"""Many documents at once are written as one after another would be, all or none, whoever else writes them."""

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest
from anyio import create_task_group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from app.core.errors import CollectionNotFoundError, DocumentNotFoundError, InvalidFingerprintError, UnavailableError
from app.core.layout import cut
from app.core.model import Exported, Metadata, Outcome
from app.core.scheme import ARTICLE, Digest, Scheme
from app.runtime import Process, process
from app.service.documents import NewDocument
from app.service.fingerprinting import Known, Simhash, Text
from app.service.near_duplicates import Options
from app.store import collections, layouts
from app.store.documents import Write
from tests.conftest import Server
from tests.store.databases import add_layout, one_value, settings_of
from tests.store.pages import Pages
from tests.store.waiting import meanwhile, until, waiting_for_locks

TEXT = " ".join(f"word{number}" for number in range(30))
OTHER_TEXT = " ".join(f"other{number}" for number in range(30))
PUNCTUATION = "! " * 30

KNOWN = Digest(7, b"0123456789abcdef", 300)
KNOWN_SHORT = Digest(None, b"0123456789abcdef", 3)

Value = int | str | Digest
Item = tuple[str, Value, Metadata | None]

LAYOUTS = ("fingerprint", "eight")


@pytest.fixture(scope="module")
def database(server: Server) -> Generator[str]:
    """One database with two live layouts: each test has a collection of its own."""
    conninfo = server.create("writing_many")
    with psycopg.connect(conninfo) as connection:
        add_layout(connection, cut(8), "eight", "building")
    yield conninfo
    server.drop("writing_many")


def new(item: Item, number: int = 0) -> NewDocument:
    key, value, metadata = item
    pointer = f"/documents/{number}/fingerprint"
    match value:
        case str():
            return NewDocument(key, Text(value), metadata)
        case int():
            return NewDocument(key, Simhash(value, pointer), metadata)
        case Digest():
            return NewDocument(key, Known(value, pointer), metadata)


async def put_many(pages: Pages, items: Sequence[Item]) -> list[Outcome]:
    news = [new(item, number) for number, item in enumerate(items)]
    return [outcome for outcome, _ in await pages.services.documents.index_many(pages.name, news)]


async def put_each(pages: Pages, items: Sequence[Item]) -> list[Outcome]:
    return [(await pages.services.documents.index(pages.name, new(item), None)).outcome for item in items]


async def all_of(pages: Pages) -> list[Exported]:
    return [each async for part in pages.services.documents.export(pages.name, with_text=True) for each in part]


def numbered(count: int, value: Callable[[int], Value] = lambda number: number) -> list[Item]:
    return [(f"{number:03}", value(number), None) for number in range(count)]


def fingerprints(database: str, name: str) -> list[set[int]]:
    """Of a collection, in each of the live layouts."""
    with psycopg.connect(database) as connection:
        return [
            {
                simhash
                for (simhash,) in connection.execute(
                    sql.SQL(
                        "SELECT simhash FROM {} WHERE collection_id = (SELECT id FROM collection WHERE name = %s::text)"
                    ).format(sql.Identifier(table)),
                    [name],
                )
            }
            for table in LAYOUTS
        ]


def stored(database: str, name: str) -> list[tuple[object, ...]]:
    """All rows of a collection that a write may touch, with what PostgreSQL changes when it writes, not locks, them."""
    with psycopg.connect(database) as connection:
        return [
            row
            for table in ("document", *LAYOUTS)
            for row in connection.execute(
                sql.SQL(
                    "SELECT t.xmin::text, t.ctid::text, t.* FROM {} t"
                    " WHERE collection_id = (SELECT id FROM collection WHERE name = %s::text)"
                ).format(sql.Identifier(table)),
                [name],
            )
        ]


VALUES = st.sampled_from(
    [
        TEXT,
        OTHER_TEXT,
        TEXT.upper(),
        "short",
        "Short ",
        "other",
        "!!!",
        "???",
        "",
        PUNCTUATION,
        0,
        5,
        2**62,
        KNOWN,
        KNOWN_SHORT,
    ]
)
METADATA = st.sampled_from([None, None, {}, {"a": 1}, {"a": [1.0, None, {"é": "𐍈"}]}])
KEYS = st.sampled_from(["a", "B", "é", "𐍈", "\uffff", " "])


BATCHES = st.lists(
    st.lists(st.tuples(KEYS, VALUES, METADATA), min_size=1, max_size=6, unique_by=lambda item: item[0]),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("store_text", [True, False])
@pytest.mark.parametrize("bits", [63, 64])
@given(writes=BATCHES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_many_writes_do_what_single_ones_do(
    service: Process, database: str, bits: int, store_text: bool, writes: list[list[Item]]
) -> None:
    many, single = Pages(service.services), Pages(service.services)
    for pages in (many, single):
        await pages.services.collections.create(pages.name, Scheme(bits=bits), store_text=store_text)
    for batch in writes:
        # The highest bit of a collection that has it, for some of the fingerprints.
        its = [
            (key, value - 2**62 - 2**63 if bits == 64 and value == 2**62 else value, more) for key, value, more in batch
        ]
        assert await put_many(many, its) == await put_each(single, its)
        assert await all_of(many) == await all_of(single)
    assert fingerprints(database, many.name) == fingerprints(database, single.name)


async def test_what_came_of_each_is_told_in_the_order_given(pages: Pages) -> None:
    await put_each(pages, [("b", TEXT, {"n": 1}), ("d", 5, None), ("f", "!!!", None)])
    outcomes = await put_many(
        pages,
        [
            ("f", "!!!", None),
            ("e", "!!!", None),
            ("d", 6, None),
            ("c", 6, None),
            ("b", TEXT, None),
            ("a", TEXT, None),
        ],
    )
    unchanged, created, replaced = Outcome.UNCHANGED, Outcome.CREATED, Outcome.REPLACED
    assert outcomes == [unchanged, created, replaced, created, unchanged, created]
    assert (await pages.services.documents.get(pages.name, "b")).metadata == {"n": 1}


async def test_the_same_again_writes_nothing(pages: Pages, database: str) -> None:
    items: list[Item] = [
        ("a", TEXT, {"lang": "en"}),
        ("b", "short", None),
        ("c", "!!!", None),
        ("d", "", None),
        ("e", 0, {}),
        ("f", KNOWN, None),
        ("g", KNOWN_SHORT, None),
    ]
    assert await put_many(pages, items) == [Outcome.CREATED] * len(items)
    before = stored(database, pages.name)
    for again in (items, items[::-1], [(key, value, None) for key, value, _ in items]):
        assert await put_many(pages, again) == [Outcome.UNCHANGED] * len(items)
    assert stored(database, pages.name) == before


async def test_only_what_differs_is_written(pages: Pages, database: str) -> None:
    await put_many(pages, numbered(300))
    before = {row[3]: row for row in stored(database, pages.name) if isinstance(row[3], str)}
    changed = numbered(300, lambda number: number if number % 3 else number + 1000)
    outcomes = await put_many(pages, changed)
    assert outcomes == [Outcome.UNCHANGED if number % 3 else Outcome.REPLACED for number in range(300)]
    after = {row[3]: row for row in stored(database, pages.name) if isinstance(row[3], str)}
    assert len(after) == 300
    assert {key for key in after if after[key] == before[key]} == {
        f"{number:03}" for number in range(300) if number % 3
    }


async def test_all_are_found_at_once_by_every_process_and_in_every_layout(
    pages: Pages, elsewhere: Pages, database: str
) -> None:
    random = Random(1)
    simhashes = [random.getrandbits(63) for _ in range(1000)]
    assert await elsewhere.services.collections.create(pages.name, ARTICLE, store_text=True)
    outcomes = await put_many(pages, numbered(1000, lambda number: simhashes[number]))
    assert outcomes == [Outcome.CREATED] * 1000
    assert fingerprints(database, pages.name) == [set(simhashes)] * 2
    asked = [Simhash(simhash, "/simhash") for simhash in simhashes]
    found = await elsewhere.services.near_duplicates.find_many(pages.name, asked, Options(0, 2))
    assert [[match.key for match in each.matches.items] for each in found] == [
        [f"{number:03}"] for number in range(1000)
    ]


async def test_a_batch_goes_to_the_layouts_that_there_are_now(server: Server) -> None:
    """One is added after the process has learnt of them, and then the one that was active goes."""
    database = server.create("changing_layouts")
    async with process(settings_of(database, run_operations=False)) as service:
        pages = Pages(service.services)
        await put_many(pages, [("a", 7, None)])
        with psycopg.connect(database) as connection:
            layout = add_layout(connection, cut(3), "three", "building")
        await put_many(pages, [("b", 8, None), ("c", 9, None)])
        assert one_value(database, b"SELECT array_agg(simhash ORDER BY simhash) FROM three") == [7, 8, 9]
        with psycopg.connect(database) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [layouts.LOCK])
            connection.execute("DELETE FROM band_layout WHERE state = 'active'")
            connection.execute("UPDATE band_layout SET state = 'active' WHERE id = %s::int", [layout.id])
            connection.execute("DROP TABLE fingerprint")
        assert await put_many(pages, [("b", 10, None), ("d", 11, None)]) == [Outcome.REPLACED, Outcome.CREATED]
        found = await service.services.near_duplicates.find_many(
            pages.name, [Simhash(simhash, "/simhash") for simhash in (7, 8, 9, 10, 11)], Options(0, 9)
        )
        assert [[match.key for match in each.matches.items] for each in found] == [["a"], [], ["c"], ["b"], ["d"]]
    server.drop("changing_layouts")


async def at_once(*use_cases: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with meanwhile(*use_cases):
        pass


def require_consistency(database: str, name: str) -> None:
    """Each document's fingerprint is in every layout."""
    with psycopg.connect(database) as connection:
        used = {
            simhash
            for (simhash,) in connection.execute(
                "SELECT DISTINCT d.simhash FROM document d JOIN collection c ON c.id = d.collection_id"
                " WHERE c.name = %s::text AND d.simhash IS NOT NULL",
                [name],
            )
        }
    assert all(used <= there for there in fingerprints(database, name))


@pytest.mark.parametrize("ttl", [None, 3600])
async def test_overlapping_batches_in_opposite_orders_neither_fail_nor_mix(
    pages: Pages, database: str, observer: psycopg.Connection, ttl: int | None
) -> None:
    """4 clients write the same 400 keys; the last one of each round has written all of them."""
    await pages.services.collections.create(pages.name, ARTICLE, store_text=True, ttl=ttl)
    random = Random(2)
    for turn in range(6):
        # What was seen long ago is noted anew, which locks it too.
        observer.execute("UPDATE document SET seen_at = seen_at - interval '1 hour'")
        batches: list[list[Item]] = []
        for client in range(4):
            # Fingerprints that all of them write, in orders of their own, and some that are new to all.
            items = numbered(400, lambda number, seed=turn * 100 + client: (number * 7919 + seed) % 500)
            batches.append(items[:: -1 if client % 2 else 1])
        random.shuffle(batches)
        await at_once(*(partial(put_many, pages, batch) for batch in batches))
        documents = await all_of(pages)
        left = [(each.key, each.digest.simhash, None) for each in documents]
        assert left in [sorted(batch) for batch in batches]
    require_consistency(database, pages.name)


async def test_batches_of_other_keys_with_the_same_fingerprints_in_opposite_orders(pages: Pages, database: str) -> None:
    for turn in range(8):
        batches = [
            [(f"{client} {number:03}", turn * 1000 + number, None) for number in range(400)][:: -1 if client % 2 else 1]
            for client in range(4)
        ]
        await at_once(*(partial(put_many, pages, batch) for batch in batches))
    assert len(await all_of(pages)) == 1600
    assert fingerprints(database, pages.name) == [{1000 * turn + n for turn in range(8) for n in range(400)}] * 2


async def test_the_same_batches_at_once_create_each_document_once(pages: Pages) -> None:
    outcomes: list[list[Outcome]] = []

    async def put(items: list[Item]) -> None:
        outcomes.append([outcome for _, outcome in sorted(zip(items, await put_many(pages, items), strict=True))])

    items = numbered(400, lambda number: f"{TEXT} {number}")
    await at_once(*(partial(put, items[::order]) for order in (1, -1, 1, -1)))
    assert [sorted(of_key) for of_key in zip(*outcomes, strict=True)] == [
        [Outcome.CREATED, Outcome.UNCHANGED, Outcome.UNCHANGED, Outcome.UNCHANGED]
    ] * 400
    assert len(await all_of(pages)) == 400


@pytest.mark.parametrize("deleting", [False, True])
async def test_batches_beside_single_writes_and_deletions(pages: Pages, database: str, deleting: bool) -> None:
    """Writers of all kinds on the same keys: nobody fails, and what is there can be found."""
    documents = pages.services.documents
    await put_many(pages, numbered(100))

    async def write_batches(seed: int) -> None:
        random = Random(seed)
        for _ in range(100):
            await put_many(pages, random.sample(numbered(100, lambda _: random.randrange(2)), 80))

    async def write_singly(seed: int) -> None:
        random = Random(seed)
        for _ in range(100):
            await pages.put(f"{random.randrange(100):03}", random.randrange(2))

    async def delete_batches(seed: int) -> None:
        random = Random(seed)
        for _ in range(100):
            await documents.delete_many(pages.name, [f"{number:03}" for number in random.sample(range(100), 30)])

    async def delete_singly(seed: int) -> None:
        random = Random(seed)
        for _ in range(100):
            with suppress(DocumentNotFoundError):
                await pages.delete(f"{random.randrange(100):03}")

    kinds = [write_batches, write_batches, write_singly, write_singly]
    if deleting:
        kinds += [delete_batches, delete_batches, delete_singly]
    await at_once(*(partial(kind, number) for number, kind in enumerate(kinds)))
    require_consistency(database, pages.name)
    outcomes = await put_many(pages, numbered(100, lambda number: number + 1000))
    assert set(outcomes) <= {Outcome.CREATED, Outcome.REPLACED}
    assert [each.digest.simhash for each in await all_of(pages)] == list(range(1000, 1100))
    require_consistency(database, pages.name)


async def test_many_that_are_deleted_are_gone(pages: Pages) -> None:
    documents = pages.services.documents
    await put_many(pages, [(key, 7, None) for key in "abcdef"])
    assert await documents.delete_many(pages.name, ["f", "b", "b", "nothing"]) == 2
    assert await documents.delete_many(pages.name, ["f", "b", "nothing"]) == 0
    assert await pages.keys(7) == ["a", "c", "d", "e"]
    assert await put_many(pages, [(key, 7, None) for key in "fab"]) == [
        Outcome.CREATED,
        Outcome.UNCHANGED,
        Outcome.CREATED,
    ]
    assert await pages.keys(7) == list("abcdef")
    with pytest.raises(CollectionNotFoundError):
        await documents.delete_many("nothing", ["a"])


async def test_many_are_written_to_the_collection_that_has_the_name_now(pages: Pages, elsewhere: Pages) -> None:
    await put_many(pages, [("a", 7, None)])
    await elsewhere.services.collections.delete(pages.name)
    with pytest.raises(CollectionNotFoundError):
        await pages.services.documents.delete_many(pages.name, ["a"])
    assert await put_many(pages, [("a", 7, None), ("b", 7, None)]) == [Outcome.CREATED] * 2
    assert await elsewhere.keys(7) == ["a", "b"]

    await elsewhere.services.collections.delete(pages.name)
    await elsewhere.services.collections.create(pages.name, Scheme(bits=64), store_text=True)
    assert await pages.services.documents.delete_many(pages.name, ["a", "b"]) == 0
    assert await put_many(pages, [("a", -1, None)]) == [Outcome.CREATED]
    assert await elsewhere.keys(-1) == ["a"]


@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_collection_that_goes_while_a_batch_waits(
    pages: Pages, other_session: psycopg.Connection, observer: psycopg.Connection, database: str, made_anew: bool
) -> None:
    await put_many(pages, [("a", 7, None)])
    query = b"SELECT id FROM collection WHERE name = %s::text"
    gone = one_value(database, query, (pages.name,))
    other_session.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", [collections.LOCK_CLASS, gone])
    other_session.execute("DELETE FROM collection WHERE id = %s::int", [gone])
    outcomes: list[Outcome] = []

    async def put() -> None:
        outcomes.extend(await put_many(pages, [("b", 8, None), ("a", 7, None)]))

    async with meanwhile(put):
        await until(lambda: waiting_for_locks(observer) == 1)
        if made_anew:
            other_session.execute(
                "INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)"
                " VALUES (%s::text, 'article', 3, 64, 20, false)",
                [pages.name],
            )
        other_session.commit()
    assert outcomes == [Outcome.CREATED] * 2
    collection, counts = await pages.services.collections.describe(pages.name)
    assert (collection.scheme.bits, counts.documents) == (64 if made_anew else 63, 2)
    assert collection.id != gone
    assert fingerprints(database, pages.name) == [{7, 8}] * 2


async def test_collections_that_come_and_go_under_batches(pages: Pages, elsewhere: Pages, database: str) -> None:
    """Whatever is there when a batch has returned is whole, or gone."""
    done = False

    async def write(other: int) -> None:
        for turn in range(15):
            with suppress(UnavailableError):  # it keeps changing
                await put_many(pages, numbered(50, lambda number, seed=turn * 2 + other: number * 100 + seed))

    async def write_all() -> None:
        nonlocal done
        await at_once(partial(write, 0), partial(write, 1))
        done = True

    async def delete() -> None:
        while not done:
            with suppress(CollectionNotFoundError):
                await elsewhere.services.collections.delete(pages.name)

    await at_once(write_all, delete)
    await put_many(pages, numbered(50))
    assert [each.key for each in await all_of(elsewhere)] == [key for key, _, _ in numbered(50)]
    require_consistency(database, pages.name)


@pytest.mark.parametrize("exists", [False, True])
async def test_one_that_can_not_be_stored_keeps_all_out(pages: Pages, database: str, exists: bool) -> None:
    if exists:
        await put_many(pages, [("000", 3, None)])
    before = stored(database, pages.name)
    items = numbered(40, lambda number: -1 if number == 17 else TEXT)
    with pytest.raises(InvalidFingerprintError) as refused:
        await put_many(pages, items)
    assert refused.value.pointer == "/documents/17/fingerprint"
    assert stored(database, pages.name) == before
    count = one_value(database, b"SELECT count(*) FROM collection WHERE name = %s::text", (pages.name,))
    assert count == int(exists)


async def test_one_that_the_database_refuses_keeps_all_out(pages: Pages, database: str) -> None:
    await put_many(pages, numbered(10))
    before = await all_of(pages), fingerprints(database, pages.name)
    with psycopg.connect(database) as connection:
        connection.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON document FOR EACH ROW
            WHEN (NEW.key = '007') EXECUTE FUNCTION refuse()
            """
        )
    try:
        with pytest.raises(UnavailableError):
            await put_many(pages, numbered(20, lambda number: number + 100))
        assert (await all_of(pages), fingerprints(database, pages.name)) == before
    finally:
        with psycopg.connect(database) as connection:
            connection.execute("DROP FUNCTION refuse CASCADE")


async def test_what_was_digested_by_another_scheme_is_not_written(pages: Pages, elsewhere: Pages) -> None:
    writes = [Write("a", Digest(7, None, None), None, None)]
    documents = pages.services.documents
    assert await documents.write_by_scheme(pages.name, Scheme(bits=64), writes) is None
    with pytest.raises(CollectionNotFoundError):
        await elsewhere.services.collections.describe(pages.name)
    assert await documents.write_by_scheme(pages.name, ARTICLE, writes) == [Outcome.CREATED]
    await elsewhere.services.collections.delete(pages.name)
    await elsewhere.services.collections.create(pages.name, Scheme(bits=64), store_text=True)
    assert await documents.write_by_scheme(pages.name, ARTICLE, writes) is None
    assert await documents.write_by_scheme(pages.name, Scheme(bits=64), writes) == [Outcome.CREATED]
    assert await elsewhere.keys(7) == ["a"]


async def test_documents_that_change_twice_in_a_chunk_never_wait_both_ways(pages: Pages) -> None:
    """Their fingerprints come in the order of their values, whatever the order in which the documents had them."""
    documents = pages.services.documents
    first, second = range(0, 4000, 2), range(1, 4000, 2)

    async def write(prefix: str, *rounds: range) -> None:
        writes = [
            Write(f"{prefix}{number:04}", Digest(simhash, None, None), None, None)
            for simhashes in rounds
            for number, simhash in enumerate(simhashes)
        ]
        assert await documents.write_by_scheme(pages.name, ARTICLE, writes) is not None

    await pages.put("there already", TEXT)
    async with create_task_group() as tasks:
        tasks.start_soon(write, "a", first, second)
        tasks.start_soon(write, "b", second, first)
