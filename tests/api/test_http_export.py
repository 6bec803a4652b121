"""Exports: all of a collection, in the order of the keys, as an import takes it back."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from string import ascii_letters
from typing import Any
from urllib.parse import quote

import pytest
from anyio import Event
from httpx2 import AsyncClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.ndjson import MEDIA_TYPE
from app.core.errors import CollectionNotFoundError
from app.main import create_app
from app.settings import Settings
from tests.api.support import assert_problem, execute, find, hex_of, ok, put, text_of
from tests.conftest import client_of

NDJSON = {"content-type": MEDIA_TYPE}
SHOP = "/v1/collections/shop"
EXPORT = f"{SHOP}/export"
PART = 1000
MEGABYTE = 1024 * 1024

ODD_KEYS = [
    " ",
    " a b ",
    "-",
    "/",
    "//",
    "https://shop.example//lyon?a=b&c=d#e",
    "A",
    "Z",
    "a",
    "a\tb",
    "a\nb",
    'a"b\\c',
    "z",
    "~",
    "\x7f",
    "é",
    "ß",
    "\u2028",
    "日本",
    "\ufeff",
    "\uffff",
    "𐍈",
    "😀",
]


async def exported(client: AsyncClient, collection: str = "shop", query: str = "") -> bytes:
    answer = await client.get(f"/v1/collections/{collection}/export{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    return answer.content


def documents_in(export: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export.split(b"\n")[:-1]]


async def import_all(client: AsyncClient, body: bytes, collection: str) -> Any:
    answer = await client.post(f"/v1/collections/{collection}/import", content=body, headers=NDJSON)
    report = answer.json()
    assert (answer.status_code, report["failed"], report["complete"]) == (200, 0, True), answer.text
    return report


def joined(documents: Iterable[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


async def fill(client: AsyncClient, *, bits: int) -> int:
    """A document of each kind that there is; their number."""
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": bits}})
    contents: dict[str, object] = {
        "ok": {"text": text_of(300), "metadata": {"n": 1, "é": ["𐍈", None, 0.1, {"a": True}]}},
        "short": {"text": text_of(30) + '\r\n\u2028\t"quoted" \\'},
        "too short": {"text": "oak"},
        "empty": {"text": ""},
        "punctuation": {"text": "!!!", "metadata": {}},
        "much punctuation": {"text": "! " * 50},
        "given": {"fingerprint": "00000000000000ff"},
        "given as a number": {"simhash": "0"},
        "given, the largest": {"simhash": str(2**63 - 1) if bits == 64 else str(2**62)},
    }
    if bits == 64:
        contents |= {"negative": {"simhash": "-1"}, "the least": {"simhash": str(-(2**63))}}
    for key, content in contents.items():
        await ok(client, "PUT", f"{SHOP}/document?key={quote(key)}", content)
    return len(contents)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("bits", [63, 64])
async def test_an_export_that_is_imported_elsewhere_is_the_same_there(
    client: AsyncClient, bits: int, text: bool
) -> None:
    count = await fill(client, bits=bits)
    query = f"?text={str(text).lower()}"
    export = await exported(client, query=query)
    await ok(client, "POST", "/v1/collections", {"name": "copy", "scheme": {"bits": bits}})
    report = await import_all(client, export, "copy")
    assert (report["lines"], report["created"]) == (count, count)
    assert await exported(client, "copy", query) == export
    assert (await import_all(client, export, "copy"))["unchanged"] == count
    for document in documents_in(export):
        key = quote(document["key"])
        before = await ok(client, "GET", f"{SHOP}/document?key={key}")
        after = await ok(client, "GET", f"/v1/collections/copy/document?key={key}")
        for name in ("key", "fingerprint", "simhash", "words", "status", "content_hash", "metadata"):
            assert after[name] == before[name], name
        found = [
            await find(client, collection=name, key=document["key"], threshold=63, limit=50)
            for name in ("shop", "copy")
        ]
        assert found[0]["matches"] == found[1]["matches"]


@pytest.mark.parametrize("query", ["", "?text=true"])
async def test_importing_an_export_where_it_came_from_changes_nothing(client: AsyncClient, query: str) -> None:
    """The texts stay, in the export or not."""
    count = await fill(client, bits=63)
    before = await exported(client, query="?text=true")
    assert (await import_all(client, await exported(client, query=query), "shop"))["unchanged"] == count
    assert await exported(client, query="?text=true") == before


async def test_a_line_holds_what_is_known_of_a_document(client: AsyncClient) -> None:
    stored = (await put(client, "a", text=text_of(300), metadata={"town": "Lyon"}))["document"]
    await put(client, "b", fingerprint="00000000000000ff")
    await put(client, "c", text="!!!")
    known = {
        "key": "a",
        "fingerprint": stored["fingerprint"],
        "words": 300,
        "content_hash": stored["content_hash"],
        "metadata": {"town": "Lyon"},
    }
    given: dict[str, object] = {
        "key": "b",
        "fingerprint": "00000000000000ff",
        "words": None,
        "content_hash": None,
        "metadata": {},
    }
    nothing: dict[str, object] = {"key": "c", "fingerprint": None, "words": 1, "content_hash": None, "metadata": {}}
    assert documents_in(await exported(client)) == [known, given, nothing]
    assert documents_in(await exported(client, query="?text=false")) == [known, given, nothing]
    assert documents_in(await exported(client, query="?text=true")) == [
        known | {"text": text_of(300)},
        given,
        nothing | {"text": "!!!"},
    ]


async def test_texts_that_are_not_stored_are_not_exported(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "store_text": False})
    await put(client, "a", text=text_of(300))
    (document,) = documents_in(await exported(client, query="?text=true"))
    assert "text" not in document


async def test_documents_come_in_the_bytewise_order_of_their_keys(client: AsyncClient) -> None:
    body = joined({"key": key, "simhash": "1"} for key in reversed(ODD_KEYS))
    await import_all(client, body, "shop")
    keys = [document["key"] for document in documents_in(await exported(client))]
    assert keys == sorted(ODD_KEYS, key=str.encode)


@pytest.mark.parametrize("count", [PART - 1, PART, PART + 1, 2 * PART])
async def test_parts_meet_without_a_gap(client: AsyncClient, count: int) -> None:
    numbers = list(range(count))
    await import_all(client, joined({"key": f"{number:05}", "simhash": str(number)} for number in numbers), "shop")
    documents = documents_in(await exported(client))
    assert [(document["key"], document["fingerprint"]) for document in documents] == [
        (f"{number:05}", hex_of(number)) for number in numbers
    ]


async def test_an_empty_collection_is_an_export_without_a_line(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop"})
    assert await exported(client) == b""
    await put(client, "a", text=text_of(30))
    await ok(client, "DELETE", f"{SHOP}/documents/a")
    assert await exported(client, query="?text=true") == b""


async def test_an_unknown_collection_is_not_found(client: AsyncClient, settings: Settings) -> None:
    assert_problem(await client.get(EXPORT), 404, "collection_not_found")
    await put(client, "a", text=text_of(30))
    async with client_of(settings) as elsewhere:
        await ok(elsewhere, "DELETE", SHOP)
    assert_problem(await client.get(EXPORT), 404, "collection_not_found")


@pytest.mark.parametrize("query", ["text=yes", "text=", "texts=true", "limit=5"])
async def test_an_unknown_parameter_is_refused(client: AsyncClient, query: str) -> None:
    await put(client, "a", text=text_of(30))
    answer = await client.get(f"{EXPORT}?{query}")
    if query == "text=yes":  # as the framework reads a boolean, everywhere
        assert answer.status_code == 200
    else:
        assert_problem(answer, 422, "invalid_input", f"/{query.partition('=')[0]}")


@dataclass
class Streamed:
    """An answer as it is sent: its parts, and whether it has come to its end."""

    parts: list[bytes] = field(default_factory=list[bytes])
    ended: bool = False

    def documents(self) -> list[dict[str, Any]]:
        return documents_in(b"".join(self.parts))


@pytest.fixture
async def app(settings: Settings) -> AsyncGenerator[ASGIApp]:
    """The application without a client, which would wait for the whole of an answer."""
    opened = create_app(settings)
    async with opened.router.lifespan_context(opened) as state:

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await opened({**scope, "state": dict(state or {})}, receive, send)

        yield with_state


async def streamed(
    app: ASGIApp, *, query: str = "", meanwhile: Callable[[], Awaitable[object]] | None = None
) -> Streamed:
    """Exports; `meanwhile` comes between the first part and the second."""
    answer = Streamed()

    async def receive() -> Message:
        await Event().wait()  # the client stays, and has nothing more to say
        raise AssertionError

    async def take(message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        if message.get("body"):
            answer.parts.append(message["body"])
            if meanwhile and len(answer.parts) == 1:
                await meanwhile()
        answer.ended = answer.ended or not message.get("more_body", False)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": EXPORT,
        "raw_path": EXPORT.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"tiroir")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    with suppress(CollectionNotFoundError, RuntimeError):  # what the server then ends the connection for
        await app(scope, receive, take)
    return answer


async def test_large_texts_come_in_parts_of_bounded_size(client: AsyncClient, app: ASGIApp) -> None:
    texts = {f"{number:02}": text_of(180_000, seed=number) for number in range(10)}
    assert all(len(text) > MEGABYTE for text in texts.values())
    await import_all(client, joined({"key": key, "text": text} for key, text in texts.items()), "shop")
    with_texts = await streamed(app, query="text=true")
    assert with_texts.ended
    assert {document["key"]: document["text"] for document in with_texts.documents()} == texts
    assert len(with_texts.parts) > 1
    assert max(map(len, with_texts.parts)) < 6 * MEGABYTE
    without = await streamed(app)
    assert (without.ended, len(without.parts), len(without.documents())) == (True, 1, len(texts))


@pytest.mark.parametrize("letters", [ascii_letters, "a"], ids=["random", "compressible"])
async def test_large_metadata_comes_in_parts_too(client: AsyncClient, app: ASGIApp, letters: str) -> None:
    random = Random(1)
    metadata = [{"m": "".join(random.choices(letters, k=60_000))} for _ in range(200)]
    body = joined({"key": f"{n:03}", "simhash": "1", "metadata": each} for n, each in enumerate(metadata))
    await import_all(client, body, "shop")
    answer = await streamed(app)
    assert answer.ended
    assert [document["metadata"] for document in answer.documents()] == metadata
    assert max(map(len, answer.parts)) < 6 * MEGABYTE


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("count", [PART, 2 * PART + 1])
async def test_an_export_of_a_collection_that_goes_does_not_end_as_a_whole_one(
    client: AsyncClient, app: ASGIApp, count: int, made_anew: bool
) -> None:
    body = joined({"key": f"{number:05}", "simhash": str(number)} for number in range(count))
    await import_all(client, body, "shop")

    async def delete() -> None:
        await ok(client, "DELETE", SHOP)
        if made_anew:
            await import_all(client, body, "shop")

    answer = await streamed(app, meanwhile=delete)
    assert not answer.ended
    assert len(answer.documents()) == PART
    if made_anew:
        again = await streamed(app)
        assert (again.ended, len(again.documents())) == (True, count)


async def test_what_is_written_meanwhile_is_exported_if_its_turn_is_to_come(client: AsyncClient, app: ASGIApp) -> None:
    numbers = range(2 * PART)
    await import_all(client, joined({"key": f"{n:05}", "simhash": str(n)} for n in numbers), "shop")

    async def write() -> None:
        for key in ("00500b", "01500b", "99999", "00600", "01600"):
            await put(client, key, simhash="7777777")
        for key in ("00700", "01700"):
            await ok(client, "DELETE", f"{SHOP}/documents/{key}")

    answer = await streamed(app, meanwhile=write)
    assert answer.ended
    found = {document["key"]: int(document["fingerprint"], 16) for document in answer.documents()}
    expected = {f"{n:05}": n for n in numbers} | {"01500b": 7777777, "99999": 7777777, "01600": 7777777}
    del expected["01700"]
    assert found == expected
    assert list(found) == sorted(expected)


async def test_an_export_leaves_the_collection_to_others(client: AsyncClient, database: str, app: ASGIApp) -> None:
    """No connection is held, and nothing is locked, while a client reads."""
    await import_all(client, joined({"key": f"{n:05}", "simhash": str(n)} for n in range(PART)), "shop")
    busy: list[list[tuple[Any, ...]]] = []

    async def look() -> None:
        busy.append(
            execute(
                database,
                """
                SELECT state FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'
                """,
            )
        )

    assert (await streamed(app, meanwhile=look)).ended
    assert busy == [[]]
