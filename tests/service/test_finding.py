"""What a lookup answers: in which order, cut where, and of which documents."""

import gzip
import json
from collections.abc import Generator
from random import Random

import psycopg
import pytest

from app.core.scheme import Scheme
from app.runtime import Process
from app.service.near_duplicates import Key
from app.settings import Settings
from tests.conftest import Server
from tests.store.brute_force import (
    DATA,
    LARGEST,
    SMALLEST,
    Stored,
    answers,
    assert_right,
    flipped,
    nearest,
    uniform,
)
from tests.store.databases import create_collection, load, settings_of
from tests.store.pages import Pages


@pytest.fixture(scope="module")
def shared(server: Server) -> Generator[str]:
    """One database: each test has a collection of its own."""
    yield server.create("finding")
    server.drop("finding")


@pytest.fixture
def settings(shared: str) -> Settings:
    return settings_of(shared, pool_max_size=1)


# Distances


async def test_bits_of_every_block_and_of_its_borders_count(pages: Pages) -> None:
    stored = 81985529216486895
    await pages.put("stored", stored)
    for near, away in (
        (81985524921454062, 3),  # one bit in each of three blocks
        (81704049944743407, 3),
        (81704049944808942, 3),
        (81704054239710702, 3),
        (8152436061464415727, 3),  # the three highest bits
        (81985529216445935, 3),  # the three highest of the lowest block
        (4693530810155519471, 3),  # on both sides of the border between the highest blocks
        (4693671547643874799, 1),  # the highest bit alone
    ):
        assert await pages.found(near) == [("stored", stored, away)]
    one_in_each_block = 81704049944743406
    assert await pages.found(one_in_each_block) == []
    assert await pages.found(one_in_each_block, threshold=4) == [("stored", stored, 4)]


async def test_distances_of_small_numbers(pages: Pages) -> None:
    for simhash in (5, 1, 4, 7, 0, 8, 1_000_000):
        await pages.put(str(simhash), simhash)
    assert await pages.found(5) == [("5", 5, 0), ("1", 1, 1), ("4", 4, 1), ("7", 7, 1), ("0", 0, 2), ("8", 8, 3)]


async def test_the_ends_of_the_range_are_63_bits_apart(pages: Pages) -> None:
    await pages.put("lowest", 0)
    await pages.put("highest", LARGEST)
    assert await pages.found(0, threshold=62) == [("lowest", 0, 0)]
    assert await pages.found(LARGEST, threshold=63) == [("highest", LARGEST, 0), ("lowest", 0, 63)]


async def test_fingerprints_of_64_bits_order_as_if_they_had_no_sign(pages: Pages) -> None:
    await pages.services.collections.create(pages.name, Scheme(bits=64), store_text=False)
    for simhash in (-1, SMALLEST, LARGEST, 0, 1):
        await pages.put(str(simhash), simhash)
    expected = [("0", 0, 0), ("1", 1, 1), (str(SMALLEST), SMALLEST, 1), (str(LARGEST), LARGEST, 63)]
    assert await pages.found(0, threshold=63) == expected


# Order and limit


async def test_equals_are_in_the_bytewise_order_of_their_keys(pages: Pages) -> None:
    keys = ["é", "Z", "a", "B", "z", "~", "-b", "b-", "_", "10", "9", "ß", "日本", "😀", "\ufb01", "A b", "Ab"]
    for key in keys:
        await pages.put(key, 1)
    assert await pages.keys(1) == sorted(keys, key=str.encode)


async def test_of_a_thousand_copies_a_small_and_a_large_answer_begin_alike(pages: Pages, shared: str) -> None:
    documents = [Stored(f"copy {number}", 42) for number in range(1000)]
    with psycopg.connect(shared) as connection:
        load(connection, create_collection(connection, pages.name), [*documents, Stored("near", 43)])
    copies = nearest(documents, 42, threshold=0)
    ten = await pages.matches(42, limit=10)
    assert (answers(ten), ten.truncated) == (copies[:10], True)
    thousand = await pages.matches(42, limit=1000)
    assert (answers(thousand), thousand.truncated) == (copies, True)
    exactly_as_many = await pages.matches(42, threshold=0, limit=1000)
    assert (answers(exactly_as_many), exactly_as_many.truncated) == (copies, False)


async def test_fingerprints_that_no_document_uses_take_no_place_in_an_answer(pages: Pages) -> None:
    for bit in range(50):
        await pages.put(f"page {bit}", flipped(0, [bit]))
    for bit in range(0, 50, 2):
        await pages.delete(f"page {bit}")
        await pages.put(f"page {bit + 1}", LARGEST)
    farther = flipped(0, [0, 20, 40])
    await pages.put("live", farther)
    matches = await pages.matches(0, limit=1)
    assert (answers(matches), matches.truncated) == ([("live", farther, 3)], False)


@pytest.mark.parametrize("other", ["a", "z"])
async def test_a_document_is_not_its_own_neighbour(pages: Pages, other: str) -> None:
    first = await pages.index("m", 7, limit=1)
    assert first.matches
    assert first.matches.items == []
    assert await pages.found(Key("m"), limit=1) == []
    await pages.put(other, 7)
    again = await pages.index("m", 7, limit=1)
    assert again.matches
    by_key = await pages.matches(Key("m"), limit=1)
    for matches in (again.matches, by_key):
        assert (answers(matches), matches.truncated) == ([(other, 7, 0)], False)


