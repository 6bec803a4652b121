"""Reports over HTTP: analyses as operations, their results in pages and as streams, exact duplicates."""

import csv
import json
from collections.abc import AsyncGenerator, Mapping
from io import StringIO
from random import Random
from typing import Any

import pytest
from anyio import fail_after, sleep
from httpx2 import AsyncClient

from app.api import cursor
from app.core.model import Flagged
from app.service.analyses import Analyses
from app.settings import Settings
from tests.api.support import JSON, assert_problem, execute, hex_of, ok, put, send, text_of
from tests.conftest import client_of

SHOP = "/v1/collections/shop"
ANALYSES = f"{SHOP}/analyses"
LINES, TABLE = "application/x-ndjson", "text/csv"
STREAMED = ("clusters", "pairs", "documents")
ODD_KEYS = ['a "quoted" key', "comma, key", "semi;colon", "=1", "é/ü ☃", " blank "]


@pytest.fixture
async def client(settings: Settings) -> AsyncGenerator[AsyncClient]:
    """Works on operations."""
    async with client_of(settings.model_copy(update={"run_operations": True})) as client:
        yield client


@pytest.fixture
async def held(settings: Settings) -> AsyncGenerator[AsyncClient]:
    """Nobody works on operations: they stay in the queue."""
    async with client_of(settings) as client:
        yield client


async def finished(client: AsyncClient, url: str) -> dict[str, Any]:
    with fail_after(30):
        while True:
            operation = await ok(client, "GET", url)
            if operation["finished_at"] is not None:
                return operation
            await sleep(0.05)


async def analyzed(client: AsyncClient, collection: str = "shop", **members: object) -> str:
    """The URL of an analysis that has succeeded."""
    answer = await send(client, "POST", f"/v1/collections/{collection}/analyses", members)
    assert answer.status_code == 202, answer.text
    url = answer.headers["location"]
    assert url == f"/v1/collections/{collection}/analyses/{answer.json()['id']}"
    assert (await finished(client, url))["status"] == "succeeded"
    return url


async def pages(client: AsyncClient, url: str, limit: int, **parameters: str) -> list[Any]:
    """The items of all pages, none of which is longer than asked for."""
    items: list[Any] = []
    given: dict[str, str] = {"limit": str(limit), **parameters}
    while True:
        answer = await client.get(url, params=given)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert page["items"]
        given["cursor"] = page["next_cursor"]


async def lines(client: AsyncClient, url: str) -> list[Any]:
    answer = await client.get(url, headers={"accept": LINES})
    assert (answer.status_code, answer.headers["content-type"]) == (200, LINES)
    return [json.loads(line) for line in answer.text.splitlines()]


async def table(client: AsyncClient, url: str) -> list[dict[str, str]]:
    answer = await client.get(url, headers={"accept": TABLE})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    return list(csv.DictReader(StringIO(answer.text, newline="")))


