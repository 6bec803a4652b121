"""Many lookups and many writes by one request."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from httpx2 import AsyncClient, Response

from app.settings import Settings
from tests.api.support import (
    LOOKUP_MEMBERS,
    MATCH_MEMBERS,
    assert_problem,
    find,
    hex_of,
    keys_of,
    ok,
    put,
    rows,
    send,
    text_of,
)
from tests.conftest import client_of

SHOP = "/v1/collections/shop"
DOCUMENTS = f"{SHOP}/documents/batch"
DELETE = f"{SHOP}/documents/delete"
LOOKUPS = f"{SHOP}/near-duplicates/batch"
ACROSS = "/v1/near-duplicates"
BATCH_ACROSS = f"{ACROSS}/batch"

Json = Mapping[str, Any]


def given(*numbers: int) -> list[Json]:
    return [{"key": f"{number:04}", "fingerprint": hex_of(number)} for number in numbers]


async def write(client: AsyncClient, documents: Sequence[Json], collection: str = "shop") -> list[Any]:
    url = f"/v1/collections/{collection}/documents/batch"
    return (await ok(client, "POST", url, {"documents": documents}))["results"]


async def look_up(client: AsyncClient, queries: Sequence[Json], **others: object) -> list[Any]:
    results = (await ok(client, "POST", LOOKUPS, {"queries": queries, **others}))["results"]
    assert len(results) == len(queries)
    return results


def without_time(found: Json) -> Json:
    assert found["took_ms"] >= 0
    return {name: value for name, value in found.items() if name != "took_ms"}


async def test_many_documents_are_written_and_told_in_their_order(client: AsyncClient) -> None:
    documents: list[Json] = [
        {"key": "https://shop.example//b", "text": text_of(300), "metadata": {"n": 1}},
        {"key": "a", "text": text_of(30)},
        {"key": "z", "text": "oak"},
        {"key": "é", "fingerprint": "00000000000000ff"},
        {"key": " ", "simhash": "5"},
    ]
    results = await write(client, documents)
    assert [set(result) for result in results] == [{"key", "result", "fingerprint", "status"}] * 5
    assert [result["key"] for result in results] == [document["key"] for document in documents]
    assert [result["result"] for result in results] == ["created"] * 5
    assert [result["status"] for result in results] == ["ok", "short", "too_short", "given", "given"]
    assert [result["fingerprint"] for result in results[2:]] == [None, "00000000000000ff", hex_of(5)]
    assert keys_of(await find(client, text=text_of(300))) == ["https://shop.example//b"]
    assert (await ok(client, "GET", f"{SHOP}/document?key=https://shop.example//b"))["metadata"] == {"n": 1}

    changed = [documents[0], {"key": "a", "text": text_of(31)}, {"key": "new", "text": "oak"}, documents[4]]
    results = await write(client, changed)
    assert [result["result"] for result in results] == ["unchanged", "replaced", "created", "unchanged"]


async def test_as_many_documents_as_a_request_may_have(client: AsyncClient, database: str) -> None:
    assert len(await write(client, given(*range(1000)))) == 1000
    assert rows(database)["document"] == 1000
    assert_problem(
        await send(client, "POST", DOCUMENTS, {"documents": given(*range(1001))}), 422, "invalid_input", "/documents"
    )
    assert_problem(await send(client, "POST", DOCUMENTS, {"documents": []}), 422, "invalid_input", "/documents")
    assert rows(database)["document"] == 1000


# The documents of a request, of which one can't be stored; what is said of it.
REFUSED: dict[str, tuple[list[Json], str, str]] = {
    "the same key twice": ([*given(1, 1)], "invalid_input", "/documents/1/key"),
    "the same key far apart": ([*given(*range(500)), *given(0)], "invalid_input", "/documents/500/key"),
    "the same key with another text": (
        [{"key": "a", "text": "oak"}, {"key": "b", "text": "oak"}, {"key": "a", "text": "elm"}],
        "invalid_input",
        "/documents/2/key",
    ),
    "a high bit": (
        [*given(*range(17)), {"key": "x", "fingerprint": "f" * 16}, *given(18)],
        "invalid_fingerprint",
        "/documents/17/fingerprint",
    ),
    "a high bit in decimal": (
        [*given(1), {"key": "x", "simhash": "-1"}],
        "invalid_fingerprint",
        "/documents/1/simhash",
    ),
    "no fingerprint": (
        [*given(1), {"key": "x", "fingerprint": "5"}],
        "invalid_fingerprint",
        "/documents/1/fingerprint",
    ),
    "html": ([*given(1), {"key": "x", "html": "<p>oak</p>"}], "not_supported", "/documents/1/html"),
    "no key": ([*given(1), {"text": "oak"}], "invalid_input", "/documents/1/key"),
    "an empty key": ([*given(1), {"key": "", "text": "oak"}], "invalid_input", "/documents/1/key"),
    "NUL": ([*given(1), {"key": "x", "text": "a\0"}], "invalid_input", "/documents/1/text"),
    "a lone surrogate": ([*given(1), {"key": "x", "text": "\ud800"}], "invalid_input", "/documents/1/text"),
    "neither text nor fingerprint": ([*given(1), {"key": "x"}], "invalid_input", "/documents/1"),
    "text and fingerprint": ([{"key": "x", "text": "a", "simhash": "1"}], "invalid_input", "/documents/0"),
    "an unknown member": ([*given(1), {"key": "x", "text": "a", "words": 1}], "invalid_input", "/documents/1/words"),
    "metadata that is no object": (
        [*given(1), {"key": "x", "text": "a", "metadata": 5}],
        "invalid_input",
        "/documents/1/metadata",
    ),
}


@pytest.mark.parametrize("exists", [False, True])
async def test_one_that_can_not_be_stored_keeps_all_out(
    client: AsyncClient, database: str, subtests: pytest.Subtests, exists: bool
) -> None:
    if exists:
        await put(client, "0001", text=text_of(30))
    before = rows(database)
    for name, (documents, code, pointer) in REFUSED.items():
        with subtests.test(name):
            assert_problem(await send(client, "POST", DOCUMENTS, {"documents": documents}), 422, code, pointer)
            assert rows(database) == before


async def test_many_documents_are_deleted(client: AsyncClient, database: str) -> None:
    await write(client, given(*range(1000)))
    keys = [f"{number:04}" for number in range(998)]
    assert await ok(client, "POST", DELETE, {"keys": ["0998", "nothing", "0998"]}) == {"deleted": 1}
    assert await ok(client, "POST", DELETE, {"keys": keys}) == {"deleted": 998}
    assert await ok(client, "POST", DELETE, {"keys": keys}) == {"deleted": 0}
    assert keys_of(await find(client, fingerprint=hex_of(0), threshold=63, limit=1000)) == ["0999"]
    for bad, pointer in (([], "/keys"), ([*keys, "a", "b", "c"], "/keys"), (["a", ""], "/keys/1"), ([5], "/keys/0")):
        assert_problem(await send(client, "POST", DELETE, {"keys": bad}), 422, "invalid_input", pointer)
    assert rows(database)["document"] == 1
    unknown = await send(client, "POST", "/v1/collections/nothing/documents/delete", {"keys": ["a"]})
    assert_problem(unknown, 404, "collection_not_found")


async def test_keys_that_are_also_paths_stay_keys(client: AsyncClient) -> None:
    """What stands behind /documents/ is a key, for the methods that take one."""
    for key in ("batch", "delete"):
        answer = await send(client, "PUT", f"{SHOP}/documents/{key}", {"text": text_of(30)})
        assert answer.status_code == 201
        assert (await ok(client, "GET", f"{SHOP}/documents/{key}"))["key"] == key
        assert (await client.delete(f"{SHOP}/documents/{key}")).status_code == 204


async def test_many_lookups_answer_what_single_ones_do(client: AsyncClient) -> None:
    texts = [text_of(300, seed=seed) for seed in range(3)]
    await write(client, [{"key": f"t{n}", "text": text, "metadata": {"n": n}} for n, text in enumerate(texts)])
    await write(client, [*given(*range(64)), {"key": "oak", "text": "oak"}, {"key": "oak too", "text": "oak"}])
    queries: list[Json] = [
        {"text": texts[1]},
        {"key": "oak"},
        {"text": "oak"},
        {"fingerprint": hex_of(5)},
        {"simhash": "5"},
        {"key": "0005"},
        {"text": ""},
        {"text": texts[1]},
        {"text": "nothing like it"},
    ]
    choices: list[dict[str, Any]] = [
        {},
        {"threshold": 0},
        {"threshold": 2, "limit": 3},
        {"threshold": 63, "limit": 100},
    ]
    for options in choices:
        results = await look_up(client, queries, **options)
        for query, result in zip(queries, results, strict=True):
            assert set(result) == LOOKUP_MEMBERS
            assert all(set(match) == MATCH_MEMBERS for match in result["matches"])
            assert without_time(result) == without_time(await find(client, **query, **options))


async def test_as_many_queries_and_matches_as_a_request_may_have(client: AsyncClient) -> None:
    await write(client, given(*range(200)))
    queries: list[Json] = [{"fingerprint": hex_of(number % 250)} for number in range(1000)]
    results = await look_up(client, queries, threshold=63, limit=100)
    assert all(len(result["matches"]) == 100 and result["truncated"] for result in results)
    assert [keys_of(result)[0] for result in results[:200]] == [f"{number:04}" for number in range(200)]
    assert len(await look_up(client, queries[:100], limit=1000)) == 100


def query(count: int) -> list[Json]:
    return [{"simhash": "1"}] * count


TWO = ["shop", "other"]
BAD_LOOKUPS: dict[str, tuple[str, Json, int, str, tuple[str, ...]]] = {
    "no query": (LOOKUPS, {"queries": []}, 422, "invalid_input", ("/queries",)),
    "1,001 queries": (LOOKUPS, {"queries": query(1001), "limit": 1}, 422, "invalid_input", ("/queries",)),
    "too many matches": (LOOKUPS, {"queries": query(101), "limit": 1000}, 422, "invalid_input", ("",)),
    "too many by one": (LOOKUPS, {"queries": query(1000), "limit": 101}, 422, "invalid_input", ("",)),
    "a limit of 0": (LOOKUPS, {"queries": query(1), "limit": 0}, 422, "invalid_input", ("/limit",)),
    "a limit of 1,001": (LOOKUPS, {"queries": query(1), "limit": 1001}, 422, "invalid_input", ("/limit",)),
    "a threshold of 64": (LOOKUPS, {"queries": query(1), "threshold": 64}, 422, "invalid_input", ("/threshold",)),
    "a threshold of one query": (
        LOOKUPS,
        {"queries": [{"simhash": "1", "threshold": 3}]},
        422,
        "invalid_input",
        ("/queries/0/threshold",),
    ),
    "explain": (LOOKUPS, {"queries": query(1), "explain": True}, 422, "invalid_input", ("/explain",)),
    "two of a query": (
        LOOKUPS,
        {"queries": [*query(1), {"simhash": "1", "text": "oak"}]},
        422,
        "invalid_input",
        ("/queries/1",),
    ),
    "a high bit": (
        LOOKUPS,
        {"queries": [*query(2), {"fingerprint": "f" * 16}]},
        422,
        "invalid_fingerprint",
        ("/queries/2/fingerprint",),
    ),
    "an unknown key": (LOOKUPS, {"queries": [*query(2), {"key": "b"}]}, 404, "document_not_found", ("/queries/2/key",)),
    "an unknown collection": (
        "/v1/collections/nothing/near-duplicates/batch",
        {"queries": query(1)},
        404,
        "collection_not_found",
        (),
    ),
    "no collection": (ACROSS, {"collections": [], "simhash": "1"}, 422, "invalid_input", ("/collections",)),
    "65 collections": (
        ACROSS,
        {"collections": [f"c{number}" for number in range(65)], "simhash": "1"},
        422,
        "invalid_input",
        ("/collections",),
    ),
    "a collection twice": (
        ACROSS,
        {"collections": ["shop"] * 2, "simhash": "1"},
        422,
        "invalid_input",
        ("/collections",),
    ),
    "a name that is none": (
        ACROSS,
        {"collections": ["shop", "a/b"], "simhash": "1"},
        422,
        "invalid_input",
        ("/collections/1",),
    ),
    "no collections": (ACROSS, {"simhash": "1"}, 422, "invalid_input", ("/collections",)),
    "another scheme": (
        ACROSS,
        {"collections": [*TWO, "64-bits"], "simhash": "1"},
        422,
        "schemes_differ",
        ("/collections/2",),
    ),
    "one of them unknown": (
        ACROSS,
        {"collections": ["shop", "nothing"], "simhash": "1"},
        404,
        "collection_not_found",
        (),
    ),
    "a key of none": (ACROSS, {"collections": TWO, "key": "b"}, 404, "document_not_found", ()),
    "a high bit across": (
        ACROSS,
        {"collections": TWO, "fingerprint": "f" * 16},
        422,
        "invalid_fingerprint",
        ("/fingerprint",),
    ),
    "a key of none, of many": (
        BATCH_ACROSS,
        {"collections": TWO, "queries": [*query(1), {"key": "b"}]},
        404,
        "document_not_found",
        ("/queries/1/key",),
    ),
    "a high bit across, of many": (
        BATCH_ACROSS,
        {"collections": TWO, "queries": [*query(1), {"simhash": "-1"}]},
        422,
        "invalid_fingerprint",
        ("/queries/1/simhash",),
    ),
    "another scheme, of many": (
        BATCH_ACROSS,
        {"collections": ["64-bits", "shop"], "queries": query(1)},
        422,
        "schemes_differ",
        ("/collections/1",),
    ),
    "too many matches across": (
        BATCH_ACROSS,
        {"collections": TWO, "queries": query(101), "limit": 1000},
        422,
        "invalid_input",
        ("",),
    ),
}


async def test_what_can_not_be_looked_up_is_refused(client: AsyncClient, subtests: pytest.Subtests) -> None:
    await put(client, "a", text=text_of(30))
    await put(client, "a", collection="other", text=text_of(30))
    await ok(client, "POST", "/v1/collections", {"name": "64-bits", "scheme": {"bits": 64}})
    for name, (url, body, status, code, pointers) in BAD_LOOKUPS.items():
        with subtests.test(name):
            assert_problem(await send(client, "POST", url, body), status, code, *pointers)


@pytest.mark.parametrize("url", [DOCUMENTS, DELETE, LOOKUPS, ACROSS, BATCH_ACROSS])
async def test_a_body_is_json_and_there_are_no_parameters(client: AsyncClient, url: str) -> None:
    await put(client, "a", text=text_of(30))
    body: Response = await client.post(url, content=b"{", headers={"content-type": "application/json"})
    assert_problem(body, 400, "invalid_json")
    assert_problem(await client.post(url, content=b"{}"), 415, "unsupported_media_type")
    answer = await send(client, "POST", f"{url}?limit=5", {})
    assert answer.status_code == 422
    assert "/limit" in [error["pointer"] for error in answer.json()["errors"]]


async def test_several_collections_answer_as_one(client: AsyncClient) -> None:
    await write(client, given(1, 3, 7), "a")
    await write(client, given(0, 3, 4), "b")
    await write(client, [{"key": "0", "text": "oak"}, {"key": "0003", "text": "oak"}], "c")

    found = await ok(client, "POST", ACROSS, {"collections": ["b", "a", "c"], "fingerprint": hex_of(3), "threshold": 2})
    assert set(found) == LOOKUP_MEMBERS
    assert all(set(match) == MATCH_MEMBERS | {"collection"} for match in found["matches"])
    assert [(match["collection"], match["key"], match["distance"]) for match in found["matches"]] == [
        ("b", "0003", 0),
        ("a", "0003", 0),
        ("a", "0001", 1),
        ("a", "0007", 1),
        ("b", "0000", 2),
    ]
    assert not found["truncated"]

    cut = await ok(client, "POST", ACROSS, {"collections": ["b", "a"], "simhash": "3", "threshold": 2, "limit": 2})
    assert (cut["matches"], cut["truncated"]) == (found["matches"][:2], True)

    by_key = await ok(client, "POST", ACROSS, {"collections": ["a", "b"], "key": "0003", "threshold": 0})
    assert [(match["collection"], match["key"]) for match in by_key["matches"]] == [("b", "0003")]
    of_one = await ok(client, "POST", ACROSS, {"collections": ["c"], "text": "oak"})
    assert [(match["collection"], match["key"], match["match"]) for match in of_one["matches"]] == [
        ("c", "0", "exact"),
        ("c", "0003", "exact"),
    ]

    queries: list[Json] = [{"fingerprint": hex_of(3)}, {"text": "oak"}, {"key": "0003"}]
    body = {"collections": ["b", "a", "c"], "queries": queries, "threshold": 2}
    results = (await ok(client, "POST", BATCH_ACROSS, body))["results"]
    assert without_time(results[0]) == without_time(found)
    for asked, result in zip(queries, results, strict=True):
        single = await ok(client, "POST", ACROSS, {"collections": ["b", "a", "c"], "threshold": 2, **asked})
        assert without_time(result) == without_time(single)


async def test_as_many_collections_as_a_request_may_have(client: AsyncClient) -> None:
    names = [f"c{number}" for number in range(64)]
    for number, name in enumerate(names):
        await put(client, "a", collection=name, simhash=str(number))
    found = await ok(client, "POST", ACROSS, {"collections": names, "simhash": "0", "threshold": 1})
    assert [match["collection"] for match in found["matches"]] == ["c0", "c1", "c2", "c4", "c8", "c16", "c32"]


async def test_a_threshold_left_out_is_that_of_the_layout(client: AsyncClient) -> None:
    await write(client, given(7, 15))
    assert [result["threshold"] for result in await look_up(client, [{"simhash": "0"}])] == [3]
    found = await ok(client, "POST", ACROSS, {"collections": ["shop"], "simhash": "0"})
    assert (found["threshold"], keys_of(found)) == (3, ["0007"])


async def test_a_batch_is_no_larger_than_any_body(settings: Settings, database: str) -> None:
    async with client_of(settings.model_copy(update={"max_body_bytes": 2000})) as client:
        answer = await send(client, "POST", DOCUMENTS, {"documents": given(*range(100))})
        assert_problem(answer, 413, "body_too_large")
    assert rows(database)["collection"] == 0
