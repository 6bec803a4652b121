"""What a write does: once, at once for everybody, and to nothing but what it has to."""

from collections.abc import Generator

import psycopg
import pytest
from psycopg import sql

from app.core.errors import CollectionNotFoundError, DocumentNotFoundError, InvalidFingerprintError
from app.core.model import Metadata, Outcome
from app.core.scheme import ARTICLE, Scheme
from app.runtime import process
from app.service.near_duplicates import Key
from app.settings import Settings
from tests.conftest import Server
from tests.store.databases import one_value
from tests.store.pages import Pages

TEXT = " ".join(f"word{number}" for number in range(30))
OTHER_TEXT = " ".join(f"other{number}" for number in range(30))


@pytest.fixture(scope="module")
def database(server: Server) -> Generator[str]:
    """One database: each test has a collection of its own."""
    yield server.create("writing")
    server.drop("writing")


def stored(database: str, name: str) -> list[tuple[object, ...]]:
    """All rows of a collection that a write may touch, with what PostgreSQL changes when it writes them."""
    with psycopg.connect(database) as connection:
        return [
            row
            for table in ("document", "fingerprint")
            for row in connection.execute(
                sql.SQL(
                    "SELECT t.xmin::text, t.xmax::text, t.ctid::text, t.* FROM {} t"
                    " WHERE collection_id = (SELECT id FROM collection WHERE name = %s::text)"
                ).format(sql.Identifier(table)),
                [name],
            )
        ]


def stored_text(database: str, name: str) -> object:
    return one_value(
        database,
        b"SELECT d.text FROM document d JOIN collection c ON c.id = d.collection_id WHERE c.name = %s::text",
        (name,),
    )


@pytest.mark.parametrize(
    ("content", "metadata"),
    [
        (TEXT, None),
        (TEXT, {"lang": "en", "depth": [1, None, {"a": 0.5}]}),
        ("too short", None),
        ("!!!", None),
        ("", None),
        (5, None),
        (0, {}),
    ],
)
async def test_the_same_again_writes_nothing(
    pages: Pages, database: str, content: str | int, metadata: Metadata | None
) -> None:
    assert await pages.put("a", content, metadata) == Outcome.CREATED
    before = stored(database, pages.name)
    assert await pages.put("a", content, metadata) == Outcome.UNCHANGED
    assert await pages.put("a", content) == Outcome.UNCHANGED  # keeps its metadata
    assert stored(database, pages.name) == before


Version = tuple[str | int, Metadata | None]
VERSIONS: list[tuple[Version, Version]] = [
    ((TEXT, None), (OTHER_TEXT, None)),
    ((TEXT, None), (TEXT, {"lang": "en"})),
    ((TEXT, {"lang": "en"}), (TEXT, {"lang": "fr"})),
    ((TEXT, {"lang": "en"}), (TEXT, {})),
    (("too short", None), ("too short as well", None)),
    (("!!!", None), ("???", None)),
    ((TEXT, None), ("short now", {"lang": "en"})),
    (("short", {"lang": "en"}), (TEXT, None)),
    ((TEXT, None), (5, None)),
    ((5, None), (4, None)),
    ((5, {"lang": "en"}), (TEXT, None)),
    (("short", None), (5, None)),
]


@pytest.mark.parametrize(("first", "second"), VERSIONS)
async def test_something_else_replaces(pages: Pages, database: str, first: Version, second: Version) -> None:
    assert await pages.put("a", *first) == Outcome.CREATED
    created = await pages.services.documents.get(pages.name, "a")
    assert await pages.put("a", *second) == Outcome.REPLACED
    replaced = await pages.services.documents.get(pages.name, "a")
    assert replaced.created_at == created.created_at
    assert replaced.updated_at > created.updated_at
    assert replaced.metadata == (second[1] if second[1] is not None else first[1] or {})
    assert stored_text(database, pages.name) == (second[0] if isinstance(second[0], str) else None)
    assert await pages.put("a", *second) == Outcome.UNCHANGED


async def test_a_given_fingerprint_equal_to_a_text_s_is_another_document(pages: Pages) -> None:
    await pages.put("a", TEXT)
    simhash = (await pages.services.documents.get(pages.name, "a")).simhash
    assert simhash is not None
    assert await pages.put("a", simhash) == Outcome.REPLACED
    document = await pages.services.documents.get(pages.name, "a")
    assert (document.simhash, document.content_hash, document.words) == (simhash, None, None)


@pytest.mark.parametrize("store_text", [True, False])
async def test_texts_are_kept_if_the_collection_says_so(pages: Pages, database: str, store_text: bool) -> None:
    await pages.services.collections.create(pages.name, ARTICLE, store_text=store_text)
    await pages.put("a", TEXT)
    assert stored_text(database, pages.name) == (TEXT if store_text else None)


