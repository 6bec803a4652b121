"""What only a real socket can show: requests that are too large, cut off, or meant to stay private."""

import json
import socket
from collections.abc import Generator, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from httpx2 import Client
from service import Service, running, short_folder

LIMIT = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def service() -> Generator[Service]:
    with short_folder() as folder, running(data_dir=folder) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Generator[Client]:
    with service.client() as opened:
        yield opened


def resident_kilobytes(service: Service) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def still_serves(client: Client) -> bool:
    return client.put("/v1/collections/shop/documents/a", json={"text": "word " * 30}).status_code in {200, 201}


def get(service: Service, path: str) -> tuple[int, str | None, Any]:
    """Status, content type and JSON; the usual client refuses long URLs by itself."""
    connection = HTTPConnection("127.0.0.1", service.port)
    connection.request("GET", path)
    answer = connection.getresponse()
    with closing(connection):
        return answer.status, answer.getheader("content-type"), json.loads(answer.read())


@pytest.mark.parametrize("length", [65_600, 66_000, 131_000, 1_000_000])
def test_a_long_url_is_answered_with_the_way_out(service: Service, client: Client, length: int) -> None:
    status, content_type, problem = get(
        service, f"/v1/collections/shop/near-duplicates?text={'x' * length}&threshold=3"
    )
    assert (status, content_type) == (414, "application/problem+json")
    assert problem["code"] == "url_too_long"
    assert "POST" in problem["detail"]
    assert still_serves(client)


def test_a_url_of_60_000_characters_is_answered_in_full(service: Service, client: Client) -> None:
    assert still_serves(client)
    text = "+".join(f"w{number:05}" for number in range(8_500))
    status, _, answer = get(service, f"/v1/collections/shop/near-duplicates?text={text}&threshold=9")
    assert (status, answer["words"], answer["threshold"]) == (200, 8_500, 9)


def test_a_large_body_is_refused_before_it_is_read(service: Service, client: Client) -> None:
    assert still_serves(client)
    before = resident_kilobytes(service)

    def chunks() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 1024 * 1024

    headers = {"Content-Type": "application/json"}
    for extra in ({}, {"Content-Length": str(200 * 1024 * 1024)}):
        answer = client.post("/v1/collections/shop/documents", content=chunks(), headers=headers | extra)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "body_too_large"
    assert resident_kilobytes(service) - before < 2 * LIMIT // 1024
    assert still_serves(client)


def test_a_length_smaller_than_the_body_harms_nobody(service: Service, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(
            b"POST /v1/fingerprints HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"
            b'{"text": "a body that is longer than announced"}'
        )
        answers = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answers.startswith(b"HTTP/1.1 400")
    assert still_serves(client)


def test_clients_that_go_away_are_no_errors_of_ours(service: Service, client: Client) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", service.port)) as raw:
            raw.sendall(
                b"POST /v1/collections/gone/documents HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000000\r\n\r\n" + b'{"key": "x", "text": "' + b"x" * 10_000
            )
    assert still_serves(client)
    assert client.get("/v1/collections/gone").status_code == 404
    assert "Traceback" not in service.log
    assert " 500 " not in service.log


def test_what_is_no_http_is_answered_as_a_problem(service: Service, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"code": "bad_request"' in answer
    assert still_serves(client)


def test_texts_and_keys_stay_out_of_the_log(service: Service, client: Client) -> None:
    assert still_serves(client)  # and the collection exists
    private = "confidential-sentence"
    client.get("/v1/collections/shop/near-duplicates", params={"text": private, "unknown": private})
    client.get("/v1/collections/shop/near-duplicates", params={"text": private})
    client.get(f"/v1/collections/shop/documents/{private}")
    client.post("/v1/collections/shop/near-duplicates", json={"text": private, private: 1})
    client.post("/v1/collections/shop/documents", json={"key": f"{private}\0", "text": private})
    get(service, f"/v1/collections/shop/near-duplicates?text={private}{'x' * 70_000}")
    client.get("/version")
    assert service.logs("GET /version 200")  # the last of them, so all are there
    assert "GET /v1/collections/{collection}/near-duplicates 200" in service.log
    assert private not in service.log


def test_a_wish_for_another_protocol_is_ignored_and_the_body_read(service: Service, client: Client) -> None:
    """Clients of HTTP/2 send it along; what follows must be neither lost nor taken for the next request."""
    body = json.dumps({"text": "an upgrade " * 20}).encode()
    head = (
        b"PUT /v1/collections/shop/documents/upgrade HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    for pieces in ([head + body], [head, body], [head[:50], head[50:] + body[:10], body[10:]]):
        client.delete("/v1/collections/shop/documents/upgrade")
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as raw:
            for piece in pieces:
                raw.sendall(piece)
                sleep(0.05)
            assert raw.recv(65536).startswith(b"HTTP/1.1 201")
    smuggled = b"DELETE /v1/collections/shop/documents/upgrade HTTP/1.1\r\nHost: t\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as raw:
        raw.sendall(head.replace(str(len(body)).encode(), str(len(smuggled)).encode()))
        sleep(0.05)
        raw.sendall(smuggled)
        assert raw.recv(65536).startswith(b"HTTP/1.1 400")
    assert client.get("/v1/collections/shop/documents/upgrade").status_code == 200


def test_a_million_unknown_members_are_one_error(client: Client) -> None:
    body = "{" + ",".join(f'"{number}":1' for number in range(1_000_000)) + "}"
    answer = client.post("/v1/collections/shop/documents", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert len(answer.content) < 1000
