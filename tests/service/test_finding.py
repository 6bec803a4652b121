"""What a lookup answers: in which order, cut where, and of which documents."""

import gzip
import json
from random import Random

import psycopg
import pytest

from app.core.scheme import ARTICLE, Scheme
from app.service.documents import NewDocument
from app.service.near_duplicates import Found, Key, Options, Simhash, Text
from app.settings import Settings
from app.store.database import StaleCatalogError
from tests.store.brute_force import (
    DATA,
    LARGEST,
    SMALLEST,
    Answer,
    Stored,
    answers,
    assert_right,
    flipped,
    nearest,
    uniform,
)
from tests.store.databases import Opened, create_collection, load

PAGES = "pages"


async def put(service: Opened, key: str, content: int | str, name: str = PAGES) -> None:
    given = Text(content) if isinstance(content, str) else Simhash(content, "/simhash")
    await service.services.documents.index(name, NewDocument(key, given, None), None)


async def find(
    service: Opened, query: int | str | Key, threshold: int = 3, limit: int = 20, name: str = PAGES
) -> Found:
    content = Simhash(query, "/simhash") if isinstance(query, int) else Text(query) if isinstance(query, str) else query
    return await service.services.near_duplicates.find(name, content, Options(threshold, limit), explain=False)


async def found(service: Opened, query: int | str | Key, threshold: int = 3, limit: int = 20) -> list[Answer]:
    return answers((await find(service, query, threshold, limit)).matches)


async def keys_found(service: Opened, query: int | str | Key, threshold: int = 3, name: str = PAGES) -> list[str]:
    return [match.key for match in (await find(service, query, threshold, name=name)).matches.items]


# Distances


@pytest.mark.parametrize(
    ("near", "away"),
    [
        (81985524921454062, 3),  # one bit in each of three blocks
        (81704049944743407, 3),
        (81704049944808942, 3),
        (81704054239710702, 3),
        (8152436061464415727, 3),  # the three highest bits
        (81985529216445935, 3),  # the three highest of the lowest block
        (4693530810155519471, 3),  # on both sides of the border between the highest blocks
        (4693671547643874799, 1),  # the highest bit alone
    ],
)
async def test_bits_of_every_block_and_of_its_borders_count(service: Opened, near: int, away: int) -> None:
    await put(service, "stored", 81985529216486895)
    assert await found(service, near) == [("stored", 81985529216486895, away)]


async def test_a_bit_in_each_of_four_blocks_is_one_too_many(service: Opened) -> None:
    await put(service, "stored", 81985529216486895)
    assert await found(service, 81704049944743406) == []
    assert await found(service, 81704049944743406, threshold=4) == [("stored", 81985529216486895, 4)]


async def test_distances_of_small_numbers(service: Opened) -> None:
    for simhash in (5, 1, 4, 7, 0, 8, 1_000_000):
        await put(service, str(simhash), simhash)
    assert await found(service, 5) == [("5", 5, 0), ("1", 1, 1), ("4", 4, 1), ("7", 7, 1), ("0", 0, 2), ("8", 8, 3)]


async def test_the_ends_of_the_range_are_63_bits_apart(service: Opened) -> None:
    await put(service, "lowest", 0)
    await put(service, "highest", LARGEST)
    assert await found(service, 0, threshold=62) == [("lowest", 0, 0)]
    assert await found(service, LARGEST, threshold=63) == [("highest", LARGEST, 0), ("lowest", 0, 63)]


async def test_fingerprints_of_64_bits_order_as_if_they_had_no_sign(service: Opened) -> None:
    await service.services.collections.create("images", Scheme(bits=64), store_text=False)
    for simhash in (-1, SMALLEST, LARGEST, 0, 1):
        await put(service, str(simhash), simhash, "images")
    matches = (await find(service, 0, threshold=63, name="images")).matches
    assert answers(matches) == [("0", 0, 0), ("1", 1, 1), (str(SMALLEST), SMALLEST, 1), (str(LARGEST), LARGEST, 63)]


# Order and limit