async def test_repeated_writes_use_up_no_ids(pages: Pages, database: str) -> None:
    await pages.services.collections.create(pages.name, ARTICLE, store_text=True)
    last = one_value(database, b"SELECT last_value FROM collection_id_seq")
    for number in range(20):
        await pages.services.collections.create(pages.name, ARTICLE, store_text=True)
        await pages.put("a", number % 2)
    assert one_value(database, b"SELECT last_value FROM collection_id_seq") == last


async def test_one_row_a_distinct_fingerprint(pages: Pages, database: str) -> None:
    for key in ("a", "b", "c"):
        await pages.put(key, 7)
    assert len(stored(database, pages.name)) == 3 + 1


async def test_another_process_finds_a_document_at_once(pages: Pages, settings: Settings) -> None:
    async with process(settings) as elsewhere:
        others = Pages(elsewhere.services, pages.name)
        await pages.put("first", TEXT)
        assert await others.keys(TEXT) == ["first"]
        await others.put("second", TEXT)
        assert await pages.keys(TEXT) == ["first", "second"]
        await pages.delete("first")
        assert await others.keys(TEXT) == ["second"]
    async with process(settings) as restarted:
        assert await Pages(restarted.services, pages.name).keys(TEXT) == ["second"]


async def test_a_replaced_text_finds_the_document_no_more(pages: Pages) -> None:
    await pages.put("a", TEXT)
    await pages.put("a", OTHER_TEXT)
    assert await pages.keys(TEXT) == []
    assert await pages.keys(OTHER_TEXT) == ["a"]
    _, counts = await pages.services.collections.describe(pages.name)
    assert (counts.documents, counts.fingerprints) == (1, 1)
    await pages.put("a", TEXT)  # its fingerprint's row is there still
    assert await pages.keys(TEXT) == ["a"]
    assert await pages.keys(OTHER_TEXT) == []


async def test_a_deleted_document_is_gone(pages: Pages) -> None:
    await pages.put("a", TEXT)
    await pages.put("b", TEXT)
    await pages.delete("a")
    assert await pages.keys(TEXT) == ["b"]
    assert await pages.keys(Key("b")) == []
    for again in (pages.delete("a"), pages.services.documents.get(pages.name, "a"), pages.find(Key("a"))):
        with pytest.raises(DocumentNotFoundError):
            await again
    _, counts = await pages.services.collections.describe(pages.name)
    assert (counts.documents, counts.fingerprints, counts.exact_duplicates) == (1, 1, 0)
    assert await pages.put("a", TEXT) == Outcome.CREATED
    assert await pages.keys(TEXT) == ["a", "b"]


async def test_counts_are_exact(pages: Pages) -> None:
    for number, content in enumerate((TEXT, TEXT, OTHER_TEXT, "short", "short", "!", 5, 5, 6)):
        await pages.put(str(number), content)
    _, counts = await pages.services.collections.describe(pages.name)
    assert (counts.documents, counts.fingerprints, counts.too_short, counts.exact_duplicates) == (9, 4, 3, 4)


async def test_documents_are_listed_in_the_bytewise_order_of_their_keys(pages: Pages) -> None:
    keys = ["é", "Z", "a", "B", "~", "-b", "b-", "10", "9", "日本", "A b", "Ab"]
    for key in keys:
        await pages.put(key, 1)
    listed: list[str] = []
    while page := await pages.services.documents.page(pages.name, after=listed[-1] if listed else "", limit=5):
        listed += [document.key for document in page]
    assert listed == sorted(keys, key=str.encode)


async def test_the_longest_keys_can_be_stored_and_found(pages: Pages) -> None:
    # Random characters, since PostgreSQL would compress others before they reach its limit for a row of an index.
    keys = [bytes(33 + (number * number * 7 + start) % 94 for number in range(2048)).decode() for start in (0, 1)]
    for key in keys:
        await pages.put(key, TEXT)
    assert await pages.keys(TEXT) == sorted(keys)
    assert await pages.keys(Key(keys[0])) == [keys[1]]


async def test_what_can_not_be_stored_creates_no_collection(pages: Pages) -> None:
    with pytest.raises(InvalidFingerprintError):
        await pages.put("a", -1)
    with pytest.raises(CollectionNotFoundError):
        await pages.services.collections.describe(pages.name)
    await pages.services.collections.create(pages.name, Scheme(bits=8), store_text=False)
    with pytest.raises(InvalidFingerprintError):
        await pages.put("a", 256)
    assert await pages.put("a", 255) == Outcome.CREATED
