"""Documents over HTTP: index, read, list, delete."""

import json
from typing import Any
from urllib.parse import quote

from httpx2 import AsyncClient

from tests.api.support import (
    DOCUMENT_MEMBERS,
    MATCH_MEMBERS,
    assert_problem,
    execute,
    find,
    hex_of,
    keys_of,
    ok,
    put,
    rows,
    send,
    text_of,
)

SHOP = "/v1/collections/shop"
DOCUMENTS = f"{SHOP}/documents"


async def test_a_new_document_is_answered_in_full_and_can_be_read(client: AsyncClient) -> None:
    answer = await send(
        client,
        "POST",
        DOCUMENTS,
        {"key": "https://shop.example/lyon", "text": text_of(300), "metadata": {"town": "Lyon"}},
    )
    assert answer.status_code == 201
    indexed = answer.json()
    assert set(indexed) == {"document", "result", "threshold", "near_duplicates", "truncated"}
    assert (indexed["result"], indexed["threshold"]) == ("created", 3)
    assert (indexed["near_duplicates"], indexed["truncated"]) == ([], False)
    document = indexed["document"]
    assert set(document) == DOCUMENT_MEMBERS
    assert (document["collection"], document["key"]) == ("shop", "https://shop.example/lyon")
    assert (document["words"], document["status"], document["metadata"]) == (300, "ok", {"town": "Lyon"})
    assert document["simhash"] == str(int(document["fingerprint"], 16))
    assert len(document["content_hash"]) == 32
    assert document["created_at"] == document["updated_at"]
    assert await ok(client, "GET", f"{SHOP}/document?key=https://shop.example/lyon") == document


async def test_the_status_says_what_the_length_allows(client: AsyncClient) -> None:
    for words, status in {0: "too_short", 19: "too_short", 20: "short", 199: "short", 200: "ok"}.items():
        document = (await put(client, "a", text=text_of(words)))["document"]
        assert (document["status"], document["words"]) == (status, words)
        assert (document["fingerprint"] is None) == (document["simhash"] is None) == (status == "too_short")
        assert (await find(client, text=text_of(words)))["status"] == status


async def test_a_fingerprint_of_ones_own_is_taken_in_both_spellings(client: AsyncClient) -> None:
    by_hex = (await put(client, "hex", fingerprint="00AbCdEf00112233"))["document"]
    by_decimal = (await put(client, "decimal", simhash=str(0x00ABCDEF00112233)))["document"]
    for document in (by_hex, by_decimal):
        assert (document["fingerprint"], document["simhash"]) == ("00abcdef00112233", str(0x00ABCDEF00112233))
        assert (document["status"], document["words"], document["content_hash"]) == ("given", None, None)


async def test_a_given_fingerprint_is_never_called_exact(client: AsyncClient) -> None:
    fingerprint = (await put(client, "text", text=text_of(300)))["document"]["fingerprint"]
    indexed = await put(client, "given", fingerprint=fingerprint)
    [match] = indexed["near_duplicates"]
    assert set(match) == MATCH_MEMBERS
    assert (match["key"], match["distance"], match["match"]) == ("text", 0, "near")
    assert [match["match"] for match in (await find(client, fingerprint=fingerprint))["matches"]] == ["near", "near"]
    by_text = await find(client, text=text_of(300))
    assert [(match["key"], match["match"]) for match in by_text["matches"]] == [("given", "near"), ("text", "exact")]


async def test_the_same_content_again_writes_nothing(client: AsyncClient, database: str) -> None:
    text = text_of(300)
    first = await put(client, "a", text=text, metadata={"n": 1})
    stored = "SELECT xmin::text, ctid::text FROM document UNION ALL SELECT xmin::text, ctid::text FROM fingerprint"
    before = execute(database, stored)
    # Normalised: neither case nor white space is content. Metadata that is left out is not a change either.
    for again in (text, f"  {text.upper()}\n", text.replace(" ", "\t\n ")):
        for body in ({"text": again}, {"text": again, "metadata": {"n": 1}}):
            answer = await send(client, "PUT", f"{DOCUMENTS}/a", body)
            assert (answer.status_code, answer.json()["result"]) == (200, "unchanged")
            assert answer.json()["document"] == first["document"]
    assert execute(database, stored) == before


