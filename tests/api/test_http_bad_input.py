"""Bad input: the right status and code, a pointer to what is wrong, nothing written, and the next request works."""

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import psycopg
import pytest
from httpx2 import AsyncClient

from app.settings import Settings
from tests.api.support import JSON, assert_problem, hex_of, ok, put, text_of
from tests.conftest import client_of

SHOP = "/v1/collections/shop"
UNBORN = "/v1/collections/unborn"  # a refused write must not make it
REBUILDS, AUDITS = OPERATIONS = ("/v1/admin/rebuilds", "/v1/admin/audits")


@dataclass(frozen=True)
class Refused:
    """A request and the problem that answers it. `pointers`: those of the members that are invalid."""

    method: str
    url: str
    body: bytes | None = None
    status: int = 422
    code: str = "invalid_input"
    pointers: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=lambda: JSON)

    def __str__(self) -> str:
        return f"{self.method} {self.url[:120]} {(self.body or b'')[:120]!r}"


def refused(method: str, url: str, body: object, pointer: str, code: str = "invalid_input") -> Refused:
    """A body that is JSON, and has one invalid member. Lone surrogates go as escapes."""
    return Refused(method, url, json.dumps(body).encode(), code=code, pointers=(pointer,))


def _everything(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("""
        SELECT c::text FROM collection c UNION ALL SELECT d::text FROM document d
        UNION ALL SELECT e::text FROM deleted_collection e
        UNION ALL SELECT f::text FROM fingerprint f UNION ALL SELECT l::text FROM band_layout l
        UNION ALL SELECT o::text FROM operation o UNION ALL SELECT j::text FROM tiroir_queue.procrastinate_jobs j
    """).fetchall()


async def check(client: AsyncClient, database: str, subtests: pytest.Subtests, requests: Iterable[Refused]) -> None:
    good = (await put(client, "good", text=text_of(30), metadata={"n": 1}))["document"]
    with psycopg.connect(database, autocommit=True) as connection:
        before = _everything(connection)
        for request in requests:
            with subtests.test(str(request)):
                answer = await client.request(
                    request.method, request.url, content=request.body, headers=request.headers
                )
                assert_problem(answer, request.status, request.code, *request.pointers)
                assert _everything(connection) == before
                assert await ok(client, "GET", f"{SHOP}/documents/good") == good


UNSTORABLE = {"NUL": "a\0b", "half an emoji": "half \ud83d here", "its other half": "\udc00"}


def _strings(bad: str) -> Iterable[Refused]:
    for member in ("text", "key"):
        document = {"key": "k", "text": "t", member: bad}
        yield refused("POST", f"{UNBORN}/documents", document, f"/{member}")
        yield refused("POST", f"{SHOP}/near-duplicates", {member: bad}, f"/{member}")
    for url in (f"{UNBORN}/documents/k", f"{UNBORN}/document?key=k"):
        yield refused("PUT", url, {"text": bad}, "/text")
        for metadata in ({"a": bad}, {bad: 1}, {"a": [{"b": [bad]}]}, {"a": {bad: [1]}}):
            yield refused("PUT", url, {"text": "t", "metadata": metadata}, "/metadata")
    yield refused("POST", "/v1/fingerprints", {"text": bad}, "/text")
    yield refused("POST", "/v1/fingerprints", {"text": "t", "scheme": bad}, "/scheme")
    yield refused("POST", "/v1/fingerprints", {"text": "t", "scheme": {"tokenizer": bad}}, "/scheme/tokenizer")
    yield refused("POST", "/v1/collections", {"name": bad}, "/name")
    yield refused("POST", "/v1/collections", {"name": "n", "scheme": bad}, "/scheme")
    for member, url in product(("fingerprint", "simhash"), (f"{UNBORN}/documents/k", f"{UNBORN}/document?key=k")):
        yield refused("PUT", url, {member: bad}, f"/{member}", "invalid_fingerprint")


@pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE.keys())
async def test_strings_that_no_database_holds(
    client: AsyncClient, database: str, subtests: pytest.Subtests, bad: str
) -> None:
    await check(client, database, subtests, _strings(bad))