async def fill(client: AsyncClient) -> None:
    """Two clusters, of six documents with odd keys and of two, and one that is alone; two too short ones."""
    for number, key in enumerate(ODD_KEYS):
        await put(client, key, simhash=str(7 << (number // 2)))
    await put(client, "page-1", text=text_of(300))
    await put(client, "page-2", text=text_of(300))
    await put(client, "alone", simhash=str(2**60 + 2**33 - 1))
    await put(client, "short-1", text="oak")
    await put(client, "short-2", text="oak")


async def test_an_analysis_counts_and_lists(client: AsyncClient) -> None:
    await fill(client)
    url = await analyzed(client)
    answer = await ok(client, "GET", url)
    assert answer["parameters"] == {"threshold": 3, "clusters": "components", "representative": "oldest"}
    assert (answer["kind"], answer["error"]) == ("analysis", None)
    assert answer["memory_bytes"] > 100_000_000
    counts = {name: answer["result"][name] for name in ("documents", "fingerprints", "too_short", "near_duplicated")}
    assert counts == {"documents": 11, "fingerprints": 5, "too_short": 2, "near_duplicated": 8}
    counts = {name: answer["result"][name] for name in ("exact_duplicated", "exact_groups", "clusters", "pairs")}
    assert counts == {"exact_duplicated": 4, "exact_groups": 2, "clusters": 2, "pairs": 6}
    assert answer["result"]["histogram"] == [4, 0, 2, 0]
    assert (answer["result"]["largest_cluster"], answer["result"]["widest_cluster"]) == (6, 4)
    listed = await ok(client, "GET", ANALYSES)
    assert listed == {"items": [answer], "next_cursor": None}

    clusters = (await ok(client, "GET", f"{url}/clusters"))["items"]
    assert [(each["cluster"], each["documents"], each["fingerprints"]) for each in clusters] == [(1, 6, 3), (2, 2, 1)]
    assert (clusters[0]["representative"], clusters[0]["diameter"], clusters[0]["diameter_is_exact"]) == (
        ODD_KEYS[0],
        4,
        True,
    )
    assert [(each["fingerprint"], each["distance"]) for each in clusters[0]["members"]] == [
        (hex_of(7), 0),
        (hex_of(7), 0),
        (hex_of(14), 2),
        (hex_of(14), 2),
        (hex_of(28), 4),
        (hex_of(28), 4),
    ]
    pairs = (await ok(client, "GET", f"{url}/pairs"))["items"]
    assert [(each["distance"], each["b"] is None) for each in pairs].count((0, True)) == 4
    assert [each["a"]["documents"] for each in pairs] == [2] * 6
    documents = {each["key"]: each for each in (await ok(client, "GET", f"{url}/documents"))["items"]}
    assert set(documents) == {*ODD_KEYS, "page-1", "page-2", "short-1", "short-2"}
    assert documents["page-2"] == {
        "key": "page-2",
        "fingerprint": documents["page-1"]["fingerprint"],
        "near_duplicated": True,
        "exact_duplicated": True,
        "cluster": 2,
        "representative": "page-1",
        "nearest_distance": 0,
    }
    assert documents["short-1"] == {
        "key": "short-1",
        "fingerprint": None,
        "near_duplicated": False,
        "exact_duplicated": True,
        "cluster": None,
        "representative": "short-1",
        "nearest_distance": None,
    }


@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_streams_hold_what_the_pages_hold(client: AsyncClient, limit: int) -> None:
    await fill(client)
    url = await analyzed(client)
    assert await lines(client, f"{url}/documents") == await pages(client, f"{url}/documents", limit)
    assert await lines(client, f"{url}/pairs") == await pages(client, f"{url}/pairs", limit)
    clusters = await pages(client, f"{url}/clusters", limit)
    members = [
        {"cluster": cluster["cluster"], "representative": cluster["representative"], **member}
        for cluster in clusters
        for member in cluster["members"]
    ]
    assert await lines(client, f"{url}/clusters") == members
    assert members == [
        member for cluster in clusters for member in await pages(client, f"{url}/clusters/{cluster['cluster']}", limit)
    ]
    documents = await lines(client, f"{url}/documents")
    assert [_spelled(each) for each in documents] == await table(client, f"{url}/documents")
    assert [_spelled(each) for each in members] == await table(client, f"{url}/clusters")
    pairs = await lines(client, f"{url}/pairs")
    assert await table(client, f"{url}/pairs") == [_spelled(_pair(each)) for each in pairs]


def _spelled(line: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in line.items()
    }


def _pair(line: Mapping[str, Any]) -> dict[str, Any]:
    a, b = line["a"], line["b"]
    return {
        "distance": line["distance"],
        "fingerprint_a": a["fingerprint"],
        "documents_a": a["documents"],
        "key_a": a["keys"][0],
        "fingerprint_b": (b or a)["fingerprint"],
        "documents_b": (b or a)["documents"],
        "key_b": b["keys"][0] if b else a["keys"][1],
    }


async def test_a_stream_of_nothing_is_empty_and_a_table_has_its_heading(client: AsyncClient) -> None:
    await put(client, "a", simhash="1")
    url = await analyzed(client)
    for what in STREAMED:
        assert await lines(client, f"{url}/{what}") == []
        answer = await client.get(f"{url}/{what}", headers={"accept": TABLE})
        assert len(answer.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("text/html", "application/json"),
        ("text/csv", "text/csv; charset=utf-8"),
        ("TEXT/CSV; header=present", "text/csv; charset=utf-8"),
        ("application/json;q=0.5, text/csv", "text/csv; charset=utf-8"),
        ("text/csv;q=0.2, application/x-ndjson;q=0.9", LINES),
        ("application/json, text/csv", "application/json"),
        ("text/csv;q=0, */*", "application/json"),
        ("text/csv;q=x", "text/csv; charset=utf-8"),
        (",;,", "application/json"),
    ],
)
async def test_the_form_is_the_one_that_is_liked_best(client: AsyncClient, accept: str, expected: str) -> None:
    await put(client, "a", simhash="1")
    url = await analyzed(client)
    answer = await client.get(f"{url}/documents", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, expected)


async def test_a_stream_has_no_pages(client: AsyncClient) -> None:
    await put(client, "a", simhash="1")
    url = await analyzed(client)
    for what in STREAMED:
        for name, value in (("limit", "5"), ("cursor", "MCAw")):
            answer = await client.get(f"{url}/{what}", params={name: value}, headers={"accept": TABLE})
            assert_problem(answer, 422, "invalid_input", f"/{name}")


async def test_a_stream_of_a_deleted_analysis_is_cut_off(
    client: AsyncClient, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client can't take a part for the whole."""
    monkeypatch.setattr("app.api.routes.analyses.PAGE", 2)
    await fill(client)
    url = await analyzed(client)
    documents = Analyses.documents

    async def deleted_after_the_first_page(self: Analyses, name: str, analysis_id: int, **page: Any) -> list[Flagged]:
        found = await documents(self, name, analysis_id, **page)
        execute(database, "DELETE FROM operation")
        return found

    monkeypatch.setattr(Analyses, "documents", deleted_after_the_first_page)
    with pytest.raises(AssertionError):  # the transport's: the body has no end
        await client.get(f"{url}/documents", headers={"accept": LINES})
    assert "an answer is cut off: analysis_not_found" in caplog.messages


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"threshold": 64}, "/threshold"),
        ({"threshold": -1}, "/threshold"),
        ({"threshold": "3"}, "/threshold"),
        ({"threshold": True}, "/threshold"),
        ({"clusters": "stars"}, "/clusters"),
        ({"representative": "newest"}, "/representative"),
        ({"against": "no such name"}, "/against"),
        ({"against": "shop"}, "/against"),
        ({"tresholt": 3}, "/tresholt"),
        ({"against": "other", "clusters": "star"}, ""),
    ],
)
async def test_what_cannot_be_asked_for_is_refused_and_begins_nothing(
    held: AsyncClient, body: dict[str, object], pointer: str
) -> None:
    await put(held, "a", simhash="1")
    await put(held, "a", simhash="1", collection="other")
    answer = await send(held, "POST", ANALYSES, body)
    assert_problem(answer, 422, "invalid_input", pointer)
    assert (await ok(held, "GET", ANALYSES))["items"] == []


