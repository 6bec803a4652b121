"""Many lookups at once find, query for query, what lookups one by one find, and what comparing everything finds."""

import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from app.core.errors import CollectionNotFoundError, DocumentNotFoundError, SchemesDifferError
from app.core.model import Matches, Outcome
from app.core.scheme import ARTICLE, Scheme, digest, given
from app.runtime import Process, process
from app.service.fingerprinting import Simhash, Text
from app.service.near_duplicates import Key, Options, plan_lookup
from app.settings import Settings
from app.store import bands
from app.store.lookups import Lookup, Sought, parameters_of_many, queue_lookups
from tests.conftest import Server
from tests.store.brute_force import (
    Answer,
    Stored,
    answers,
    assert_right,
    distance,
    flipped,
    nearest,
    uniform,
    unsigned,
    within,
)
from tests.store.databases import create_collection, load, settings_of
from tests.store.pages import Pages
from tests.store.plans import Node, statements, telling_its_statements
from tests.store.test_exactness import LIMIT, PROBES, THRESHOLDS, Family, families

NO_FINGERPRINT = "too short"

# The documents of a family, dealt out; and the collection that holds some of them a second time.
PARTS = ("part-b", "part-a", "part-c")
TWICE = 5


@cache
def dealt(part: int) -> list[Stored]:
    """The same keys, with the same fingerprints and with others, are in several collections."""
    documents = families()["planted_64_bits"].documents
    others = [Stored(document.key, flipped(document.simhash, [part, 63 - part])) for document in documents[::TWICE]]
    return [*(document for number, document in enumerate(documents) if number % TWICE and number % 3 == part), *others]


@pytest.fixture(scope="module")
def loaded(server: Server) -> Generator[str]:
    """All families, each in its collection of one database, one family dealt out over three, and a large one."""
    conninfo = server.create("many_lookups")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, each in families().items():
            load(connection, create_collection(connection, name, bits=each.bits), each.documents, each.orphans)
        for part, name in enumerate(PARTS):
            orphans = families()["planted_64_bits"].orphans
            load(connection, create_collection(connection, name, bits=64), dealt(part), orphans)
        create_collection(connection, "empty")
        create_collection(connection, "empty_64_bits", bits=64)
    yield conninfo
    server.drop("many_lookups")


@pytest.fixture
def settings(loaded: str) -> Settings:
    return settings_of(telling_its_statements(loaded), pool_max_size=1, run_operations=False)


def contents(queries: Sequence[int]) -> list[Simhash | Text | Key]:
    """The queries, each twice, with some between them that have no fingerprint and find nothing."""
    asked: list[Simhash | Text | Key] = []
    for query in queries:
        asked += [Simhash(query, "/simhash"), Text(NO_FINGERPRINT)]
    return [*asked, *asked]


def distances(family: Family) -> dict[int, list[Answer]]:
    """All documents by their distance from each query."""
    return {query: nearest(family.documents, query, 64) for query in family.queries}


def expected(everything: dict[int, list[Answer]], asked: Simhash | Text | Key, threshold: int) -> list[Answer]:
    return within(everything[asked.simhash], threshold) if isinstance(asked, Simhash) else []


@pytest.mark.parametrize("name", families())
async def test_many_lookups_equal_the_comparison_with_all(service: Process, name: str) -> None:
    asked = contents(families()[name].queries)
    everything = distances(families()[name])
    for threshold in THRESHOLDS:
        found = await service.services.near_duplicates.find_many(name, asked, Options(threshold, LIMIT))
        assert len(found) == len(asked)
        for each, its in zip(asked, found, strict=True):
            assert_right(its.matches, expected(everything, each, threshold), limit=LIMIT)


