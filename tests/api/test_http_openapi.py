"""The OpenAPI document: complete, with examples that work, and true to what is answered."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import AsyncClient, Response
from jsonschema import Draft202012Validator

from app.api.problems import MEDIA_TYPE, PROBLEMS
from tests.api.support import assert_problem, ok, put, send, text_of

SHOP = "/v1/collections/shop"
METHODS = {"get", "put", "post", "patch", "delete"}
JSON_BODY, LINES = "application/json", "application/x-ndjson"
MAKE_A_COLLECTION = {
    ("post", "/v1/collections/{collection}/documents"),
    ("post", "/v1/collections/{collection}/documents/batch"),
    ("put", "/v1/collections/{collection}/documents/{key}"),
    ("put", "/v1/collections/{collection}/document"),
    ("post", "/v1/collections/{collection}/import"),
}
HEALTH = {"/livez", "/readyz", "/version"}


@pytest.fixture
async def document(client: AsyncClient) -> dict[str, Any]:
    return await ok(client, "GET", "/openapi.json")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        assert set(item) <= METHODS
        for method, operation in item.items():
            yield method, path, operation


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference: str | None = schema.get("$ref")
    return schema if reference is None else document["components"]["schemas"][reference.rpartition("/")[2]]


def body_of(document: dict[str, Any], operation: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The media type of its body and its schema: of lines, that of each."""
    if "requestBody" not in operation:
        return None
    [(media_type, content)] = operation["requestBody"]["content"].items()
    assert media_type in {JSON_BODY, LINES}
    return media_type, resolved(document, content["schema"])


