"""Imports: what becomes of each line, and what stays of an import that breaks off."""

import gzip
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from anyio import Event, create_task_group
from httpx2 import AsyncClient, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import ndjson
from app.api.ndjson import MEDIA_TYPE
from app.main import create_app
from app.settings import Settings
from app.store import collections
from tests.api.support import (
    assert_problem,
    disconnect_waiting,
    execute,
    find,
    hex_of,
    keys_of,
    locked,
    ok,
    put,
    rows,
    text_of,
    until_waiting,
)
from tests.conftest import client_of
from tests.store.waiting import until

SHOP = "/v1/collections/shop"
IMPORT = f"{SHOP}/import"
NDJSON = {"content-type": MEDIA_TYPE}

Json = Mapping[str, Any]


CHUNK = 1000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson, "CHUNK_LINES", CHUNK)


def line(**members: object) -> bytes:
    return json.dumps(members).encode()


def given(number: int, **others: object) -> bytes:
    return line(key=f"{number:06}", fingerprint=hex_of(number), **others)


def joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(each + b"\n" for each in lines)


async def post(
    client: AsyncClient,
    body: bytes | AsyncIterator[bytes],
    *,
    query: str = "",
    headers: Mapping[str, str] = NDJSON,
    collection: str = "shop",
) -> Response:
    return await client.post(f"/v1/collections/{collection}/import{query}", content=body, headers=dict(headers))


async def imported(client: AsyncClient, body: bytes | AsyncIterator[bytes], **others: Any) -> Any:
    """The report of an import that must come to its end."""
    answer = await post(client, body, **others)
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert report["lines"] == sum(report[each] for each in ("created", "replaced", "unchanged", "failed"))
    return report


async def exported(client: AsyncClient, collection: str = "shop", *, text: bool = False) -> bytes:
    answer = await client.get(f"/v1/collections/{collection}/export?text={str(text).lower()}")
    assert answer.status_code == 200, answer.text
    return answer.content


def keys_in(export: bytes) -> list[str]:
    return [json.loads(each)["key"] for each in export.splitlines()]


def counts(report: Json) -> dict[str, int]:
    return {name: value for name, value in report.items() if value and isinstance(value, int) and name != "complete"}


async def test_a_report_counts_what_became_of_the_lines(client: AsyncClient) -> None:
    report = await imported(
        client,
        joined(
            [
                line(key="a", text=text_of(300), metadata={"n": 1}),
                b"",
                line(key="b", text=text_of(30)),
                line(key="c", text="oak"),
                b" \t\r",
                line(key="d", fingerprint="00000000000000ff"),
                line(key="e", simhash="5", html=None),
            ]
        ),
    )
    assert report == {
        "lines": 5,
        "created": 5,
        "replaced": 0,
        "unchanged": 0,
        "short": 1,
        "too_short": 1,
        "failed": 0,
        "errors": [],
        "complete": True,
    }
    assert keys_of(await find(client, text=text_of(300))) == ["a"]
    assert keys_of(await find(client, text="oak")) == ["c"]
    assert keys_of(await find(client, fingerprint="0000000000000005", threshold=0)) == ["e"]
    assert (await ok(client, "GET", f"{SHOP}/documents/a"))["metadata"] == {"n": 1}
    report = await imported(client, line(key="a", text=text_of(300)) + b"\n" + line(key="b", text=text_of(31)))
    assert counts(report) == {"lines": 2, "replaced": 1, "unchanged": 1, "short": 1}
    assert (await ok(client, "GET", f"{SHOP}/documents/a"))["metadata"] == {"n": 1}