@pytest.mark.parametrize("scan", [False, True], ids=["probing", "scanning"])
@pytest.mark.parametrize("name", families())
async def test_many_probings_and_many_scans_are_both_exact(service: Process, name: str, scan: bool) -> None:
    family = families()[name]
    everything = distances(family)
    place = await service.catalog.place(name)
    sought = [Sought(given(query)) for query in family.queries]
    sought.insert(1, Sought(digest(NO_FINGERPRINT, ARTICLE)))
    probed = 0
    async with service.database.connection() as connection:
        for threshold in THRESHOLDS:
            planned = await plan_lookup(service.profiles, connection, place, Options(threshold, LIMIT))
            if not scan and probed > PROBES:
                continue
            probed += planned.probes.probes
            lookup = replace(planned, scan=scan)
            found = await (await queue_lookups(connection, lookup, sought)).result()
            assert answers(found.pop(1)) == []
            for query, matches in zip(family.queries, found, strict=True):
                assert_right(matches, within(everything[query], threshold), limit=LIMIT)


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_many_lookups_equal_single_ones(service: Process, name: str, limit: int) -> None:
    """A key, and the fingerprint that it stands for, beside queries of other kinds."""
    documents = families()[name].documents
    asked = contents(families()[name].queries)
    for document in documents[:: len(documents) // 3]:
        asked += [Key(document.key), Simhash(document.simhash, "/simhash")]
    lookups = service.services.near_duplicates
    for threshold in (0, 3, 10, 63):
        options = Options(threshold, limit)
        many = await lookups.find_many(name, asked, options)
        single = [await lookups.find(name, each, options, explain=False) for each in asked]
        assert [(each.digest, each.matches) for each in many] == [(each.digest, each.matches) for each in single]


@pytest.mark.parametrize("name", ["planted", "planted_64_bits", "all_8_bits"])
async def test_each_key_leaves_out_its_own_document_alone(service: Process, name: str) -> None:
    documents = families()[name].documents
    asked = documents[::29]
    for limit in (LIMIT, 1):
        keys = [Key(document.key) for document in asked]
        found = await service.services.near_duplicates.find_many(name, keys, Options(5, limit))
        for document, its in zip(asked, found, strict=True):
            near = nearest(documents, document.simhash, 5, except_key=document.key)
            assert_right(its.matches, near, limit=limit)


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("threshold", [3, 12])
async def test_as_many_queries_as_a_request_may_have(service: Process, count: int, threshold: int) -> None:
    family = families()["planted_20_bits"]
    random = Random(count)
    queries = [flipped(query, random.sample(range(20), 2)) for query in islice(cycle(family.queries), count)]
    everything = {query: nearest(family.documents, query, threshold) for query in queries}
    asked = [Simhash(query, "/simhash") for query in queries]
    found = await service.services.near_duplicates.find_many("planted_20_bits", asked, Options(threshold, 7))
    assert len(found) == count
    for query, its in zip(queries, found, strict=True):
        assert_right(its.matches, everything[query], limit=7)


async def test_an_empty_collection_holds_nothing_near_anything(service: Process) -> None:
    asked = contents([0, 1])
    for threshold in (0, 3, 63):
        many = await service.services.near_duplicates.find_many("empty", asked, Options(threshold, 1))
        across = await service.services.near_duplicates.find_across(["empty"], asked, Options(threshold, 1))
        for found in (many, across):
            assert [each.matches for each in found] == [Matches(threshold, [], truncated=False)] * len(asked)


async def test_texts_without_a_fingerprint_find_those_of_the_same_content(service: Process) -> None:
    pages = Pages(service.services)
    for number, text in enumerate(("one", "two", "one", "one", "!!!", "two")):
        assert await pages.put(f"{number}", text) is Outcome.CREATED
    asked = [
        Text("one"),
        Simhash(7, "/simhash"),
        Text("two"),
        Text("three"),
        Key("2"),
        Text("!!!"),
        Key("4"),
        Text("one"),
    ]
    found = await service.services.near_duplicates.find_many(pages.name, asked, Options(3, 2))
    assert [[match.key for match in each.matches.items] for each in found] == [
        ["0", "2"],
        [],
        ["1", "5"],
        [],
        ["0", "3"],
        [],
        [],
        ["0", "2"],
    ]
    assert [each.matches.truncated for each in found] == [True, False, False, False, False, False, False, True]
    assert all(match.exact and match.distance == 0 for each in found for match in each.matches.items)


def merged(
    names: Sequence[str], query: int, threshold: int, *, except_document: tuple[str, str] | None = None
) -> list[tuple[str, *Answer]]:
    """All documents of the collections within the threshold, each with its collection's name."""
    found = [
        (distance(document.simhash, query), unsigned(document.simhash), document.key.encode(), place, document)
        for place, name in enumerate(names)
        for document in (dealt(PARTS.index(name)) if name in PARTS else [])
        if distance(document.simhash, query) <= threshold and (name, document.key) != except_document
    ]
    return [
        (names[place], document.key, document.simhash, away)
        for away, _, _, place, document in sorted(found, key=lambda each: each[:4])
    ]


def assert_merged(matches: Matches, all_of_them: Sequence[tuple[str, *Answer]], limit: int) -> None:
    found = [(match.collection, match.key, match.simhash, match.distance) for match in matches.items]
    assert found == list(all_of_them[:limit])
    assert matches.truncated == (len(all_of_them) > limit)


@pytest.mark.parametrize("names", [PARTS, PARTS[::-1], (PARTS[1], "empty_64_bits"), ("empty_64_bits",), PARTS[2:]])
async def test_several_collections_answer_as_one(service: Process, names: tuple[str, ...]) -> None:
    queries = families()["planted_64_bits"].queries
    for threshold in (0, 2, 3, 9, 20, 63):
        everything = {query: merged(names, query, threshold) for query in queries}
        for limit in (1, 10, LIMIT):
            asked = contents(queries)
            found = await service.services.near_duplicates.find_across(names, asked, Options(threshold, limit))
            for each, its in zip(asked, found, strict=True):
                assert_merged(its.matches, everything[each.simhash] if isinstance(each, Simhash) else [], limit)


@pytest.mark.parametrize("names", [PARTS, PARTS[::-1]])
async def test_a_key_of_several_collections_is_that_of_the_first(service: Process, names: tuple[str, ...]) -> None:
    keys = [document.key for document in families()["planted_64_bits"].documents[::40]]
    found = await service.services.near_duplicates.find_across(names, [Key(key) for key in keys], Options(4, LIMIT))
    in_several = 0
    for key, its in zip(keys, found, strict=True):
        holders = [(name, each) for name in names for each in dealt(PARTS.index(name)) if each.key == key]
        in_several += len(holders) > 1
        name, document = holders[0]
        assert its.digest.simhash == document.simhash
        assert_merged(its.matches, merged(names, document.simhash, 4, except_document=(name, key)), LIMIT)
    assert in_several


async def test_what_can_not_be_asked_of_several_collections(service: Process) -> None:
    lookups = service.services.near_duplicates
    with pytest.raises(SchemesDifferError) as differ:
        await lookups.find_across([*PARTS, "planted"], [Simhash(1, "/simhash")], Options(3, 1))
    assert differ.value.pointer == f"/collections/{len(PARTS)}"
    with pytest.raises(CollectionNotFoundError):
        await lookups.find_across([*PARTS, "nothing"], [Simhash(1, "/simhash")], Options(3, 1))
    with pytest.raises(DocumentNotFoundError) as missing:
        await lookups.find_across(PARTS, [Simhash(1, "/simhash"), Key("nothing", "/queries/1/key")], Options(3, 1))
    assert missing.value.pointer == "/queries/1/key"


async def test_a_collection_that_is_made_anew_is_asked_by_its_new_scheme(service: Process) -> None:
    pages = Pages(service.services)
    await pages.put("old", 5)
    lookups = service.services.near_duplicates
    assert len((await lookups.find_many(pages.name, [Simhash(5, "/simhash")], Options(3, 9)))[0].matches.items) == 1
    await service.services.collections.delete(pages.name)
    await service.services.collections.create(pages.name, Scheme(bits=64), store_text=True)
    many = await lookups.find_many(pages.name, [Simhash(-1, "/simhash"), Text(NO_FINGERPRINT)], Options(63, 9))
    assert [each.matches.items for each in many] == [[], []]
    names = ["empty_64_bits", pages.name]
    across = await lookups.find_across(names, [Simhash(-1, "/simhash")], Options(63, 9))
    assert [each.matches.items for each in across] == [[]]


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("threshold", [3, 40])
async def test_many_lookups_are_one_statement(service: Process, count: int, threshold: int) -> None:
    queries = islice(cycle(families()["uniform"].queries), count)
    asked = [Simhash(query, "/simhash") for query in queries]

    async def find() -> None:
        await service.services.near_duplicates.find_many("uniform", asked, Options(threshold, 3))

    await find()  # the first one learns what the process remembers
    async with service.database.connection() as the_only_one:
        pass
    with statements(the_only_one) as executed:
        await find()
    (statement,) = executed
    assert "WITH ORDINALITY" in statement


async def test_several_collections_are_asked_by_a_statement_each(service: Process) -> None:
    asked = [*contents(families()["planted_64_bits"].queries), Key(dealt(0)[0].key), Key(dealt(0)[1].key)]

    async def find() -> None:
        await service.services.near_duplicates.find_across(PARTS[:1], asked, Options(3, 3))

    await find()
    async with service.database.connection() as the_only_one:
        pass
    with statements(the_only_one) as executed:
        await find()
    by_key, by_fingerprint, by_content = executed
    assert "key = ANY" in by_key
    assert "bit_count" in by_fingerprint
    assert "content_hash = q.content_hash" in by_content


SIZE = 20_000
BAND_INDEXES = [f"fingerprint_b{band}_idx" for band in range(4)]
QUERIES = uniform(Random(11), 50, 63)


@cache
def large() -> list[Stored]:
    random = Random(3)
    near = [flipped(query, random.sample(range(63), away)) for query in QUERIES[:10] for away in range(1, 8)]
    others = uniform(random, SIZE - len(near), 63)
    return [Stored(f"page {number}", simhash) for number, simhash in enumerate([*near, *others])]


@pytest.fixture(scope="module")
def states(server: Server) -> Generator[dict[str, str]]:
    """The same documents as PostgreSQL has them right after a load, and when it knows all about them."""
    just_loaded = server.create("many_just_loaded")
    with psycopg.connect(just_loaded) as connection:
        connection.execute("ALTER TABLE fingerprint SET (autovacuum_enabled = off)")
        connection.execute("ALTER TABLE document SET (autovacuum_enabled = off)")
        load(connection, create_collection(connection, "pages"), large())
    vacuumed = server.create("many_vacuumed", template="many_just_loaded")
    with psycopg.connect(vacuumed, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")
    yield {"just_loaded": just_loaded, "vacuumed": vacuumed}
    server.drop("many_just_loaded")
    server.drop("many_vacuumed")


@pytest.fixture
def planned_settings(request: pytest.FixtureRequest, states: dict[str, str]) -> Settings:
    return settings_of(states[request.param], pool_max_size=1, run_operations=False)


async def executed_plan(connection: AsyncConnection, lookup: Lookup, sought: list[Sought]) -> Node:
    """The plan of the statement that psycopg has prepared for such lookups on this connection, as it is kept."""
    statement = bands.lookup_many(lookup.layout, scan=lookup.scan)
    names = list(dict.fromkeys(re.findall(rb"%\((\w+)\)s", statement)))
    numbered = re.sub(rb"%\((\w+)\)s", lambda match: b"$%d" % (names.index(match[1]) + 1), statement)
    cursor = await connection.execute(
        "SELECT name FROM pg_prepared_statements WHERE statement = %s::text", [numbered.decode()]
    )
    prepared = await cursor.fetchone()
    assert prepared, "the statement is not prepared"
    values = parameters_of_many(lookup, sought)
    explain = sql.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {} ({})").format(
        sql.Identifier(prepared[0]), sql.SQL(", ").join(sql.Literal(values[name.decode()]) for name in names)
    )
    row: Any = await (await connection.execute(explain)).fetchone()
    return Node(row[0][0]["Plan"])


@pytest.mark.parametrize("planned_settings", ["just_loaded", "vacuumed"], indirect=True)
@pytest.mark.parametrize("threshold", [0, 3, 7])
async def test_many_lookups_read_the_band_indexes_alone(planned_settings: Settings, threshold: int) -> None:
    sought = [Sought(given(query)) for query in QUERIES]
    async with process(planned_settings) as service:
        place = await service.catalog.place("pages")
        async with service.database.connection() as connection:
            lookup = await plan_lookup(service.profiles, connection, place, Options(threshold, 20))
            assert not lookup.scan
            found = await (await queue_lookups(connection, lookup, sought)).result()
            plan = await executed_plan(connection, lookup, sought)
    documents = large()
    for query, matches in zip(QUERIES[:12], found, strict=False):
        assert_right(matches, nearest(documents, query, threshold), limit=20)
    reads = plan.on("fingerprint")
    assert [(node.kind, node.index) for node in reads] == [("Index Only Scan", index) for index in BAND_INDEXES]
    for band, node in enumerate(reads):
        # Looked up, whatever their values are: as a filter the probes would let the whole index be read.
        assert f"(b{band} = ANY (" in node.condition
        assert node.rows < len(QUERIES) * SIZE / 100
    assert {node.index for node in plan.on("document")} == {"document_simhash_idx"}
    assert_starts_no_worker(plan)


@pytest.mark.parametrize("planned_settings", ["just_loaded", "vacuumed"], indirect=True)
async def test_many_scans_read_one_index(planned_settings: Settings) -> None:
    sought = [Sought(given(query)) for query in QUERIES[:3]]
    async with process(planned_settings) as service:
        place = await service.catalog.place("pages")
        async with service.database.connection() as connection:
            planned = await plan_lookup(service.profiles, connection, place, Options(40, 20))
            lookup = replace(planned, scan=True)
            found = await (await queue_lookups(connection, lookup, sought)).result()
            plan = await executed_plan(connection, lookup, sought)
    for query, matches in zip(QUERIES, found, strict=False):
        assert_right(matches, nearest(large(), query, 40), limit=20)
    (read,) = plan.on("fingerprint")
    assert read.kind == "Index Only Scan"
    assert_starts_no_worker(plan)


def assert_starts_no_worker(plan: Node) -> None:
    kinds = {node.kind for node in plan.all()}
    assert not {kind for kind in kinds if "Gather" in kind or "Seq" in kind or "Bitmap" in kind}
    assert not [node for node in plan.all() if node.properties.get("Parallel Aware")]