async def test_equals_are_in_the_bytewise_order_of_their_keys(service: Opened) -> None:
    keys = ["é", "Z", "a", "B", "z", "~", "-b", "b-", "_", "10", "9", "ß", "日本", "😀", "\ufb01", "A b", "Ab"]
    for key in keys:
        await put(service, key, 1)
    assert await keys_found(service, 1) == sorted(keys, key=str.encode)


async def test_of_a_thousand_copies_a_small_and_a_large_answer_begin_alike(
    service: Opened, database: str
) -> None:
    with psycopg.connect(database) as connection:
        collection = create_collection(connection, PAGES)
        documents = [Stored(f"copy {number}", 42) for number in range(1000)]
        load(connection, collection, [*documents, Stored("near", 43)])
    ten = (await find(service, 42, limit=10)).matches
    thousand = (await find(service, 42, limit=1000)).matches
    assert answers(ten) == answers(thousand)[:10] == nearest(documents, 42, 0)[:10]
    assert (ten.truncated, thousand.truncated) == (True, True)
    assert answers(thousand) == nearest(documents, 42, 0)
    all_of_them = (await find(service, 42, threshold=0, limit=1000)).matches
    assert (len(all_of_them.items), all_of_them.truncated) == (1000, False)


async def test_fingerprints_that_no_document_uses_take_no_place_in_an_answer(service: Opened) -> None:
    orphans = [flipped(0, [bit]) for bit in range(50)]
    for number, simhash in enumerate(orphans):
        await put(service, f"gone {number}", simhash)
    for number in range(0, 50, 2):
        await service.services.documents.delete(PAGES, f"gone {number}")
        await put(service, f"gone {number + 1}", LARGEST)
    await put(service, "live", flipped(0, [0, 20, 40]))
    matches = (await find(service, 0, limit=1)).matches
    assert answers(matches) == [("live", flipped(0, [0, 20, 40]), 3)]
    assert not matches.truncated


@pytest.mark.parametrize("other", ["a", "z"])
async def test_a_document_is_not_its_own_neighbour(service: Opened, other: str) -> None:
    await put(service, "m", 7)
    assert (await find(service, Key("m"), limit=1)).matches.items == []
    await put(service, other, 7)
    matches = (await find(service, Key("m"), limit=1)).matches
    assert (answers(matches), matches.truncated) == ([(other, 7, 0)], False)


async def test_a_written_document_is_not_its_own_neighbour(service: Opened) -> None:
    for expected in ([], ["a"], []):
        key = "b" if expected else "a"
        indexed = await service.services.documents.index(
            "pairs" if expected else PAGES, NewDocument(key, Simhash(7, "/simhash"), None), Options(3, 1)
        )
        assert indexed.matches
        assert [match.key for match in indexed.matches.items] == []
        if not expected:
            await put(service, "a", 7, "pairs")
            break
    indexed = await service.services.documents.index(
        "pairs", NewDocument("b", Simhash(7, "/simhash"), None), Options(3, 1)
    )
    assert indexed.matches
    assert answers(indexed.matches) == [("a", 7, 0)]


async def test_without_a_threshold_that_of_the_layout_holds(service: Opened) -> None:
    await put(service, "3 away", 0b111)
    await put(service, "4 away", 0b1111)
    answer = await service.services.near_duplicates.find(
        PAGES, Simhash(0, "/simhash"), Options(None, 10), explain=False
    )
    assert answer.matches.threshold == 3
    assert answers(answer.matches) == [("3 away", 0b111, 3)]


# Which documents


async def test_collections_do_not_see_each_other(service: Opened) -> None:
    for name in ("here", "there", "elsewhere"):
        await put(service, f"only {name}", 5, name)
    for threshold in (0, 3, 20, 63):  # by probing and by scanning
        assert await keys_found(service, 5, threshold, "there") == ["only there"]
    await service.services.documents.delete("there", "only there")
    assert await keys_found(service, 5, 63, "there") == []


TEXT = " ".join(f"word{number}" for number in range(30))