async def test_writing_again_uses_up_no_ids(client: AsyncClient, database: str) -> None:
    for _ in range(5):
        await put(client, "a", text=text_of(300))
        await ok(client, "POST", "/v1/collections", {"name": "shop"})
    assert rows(database)["collection"] == 1
    assert execute(database, "SELECT last_value FROM collection_id_seq") == [(1,)]


async def test_new_content_replaces_the_old_which_is_found_no_more(client: AsyncClient) -> None:
    old, new = text_of(300, seed=1), text_of(300, seed=2)
    created = (await put(client, "x", text=old, metadata={"n": 1}))["document"]
    answer = await send(client, "PUT", f"{DOCUMENTS}/x", {"text": new})
    assert (answer.status_code, answer.json()["result"]) == (200, "replaced")
    replaced = answer.json()["document"]
    assert replaced["fingerprint"] != created["fingerprint"]
    assert replaced["created_at"] == created["created_at"]
    assert replaced["updated_at"] > created["updated_at"]
    assert replaced["metadata"] == {"n": 1}
    assert keys_of(await find(client, text=old)) == []
    assert keys_of(await find(client, fingerprint=created["fingerprint"], threshold=0)) == []
    assert keys_of(await find(client, text=new)) == ["x"]
    counts = (await ok(client, "GET", SHOP))["counts"]
    assert (counts["documents"], counts["fingerprints"]) == (1, 1)


async def test_a_deleted_document_is_found_no_more_and_can_come_back(client: AsyncClient) -> None:
    text = text_of(300)
    await put(client, "x", text=text)
    assert (await client.delete(f"{DOCUMENTS}/x")).status_code == 204
    assert keys_of(await find(client, text=text)) == []
    assert_problem(await client.get(f"{DOCUMENTS}/x"), 404, "document_not_found")
    assert_problem(await client.delete(f"{DOCUMENTS}/x"), 404, "document_not_found")
    assert (await ok(client, "GET", SHOP))["counts"] == {
        "documents": 0,
        "fingerprints": 0,
        "too_short": 0,
        "exact_duplicates": 0,
    }
    assert (await put(client, "x", text=text))["result"] == "created"
    assert keys_of(await find(client, text=text)) == ["x"]


async def test_content_can_change_its_kind(client: AsyncClient) -> None:
    assert (await put(client, "x", text=text_of(300)))["document"]["status"] == "ok"
    given = await put(client, "x", fingerprint=hex_of(5))
    assert (given["result"], given["document"]["status"]) == ("replaced", "given")
    short = await put(client, "x", text="oak")
    assert (short["result"], short["document"]["status"], short["document"]["fingerprint"]) == (
        "replaced",
        "too_short",
        None,
    )
    assert keys_of(await find(client, fingerprint=hex_of(5))) == []


async def test_metadata_left_out_stays_and_given_replaces(client: AsyncClient) -> None:
    async def write(**metadata: object) -> tuple[str, Any]:
        indexed = await ok(client, "PUT", f"{DOCUMENTS}/x", {"text": text_of(300), **metadata})
        return indexed["result"], indexed["document"]["metadata"]

    assert await write() == ("created", {})
    assert await write(metadata={"a": [1, 2.5, None, True, "é"]}) == ("replaced", {"a": [1, 2.5, None, True, "é"]})
    assert await write() == ("unchanged", {"a": [1, 2.5, None, True, "é"]})
    assert await write(metadata=None) == ("unchanged", {"a": [1, 2.5, None, True, "é"]})
    assert await write(metadata={"b": 1}) == ("replaced", {"b": 1})
    assert await write(metadata={}) == ("replaced", {})


async def test_an_answer_names_the_neighbours_but_never_the_document_itself(client: AsyncClient) -> None:
    await put(client, "a", fingerprint=hex_of(0b0000), metadata={"n": 1})
    await put(client, "b", fingerprint=hex_of(0b0001))
    created = await put(client, "c", fingerprint=hex_of(0b0011))
    assert [(match["key"], match["distance"]) for match in created["near_duplicates"]] == [("b", 1), ("a", 2)]
    unchanged = await put(client, "c", fingerprint=hex_of(0b0011))
    assert unchanged["near_duplicates"] == created["near_duplicates"]
    assert created["near_duplicates"][1] == {
        "key": "a",
        "fingerprint": hex_of(0),
        "distance": 2,
        "match": "near",
        "similarity": None,
        "metadata": {"n": 1},
    }