async def test_of_no_collection_there_is_no_analysis(held: AsyncClient) -> None:
    for method, url in (("POST", ANALYSES), ("GET", ANALYSES), ("GET", f"{ANALYSES}/1"), ("DELETE", f"{ANALYSES}/1")):
        answer = await held.request(method, url, content=b"{}" if method == "POST" else b"", headers=JSON)
        assert_problem(answer, 404, "collection_not_found")
    assert_problem(await held.get(f"{SHOP}/exact-duplicates"), 404, "collection_not_found")


async def test_an_analysis_that_there_is_not(held: AsyncClient) -> None:
    await put(held, "a", simhash="1")
    for path in ("", "/clusters", "/clusters/1", "/pairs", "/documents", "/differences"):
        assert_problem(await held.get(f"{ANALYSES}/7{path}"), 404, "analysis_not_found")
    assert_problem(await held.post(f"{ANALYSES}/7/cancel"), 404, "analysis_not_found")
    assert_problem(await held.delete(f"{ANALYSES}/7"), 404, "analysis_not_found")
    assert_problem(await held.get(f"{SHOP}/documents?near_duplicated=true"), 404, "analysis_not_found")
    for number in ("0", "x", "-1", "1.5", str(2**31)):
        assert_problem(await held.get(f"{ANALYSES}/{number}"), 422, "invalid_input", "/id")