async def test_by_its_text_a_document_finds_itself_and_by_its_key_it_does_not(service: Opened) -> None:
    await put(service, "a", TEXT)
    matches = (await find(service, TEXT)).matches
    assert [(match.key, match.distance, match.exact) for match in matches.items] == [("a", 0, True)]
    assert await keys_found(service, Key("a")) == []


async def test_exact_are_those_of_the_same_words(service: Opened) -> None:
    await put(service, "same words", TEXT.upper().replace(" ", "\n\t"))
    simhash = (await find(service, TEXT)).digest.simhash
    assert simhash is not None
    await put(service, "same fingerprint", simhash)
    for query in (TEXT, Key("same words")):
        matches = (await find(service, query)).matches
        exact = {match.key: match.exact for match in matches.items}
        assert exact == ({"same fingerprint": False} | ({"same words": True} if query is TEXT else {}))
    assert {match.exact for match in (await find(service, simhash)).matches.items} == {False}


async def test_a_text_that_is_too_short_has_exact_duplicates_alone(service: Opened) -> None:
    for key, text in (("b", "Too  SHORT"), ("a", "too short"), ("c", "too short a"), ("d", TEXT)):
        await put(service, key, text)
    answer = await find(service, "too short", threshold=63, limit=1)
    assert answer.digest.simhash is None
    assert [(match.key, match.distance, match.exact) for match in answer.matches.items] == [("a", 0, True)]
    assert answer.matches.truncated
    assert await keys_found(service, Key("a"), threshold=63) == ["b"]
    assert await keys_found(service, 0, threshold=63) == ["d"]  # no fingerprint: no neighbour of anything


@pytest.mark.parametrize("text", ["", " \n", "!?", "— — —"])
async def test_texts_without_a_letter_or_digit_resemble_nothing(service: Opened, text: str) -> None:
    await put(service, "a", text)
    await put(service, "b", text)
    assert await keys_found(service, text, threshold=63) == []
    assert await keys_found(service, Key("a"), threshold=63) == []


# Everything together


def revisions() -> list[tuple[str, str]]:
    """Keys and texts: revisions of short articles of law and of one web page."""
    lines = gzip.decompress((DATA / "revisions.jsonl.gz").read_bytes()).decode().splitlines()
    return [(each["id"], each["text"]) for each in map(json.loads, lines)]


async def test_each_write_answers_with_all_that_was_written_before(service: Opened) -> None:
    written: list[Stored] = []
    too_short = 0
    for number, (key, text) in enumerate(revisions()):
        threshold = (3, 7, 10, 15, 20)[number % 5]
        indexed = await service.services.documents.index(
            "revisions", NewDocument(key, Text(text), None), Options(threshold, 1000)
        )
        assert indexed.matches
        simhash = indexed.document.simhash
        if simhash is None:
            too_short += 1
            continue
        assert_right(indexed.matches, nearest(written, simhash, threshold), limit=1000)
        written.append(Stored(key, simhash))
    assert len(written) > 100
    assert too_short

    texts = dict(revisions())
    for document in written[::10]:
        by_text = await find(service, texts[document.key], 10, 1000, "revisions")
        assert_right(by_text.matches, nearest(written, document.simhash, 10), limit=1000)
        by_key = await find(service, Key(document.key), 10, 1000, "revisions")
        expected = nearest(written, document.simhash, 10, except_key=document.key)
        assert_right(by_key.matches, expected, limit=1000)


async def test_what_is_left_after_many_changes_is_found_exactly(service: Opened) -> None:
    random = Random(11)
    centres = uniform(random, 5, 63)
    live: dict[str, Stored] = {}
    for _ in range(300):
        key = f"page {random.randrange(60)}"
        if key in live and random.random() < 0.3:
            await service.services.documents.delete(PAGES, key)
            del live[key]
        else:
            simhash = flipped(random.choice(centres), random.sample(range(63), random.randrange(12)))
            await put(service, key, simhash)
            live[key] = Stored(key, simhash)
    for threshold in (0, 3, 7, 12, 30):
        for centre in centres:
            matches = (await find(service, centre, threshold, 10)).matches
            assert_right(matches, nearest(live.values(), centre, threshold), limit=10)
