"""Collections over HTTP: create, list, describe, change, delete."""

from typing import Any

from httpx2 import AsyncClient

from app.settings import Settings
from tests.api.support import assert_problem, execute, find, hex_of, keep_house, keys_of, ok, put, rows, send, text_of
from tests.conftest import client_of

COLLECTIONS = "/v1/collections"
ARTICLE = {"tokenizer": "article", "shingle_size": 3, "bits": 63, "min_words": 20}


async def test_a_collection_is_made_once_and_answered_in_full(client: AsyncClient) -> None:
    created = await send(client, "POST", COLLECTIONS, {"name": "shop", "scheme": "article"})
    assert created.status_code == 201
    collection = created.json()
    assert set(collection) == {"name", "scheme", "store_text", "ttl", "created_at"}
    assert (collection["name"], collection["scheme"], collection["store_text"]) == ("shop", ARTICLE, True)
    assert collection["ttl"] is None
    for same in ("article", {"bits": 63}, ARTICLE):
        again = await send(client, "POST", COLLECTIONS, {"name": "shop", "scheme": same, "store_text": True})
        assert (again.status_code, again.json()) == (200, collection)


OTHER_SETTINGS: list[dict[str, Any]] = [
    {"scheme": {"bits": 64}},
    {"scheme": {"shingle_size": 2}},
    {"scheme": {"min_words": 19}},
    {"store_text": False},
    {"ttl": 3600},
]


async def test_other_settings_of_a_collection_that_exists_are_a_conflict(client: AsyncClient) -> None:
    created = await ok(client, "POST", COLLECTIONS, {"name": "shop"})
    for other in OTHER_SETTINGS:
        assert_problem(await send(client, "POST", COLLECTIONS, {"name": "shop", **other}), 409, "collection_exists")
    described = await ok(client, "GET", f"{COLLECTIONS}/shop")
    assert {name: described[name] for name in created} == created


SCHEMES: list[dict[str, Any]] = [
    {"shingle_size": 1, "bits": 1, "min_words": 1},
    {"shingle_size": 10, "bits": 64, "min_words": 1_000_000},
    {"tokenizer": "article", "shingle_size": 2, "bits": 32, "min_words": 5},
]


async def test_a_scheme_can_be_given_in_parts(client: AsyncClient) -> None:
    for number, scheme in enumerate(SCHEMES):
        name = f"parts-{number}"
        created = await ok(client, "POST", COLLECTIONS, {"name": name, "scheme": scheme})
        assert created["scheme"] == {**ARTICLE, **scheme}
        document = (await put(client, "a", collection=name, text=text_of(300)))["document"]
        alone = await ok(client, "POST", "/v1/fingerprints", {"text": text_of(300), "scheme": scheme})
        shared = ("fingerprint", "simhash", "words", "status")
        assert [document[member] for member in shared] == [alone[member] for member in shared]
        assert keys_of(await find(client, collection=name, text=text_of(300), threshold=0)) == ["a"]


async def test_a_fingerprint_with_bits_that_the_scheme_lacks_is_refused(client: AsyncClient) -> None:
    await ok(client, "POST", COLLECTIONS, {"name": "narrow", "scheme": {"bits": 1}})
    await put(client, "one", collection="narrow", fingerprint=hex_of(1))
    answer = await send(client, "PUT", f"{COLLECTIONS}/narrow/documents/two", {"fingerprint": hex_of(2)})
    assert_problem(answer, 422, "invalid_fingerprint", "/fingerprint")
    assert keys_of(await find(client, collection="narrow", fingerprint=hex_of(0), threshold=63)) == ["one"]


async def test_the_counts_are_exact(client: AsyncClient) -> None:
    same, other = text_of(300), text_of(300, seed=1)
    for key, content in {
        "a": {"text": same},
        "b": {"text": same.upper()},
        "c": {"text": other},
        "d": {"fingerprint": hex_of(5)},
        "e": {"fingerprint": hex_of(5)},
        "f": {"text": "oak"},
        "g": {"text": "Oak"},
        "h": {"text": "oak tree"},
        "i": {"text": ""},
        "j": {"text": "…"},
    }.items():
        await put(client, key, **content)
    described = await ok(client, "GET", f"{COLLECTIONS}/shop")
    assert set(described) == {"name", "scheme", "store_text", "ttl", "created_at", "counts"}
    assert described["counts"] == {"documents": 10, "fingerprints": 3, "too_short": 5, "exact_duplicates": 4}