def lines_of(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


async def send_lines(client: AsyncClient, url: str, lines: bytes) -> Response:
    return await client.post(url, content=lines, headers={"content-type": LINES})


def require_valid(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    validator: Any = Draft202012Validator(schema | {"components": document["components"]})
    validator.validate(value)


async def test_every_route_is_described(document: dict[str, Any]) -> None:
    described = {f"{method.upper()} {path}" for method, path, _ in operations(document)}
    assert described == {
        "POST /v1/collections",
        "GET /v1/collections",
        "GET /v1/collections/{collection}",
        "PATCH /v1/collections/{collection}",
        "DELETE /v1/collections/{collection}",
        "POST /v1/collections/{collection}/documents",
        "GET /v1/collections/{collection}/documents",
        "POST /v1/collections/{collection}/documents/batch",
        "POST /v1/collections/{collection}/documents/delete",
        "PUT /v1/collections/{collection}/documents/{key}",
        "GET /v1/collections/{collection}/documents/{key}",
        "DELETE /v1/collections/{collection}/documents/{key}",
        "PUT /v1/collections/{collection}/document",
        "GET /v1/collections/{collection}/document",
        "DELETE /v1/collections/{collection}/document",
        "GET /v1/collections/{collection}/near-duplicates",
        "POST /v1/collections/{collection}/near-duplicates",
        "POST /v1/collections/{collection}/near-duplicates/batch",
        "POST /v1/collections/{collection}/import",
        "GET /v1/collections/{collection}/export",
        "POST /v1/collections/{collection}/analyses",
        "GET /v1/collections/{collection}/analyses",
        "GET /v1/collections/{collection}/analyses/{id}",
        "DELETE /v1/collections/{collection}/analyses/{id}",
        "POST /v1/collections/{collection}/analyses/{id}/cancel",
        "GET /v1/collections/{collection}/analyses/{id}/clusters",
        "GET /v1/collections/{collection}/analyses/{id}/clusters/{cluster}",
        "GET /v1/collections/{collection}/analyses/{id}/pairs",
        "GET /v1/collections/{collection}/analyses/{id}/documents",
        "GET /v1/collections/{collection}/analyses/{id}/differences",
        "GET /v1/collections/{collection}/exact-duplicates",
        "GET /v1/collections/{collection}/exact-duplicates/{content_hash}",
        "POST /v1/near-duplicates",
        "POST /v1/near-duplicates/batch",
        "POST /v1/fingerprints",
        "GET /v1/distance",
        "GET /v1/admin/layout",
        "POST /v1/admin/rebuilds",
        "GET /v1/admin/rebuilds",
        "GET /v1/admin/rebuilds/{id}",
        "POST /v1/admin/rebuilds/{id}/cancel",
        "POST /v1/admin/audits",
        "GET /v1/admin/audits",
        "GET /v1/admin/audits/{id}",
        "POST /v1/admin/audits/{id}/cancel",
        "GET /livez",
        "GET /readyz",
        "GET /version",
    }


async def test_every_operation_has_words_tags_and_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids: list[str] = []
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
        ids.append(operation["operationId"])
    assert len(set(ids)) == len(ids)


async def test_every_operation_documents_the_problems_that_it_answers(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        errors = {int(status): answer for status, answer in operation["responses"].items() if int(status) >= 400}
        expected: set[int] = set() if path in {"/livez", "/version"} else {422, 500, 503}
        if "requestBody" in operation:
            expected |= {413, 415}
            if JSON_BODY in operation["requestBody"]["content"]:  # what is wrong with lines is told in the answer
                expected |= {400}
        if path.startswith("/v1/collections/{collection}") and (method, path) not in MAKE_A_COLLECTION:
            expected |= {404}
        if path.startswith("/v1/near-duplicates") or "{id}" in path:
            expected |= {404}
        if path.endswith("/cancel") or (method, path) == ("post", "/v1/admin/rebuilds"):
            expected |= {409}
        if "/analyses/{id}" in path and (method, path) != ("get", "/v1/collections/{collection}/analyses/{id}"):
            expected |= {409}
        assert expected <= set(errors), (method, path)
        for status, answer in errors.items():
            assert set(answer["content"]) == {MEDIA_TYPE}, (method, path, status)
            assert resolved(document, answer["content"][MEDIA_TYPE]["schema"])["title"] == "Problem"
            codes = [code for code, (its_status, _) in PROBLEMS.items() if its_status == status]
            assert codes
            assert all(f"`{code}`" in answer["description"] for code in codes)
    assert "HTTPValidationError" not in document["components"]["schemas"]


async def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


async def test_every_required_parameter_has_an_example(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", []):
            if parameter["required"]:
                assert parameter["schema"].get("examples"), (method, path, parameter["name"])


async def test_the_examples_of_every_body_are_taken(client: AsyncClient, document: dict[str, Any]) -> None:
    tried = 0
    for collection in ("example", "crawl-41", "crawl-42"):
        await put(client, "lyon", collection=collection, text=text_of(30))
    for method, path, operation in operations(document):
        if (body := body_of(document, operation)) is None:
            continue
        media_type, schema = body
        assert schema.get("examples"), (method, path)
        if media_type == LINES:
            answer = await send_lines(client, path.replace("{collection}", "lines"), lines_of(*schema["examples"]))
            assert answer.is_success
            assert (answer.json()["created"], answer.json()["failed"]) == (len(schema["examples"]), 0)
            for example in schema["examples"]:
                require_valid(document, schema, example)
                tried += 1
            continue
        url = path.replace("{collection}", "example").replace("{key}", "a")
        for example in schema["examples"]:
            if path.endswith("/document"):
                url += "?key=a"
            assert (await send(client, method, url, example)).is_success, (method, path, example)
            require_valid(document, schema, example)
            tried += 1
    assert tried >= 14


async def test_the_examples_of_a_fingerprint_are_one_fingerprint(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["PostDocument"]["properties"]
    [fingerprint], [simhash] = (properties[name]["anyOf"][0]["examples"] for name in ("fingerprint", "simhash"))
    assert int(fingerprint, 16) == int(simhash)


REQUESTS: list[tuple[str, str, object]] = [
    ("POST", "/v1/collections", {"name": "new"}),
    ("POST", "/v1/collections", {"name": "new"}),
    ("POST", "/v1/collections", {"name": "new", "store_text": False}),
    ("GET", "/v1/collections?limit=1", None),
    ("GET", SHOP, None),
    ("POST", f"{SHOP}/documents", {"key": "b", "text": text_of(30), "metadata": {"n": [1]}}),
    ("POST", f"{SHOP}/documents", {"key": "b", "text": text_of(30)}),
    ("PUT", f"{SHOP}/documents/c?near_duplicates=false", {"text": ""}),
    ("PUT", f"{SHOP}/document?key=d", {"simhash": "0"}),
    ("GET", f"{SHOP}/documents/d", None),
    ("GET", f"{SHOP}/document?key=c", None),
    ("GET", f"{SHOP}/documents?limit=2", None),
    ("GET", f"{SHOP}/near-duplicates?key=b&explain=true", None),
    ("GET", f"{SHOP}/near-duplicates?key=nothing", None),
    ("POST", f"{SHOP}/near-duplicates", {"text": "oak", "explain": True}),
    ("POST", f"{SHOP}/near-duplicates", {"text": "oak", "limit": 0}),
    ("POST", "/v1/fingerprints", {"text": text_of(30)}),
    ("POST", "/v1/fingerprints", {"text": "oak"}),
    ("GET", "/v1/distance?a=0000000000000000&b=0000000000000001", None),
    ("GET", "/v1/distance?a=0&b=1", None),
    ("PATCH", SHOP, {"ttl": 3600}),
    ("PATCH", SHOP, {"ttl": 0}),
    ("PATCH", "/v1/collections/nothing", {"ttl": None}),
    ("POST", f"{SHOP}/documents/batch", {"documents": [{"key": "e", "text": "oak"}, {"key": "f", "simhash": "1"}]}),
    ("POST", f"{SHOP}/documents/batch", {"documents": []}),
    ("POST", f"{SHOP}/near-duplicates/batch", {"queries": [{"key": "b"}, {"text": "oak"}, {"simhash": "1"}]}),
    ("POST", f"{SHOP}/near-duplicates/batch", {"queries": [{"key": "nothing"}]}),
    ("POST", "/v1/near-duplicates", {"collections": ["shop"], "key": "b"}),
    ("POST", "/v1/near-duplicates", {"collections": ["shop", "new"], "text": text_of(30)}),
    ("POST", "/v1/near-duplicates", {"collections": ["shop", "nothing"], "text": text_of(30)}),
    ("POST", "/v1/near-duplicates/batch", {"collections": ["new", "shop"], "queries": [{"text": text_of(30)}]}),
    ("POST", f"{SHOP}/import", lines_of({"key": "g", "text": text_of(30)}, {"key": 1})),
    ("POST", f"{SHOP}/import?on_error=stop", lines_of({"key": "g", "text": text_of(30)})),
    ("GET", f"{SHOP}/export?text=true", None),
    ("GET", "/v1/collections/nothing/export", None),
    ("POST", f"{SHOP}/documents/delete", {"keys": ["e", "nothing"]}),
    ("POST", "/v1/collections/nothing/documents/delete", {"keys": ["e"]}),
    ("POST", f"{SHOP}/analyses", {"threshold": 3, "clusters": "star", "representative": "longest"}),
    ("POST", f"{SHOP}/analyses", {"against": "new"}),
    ("POST", f"{SHOP}/analyses", {"against": "nothing"}),
    ("GET", f"{SHOP}/analyses?limit=1", None),
    ("GET", f"{SHOP}/analyses/1", None),
    ("GET", f"{SHOP}/analyses/1/clusters", None),
    ("GET", f"{SHOP}/analyses/1/clusters/1", None),
    ("GET", f"{SHOP}/analyses/1/pairs", None),
    ("GET", f"{SHOP}/analyses/1/documents", None),
    ("GET", f"{SHOP}/analyses/2/differences", None),
    ("DELETE", f"{SHOP}/analyses/1", None),
    ("POST", f"{SHOP}/analyses/1/cancel", None),
    ("DELETE", f"{SHOP}/analyses/1", None),
    ("GET", f"{SHOP}/exact-duplicates", None),
    ("GET", f"{SHOP}/exact-duplicates/{'0' * 32}", None),
    ("DELETE", f"{SHOP}/documents/d", None),
    ("DELETE", f"{SHOP}/document?key=d", None),
    ("DELETE", "/v1/collections/new", None),
    ("GET", "/v1/admin/layout", None),
    ("POST", "/v1/admin/rebuilds", {"threshold": 7, "bands": None}),
    ("POST", "/v1/admin/rebuilds", {"threshold": 7}),
    ("POST", "/v1/admin/rebuilds", {"threshold": 64}),
    ("POST", "/v1/admin/audits", {"sample": 10}),
    ("POST", "/v1/admin/audits", {"sample": 0}),
    ("GET", "/v1/admin/rebuilds", None),
    ("GET", "/v1/admin/audits?limit=1", None),
    ("GET", "/v1/admin/rebuilds/1", None),
    ("GET", "/v1/admin/rebuilds/2147483647", None),
    ("GET", "/v1/admin/audits/0", None),
    ("GET", "/v1/admin/audits/1", None),
    ("POST", "/v1/admin/rebuilds/1/cancel", None),
    ("POST", "/v1/admin/rebuilds/1/cancel", None),
    ("POST", "/v1/admin/audits/1/cancel", None),
    ("GET", "/livez", None),
    ("GET", "/readyz", None),
    ("GET", "/version", None),
]


def _path_of(document: dict[str, Any], url: str) -> str:
    path = url.partition("?")[0]
    if path in document["paths"]:
        return path
    with_name = path.replace(path.split("/")[3], "{collection}", 1)
    if with_name in document["paths"]:
        return with_name
    _, _, group, _, *rest = path.split("/")
    if group == "admin":
        return "/".join([*path.split("/")[:4], "{id}", *rest[1:]])
    assert group == "collections"
    names = {
        "documents": ["{key}"],
        "analyses": ["{id}", *rest[2:3], "{cluster}"],
        "exact-duplicates": ["{content_hash}"],
    }
    return "/".join(["/v1/collections/{collection}", *rest[:1], *names[rest[0]][: len(rest) - 1]])


async def test_answers_are_as_described(client: AsyncClient, document: dict[str, Any]) -> None:
    await put(client, "a", text=text_of(30))
    seen: set[tuple[str, str]] = set()
    for method, url, body in REQUESTS:
        if isinstance(body, bytes):
            answer = await send_lines(client, url, body)
        else:
            answer = await (client.request(method, url) if body is None else send(client, method, url, body))
        path = _path_of(document, url)
        described = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
        seen.add((method.lower(), path))
        if answer.status_code == 204:
            assert (answer.content, "content" in described) == (b"", False)
            continue
        media_type = answer.headers["content-type"]
        content = described["content"][media_type]
        if media_type == LINES:  # described by the schema of the lines that an import takes
            assert content == {}
            _, line = body_of(document, document["paths"]["/v1/collections/{collection}/import"]["post"]) or ("", {})
            lines = answer.content.splitlines()
            assert len(lines) > 3
            for each in lines:
                require_valid(document, line, json.loads(each))
            continue
        require_valid(document, content["schema"], answer.json())
    assert seen == {(method, path) for method, path, _ in operations(document)}


async def test_a_parameter_that_nobody_knows_is_refused_by_every_route(
    client: AsyncClient, document: dict[str, Any]
) -> None:
    """A misspelt parameter that is ignored makes another answer without a word."""
    await put(client, "a", text=text_of(30))
    for method, path, operation in operations(document):
        if path in HEALTH:
            continue
        url = path.replace("{collection}", "shop").replace("{key}", "a").replace("{id}", "1")
        url = url.replace("{cluster}", "1").replace("{content_hash}", "0" * 32)
        known = "&".join(
            f"{parameter['name']}={parameter['schema']['examples'][0]}"
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query" and parameter["required"]
        )
        if path.endswith("near-duplicates") and method == "get":
            known = "key=a"
        body = body_of(document, operation)
        for name in ("treshold", "Key", "") if known else ("threshold_", "limit2"):
            unknown = f"{url}?{known}&{name}=3"
            if body is None:
                answer = await client.request(method, unknown)
            elif body[0] == LINES:
                answer = await send_lines(client, unknown, lines_of(*body[1]["examples"]))
            else:
                answer = await send(client, method, unknown, body[1]["examples"][0])
            assert_problem(answer, 422, "invalid_input", f"/{name}")


async def test_the_documentation_is_served(client: AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in answer.text


async def test_the_page_loads_nothing_from_elsewhere(client: AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    addresses = re.findall(r"""(?:src|href)=["'](.+?)["']|url: '(.+?)'""", page.text)
    paths = [one or other for one, other in addresses]
    assert len(paths) == 4
    for path in paths:
        assert path.startswith("/")
        assert (await client.get(path)).status_code == 200


async def test_the_root_leads_to_the_page(client: AsyncClient) -> None:
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