async def test_a_member_whose_very_name_cannot_be_encoded(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    requests = [
        Refused(method, url, json.dumps({"text": "t", "\ud83d": 1}).encode(), pointers=("",))
        for method, url in [
            ("PUT", f"{UNBORN}/documents/k"),
            ("POST", f"{SHOP}/near-duplicates"),
            ("POST", "/v1/fingerprints"),
            ("POST", "/v1/collections"),
        ]
    ]
    await check(client, database, subtests, requests)


# A wrong byte; half a surrogate pair; NUL written in two bytes; a character cut short.
NOT_UTF8 = ("%ff", "a%ed%a0%bdb", "%c0%80", "%e2%82")
WITH_KEY_IN_URL = [("GET", None), ("PUT", b'{"text": "t"}'), ("DELETE", None)]


def _urls() -> Iterable[Refused]:
    for method, body in WITH_KEY_IN_URL:
        yield Refused(method, f"{UNBORN}/documents/a%00b", body, pointers=("/key",))
        yield Refused(method, f"{UNBORN}/document?key=a%00b", body, pointers=("/key",))
        for bad in NOT_UTF8:
            for url in (
                f"{UNBORN}/documents/{bad}",
                f"{UNBORN}/document?key={bad}",
                f"/v1/collections/{bad}/documents/k",
            ):
                yield Refused(method, url, body, pointers=("",))
    for member in ("text", "key"):
        yield Refused("GET", f"{SHOP}/near-duplicates?{member}=a%00b", pointers=(f"/{member}",))
    for bad in NOT_UTF8:
        for query in (f"text={bad}", f"key={bad}", f"text=a&{bad}=1", f"text=a&threshold={bad}"):
            yield Refused("GET", f"{SHOP}/near-duplicates?{query}", pointers=("",))
        yield Refused("GET", f"/v1/collections?cursor={bad}", pointers=("",))
    yield Refused("GET", "/v1/collections?cursor=a%00b", pointers=("/cursor",))
    yield Refused("GET", f"{SHOP}/documents?cursor=a%00b", pointers=("/cursor",))


async def test_urls_with_nul_or_without_utf8(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _urls())


BAD_NAMES = ["a%00b", "a%0A", "%0A", "a%20b", "caf%C3%A9", "%EF%BC%91", "a" * 65, "a@b", "a:b", "%25"]
NO_NAMES: list[object] = ["", " ", "a b", "a\n", "\n", "café", "\uff11", "a/b", "a" * 65, 5, None, True, ["a"], {}]
IN_A_COLLECTION = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("GET", "/documents", None),
    ("POST", "/documents", b'{"key": "k", "text": "t"}'),
    ("PUT", "/documents/k", b'{"text": "t"}'),
    ("GET", "/documents/k", None),
    ("DELETE", "/documents/k", None),
    ("PUT", "/document?key=k", b'{"text": "t"}'),
    ("GET", "/document?key=k", None),
    ("DELETE", "/document?key=k", None),
    ("GET", "/near-duplicates?text=t", None),
    ("POST", "/near-duplicates", b'{"text": "t"}'),
]


