"""Every error is application/problem+json, whoever raises it: a route, the framework, or what stands before both."""

from uuid import uuid4

import pytest
from anyio import create_task_group
from httpx2 import AsyncClient, Response

from app.api.problems import PROBLEMS
from app.settings import Settings
from tests.api.support import (
    JSON,
    assert_problem,
    disconnect_waiting,
    execute,
    find,
    keys_of,
    locked,
    ok,
    put,
    send,
    text_of,
    until_waiting,
)
from tests.conftest import client_of

SHOP = "/v1/collections/shop"


NO_PATHS = [
    ("GET", "/v1"),
    ("GET", "/v1/nothing"),
    ("GET", "/v2/collections"),
    ("GET", "/v1/collections/"),
    ("GET", "/v1/collections/a/b"),
    ("GET", "/v1/collections/a%2Fb"),
    ("GET", "/v1/admin"),
    ("GET", "/v1/admin/"),
    ("GET", "/v1/admin/operations"),
    ("POST", "/v1/admin/rebuilds/1/resume"),
    ("GET", "/livez/"),
    ("GET", "/LIVEZ"),
]


async def test_a_path_that_does_not_exist_is_404(client: AsyncClient, subtests: pytest.Subtests) -> None:
    for method, path in NO_PATHS:
        with subtests.test(path):
            assert_problem(await client.request(method, path), 404, "not_found")


ALLOWED = {
    "/livez": "GET",
    "/version": "GET",
    "/v1/collections": "GET, POST",
    "/v1/collections/shop": "GET, PATCH, DELETE",
    "/v1/collections/shop/documents": "GET, POST",
    "/v1/collections/shop/documents/batch": "GET, POST, PUT, DELETE",  # a key may be called so
    "/v1/collections/shop/documents/delete": "GET, POST, PUT, DELETE",
    "/v1/collections/shop/documents/a/b": "GET, PUT, DELETE",
    "/v1/collections/shop/document": "GET, PUT, DELETE",
    "/v1/collections/shop/near-duplicates": "GET, POST",
    "/v1/collections/shop/near-duplicates/batch": "POST",
    "/v1/collections/shop/import": "POST",
    "/v1/collections/shop/export": "GET",
    "/v1/collections/shop/analyses": "GET, POST",
    "/v1/collections/shop/analyses/1": "GET, DELETE",
    "/v1/collections/shop/analyses/1/cancel": "POST",
    "/v1/collections/shop/analyses/1/clusters": "GET",
    "/v1/collections/shop/analyses/1/clusters/1": "GET",
    "/v1/collections/shop/analyses/1/pairs": "GET",
    "/v1/collections/shop/analyses/1/documents": "GET",
    "/v1/collections/shop/analyses/1/differences": "GET",
    "/v1/collections/shop/exact-duplicates": "GET",
    "/v1/near-duplicates": "POST",
    "/v1/near-duplicates/batch": "POST",
    "/v1/fingerprints": "POST",
    "/v1/distance": "GET",
    "/v1/admin/layout": "GET",
    "/v1/admin/rebuilds": "GET, POST",
    "/v1/admin/rebuilds/1": "GET",
    "/v1/admin/rebuilds/1/cancel": "POST",
    "/v1/admin/audits": "GET, POST",
    "/v1/admin/audits/1": "GET",
    "/v1/admin/audits/1/cancel": "POST",
}


async def test_a_method_that_a_path_does_not_take_is_405_and_names_all_that_it_takes(
    client: AsyncClient, subtests: pytest.Subtests
) -> None:
    for path, allowed in ALLOWED.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - set(allowed.split(", ")):
            with subtests.test(f"{method} {path}"):
                answer = await client.request(method, path)
                assert_problem(answer, 405, "method_not_allowed")
                assert answer.headers["allow"] == allowed


async def test_the_request_id_is_the_callers_where_it_is_one(client: AsyncClient) -> None:
    given = str(uuid4())
    for path in ("/nothing", SHOP, f"{SHOP}/near-duplicates?text=%ff", "/livez"):
        answer = await client.get(path, headers={"X-Request-ID": given})
        assert answer.headers["x-request-id"] == given
    assert (await client.get(SHOP, headers={"X-Request-ID": given})).json()["request_id"] == given
    for other in ("a", "<script>", "x" * 10_000):
        answer = await client.get(SHOP, headers={"X-Request-ID": other})
        assert answer.json()["request_id"] == answer.headers["x-request-id"] != other


async def test_every_request_has_an_id_of_its_own(client: AsyncClient) -> None:
    ids = {(await client.get(path)).headers["x-request-id"] for path in ("/livez", "/nothing", SHOP, SHOP)}
    assert len(ids) == 4