async def test_collections_are_listed_in_pages_in_bytewise_order_of_their_names(client: AsyncClient) -> None:
    names = ["b", "A", "_", "a", "a.b", "a-b", "0", "z" * 64]
    for name in names:
        await ok(client, "POST", COLLECTIONS, {"name": name})
    for limit in (1, 3, 8, 1000):
        listed: list[str] = []
        cursor = ""
        while True:
            page = await ok(client, "GET", f"{COLLECTIONS}?limit={limit}{cursor}")
            assert set(page) == {"items", "next_cursor"}
            listed += [item["name"] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            assert len(page["items"]) == limit
            cursor = f"&cursor={page['next_cursor']}"
        assert listed == sorted(names)


async def test_a_deleted_collection_is_gone_with_all_that_it_held(
    client: AsyncClient, settings: Settings, database: str
) -> None:
    empty = rows(database)
    await put(client, "a", text=text_of(300))
    assert (await client.delete(f"{COLLECTIONS}/shop")).status_code == 204
    for method, url in [
        ("DELETE", f"{COLLECTIONS}/shop"),
        ("GET", f"{COLLECTIONS}/shop"),
        ("GET", f"{COLLECTIONS}/shop/documents"),
        ("GET", f"{COLLECTIONS}/shop/documents/a"),
        ("GET", f"{COLLECTIONS}/shop/near-duplicates?key=a"),
    ]:
        assert_problem(await client.request(method, url), 404, "collection_not_found")
    assert (await ok(client, "GET", COLLECTIONS)) == {"items": [], "next_cursor": None}
    assert rows(database) == {**empty, "deleted_collection": 1, "document": 1, "fingerprint": 1}
    await keep_house(settings)
    assert rows(database) == empty


async def test_a_name_can_be_used_again_with_another_scheme(client: AsyncClient) -> None:
    await put(client, "a", text=text_of(300))
    await ok(client, "DELETE", f"{COLLECTIONS}/shop")
    await ok(client, "POST", COLLECTIONS, {"name": "shop", "scheme": {"bits": 64}})
    assert keys_of(await find(client, fingerprint=hex_of(2**64 - 1), threshold=63)) == []
    await put(client, "b", fingerprint=hex_of(2**64 - 1))
    assert keys_of(await find(client, fingerprint=hex_of(2**64 - 1), threshold=63)) == ["b"]


async def test_a_ttl_is_set_changed_taken_away_and_told(client: AsyncClient) -> None:
    created = await ok(client, "POST", COLLECTIONS, {"name": "shop", "ttl": 60})
    assert created["ttl"] == 60
    assert (await send(client, "POST", COLLECTIONS, {"name": "shop", "ttl": 60})).status_code == 200
    for ttl in (2**31 - 1, None, 3600, 3600, 60):
        changed = await ok(client, "PATCH", f"{COLLECTIONS}/shop", {"ttl": ttl})
        assert changed == {**created, "ttl": ttl}
        assert (await ok(client, "GET", COLLECTIONS))["items"] == [changed]


async def test_a_ttl_that_was_changed_is_described_at_once_by_every_process(settings: Settings) -> None:
    async with client_of(settings) as one, client_of(settings) as other:
        await ok(one, "POST", COLLECTIONS, {"name": "shop", "ttl": 60})
        for client in (one, other):
            assert (await ok(client, "GET", f"{COLLECTIONS}/shop"))["ttl"] == 60
        await ok(one, "PATCH", f"{COLLECTIONS}/shop", {"ttl": 3600})
        for client in (one, other):
            assert (await ok(client, "GET", f"{COLLECTIONS}/shop"))["ttl"] == 3600


async def test_another_ttl_of_a_collection_that_exists_is_a_conflict(client: AsyncClient) -> None:
    await ok(client, "POST", COLLECTIONS, {"name": "shop", "ttl": 3600})
    for other in ({}, {"ttl": None}, {"ttl": 3601}):
        assert_problem(await send(client, "POST", COLLECTIONS, {"name": "shop", **other}), 409, "collection_exists")
    await ok(client, "PATCH", f"{COLLECTIONS}/shop", {"ttl": None})
    assert (await send(client, "POST", COLLECTIONS, {"name": "shop"})).status_code == 200
    answer = await send(client, "POST", COLLECTIONS, {"name": "shop", "ttl": 3600})
    assert_problem(answer, 409, "collection_exists")


async def test_documents_that_are_not_put_again_expire(client: AsyncClient, settings: Settings, database: str) -> None:
    await ok(client, "POST", COLLECTIONS, {"name": "shop", "ttl": 3600})
    for key in ("old", "again"):
        await put(client, key, fingerprint=hex_of(5))
    execute(database, "UPDATE document SET seen_at = seen_at - interval '2 hours'")
    execute(database, "UPDATE collection SET ttl_since = ttl_since - interval '2 hours'")
    assert (await put(client, "again", fingerprint=hex_of(5)))["result"] == "unchanged"
    await keep_house(settings)
    assert keys_of(await find(client, fingerprint=hex_of(5))) == ["again"]
    assert_problem(await client.get(f"{COLLECTIONS}/shop/documents/old"), 404, "document_not_found")
    assert (await ok(client, "GET", f"{COLLECTIONS}/shop"))["counts"]["documents"] == 1