@pytest.mark.parametrize("body", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n \n"])
async def test_an_import_of_nothing_makes_no_collection(client: AsyncClient, database: str, body: bytes) -> None:
    report = await imported(client, body)
    assert counts(report) == {}
    assert report["complete"]
    assert rows(database)["collection"] == 0


DEEP = b"[" * 40 + b"]" * 40
BAD_LINES: dict[str, tuple[bytes, str, str]] = {
    "no JSON": (b"{key: 1}", "invalid_json", ""),
    "JSON that ends too early": (b'{"key": "x", "text": "abc', "invalid_json", ""),
    "a number that JSON has not": (b'{"key": "x", "text": "a", "metadata": {"a": 01}}', "invalid_json", ""),
    "two objects": (b'{"key": "x", "text": "a"} {"key": "y", "text": "b"}', "invalid_json", ""),
    "a comma after it": (b'{"key": "x", "text": "a"},', "invalid_json", ""),
    "an array": (b'[{"key": "x", "text": "a"}]', "invalid_input", ""),
    "a string": (b'"x"', "invalid_input", ""),
    "null": (b"null", "invalid_input", ""),
    "no UTF-8": (b'{"key": "x", "text": "caf\xe9"}', "invalid_json", ""),
    "UTF-16": ('{"key": "x", "text": "a"}'.encode("utf-16-be"), "invalid_json", ""),
    "no key": (line(text="a"), "invalid_input", "/key: "),
    "an empty key": (line(key="", text="a"), "invalid_input", "/key: "),
    "a key that is too long": (line(key="é" * 1025, text="a"), "invalid_input", "/key: "),
    "a key that is a number": (line(key=5, text="a"), "invalid_input", "/key: "),
    "NUL in a key": (line(key="x\0", text="a"), "invalid_input", "/key: "),
    "nothing but a key": (line(key="x"), "invalid_input", ""),
    "a text of null": (line(key="x", text=None), "invalid_input", ""),
    "a text that is a number": (line(key="x", text=1), "invalid_input", "/text: "),
    "NUL in a text": (line(key="x", text="a\0b"), "invalid_input", "/text: "),
    "a lone surrogate": (b'{"key": "x", "text": "\\ud800"}', "invalid_json or invalid_input", ""),
    "an unknown member": (line(key="x", text="a", threshold=3), "invalid_input", "/threshold: "),
    "html": (line(key="x", html="<p>a</p>"), "not_supported", "/html: "),
    "a fingerprint of 15 digits": (line(key="x", fingerprint="0" * 15), "invalid_fingerprint", "/fingerprint: "),
    "a fingerprint that is a number": (line(key="x", fingerprint=5), "invalid_fingerprint", "/fingerprint: "),
    "a simhash with a plus": (line(key="x", simhash="+5"), "invalid_fingerprint", "/simhash: "),
    "a fingerprint and another simhash": (line(key="x", fingerprint=hex_of(5), simhash="6"), "invalid_input", ""),
    "bit 63": (line(key="x", fingerprint="8" + "0" * 15), "invalid_fingerprint", "/fingerprint: "),
    "a negative simhash": (line(key="x", simhash="-1"), "invalid_fingerprint", "/simhash: "),
    "words below 0": (line(key="x", simhash="1", words=-1), "invalid_input", "/words: "),
    "words beyond 31 bits": (line(key="x", simhash="1", words=2**31), "invalid_input", "/words: "),
    "a hash of 31 digits": (line(key="x", simhash="1", content_hash="0" * 31), "invalid_input", "/content_hash: "),
    "a hash with a space": (
        line(key="x", simhash="1", content_hash="00 " + "0" * 29),
        "invalid_input",
        "/content_hash: ",
    ),
    "a hash alone": (line(key="x", content_hash="0" * 32), "invalid_input", ""),
    "metadata that is no object": (line(key="x", text="a", metadata=[]), "invalid_input", "/metadata: "),
    "metadata that is nested too deep": (
        b'{"key": "x", "text": "a", "metadata": {"a": ' + DEEP + b"}}",
        "invalid_input",
        "/metadata: ",
    ),
    "nested deeper than any parser goes": (
        b'{"key": "x", "metadata": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        "invalid_json",
        "",
    ),
    "NaN": (b'{"key": "x", "text": "a", "metadata": {"a": NaN}}', "invalid_json or invalid_input", ""),
    "metadata that is too large": (
        line(key="x", text="a", metadata={"a": "b" * 65_536}),
        "invalid_input",
        "/metadata: ",
    ),
    "very many members": (line(key="x", **{f"m{number}": 1 for number in range(100)}), "invalid_input", ""),
    "too long": (line(key="x", text="a" * 70_000), "line_too_long", ""),
}


async def test_a_line_that_can_not_be_stored_is_told_and_the_others_stay(
    settings: Settings, subtests: pytest.Subtests
) -> None:
    async with client_of(settings.model_copy(update={"max_body_bytes": 70_000})) as client:
        for number, (name, (bad, codes, start)) in enumerate(BAD_LINES.items()):
            with subtests.test(name):
                report = await imported(client, joined([given(2 * number), bad, given(2 * number + 1)]))
                assert counts(report) == {"lines": 3, "created": 2, "failed": 1}
                assert report["complete"]
                (error,) = report["errors"]
                assert set(error) == {"line", "code", "detail"}
                assert error["line"] == 2
                assert error["code"] in codes.split(" or "), error
                assert error["detail"].startswith(start), error
                assert len(error["detail"]) > len(start)
        assert keys_in(await exported(client)) == [f"{number:06}" for number in range(2 * len(BAD_LINES))]


async def test_1000_lines_of_which_four_are_bad(client: AsyncClient) -> None:
    lines = [line(key=f"{number:04}", text=text_of(30, seed=number)) for number in range(1, 1001)]
    lines[499] = lines[499][:-5]
    lines[699] = line(key="0700", text="a\0b")
    lines[899] = line(key="0900", text="")
    lines[949] = line(text=text_of(30))
    report = await imported(client, joined(lines))
    assert [(error["line"], error["code"]) for error in report["errors"]] == [
        (500, "invalid_json"),
        (700, "invalid_input"),
        (950, "invalid_input"),
    ]
    # A text without a word is stored, as everywhere.
    assert counts(report) == {"lines": 1000, "created": 997, "short": 996, "too_short": 1, "failed": 3}
    assert (await ok(client, "GET", f"{SHOP}/documents/0900"))["status"] == "too_short"


async def test_no_more_than_1000_errors_are_told_and_all_are_counted(client: AsyncClient) -> None:
    lines = [b"x" if number % 3 else given(number) for number in range(3000)]
    report = await imported(client, joined(lines))
    assert counts(report) == {"lines": 3000, "created": 1000, "failed": 2000}
    assert [error["line"] for error in report["errors"]] == [number + 1 for number in range(1500) if number % 3]
    assert report["complete"]


async def test_an_error_ends_the_import_where_it_is_to(client: AsyncClient, database: str) -> None:
    lines = [given(number) for number in range(3500)]
    lines[2500] = lines[2700] = b"x"
    report = await imported(client, joined(lines), query="?on_error=abort")
    assert not report["complete"]
    assert [(error["line"], error["code"]) for error in report["errors"]] == [(2501, "invalid_json")]
    assert counts(report) == {"lines": 2001, "created": 2000, "failed": 1}
    assert keys_in(await exported(client)) == [f"{number:06}" for number in range(2000)]
    lines[2500] = lines[2700] = given(2500)
    report = await imported(client, joined(lines), query="?on_error=abort")
    assert (report["complete"], report["unchanged"], report["created"]) == (True, 2001, 1499)
    assert rows(database)["document"] == 3499


async def test_an_error_in_the_first_chunk_leaves_nothing(client: AsyncClient, database: str) -> None:
    report = await imported(client, joined([given(1), line(key="x", simhash="-1")]), query="?on_error=abort")
    assert counts(report) == {"lines": 1, "failed": 1}
    assert rows(database)["collection"] == 0


@pytest.mark.parametrize("between", [0, 10_000])
async def test_of_lines_with_one_key_the_last_wins(client: AsyncClient, between: int) -> None:
    texts = [text_of(30, seed=seed) for seed in range(2)]
    first = line(key="x", text=texts[0], metadata={"n": 1})
    lines = [first, *(given(number) for number in range(between)), line(key="x", text=texts[1])]
    report = await imported(client, joined(lines))
    assert counts(report) == {"lines": between + 2, "created": between + 1, "replaced": 1, "short": 2}
    assert keys_of(await find(client, text=texts[1], threshold=0)) == ["x"]
    assert keys_of(await find(client, text=texts[0], threshold=0)) == []
    assert (await ok(client, "GET", f"{SHOP}/documents/x"))["metadata"] == {"n": 1}


# What single writes in this order say, the first of them on an empty collection.
SAME_KEY: dict[str, list[Json]] = {
    "the same twice": [{"text": "oak"}, {"text": "oak"}],
    "there and back": [{"text": "oak"}, {"text": "elm"}, {"text": "oak"}],
    "metadata that is kept": [{"text": "oak", "metadata": {"a": 1}}, {"text": "oak"}, {"text": "elm"}],
    "metadata that is added": [{"text": "oak"}, {"text": "oak", "metadata": {"a": 1}}],
    "metadata that comes to nothing": [{"text": "oak"}, {"text": "oak", "metadata": {}}],
    "texts without a letter": [{"text": "!!!"}, {"text": "???"}, {"text": "???"}],
    "kept over several": [
        {"text": "oak", "metadata": {"a": 1}},
        {"text": "elm"},
        {"text": "elm", "metadata": {"a": 1}},
    ],
}


@pytest.mark.parametrize("case", SAME_KEY)
async def test_lines_with_one_key_count_as_single_writes_would(client: AsyncClient, case: str) -> None:
    results = [(await put(client, "x", collection="single", **each))["result"] for each in SAME_KEY[case]]
    report = await imported(client, joined(line(key="x", **each) for each in SAME_KEY[case]))
    expected = {result: results.count(result) for result in ("created", "replaced", "unchanged")}
    assert {result: report[result] for result in expected} == expected
    assert await exported(client, text=True) == await exported(client, "single", text=True)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (MEDIA_TYPE, 200),
        (f"{MEDIA_TYPE}; charset=UTF-8", 200),
        ("Application/X-NDJSON", 200),
        (f"{MEDIA_TYPE}; charset=latin-1", 415),
        ("application/json", 415),
        ("text/plain", 415),
        ("", 415),
    ],
)
async def test_the_type_of_the_body_is_that_of_lines(client: AsyncClient, content_type: str, status: int) -> None:
    answer = await post(client, given(1), headers={"content-type": content_type})
    assert answer.status_code == status
    if status == 415:
        assert MEDIA_TYPE in assert_problem(answer, 415, "unsupported_media_type")["detail"]


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "x"])
async def test_an_unknown_coding_is_refused(client: AsyncClient, database: str, coding: str) -> None:
    answer = await post(client, given(1), headers={**NDJSON, "content-encoding": coding})
    assert_problem(answer, 415, "unsupported_media_type")
    assert rows(database)["collection"] == 0