async def test_threshold_and_limit_of_the_answer_are_the_callers(client: AsyncClient) -> None:
    for number in range(4):
        await put(client, f"k{number}", fingerprint=hex_of((1 << number) - 1))

    async def neighbours(parameters: str) -> Any:
        indexed = await ok(client, "PUT", f"{DOCUMENTS}/x{parameters}", {"fingerprint": hex_of(0)})
        found = indexed["near_duplicates"]
        return indexed["threshold"], None if found is None else [match["key"] for match in found], indexed["truncated"]

    assert await neighbours("") == (3, ["k0", "k1", "k2", "k3"], False)
    assert await neighbours("?threshold=1") == (1, ["k0", "k1"], False)
    assert await neighbours("?threshold=0&limit=1") == (0, ["k0"], False)
    assert await neighbours("?threshold=63&limit=3") == (63, ["k0", "k1", "k2"], True)
    assert await neighbours("?limit=4") == (3, ["k0", "k1", "k2", "k3"], False)
    assert await neighbours("?near_duplicates=false&threshold=1") == (None, None, False)


async def test_texts_without_a_letter_or_digit_match_nothing(client: AsyncClient) -> None:
    blank = ["", "   ", "!!!", "—", "\n\t", "… …", "— " * 30, "... --- ... " * 100]
    for number, text in enumerate([*blank, *blank]):
        indexed = await put(client, f"{number}", text=text)
        document = indexed["document"]
        assert (document["status"], document["fingerprint"], document["simhash"]) == ("too_short", None, None)
        assert document["content_hash"] is None
        assert indexed["near_duplicates"] == []
        assert (await find(client, text=text, threshold=63))["matches"] == []


async def test_short_texts_find_their_exact_duplicates_alone(client: AsyncClient) -> None:
    await put(client, "oak", text="oak")
    assert (await put(client, "tin", text="tin"))["near_duplicates"] == []
    [match] = (await put(client, "oak again", text="  OAK "))["near_duplicates"]
    assert match == {
        "key": "oak",
        "fingerprint": None,
        "distance": 0,
        "match": "exact",
        "similarity": None,
        "metadata": {},
    }
    found = await find(client, text="oak", threshold=63, limit=1)
    assert (found["fingerprint"], found["simhash"], found["status"], found["words"]) == (None, None, "too_short", 1)
    assert (keys_of(found), found["truncated"]) == (["oak"], True)
    assert keys_of(await find(client, key="oak")) == ["oak again"]


async def test_the_same_fingerprint_of_another_text_is_near_and_not_exact(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"min_words": 1}})
    await put(client, "five", text="tick tock " * 5)
    [match] = (await put(client, "seven", text="tick tock " * 7))["near_duplicates"]
    assert (match["key"], match["distance"], match["match"]) == ("five", 0, "near")
    assert (await ok(client, "GET", SHOP))["counts"]["documents"] == 2


async def test_texts_that_differ_in_a_number_are_not_merged(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"min_words": 1}})
    for number in ("N41", "N42", "N47", "N50"):
        text = f"Night bus {number} runs hourly between the harbour and Elm Square."
        assert (await put(client, number, text=text))["near_duplicates"] == []


KEYS = [
    "https://shop.example/lyon?a=1&b=2#top",
    "//double/slash",
    "/",
    "a/../b",
    "..",
    "batch",
    "percent%2Fencoded",
    "plus+and space",
    "café\u0301 日本 🙂",
    " ",
    "\t\r\n",
    "\n",
    "two\nlines\n",
    "k" * 2048,
    "é" * 1024,
]