async def test_without_a_threshold_that_of_the_layout_holds(pages: Pages) -> None:
    await pages.put("3 away", 0b111)
    await pages.put("4 away", 0b1111)
    matches = await pages.matches(0, threshold=None)
    assert (matches.threshold, answers(matches)) == (3, [("3 away", 0b111, 3)])


# Which documents


@pytest.mark.parametrize("threshold", [0, 3, 20, 63])
async def test_collections_do_not_see_each_other(service: Process, threshold: int) -> None:
    collections = [Pages(service.services) for _ in range(3)]
    for pages in collections:
        await pages.put(f"only in {pages.name}", 5)
    for pages in collections:
        assert await pages.keys(5, threshold) == [f"only in {pages.name}"]
    await collections[1].delete(f"only in {collections[1].name}")
    assert await collections[1].keys(5, threshold) == []
    assert await collections[2].keys(5, threshold) == [f"only in {collections[2].name}"]


TEXT = " ".join(f"word{number}" for number in range(30))


async def test_by_its_text_a_document_finds_itself_and_by_its_key_it_does_not(pages: Pages) -> None:
    await pages.put("a", TEXT)
    (match,) = (await pages.matches(TEXT)).items
    assert (match.key, match.distance, match.exact) == ("a", 0, True)
    assert await pages.keys(Key("a")) == []


async def test_exact_are_those_of_the_same_words(pages: Pages) -> None:
    simhash = (await pages.find(TEXT)).digest.simhash if await pages.put("same words", TEXT.upper()) else None
    assert simhash is not None
    await pages.put("same words again", TEXT.replace(" ", "\n\t"))
    await pages.put("same fingerprint", simhash)
    for query, expected in (
        (TEXT, {"same words": True, "same words again": True, "same fingerprint": False}),
        (Key("same words"), {"same words again": True, "same fingerprint": False}),
        (simhash, {"same words": False, "same words again": False, "same fingerprint": False}),
    ):
        assert {match.key: match.exact for match in (await pages.matches(query)).items} == expected


async def test_a_text_that_is_too_short_has_exact_duplicates_alone(pages: Pages) -> None:
    for key, text in (("b", "Too  SHORT"), ("a", "too short"), ("c", "too short a"), ("d", TEXT)):
        await pages.put(key, text)
    answer = await pages.find("too short", threshold=63, limit=1)
    assert answer.digest.simhash is None
    assert [(match.key, match.distance, match.exact) for match in answer.matches.items] == [("a", 0, True)]
    assert answer.matches.truncated
    assert await pages.keys(Key("a"), threshold=63) == ["b"]
    assert await pages.keys(0, threshold=63) == ["d"]  # no fingerprint: no neighbour of anything


@pytest.mark.parametrize("text", ["", " \n", "!?", "— — —"])
async def test_texts_without_a_letter_or_digit_resemble_nothing(pages: Pages, text: str) -> None:
    await pages.put("a", text)
    await pages.put("b", text)
    assert await pages.keys(text, threshold=63) == []
    assert await pages.keys(Key("a"), threshold=63) == []


# Everything together


def revisions() -> dict[str, str]:
    """Texts by key: revisions of short articles of law and of one web page."""
    lines = gzip.decompress((DATA / "revisions.jsonl.gz").read_bytes()).decode().splitlines()
    return {each["id"]: each["text"] for each in map(json.loads, lines)}


async def test_each_write_answers_with_all_that_was_written_before(pages: Pages) -> None:
    written: list[Stored] = []
    for number, (key, text) in enumerate(revisions().items()):
        threshold = (3, 7, 10, 15, 20)[number % 5]
        indexed = await pages.index(key, text, threshold, limit=1000)
        assert indexed.matches
        if indexed.document.simhash is not None:
            assert_right(indexed.matches, nearest(written, indexed.document.simhash, threshold), limit=1000)
            written.append(Stored(key, indexed.document.simhash))
    assert len(written) > 100

    for document in written[::10]:
        by_text = await pages.matches(revisions()[document.key], threshold=10, limit=1000)
        assert_right(by_text, nearest(written, document.simhash, 10), limit=1000)
        by_key = await pages.matches(Key(document.key), threshold=10, limit=1000)
        assert_right(by_key, nearest(written, document.simhash, 10, except_key=document.key), limit=1000)


async def test_what_is_left_after_many_changes_is_found_exactly(pages: Pages) -> None:
    random = Random(11)
    centres = uniform(random, 5, 63)
    live: dict[str, Stored] = {}
    for _ in range(300):
        key = f"page {random.randrange(60)}"
        if key in live and random.random() < 0.3:
            await pages.delete(key)
            del live[key]
        else:
            simhash = flipped(random.choice(centres), random.sample(range(63), random.randrange(12)))
            await pages.put(key, simhash)
            live[key] = Stored(key, simhash)
    for threshold in (0, 3, 7, 12, 30):
        for centre in centres:
            matches = await pages.matches(centre, threshold, limit=10)
            assert_right(matches, nearest(live.values(), centre, threshold), limit=10)