@pytest.mark.parametrize("query", ["?on_error=stop", "?on_error=", "?abort=1"])
async def test_an_unknown_parameter_is_refused(client: AsyncClient, database: str, query: str) -> None:
    assert_problem(await post(client, given(1), query=query), 422, "invalid_input", f"/{query[1:].partition('=')[0]}")
    assert rows(database)["collection"] == 0


async def test_a_compressed_body_is_decoded(client: AsyncClient) -> None:
    members = b"".join(gzip.compress(joined(map(given, range(start, start + 1500)))) for start in (0, 1500))
    for coding, created in (("gzip", 3000), ("GZIP", 0)):
        report = await imported(client, members, headers={**NDJSON, "content-encoding": coding})
        assert (report["created"], report["unchanged"]) == (created, 3000 - created)


@pytest.mark.parametrize("damage", [b"", b"garbage"])
async def test_damaged_data_ends_an_import_with_an_error(client: AsyncClient, damage: bytes) -> None:
    """The lines that could be read stay."""
    whole = gzip.compress(joined(map(given, range(1500))))
    body = whole + damage if damage else whole[:-4]
    report = await imported(client, body, headers={**NDJSON, "content-encoding": "gzip"})
    assert counts(report) == {"lines": 1501, "created": 1500, "failed": 1}
    assert [(error["line"], error["code"]) for error in report["errors"]] == [(1501, "invalid_encoding")]
    assert not report["complete"]