async def test_any_key_works_in_the_path_the_query_and_the_body(client: AsyncClient) -> None:
    for number, key in enumerate(KEYS):
        encoded = quote(key, safe="").replace(".", "%2E")  # clients resolve a plain .. before they send it
        content = {"fingerprint": hex_of(number << 20)}
        created = await send(client, "POST", DOCUMENTS, {"key": key, **content})
        assert (created.status_code, created.json()["document"]["key"]) == (201, key)
        for url in (f"{DOCUMENTS}/{encoded}", f"{SHOP}/document?key={encoded}"):
            assert (await ok(client, "GET", url))["key"] == key
            assert (await ok(client, "PUT", url, content))["result"] == "unchanged"
            assert (await ok(client, "DELETE", url)) is None
            assert_problem(await client.get(url), 404, "document_not_found")
            assert (await ok(client, "PUT", url, content))["result"] == "created"
        assert (await ok(client, "GET", f"{SHOP}/near-duplicates?key={encoded}"))["fingerprint"] == hex_of(number << 20)


async def test_a_key_that_stands_unencoded_in_the_path_is_taken_as_it_is(client: AsyncClient) -> None:
    await ok(client, "PUT", f"{DOCUMENTS}/https://shop.example//lyon", {"fingerprint": hex_of(1)})
    assert (await ok(client, "GET", f"{SHOP}/document?key=https://shop.example//lyon"))["fingerprint"] == hex_of(1)


async def test_documents_are_listed_in_pages_in_bytewise_order_of_their_keys(client: AsyncClient) -> None:
    keys = ["B", "a", "Z", "é", "aa", "🙂", "\uffff", "_"]
    for number, key in enumerate(keys):
        await put(client, quote(key), fingerprint=hex_of(number))
    for limit in (1, 3, 8, 1000):
        listed: list[str] = []
        cursor = ""
        pages = 0
        while True:
            page = await ok(client, "GET", f"{DOCUMENTS}?limit={limit}{cursor}")
            assert set(page) == {"items", "next_cursor"}
            assert all(set(item) == DOCUMENT_MEMBERS for item in page["items"])
            listed += [item["key"] for item in page["items"]]
            pages += 1
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert listed == sorted(keys, key=str.encode)
        assert pages == -(-len(keys) // limit)


async def test_a_page_goes_on_where_the_last_ended_although_documents_come_and_go(client: AsyncClient) -> None:
    for key in "bdf":
        await put(client, key, fingerprint=hex_of(1))
    page = await ok(client, "GET", f"{DOCUMENTS}?limit=2")
    assert (await client.delete(f"{DOCUMENTS}/d")).status_code == 204
    await put(client, "a", fingerprint=hex_of(1))
    await put(client, "e", fingerprint=hex_of(1))
    following = await ok(client, "GET", f"{DOCUMENTS}?cursor={page['next_cursor']}")
    assert [item["key"] for item in following["items"]] == ["e", "f"]


async def test_what_is_not_there_is_404_and_makes_no_collection(client: AsyncClient, database: str) -> None:
    for method, url in [
        ("GET", DOCUMENTS),
        ("GET", f"{DOCUMENTS}/a"),
        ("GET", f"{SHOP}/document?key=a"),
        ("DELETE", f"{DOCUMENTS}/a"),
        ("DELETE", f"{SHOP}/document?key=a"),
    ]:
        assert_problem(await client.request(method, url), 404, "collection_not_found")
    assert rows(database)["collection"] == 0
    await ok(client, "POST", "/v1/collections", {"name": "shop"})
    assert await ok(client, "GET", DOCUMENTS) == {"items": [], "next_cursor": None}
    problem = assert_problem(await client.get(f"{DOCUMENTS}/private-key"), 404, "document_not_found")
    assert "private-key" not in json.dumps(problem)


async def test_the_first_write_makes_the_collection_with_the_default_scheme(client: AsyncClient) -> None:
    await put(client, "a", text=text_of(30))
    described = await ok(client, "GET", SHOP)
    assert described["scheme"] == {"tokenizer": "article", "shingle_size": 3, "bits": 63, "min_words": 20}
    assert described["store_text"] is True


async def test_texts_are_kept_only_where_the_collection_keeps_them(client: AsyncClient, database: str) -> None:
    for name, store_text in [("kept", True), ("dropped", False)]:
        await ok(client, "POST", "/v1/collections", {"name": name, "store_text": store_text})
        await put(client, "a", collection=name, text="Les chaussures de Lyon")
        assert keys_of(await find(client, collection=name, text="les  chaussures de lyon")) == ["a"]
    assert execute(database, "SELECT text FROM document ORDER BY collection_id") == [
        ("Les chaussures de Lyon",),
        (None,),
    ]
