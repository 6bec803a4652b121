"""What is logged of a request: its route, status and time. Never a text, a key, metadata or a URL."""

import logging
import traceback
from collections.abc import Generator
from urllib.parse import quote

import pytest
from httpx2 import AsyncClient

from app.settings import Settings
from tests.api.support import execute, locked, put, send, text_of
from tests.conftest import client_of

SHOP = "/v1/collections/shop"
PRIVATE = "my private sentence of seven words exactly"
API_KEY = "sk-1234567890"
SECRETS = (PRIVATE, quote(PRIVATE), "private", API_KEY)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Generator[pytest.LogCaptureFixture]:
    """At the default level of the service."""
    with caplog.at_level(logging.INFO):
        yield caplog


def assert_no_secrets(log: pytest.LogCaptureFixture) -> None:
    for record in log.records:
        if record.name.startswith("httpx2"):  # the client of these tests
            continue
        said = record.getMessage() + ("".join(traceback.format_exception(*record.exc_info)) if record.exc_info else "")
        assert not [secret for secret in SECRETS if secret in said], said


def access_lines(log: pytest.LogCaptureFixture) -> list[str]:
    """Without their times."""
    return [record.getMessage().rsplit(" ", 2)[0] for record in log.records if record.name == "app.access"]


async def test_a_line_names_method_route_status_and_time(client: AsyncClient, log: pytest.LogCaptureFixture) -> None:
    await put(client, "a", text=text_of(30))
    await client.get(f"{SHOP}/documents/a")
    await client.get(f"{SHOP}/documents/b")
    await client.get("/v1/distance?a=0&b=0")
    await client.get("/nothing")
    await client.put(SHOP)
    await client.get("/livez?a=1&a=2")
    assert access_lines(log) == [
        "PUT /v1/collections/{collection}/document 201",
        "GET /v1/collections/{collection}/documents/{key} 200",
        "GET /v1/collections/{collection}/documents/{key} 404",
        "GET /v1/distance 422",
        "GET - 404",
        "PUT /v1/collections/{collection} 405",
        "GET - 422",
    ]


async def test_texts_keys_and_urls_are_not_logged(client: AsyncClient, log: pytest.LogCaptureFixture) -> None:
    encoded = quote(PRIVATE)
    for status, method, url in [
        (404, "GET", f"{SHOP}/near-duplicates?text={encoded}"),
        (422, "GET", f"{SHOP}/near-duplicates?text={encoded}&api_key={API_KEY}"),
        (422, "GET", f"{SHOP}/near-duplicates?fingerprint={encoded}"),
        (422, "GET", f"{SHOP}/near-duplicates?text={encoded}&text={API_KEY}"),
        (422, "GET", f"{SHOP}/near-duplicates?text={encoded}%ff"),
        (404, "GET", f"{SHOP}/documents/{encoded}"),
        (404, "DELETE", f"{SHOP}/document?key={encoded}"),
        (422, "GET", f"/v1/collections/{encoded}"),
        (404, "GET", f"/{encoded}"),
    ]:
        assert (await client.request(method, url)).status_code == status
    for status, method, url, body in [
        (201, "PUT", f"{SHOP}/documents/{encoded}", {"text": PRIVATE, "metadata": {API_KEY: PRIVATE}}),
        (200, "POST", f"{SHOP}/near-duplicates", {"text": PRIVATE}),
        (200, "POST", f"{SHOP}/near-duplicates", {"key": PRIVATE}),
        (422, "POST", f"{SHOP}/near-duplicates", {"text": f"{PRIVATE}\0"}),
        (422, "POST", f"{SHOP}/documents", {"key": 1, "text": PRIVATE, API_KEY: PRIVATE}),
        (200, "POST", "/v1/fingerprints", {"text": PRIVATE}),
        (422, "POST", "/v1/collections", {"name": PRIVATE}),
    ]:
        assert (await send(client, method, url, body)).status_code == status
    assert (await client.post(f"{SHOP}/documents", content=f'{{"text": "{PRIVATE}'.encode())).status_code == 415
    assert len(access_lines(log)) == 17
    assert_no_secrets(log)


async def test_texts_and_keys_are_not_logged_when_the_database_times_out(
    settings: Settings, database: str, log: pytest.LogCaptureFixture
) -> None:
    async with client_of(settings.model_copy(update={"lock_timeout": 0.05})) as client:
        await put(client, "a", text=text_of(30))
        with locked(database, "document"):
            answer = await send(client, "PUT", f"{SHOP}/documents/{quote(PRIVATE)}", {"text": PRIVATE})
        assert answer.status_code == 503
    assert_no_secrets(log)
    assert "query_timeout: LockNotAvailable" in [record.getMessage() for record in log.records]


async def test_a_defect_that_postgresql_reports_quotes_no_rows(
    settings: Settings, database: str, log: pytest.LogCaptureFixture
) -> None:
    """The server that runs the application logs what it raises; PostgreSQL's details hold the row that it refuses."""
    execute(database, "ALTER TABLE document ADD CONSTRAINT nothing_goes CHECK (false) NOT VALID")
    async with client_of(settings, raise_app_exceptions=True) as client:
        with pytest.raises(Exception, match="nothing_goes") as raised:
            await send(client, "PUT", f"{SHOP}/documents/{quote(PRIVATE)}", {"text": PRIVATE})
    said = "".join(traceback.format_exception(raised.value))
    assert "CheckViolation 23514" in said
    assert "in _index" in said, "the traceback leads to the use-case"
    assert not [secret for secret in SECRETS if secret in said], said
    assert_no_secrets(log)
    assert access_lines(log) == ["PUT /v1/collections/{collection}/documents/{key} 500"]