async def test_importing_again_changes_nothing(client: AsyncClient, database: str) -> None:
    body = joined(
        [
            *(given(number, metadata={"n": number}) for number in range(1500)),
            line(key="a", text=text_of(300)),
            line(key="b", text="!!!"),
            line(key="c", text=""),
            line(key="d", text=None, words=3, fingerprint=None, content_hash="ab" * 16),
        ]
    )
    assert (await imported(client, body))["created"] == 1504
    state = "SELECT xmin::text, ctid::text, key FROM document ORDER BY key"
    before = execute(database, state)
    report = await imported(client, body)
    assert counts(report) == {"lines": 1504, "unchanged": 1504, "too_short": 3}
    assert execute(database, state) == before


async def test_a_collection_keeps_its_scheme(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": 64, "min_words": 1}})
    lines = [
        line(key="a", fingerprint="f" * 16),
        line(key="b", simhash=str(-(2**63))),
        line(key="c", text="oak elm ash"),
    ]
    assert counts(await imported(client, joined(lines))) == {"lines": 3, "created": 3, "short": 1}
    assert keys_of(await find(client, fingerprint="f" * 16, threshold=0)) == ["a"]
    assert keys_of(await find(client, text="oak elm ash", threshold=0)) == ["c"]


async def test_what_is_known_of_a_text_can_be_imported_without_it(client: AsyncClient) -> None:
    document = (await put(client, "a", collection="elsewhere", text=text_of(300)))["document"]
    short = (await put(client, "b", collection="elsewhere", text="oak"))["document"]
    known = ("key", "fingerprint", "simhash", "words", "content_hash")
    lines = [line(**{name: each[name] for name in known}) for each in (document, short)]
    report = await imported(client, joined(lines))
    assert counts(report) == {"lines": 2, "created": 2, "too_short": 1}
    for each in (document, short):
        there = await ok(client, "GET", f"{SHOP}/documents/{each['key']}")
        assert {name: there[name] for name in (*known, "status")} == {name: each[name] for name in (*known, "status")}
    for text, key in ((text_of(300), "a"), ("oak", "b")):
        (match,) = (await find(client, text=text))["matches"]
        assert (match["key"], match["match"]) == (key, "exact")


async def test_a_text_counts_and_what_is_said_of_it_does_not(client: AsyncClient) -> None:
    await imported(client, line(key="a", text=text_of(300), fingerprint=hex_of(1), words=1, content_hash="00" * 16))
    await imported(client, line(key="b", text=text_of(300)))
    (match,) = (await find(client, key="a"))["matches"]
    assert (match["key"], match["distance"], match["match"]) == ("b", 0, "exact")


async def test_an_import_goes_by_the_scheme_that_the_collection_has_now(
    client: AsyncClient, settings: Settings, subtests: pytest.Subtests
) -> None:
    """Made anew by another process, with another scheme than this one remembers."""
    highest = line(key="x", fingerprint="f" * 16)
    async with client_of(settings) as elsewhere:
        for query in ("", "?on_error=abort"):
            for lines in ([given(1), highest], [highest]):
                with subtests.test(query, lines=len(lines)):
                    await put(client, "a", text=text_of(30))
                    await ok(elsewhere, "DELETE", SHOP)
                    await ok(elsewhere, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": 64}})
                    report = await imported(client, joined(lines), query=query)
                    assert counts(report) == {"lines": len(lines), "created": len(lines)}
                await ok(elsewhere, "DELETE", SHOP)


async def call(app: ASGIApp, messages: Sequence[Message]) -> list[Message]:
    """What the application answers to an import of which these messages arrive, as the server hands them over."""
    arriving = iter(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        return next(arriving, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": IMPORT,
        "raw_path": IMPORT.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"tiroir"), (b"content-type", MEDIA_TYPE.encode()), (b"transfer-encoding", b"chunked")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("sent", [1, 999, 1000, 2500, 4000])
async def test_of_a_client_that_goes_away_whole_chunks_stay(
    settings: Settings, database: str, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    """It is nobody's defect."""
    lines = [given(number) for number in range(4500)]
    app = create_app(settings)
    with caplog.at_level(logging.INFO):
        async with app.router.lifespan_context(app) as state:

            async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
                await app({**scope, "state": dict(state or {})}, receive, send)

            parts = [joined(lines[start : min(start + 300, sent)]) for start in range(0, sent, 300)]
            messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
            answered = await call(with_state, messages)
    assert not [message for message in answered if message.get("status") == 200]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    documents = rows(database)["document"]
    assert documents % CHUNK == 0
    assert documents <= sent
    async with client_of(settings) as client:
        report = await imported(client, joined(lines))
        assert (report["created"], report["unchanged"]) == (4500 - documents, documents)
        assert keys_in(await exported(client)) == [f"{number:06}" for number in range(4500)]


async def test_a_database_that_goes_away_leaves_whole_chunks(client: AsyncClient, database: str) -> None:
    lines = [given(number) for number in range(4500)]

    async def body() -> AsyncIterator[bytes]:
        yield joined(lines[:1500])
        await until(lambda: rows(database)["document"] == CHUNK)
        with locked(database, "document"):
            yield joined(lines[1500:2500])
            await until_waiting(database, 1)
            disconnect_waiting(database)
        yield joined(lines[2500:])

    problem = assert_problem(await post(client, body()), 503, "database_unavailable")
    assert f"{CHUNK} lines were done before" in problem["detail"]
    assert rows(database)["document"] == CHUNK
    report = await imported(client, joined(lines))
    assert counts(report) == {"lines": 4500, "created": 3500, "unchanged": 1000}


async def test_imports_of_the_same_keys_in_two_orders_at_once(client: AsyncClient, database: str) -> None:
    reports: list[Any] = []

    async def import_all(numbers: Sequence[int], start: int) -> None:
        body = joined(line(key=f"{number:06}", simhash=str(number + start)) for number in numbers)
        reports.append(await imported(client, body))

    async with create_task_group() as tasks:
        for start in (0, 1, 2, 3):
            tasks.start_soon(import_all, range(3000)[:: -1 if start % 2 else 1], start * 3000)
    assert [(report["complete"], report["failed"], report["lines"]) for report in reports] == [(True, 0, 3000)] * 4
    assert sum(report["created"] for report in reports) == 3000
    documents = [json.loads(each) for each in (await exported(client)).splitlines()]
    assert [each["key"] for each in documents] == [f"{number:06}" for number in range(3000)]
    assert all((int(each["fingerprint"], 16) - int(each["key"])) % 3000 == 0 for each in documents)
    missing = "SELECT count(*) FROM document WHERE simhash NOT IN (SELECT simhash FROM fingerprint)"
    assert execute(database, missing) == [(0,)]


async def test_lookups_during_an_import_find_what_was_there(client: AsyncClient) -> None:
    await put(client, "a", text=text_of(300))
    done = Event()
    asked = 0
    report: Any = None

    async def look_up() -> None:
        nonlocal asked
        while not done.is_set():
            assert keys_of(await find(client, text=text_of(300), threshold=0)) == ["a"]
            assert keys_of(await find(client, key="a", threshold=0)) == []
            asked += 1

    async with create_task_group() as tasks:
        tasks.start_soon(look_up)
        tasks.start_soon(look_up)
        report = await imported(client, joined(line(key=f"{n}", text=text_of(60, seed=n)) for n in range(4000)))
        done.set()
    assert counts(report) == {"lines": 4000, "created": 4000, "short": 4000}
    assert asked > 10


async def test_an_import_may_be_larger_than_any_other_body(settings: Settings) -> None:
    async with client_of(settings.model_copy(update={"max_body_bytes": 2000})) as client:
        body = joined(given(number) for number in range(1000))
        report = await imported(client, body, headers={**NDJSON, "content-length": str(len(body))})
        assert counts(report) == {"lines": 1000, "created": 1000}
        for url in (f"{SHOP}/documents/batch", f"{SHOP}/documents", f"{IMPORT}/", f"{SHOP}/documents/import"):
            answer = await client.post(url, content=body, headers=NDJSON)
            assert_problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("spelled", ["00 11 22 33 44 55 66 77 88 99 aa", "0" * 31, "0" * 33, "g" * 32, "٠" * 32])
async def test_a_content_hash_is_32_hex_digits(client: AsyncClient, spelled: str) -> None:
    report = await imported(client, joined([given(1), line(key="x", words=1, content_hash=spelled), given(2)]))
    assert counts(report) == {"lines": 3, "created": 2, "failed": 1}
    assert [(error["line"], error["code"]) for error in report["errors"]] == [(2, "invalid_input")]


async def test_a_text_that_comes_after_its_fingerprint_is_stored(client: AsyncClient) -> None:
    text = text_of(60)
    await imported(client, line(key="a", text=text))
    without = await exported(client)
    await imported(client, without, collection="elsewhere")
    report = await imported(client, line(key="a", text=text), collection="elsewhere")
    assert counts(report) == {"lines": 1, "replaced": 1, "short": 1}
    assert await exported(client, "elsewhere", text=True) == await exported(client, text=True)
    await imported(client, without, collection="by-itself")
    answer = await ok(client, "PUT", "/v1/collections/by-itself/documents/a", {"text": text})
    assert answer["result"] == "replaced"
    assert await exported(client, "by-itself", text=True) == await exported(client, text=True)


async def test_a_line_without_the_text_changes_metadata_and_keeps_the_text(client: AsyncClient) -> None:
    await imported(client, line(key="a", text=text_of(60)))
    known = json.loads(await exported(client))
    report = await imported(client, line(**{**known, "metadata": {"read": True}}))
    assert counts(report) == {"lines": 1, "replaced": 1, "short": 1}
    kept = json.loads(await exported(client, text=True))
    assert (kept["text"], kept["metadata"]) == (text_of(60), {"read": True})
    another = line(key="a", fingerprint=hex_of(1))
    assert (await imported(client, another))["replaced"] == 1
    assert "text" not in json.loads(await exported(client, text=True))


async def test_an_import_that_is_to_stop_stops_where_its_collection_was_made_anew(
    client: AsyncClient, database: str
) -> None:
    """Its fingerprints were right when they were read, and aren't any more when they are written."""
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": 64}})
    high = [line(key=f"{number}", fingerprint=hex_of(2**63 + number)) for number in range(3)]
    answers: list[Any] = []

    async def send() -> None:
        answers.append(await imported(client, joined([given(1), *high]), query="?on_error=abort"))

    with psycopg.connect(database) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s::int, id) FROM collection", [collections.LOCK_CLASS])
        async with create_task_group() as tasks:
            tasks.start_soon(send)
            await until_waiting(database, 1)
            other.execute("DELETE FROM collection")
            other.execute(
                "INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)"
                " VALUES ('shop', 'article', 3, 63, 20, true)"
            )
            other.commit()
    [report] = answers
    assert (report["complete"], counts(report)) == (False, {"lines": 1, "failed": 1})
    assert [(error["line"], error["code"]) for error in report["errors"]] == [(2, "invalid_fingerprint")]
    assert await exported(client) == b""