async def test_a_defect_is_500_without_a_word_of_the_cause(client: AsyncClient, database: str) -> None:
    await put(client, "a", text=text_of(30))
    execute(database, "ALTER TABLE document RENAME COLUMN words TO wordz")
    for answer in (
        await client.get(f"{SHOP}/documents/a"),
        await send(client, "PUT", f"{SHOP}/documents/b", {"text": text_of(30)}),
    ):
        problem = assert_problem(answer, 500, "internal_error")
        assert "words" not in problem["detail"]
        assert len(answer.headers.get_list("x-request-id")) == 1
    execute(database, "ALTER TABLE document RENAME COLUMN wordz TO words")
    assert keys_of(await find(client, text=text_of(30))) == ["a"]


# What can be had by one request. The rest takes more; `url_too_long` comes before there is a request at all, from
# app.cli.http_protocol.
BY_ONE_REQUEST: dict[str, tuple[str, str, bytes, dict[str, str]]] = {
    "invalid_json": ("POST", "/v1/collections", b"{", JSON),
    "bad_request": ("POST", "/v1/collections", b'{"name": "\xff"}', JSON),
    "not_found": ("GET", "/nothing", b"", {}),
    "collection_not_found": ("GET", "/v1/collections/nothing", b"", {}),
    "document_not_found": ("GET", f"{SHOP}/documents/nothing", b"", {}),
    "operation_not_found": ("GET", "/v1/admin/audits/1", b"", {}),
    "analysis_not_found": ("GET", f"{SHOP}/analyses/1", b"", {}),
    "method_not_allowed": ("PATCH", "/v1/collections", b"", {}),
    "collection_exists": ("POST", "/v1/collections", b'{"name": "shop", "store_text": false}', JSON),
    "body_too_large": ("POST", "/v1/collections", b" " * 5000, JSON),
    "unsupported_media_type": ("POST", "/v1/collections", b"{}", {"content-type": "text/plain"}),
    "invalid_input": ("GET", f"{SHOP}/documents?limit=0", b"", {}),
    "invalid_fingerprint": ("GET", "/v1/distance?a=0&b=0", b"", {}),
    "schemes_differ": ("POST", "/v1/near-duplicates", b'{"collections": ["shop", "wide"], "text": "x"}', JSON),
    "not_supported": ("POST", f"{SHOP}/near-duplicates", b'{"html": "x"}', JSON),
}
WIDE = {"name": "wide", "scheme": {"bits": 64}}
LOOKUP = ("POST", f"{SHOP}/near-duplicates", b'{"key": "a"}', JSON)
REBUILDS = "/v1/admin/rebuilds"
WITH_KEY = {**JSON, "Idempotency-Key": "k"}


async def test_every_code_is_met(settings: Settings, database: str) -> None:
    met: dict[str, int] = {}

    async def ask(client: AsyncClient, method: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        answer: Response = await client.request(method, url, content=body, headers=headers)
        met[answer.json()["code"]] = answer.status_code

    limits = {"max_body_bytes": 4096, "pool_min_size": 1, "pool_max_size": 1, "pool_timeout": 1, "lock_timeout": 2}
    queued = {"run_operations": False, "analysis_memory": 1}
    async with client_of(settings.model_copy(update=limits | queued)) as client:
        await put(client, "a", text=text_of(30))
        await ok(client, "POST", "/v1/collections", WIDE)
        for request in BY_ONE_REQUEST.values():
            await ask(client, *request)
        begun = await client.post(REBUILDS, content=b'{"threshold": 7}', headers=WITH_KEY)
        for headers in (JSON, WITH_KEY):
            await ask(client, "POST", REBUILDS, b'{"threshold": 6}', headers)
        cancel = f"{begun.headers['location']}/cancel"
        await ok(client, "POST", cancel)
        await ask(client, "POST", cancel, b"", {})
        await ask(client, "POST", f"{SHOP}/analyses", b"{}", JSON)
        await ok(client, "POST", "/v1/collections", {"name": "earlier"})
        compared = await client.post(f"{SHOP}/analyses", content=b'{"against": "earlier"}', headers=JSON)
        await ask(client, "GET", f"{compared.headers['location']}/differences", b"", {})
        with locked(database, "document"):
            async with create_task_group() as tasks:
                tasks.start_soon(ask, client, *LOOKUP)  # waits for the lock until lock_timeout
                await until_waiting(database, 1)
                await ask(client, *LOOKUP)  # waits for a connection until pool_timeout
            async with create_task_group() as tasks:
                tasks.start_soon(ask, client, *LOOKUP)
                await until_waiting(database, 1)
                disconnect_waiting(database)
        execute(database, "ALTER TABLE document RENAME COLUMN words TO wordz")
        await ask(client, *LOOKUP)
    assert met == {code: status for code, (status, _) in PROBLEMS.items() if code != "url_too_long"}


async def test_the_codes_of_one_request_are_what_they_are_called(settings: Settings) -> None:
    async with client_of(settings.model_copy(update={"max_body_bytes": 4096})) as client:
        await ok(client, "POST", "/v1/collections", {"name": "shop"})
        await ok(client, "POST", "/v1/collections", WIDE)
        for code, (method, url, body, headers) in BY_ONE_REQUEST.items():
            answer = await client.request(method, url, content=body, headers=headers)
            assert answer.json()["code"] == code