async def test_names_that_no_collection_has(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    requests = [
        Refused(method, f"/v1/collections/{name}{path}", body, pointers=("/collection",))
        for name, (method, path, body) in product(BAD_NAMES, IN_A_COLLECTION)
    ]
    requests += [refused("POST", "/v1/collections", {"name": name}, "/name") for name in NO_NAMES]
    await check(client, database, subtests, requests)


NOT_WHOLE: list[object] = [True, False, 2.5, 3.0, "3", "", [], {}, [3]]
NOT_TEXT: list[object] = [5, 2.5, True, [], {}, ["a"]]
NOT_BOOLEAN: list[object] = ["true", "", 1, 0, [], {}, None]


def _members() -> Iterable[Refused]:
    documents, lookup = f"{UNBORN}/documents", f"{SHOP}/near-duplicates"
    for threshold in [*NOT_WHOLE, -1, 64, 10**30, -(10**30)]:
        yield refused("POST", lookup, {"text": "t", "threshold": threshold}, "/threshold")
    for limit in [*NOT_WHOLE, None, 0, -5, 1001, 3_000_000_000, 10**30]:
        yield refused("POST", lookup, {"text": "t", "limit": limit}, "/limit")
    for explain in NOT_BOOLEAN:
        yield refused("POST", lookup, {"text": "t", "explain": explain}, "/explain")
    for text in NOT_TEXT:
        yield refused("POST", documents, {"key": "k", "text": text}, "/text")
        yield refused("PUT", f"{documents}/k", {"text": text}, "/text")
        yield refused("POST", lookup, {"text": text}, "/text")
        yield refused("POST", "/v1/fingerprints", {"text": text}, "/text")
        yield refused("POST", documents, {"key": text, "text": "t"}, "/key")
        yield refused("POST", lookup, {"key": text}, "/key")
    for key in ("", "k" * 2049, "k" * 3000, "é" * 1025, "🙂" * 513):
        yield refused("POST", documents, {"key": key, "text": "t"}, "/key")
        yield refused("POST", lookup, {"key": key}, "/key")
    yield refused("POST", documents, {"text": "t"}, "/key")
    yield refused("POST", documents, {"key": None, "text": "t"}, "/key")
    for metadata in (5, "a", True, [], [{"a": 1}]):
        yield refused("POST", documents, {"key": "k", "text": "t", "metadata": metadata}, "/metadata")
    for store_text in NOT_BOOLEAN:
        yield refused("POST", "/v1/collections", {"name": "n", "store_text": store_text}, "/store_text")
    yield refused("POST", "/v1/collections", {}, "/name")
    for body in (None, True, 5, 2.5, "a", [], [{"key": "k", "text": "t"}]):
        for url in (documents, lookup, "/v1/fingerprints", "/v1/collections"):
            yield refused("POST", url, body, "")


async def test_members_of_the_wrong_type_or_out_of_range(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    await check(client, database, subtests, _members())


def _combinations() -> Iterable[Refused]:
    contents = {"text": "t", "fingerprint": hex_of(1), "simhash": "1", "key": "k"}
    lookup = f"{SHOP}/near-duplicates"
    for one, other in product(contents, contents):
        if one < other:
            both = {one: contents[one], other: contents[other]}
            yield refused("POST", lookup, both, "")
            query = "&".join(f"{name}={value}" for name, value in both.items())
            yield Refused("GET", f"{lookup}?{query}", pointers=("",))
            if "key" not in both:
                yield refused("POST", f"{UNBORN}/documents", {"key": "k", **both}, "")
                yield refused("PUT", f"{UNBORN}/documents/k", both, "")
    for nothing in ({}, {"text": None}, {"text": None, "fingerprint": None, "simhash": None}):
        yield refused("PUT", f"{UNBORN}/documents/k", nothing, "")
        yield refused("POST", f"{UNBORN}/documents", {"key": "k", **nothing}, "")
        yield refused("POST", lookup, nothing, "")
    yield refused("POST", "/v1/fingerprints", {}, "")
    yield refused("POST", "/v1/fingerprints", {"text": None}, "")
    yield Refused("GET", lookup, pointers=("",))


async def test_no_content_or_two_at_once(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _combinations())


def _unknown_members() -> Iterable[Refused]:
    for name, pointer in {"txet": "/txet", "": "/", "a/b~c": "/a~1b~0c", "Text": "/Text", "é\0": "/é\0"}.items():
        yield refused("POST", f"{UNBORN}/documents", {"key": "k", "text": "t", name: 1}, pointer)
        yield refused("PUT", f"{UNBORN}/documents/k", {"text": "t", name: 1}, pointer)
        yield refused("POST", f"{SHOP}/near-duplicates", {"text": "t", name: 1}, pointer)
        yield refused("POST", "/v1/fingerprints", {"text": "t", name: 1}, pointer)
        yield refused("POST", "/v1/fingerprints", {"text": "t", "scheme": {name: 1}}, f"/scheme{pointer}")
        yield refused("POST", "/v1/collections", {"name": "n", name: 1}, pointer)
        yield refused("POST", "/v1/collections", {"name": "n", "scheme": {name: 1}}, f"/scheme{pointer}")
    # Two places for a key would be one too many, and a lookup's options stand in the query of a write.
    yield refused("PUT", f"{UNBORN}/documents/k", {"text": "t", "key": "k"}, "/key")
    yield refused("PUT", f"{UNBORN}/documents/k", {"text": "t", "threshold": 3}, "/threshold")


async def test_members_that_nobody_knows(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _unknown_members())


BAD_SCHEMES: list[tuple[object, str, str]] = [
    ("text", "", "not_supported"),
    *((value, "", "invalid_input") for value in ("Article", "", None, 5, True, [], ["article"])),
    *(({"tokenizer": value}, "/tokenizer", "invalid_input") for value in ("text", "", None, 5, ["article"])),
    *(
        ({part: value}, f"/{part}", "invalid_input")
        for part, beyond in {"shingle_size": 11, "bits": 65, "min_words": 2**31}.items()
        for value in (0, -1, beyond, 10**30, None, 2.5, 3.0, "3", True, ["3"])
    ),
]


def _schemes() -> Iterable[Refused]:
    for scheme, pointer, code in BAD_SCHEMES:
        yield refused("POST", "/v1/fingerprints", {"text": "t", "scheme": scheme}, f"/scheme{pointer}", code)
        yield refused("POST", "/v1/collections", {"name": "n", "scheme": scheme}, f"/scheme{pointer}", code)


async def test_schemes_that_cannot_be(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _schemes())


BAD_TTLS: list[object] = [0, -1, 59, 2**31, 10**30, 3600.0, 3600.5, "3600", "", True, [3600], {"seconds": 3600}]


def _ttls() -> Iterable[Refused]:
    for ttl in BAD_TTLS:
        yield refused("POST", "/v1/collections", {"name": "n", "ttl": ttl}, "/ttl")
        yield refused("PATCH", SHOP, {"ttl": ttl}, "/ttl")
        yield refused("PATCH", UNBORN, {"ttl": ttl}, "/ttl")
    yield refused("PATCH", SHOP, {}, "/ttl")
    yield refused("PATCH", SHOP, {"ttl": 3600, "name": "other"}, "/name")
    yield refused("PATCH", SHOP, {"ttl": 3600, "scheme": "article"}, "/scheme")
    yield refused("PATCH", SHOP, [], "")
    yield refused("PATCH", f"{SHOP}?ttl=3600", {"ttl": 3600}, "/ttl")
    yield Refused("PATCH", SHOP, b"", 400, "invalid_json")
    yield Refused("PATCH", SHOP, b'{"ttl": 3600', 400, "invalid_json")
    yield Refused(
        "PATCH", SHOP, b'{"ttl": 3600}', 415, "unsupported_media_type", headers={"content-type": "text/plain"}
    )
    yield Refused("PATCH", UNBORN, b'{"ttl": 3600}', 404, "collection_not_found")
    yield Refused("POST", "/v1/collections", b'{"name": "shop", "ttl": 3600}', 409, "collection_exists")


async def test_a_ttl_that_cannot_be(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _ttls())


def _not_yet() -> Iterable[Refused]:
    for html in ("<p>t</p>", "", 5, ["t"]):
        for url in (f"{SHOP}/near-duplicates", "/v1/fingerprints"):
            yield refused("POST", url, {"html": html}, "/html", "not_supported")
        for content in ({"html": html}, {"html": html, "text": "t"}):
            yield refused("POST", f"{UNBORN}/documents", {"key": "k", **content}, "/html", "not_supported")
            yield refused("PUT", f"{UNBORN}/documents/k", content, "/html", "not_supported")
    yield Refused("GET", f"{SHOP}/near-duplicates?html=x", code="not_supported", pointers=("/html",))
    documents = {"documents": [{"key": "k", "text": "t"}, {"key": "l", "html": "x"}]}
    yield refused("POST", f"{UNBORN}/documents/batch", documents, "/documents/1/html", "not_supported")
    queries = {"queries": [{"text": "t"}, {"html": "x"}]}
    yield refused("POST", f"{SHOP}/near-duplicates/batch", queries, "/queries/1/html", "not_supported")
    several = {"collections": ["shop"]}
    yield refused("POST", "/v1/near-duplicates", {**several, "html": "x"}, "/html", "not_supported")
    yield refused("POST", "/v1/near-duplicates/batch", {**several, **queries}, "/queries/1/html", "not_supported")


async def test_what_a_later_version_takes(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _not_yet())


NO_NUMBERS = ["%2B5", "%205", "5%20", "5.0", "1_000", "1e0", "0x3", "", "-", "true", "%EF%BC%93", "%D9%A3", "9" * 5000]


def _parameters() -> Iterable[Refused]:
    content = b'{"text": "t"}'
    for threshold in [*NO_NUMBERS, "-1", "64", "3000000000", "9223372036854775808"]:
        yield Refused("GET", f"{SHOP}/near-duplicates?text=t&threshold={threshold}", pointers=("/threshold",))
        yield Refused("PUT", f"{UNBORN}/documents/k?threshold={threshold}", content, pointers=("/threshold",))
    for limit in [*NO_NUMBERS, "0", "-5", "1001", "3000000000"]:
        yield Refused("GET", f"{SHOP}/near-duplicates?text=t&limit={limit}", pointers=("/limit",))
        yield Refused("PUT", f"{UNBORN}/documents/k?limit={limit}", content, pointers=("/limit",))
        yield Refused("GET", f"{SHOP}/documents?limit={limit}", pointers=("/limit",))
        yield Refused("GET", f"/v1/collections?limit={limit}", pointers=("/limit",))
    for flag in ("maybe", "", "2"):
        yield Refused("GET", f"{SHOP}/near-duplicates?text=t&explain={flag}", pointers=("/explain",))
        yield Refused("PUT", f"{UNBORN}/documents/k?near_duplicates={flag}", content, pointers=("/near_duplicates",))
    for cursor in ("YQ==", "YR", "a", "*", "%F0%9F%99%82", "AA", "_w", "YQ%0A", "Y Q"):
        yield Refused("GET", f"{SHOP}/documents?cursor={cursor}", pointers=("/cursor",))
        yield Refused("GET", f"/v1/collections?cursor={cursor}", pointers=("/cursor",))
    for key in ("", "k" * 2049, "%C3%A9" * 1025):
        yield Refused("GET", f"{SHOP}/near-duplicates?key={key}", pointers=("/key",))
        for method, body in WITH_KEY_IN_URL:
            yield Refused(method, f"{UNBORN}/documents/{key}", body, pointers=("/key",))
            yield Refused(method, f"{UNBORN}/document?key={key}", body, pointers=("/key",))
    for method, body in WITH_KEY_IN_URL:
        yield Refused(method, f"{UNBORN}/document", body, pointers=("/key",))
    yield Refused("GET", "/v1/distance", pointers=("/a", "/b"))


async def test_parameters_out_of_their_grammar_or_range(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    await check(client, database, subtests, _parameters())


NO_IDS = [
    "0",
    "-1",
    "abc",
    "1.0",
    "%2B1",
    "1%20",
    "1_0",
    "0x1",
    "true",
    "%EF%BC%91",
    str(2**31),
    str(2**63),
    "9" * 5000,
]
# Those of other pages, and what a page of operations never ends with: "0", "-1", "abc", "2147483648", "²", "1\n", "".
NO_CURSORS = ["MA", "LTE", "YWJj", "MjE0NzQ4MzY0OA", "wrI", "MQo", "", "YQ==", "YR", "*", "%F0%9F%99%82", "AA", "_w"]


def _operations() -> Iterable[Refused]:
    for threshold in [*NOT_WHOLE, -1, 64, 7.5, 10**30, -(10**30)]:
        yield refused("POST", REBUILDS, {"threshold": threshold, "bands": 4}, "/threshold")
        yield refused("POST", AUDITS, {"threshold": threshold}, "/threshold")
    yield refused("POST", REBUILDS, {"threshold": None}, "/threshold")
    yield refused("POST", REBUILDS, {}, "/threshold")
    yield refused("POST", REBUILDS, {"bands": 4}, "/threshold")
    for bands in [*NOT_WHOLE, -4, 0, 1, 17, "4", 10**30]:
        yield refused("POST", REBUILDS, {"threshold": 7, "bands": bands}, "/bands")
    for force in NOT_BOOLEAN:
        yield refused("POST", REBUILDS, {"threshold": 7, "force": force}, "/force")
    for sample in [*NOT_WHOLE, None, -1, 0, 100_001, 10**30]:
        yield refused("POST", AUDITS, {"sample": sample}, "/sample")
    for name, pointer in {
        "treshold": "/treshold",
        "": "/",
        "a/b~c": "/a~1b~0c",
        "Bands": "/Bands",
        "é\0": "/é\0",
    }.items():
        yield refused("POST", REBUILDS, {"threshold": 7, name: 1}, pointer)
        yield refused("POST", AUDITS, {name: 1}, pointer)
    yield refused("POST", AUDITS, {"bands": 4}, "/bands")
    for body, url in product((None, True, 7, "7", [], [{"threshold": 7}]), OPERATIONS):
        yield refused("POST", url, body, "")
    yield Refused("POST", REBUILDS, b'{"threshold": 64, "bands": 1, "x": 1}', pointers=("/threshold", "/bands", "/x"))


async def test_operations_that_can_not_be(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _operations())


def _ids_and_cursors() -> Iterable[Refused]:
    for url, number in product(OPERATIONS, NO_IDS):
        yield Refused("GET", f"{url}/{number}", pointers=("/id",))
        yield Refused("POST", f"{url}/{number}/cancel", b"", pointers=("/id",), headers={})
    for url, number in product(OPERATIONS, (1, 2**31 - 1)):
        yield Refused("GET", f"{url}/{number}", status=404, code="operation_not_found")
        yield Refused("POST", f"{url}/{number}/cancel", b"", 404, "operation_not_found", headers={})
    for url in OPERATIONS:
        yield Refused("GET", f"{url}/1/cancel", status=405, code="method_not_allowed")
        for limit in [*NO_NUMBERS, "0", "-5", "101", "3000000000"]:
            yield Refused("GET", f"{url}?limit={limit}", pointers=("/limit",))
        for cursor in NO_CURSORS:
            yield Refused("GET", f"{url}?cursor={cursor}", pointers=("/cursor",))
        yield Refused("GET", f"{url}?limit=1&limit=2", pointers=("/limit",))
        yield Refused("GET", f"{url}?status=queued", pointers=("/status",))
        yield Refused("GET", f"{url}/1?limit=1", pointers=("/limit",))
        yield Refused("POST", f"{url}?threshold=3", b'{"threshold": 3}', pointers=("/threshold",))
        yield Refused("POST", f"{url}/1/cancel?force=true", b"", pointers=("/force",), headers={})
    yield Refused("GET", "/v1/admin/layout?bands=4", pointers=("/bands",))


async def test_ids_and_pages_of_operations(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _ids_and_cursors())


async def test_a_cursor_of_more_digits_than_python_reads(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    cursor = urlsafe_b64encode(b"9" * 6000).decode()
    requests = [Refused("GET", f"{url}?cursor={cursor}", pointers=("/cursor",)) for url in OPERATIONS]
    await check(client, database, subtests, requests)


def _repeated() -> Iterable[Refused]:
    for query, name in {
        "text=t&threshold=3&threshold=60": "threshold",
        "text=t&threshold=3&threshold=3": "threshold",
        "text=t&text=t": "text",
        "text=t&%74ext=u": "text",
        "a+b=1&text=t&a%20b=1": "a b",
        "text=t&&&limit=1&&limit=2&&": "limit",
        "text&text": "text",
    }.items():
        yield Refused("GET", f"{SHOP}/near-duplicates?{query}", pointers=(f"/{name}",))
    yield Refused("PUT", f"{UNBORN}/document?key=a&key=b", b'{"text": "t"}', pointers=("/key",))
    yield Refused("DELETE", f"{SHOP}/document?key=good&key=good", pointers=("/key",))


async def test_parameters_that_stand_twice(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _repeated())


def _raw(metadata: bytes, pointer: str = "/metadata") -> Refused:
    body = b'{"text": "t", "metadata": ' + metadata + b"}"
    return Refused("PUT", f"{UNBORN}/documents/k", body, pointers=(pointer,))


def _metadata() -> Iterable[Refused]:
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"):
        yield _raw(b'{"a": ' + number + b"}")
        yield _raw(b'{"a": [{"b": [' + number + b"]}]}")
        yield Refused(
            "POST", f"{SHOP}/near-duplicates", b'{"text": "t", "limit": ' + number + b"}", pointers=("/limit",)
        )
        yield Refused("PUT", f"{UNBORN}/documents/k", b'{"text": ' + number + b"}", pointers=("/text",))
    yield _raw(b'{"a": ' * 33 + b"1" + b"}" * 33)
    yield _raw(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}")


async def test_metadata_that_json_or_the_database_cannot_hold(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    await check(client, database, subtests, _metadata())


async def test_metadata_may_be_deep_and_odd_as_long_as_it_is_json(client: AsyncClient) -> None:
    deep: object = 1
    for _ in range(31):
        deep = {"a": deep}
    odd = {"": "", "é\u2028🙂": [None, True, -0.5, 5e-324, 2**63], "x" * 1000: "\x01\x7f", "[]": json.loads("[[], {}]")}
    metadata: object
    for metadata in (deep, odd):
        assert (await put(client, "a", text="t", metadata=metadata))["document"]["metadata"] == metadata
        assert (await put(client, "a", text="t", metadata=metadata))["result"] == "unchanged"


BODY = b'{"key": "k", "text": "t"}'
NOT_JSON = [
    b" ",
    b"{",
    b"}",
    b"{'key': 'k'}",
    b'{"key": "k", "text": "t",}',
    b'{"key": "k"} {"key": "l"}',
    b'{"key": "k", "text": "a\tb"}',
    b'{"key": "k", "text": "\\x41"}',
    b'{"key": "k", "text": "\\ud83"}',
    b"key=k&text=t",
    b"\0",
    b"\xff\xfe",
    BODY[:-1],
]
# Valid in form, and still not to be read: bytes that are no UTF-8, numbers and nestings beyond Python's own limits.
UNREADABLE = [
    b'{"key": "k", "text": "\xff"}',
    b'{"key": "k", "text": "caf\xe9"}',
    b'{"key": "k", "text": "t", "metadata": {"a": ' + b"9" * 5000 + b"}}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
]
OTHER_TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "application/x-ndjson",
    "application/problem+json",
    "application/json; charset=latin-1",
    "json",
    "",
]


def _bodies() -> Iterable[Refused]:
    for url in (f"{UNBORN}/documents", f"{SHOP}/near-duplicates", "/v1/fingerprints", "/v1/collections", *OPERATIONS):
        yield Refused("POST", url, b"", 400, "invalid_json")
        yield Refused("POST", url, b"", 400, "invalid_json", headers={"content-type": "text/plain"})
        yield Refused("POST", url, None, 400, "invalid_json", headers={})
        for body in NOT_JSON:
            yield Refused("POST", url, body, 400, "invalid_json")
        for body in UNREADABLE:
            yield Refused("POST", url, body, 400, "bad_request")
        for media_type in OTHER_TYPES:
            yield Refused("POST", url, BODY, 415, "unsupported_media_type", headers={"content-type": media_type})
        yield Refused("POST", url, BODY, 415, "unsupported_media_type", headers={})
    # A surrogate half in three bytes is no UTF-8 either; Python's parser lets it through as the half.
    yield Refused("POST", f"{UNBORN}/documents", b'{"key": "k", "text": "\xed\xa0\xbd"}', pointers=("/text",))


async def test_bodies_that_are_not_json(client: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    await check(client, database, subtests, _bodies())


JSON_TYPES = [
    "application/json",
    "application/json;",
    "application/json; charset=utf-8",
    'Application/JSON;charset="UTF-8"',
]


async def test_json_by_any_of_its_names(client: AsyncClient) -> None:
    for media_type in JSON_TYPES:
        answer = await client.post(f"{SHOP}/documents", content=BODY, headers={"content-type": media_type})
        assert answer.is_success, media_type


async def _chunks(body: bytes) -> AsyncGenerator[bytes]:
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


async def test_a_body_of_20_megabytes_is_refused_with_and_without_its_length(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    body = b'{"key": "k", "text": "' + b"mot " * 5_000_000 + b'"}'
    requests = [
        Refused(method, url, body, 413, "body_too_large")
        for method, url in [
            ("POST", f"{UNBORN}/documents"),
            ("PUT", f"{UNBORN}/documents/k"),
            ("POST", f"{SHOP}/near-duplicates"),
            ("POST", "/v1/fingerprints"),
            ("POST", "/v1/collections"),
            ("POST", REBUILDS),
            ("POST", f"{UNBORN}/documents/batch"),
            ("GET", f"{SHOP}/documents"),
        ]
    ]
    await check(client, database, subtests, requests)
    answer = await client.post(f"{UNBORN}/documents", content=_chunks(body), headers=JSON)
    assert_problem(answer, 413, "body_too_large")
    assert_problem(await client.get(UNBORN), 404, "collection_not_found")


async def test_the_limit_of_a_body_is_a_setting_and_exact(settings: Settings) -> None:
    empty = len(b'{"text":""}')
    async with client_of(settings.model_copy(update={"max_body_bytes": 2000})) as client:
        for length, status in ((2000, 200), (2001, 413)):
            body = b'{"text":"' + b"x" * (length - empty) + b'"}'
            assert len(body) == length
            for content in (body, _chunks(body)):
                answer = await client.post("/v1/fingerprints", content=content, headers=JSON)
                assert answer.status_code == status


@pytest.mark.parametrize("character", ["x", "é"])
async def test_metadata_is_small_since_it_comes_with_every_match(client: AsyncClient, character: str) -> None:
    most = (65_536 - len('{"a":""}')) // len(character.encode())
    for length, status in ((most, 201), (most + 1, 422)):
        body = {"text": "x", "metadata": {"a": character * length}}
        answer = await client.put(f"{SHOP}/documents/{status}", json=body)
        assert answer.status_code == status, length