async def test_one_that_waits_has_no_results_and_can_be_canceled(held: AsyncClient) -> None:
    await put(held, "a", simhash="1")
    begun = (await send(held, "POST", ANALYSES, {})).json()
    url = f"{ANALYSES}/{begun['id']}"
    assert (begun["status"], begun["memory_bytes"]) == ("queued", None)
    for path in ("clusters", "clusters/1", "pairs", "documents"):
        assert_problem(await held.get(f"{url}/{path}"), 409, "analysis_unfinished")
    assert_problem(await held.delete(url), 409, "analysis_unfinished")
    assert (await ok(held, "POST", f"{url}/cancel"))["status"] == "canceled"
    assert_problem(await held.post(f"{url}/cancel"), 409, "not_cancelable")
    assert (await held.delete(url)).status_code == 204
    assert_problem(await held.get(url), 404, "analysis_not_found")


async def test_a_request_that_comes_again_finds_the_first(held: AsyncClient) -> None:
    await put(held, "a", simhash="1")
    headers = {"Idempotency-Key": "once"}
    first = await send(held, "POST", ANALYSES, {"threshold": 3}, headers=headers)
    again = await send(held, "POST", ANALYSES, {"threshold": 3}, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    answer = await send(held, "POST", ANALYSES, {"threshold": 4}, headers=headers)
    assert_problem(answer, 422, "idempotency_key_reused", "/Idempotency-Key")


async def test_what_memory_cannot_hold_is_refused(settings: Settings) -> None:
    async with client_of(settings.model_copy(update={"analysis_memory": 1})) as client:
        await put(client, "a", simhash="1")
        answer = await send(client, "POST", ANALYSES, {"threshold": 5})
        problem = assert_problem(answer, 422, "analysis_too_large", "/threshold")
        assert "needs about 100 MB, and TIROIR_ANALYSIS_MEMORY allows 1" in problem["detail"]


def _place_of(of: str, number: int | str, text: str = "") -> str:
    return cursor.encode(f"{of} {number} {text}")


BAD_CURSORS = ["x", "MQ", "AA", _place_of("x", 1), "LTEgYQ"]


async def test_a_cursor_that_no_page_of_the_list_gave_is_refused(client: AsyncClient) -> None:
    """One of another list, or of another analysis, neither: it would lead to a page like any."""
    await fill(client)
    urls = [await analyzed(client), await analyzed(client, threshold=4)]
    lists = [f"{url}/{path}" for url in urls for path in ("clusters", "clusters/1", "clusters/2", "pairs", "documents")]
    lists += [f"{SHOP}/exact-duplicates"]
    given = {each: (await ok(client, "GET", f"{each}?limit=1"))["next_cursor"] for each in lists}
    assert all(given.values())
    for each in lists:
        name = each.removeprefix(f"{ANALYSES}/").removeprefix(f"{SHOP}/")
        own = [_place_of(name, number) for number in (-1, "one", "", 2**64)]
        others = [cursor for other, cursor in given.items() if other != each]
        for refused in (*BAD_CURSORS, *own, *others):
            answer = await client.get(each, params={"cursor": refused})
            assert_problem(answer, 422, "invalid_input", "/cursor")
        assert (await client.get(each, params={"cursor": given[each]})).status_code == 200


async def test_the_last_place_that_a_list_of_pairs_can_come_to_has_none(client: AsyncClient) -> None:
    await put(client, "a", simhash="1")
    await put(client, "b", simhash="1")
    url = await analyzed(client)
    answer = await client.get(
        f"{url}/pairs", params={"cursor": _place_of(f"{url.rpartition('/')[2]}/pairs", 2**44 - 1)}
    )
    assert (answer.status_code, answer.json()) == (200, {"items": [], "next_cursor": None})


async def test_exact_duplicates_in_pages(client: AsyncClient) -> None:
    for number in range(12):
        await put(client, f"a-{number:02}", text="oak")
    for number in range(4):
        await put(client, f"b{number}-1", text=f"a short text, {'x' * number}")
        await put(client, f"b{number}-2", text=f"a short text, {'x' * number}")
    groups = await pages(client, f"{SHOP}/exact-duplicates", 2)
    assert [each["documents"] for each in groups] == [12, 2, 2, 2, 2]
    assert groups[0]["keys"] == [f"a-{number:02}" for number in range(10)]
    assert sorted(each["keys"][0] for each in groups[1:]) == [f"b{number}-1" for number in range(4)]
    keys = await pages(client, f"{SHOP}/exact-duplicates/{groups[0]['content_hash']}", 5)
    assert keys == [f"a-{number:02}" for number in range(12)]
    assert await pages(client, f"{SHOP}/exact-duplicates/{'0' * 32}", 5) == []
    for other in ("0" * 31, "0" * 33, "G" * 32, "A" * 32):
        assert_problem(await client.get(f"{SHOP}/exact-duplicates/{other}"), 422, "invalid_input", "/content_hash")


async def test_the_list_of_documents_is_filtered(client: AsyncClient) -> None:
    random = Random(1)
    stored = {f"{number:03}": random.getrandbits(63) for number in range(30)}
    stored |= {f"{number:03}-copy": stored[f"{number:03}"] for number in range(0, 30, 3)}
    for key, simhash in stored.items():
        await put(client, key, simhash=str(simhash))
    await analyzed(client)
    flagged = sorted(key for key in stored if f"{key[:3]}-copy" in stored)
    listed = f"{SHOP}/documents"
    assert [each["key"] for each in await pages(client, listed, 4, near_duplicated="true")] == flagged
    others = sorted(set(stored) - set(flagged))
    assert [each["key"] for each in await pages(client, listed, 4, near_duplicated="false")] == others
    assert len(await pages(client, listed, 7)) == len(stored)
    assert_problem(await client.get(f"{listed}?near_duplicated=perhaps"), 422, "invalid_input", "/near_duplicated")


async def test_a_comparison_lists_what_differs(client: AsyncClient) -> None:
    for key, simhash in {
        "same": 1,
        "edited": 0b1111,
        "rewritten": 2**50,
        "gone": 2**61 - 1,
        "moved": 2**40 - 1,
    }.items():
        await put(client, key, simhash=str(simhash), collection="old")
    for key, simhash in {
        "same": 1,
        "edited": 0b0111,
        "rewritten": 2**35 - 1,
        "new": 2**20 - 1,
        "here": 2**40 - 1,
    }.items():
        await put(client, key, simhash=str(simhash))
    url = await analyzed(client, against="old", threshold=3)
    answer = await ok(client, "GET", url)
    assert answer["parameters"] == {"threshold": 3, "against": "old"}
    counts = {
        name: answer["result"][name] for name in ("new", "gone", "changed", "nearly_unchanged", "unchanged", "moved")
    }
    assert counts == {"new": 1, "gone": 1, "changed": 1, "nearly_unchanged": 1, "unchanged": 1, "moved": 1}
    expected = [
        {"key": "edited", "status": "nearly_unchanged", "distance": 1, "counterpart": "edited"},
        {"key": "gone", "status": "gone", "distance": None, "counterpart": None},
        {"key": "here", "status": "moved", "distance": 0, "counterpart": "moved"},
        {"key": "new", "status": "new", "distance": None, "counterpart": None},
        {"key": "rewritten", "status": "changed", "distance": 36, "counterpart": "rewritten"},
    ]
    assert await pages(client, f"{url}/differences", 2) == expected
    assert await lines(client, f"{url}/differences") == expected
    assert await table(client, f"{url}/differences") == [_spelled(each) for each in expected]
    gone = await table(client, f"{url}/differences?status=gone")
    assert [each["key"] for each in gone] == ["gone"]
    unchanged = await pages(client, f"{url}/differences", 1, status="unchanged")
    assert [(each["key"], each["counterpart"]) for each in unchanged] == [("same", "same")]
    assert_problem(await client.get(f"{url}/differences?status=old"), 422, "invalid_input", "/status")
    assert_problem(await client.get(f"{url}/clusters"), 404, "analysis_not_found")


async def test_a_collection_of_the_same_name_has_none_of_the_deleted_ones_analyses(client: AsyncClient) -> None:
    await put(client, "a", simhash="1")
    url = await analyzed(client)
    await client.delete(SHOP)
    await put(client, "a", simhash="1")
    assert_problem(await client.get(url), 404, "analysis_not_found")
    assert (await ok(client, "GET", ANALYSES))["items"] == []
