"""Imports and exports that something comes between: signals, crashes, other clients, bodies without end."""

import gzip
import json
import os
import signal
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import chain, islice, repeat
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from httpx2 import Client, HTTPError, Response
from service import PATIENCE, ROOT, Service, eventually, execute, new_database, running

from app.client import Tiroir
from app.postgres.embedded import EmbeddedPostgres

REVISIONS = ROOT / "tests" / "data" / "revisions.jsonl.gz"
CHUNK = 4000  # lines that are written in one transaction
BATCH = 1000  # documents of a request
SHUTDOWN = 1  # second
MEGABYTE = 1024 * 1024
MOST_MEGABYTES = 250
LINES = {"Content-Type": "application/x-ndjson"}
COMPRESSED = LINES | {"Content-Encoding": "gzip"}


def line(number: int) -> bytes:
    """A document whose fingerprint has nothing in common with the next one's."""
    return b'{"key": "%06d", "fingerprint": "%016x"}\n' % (number, fingerprint(number))


def fingerprint(number: int) -> int:
    return Random(number).getrandbits(63)


def lines(first: int, end: int) -> Iterator[bytes]:
    """Parts of a body."""
    for number in range(first, end, 100):
        yield b"".join(map(line, range(number, min(number + 100, end))))


def imported(client: Client, collection: str, body: Iterable[bytes] | bytes, **headers: str) -> Response:
    return client.post(f"/v1/collections/{collection}/import", content=body, headers=LINES | headers)


def exported(service: Service, collection: str) -> bytes:
    with Tiroir(service.url) as tiroir:
        return b"\n".join(tiroir.export(collection, text=True))


def stored(dsn: str) -> int:
    [(count,)] = execute(dsn, "SELECT count(*) FROM document")
    return int(count)


class Held:
    """A body whose rest is only sent when it is released."""

    def __init__(self, begun: Iterable[bytes], rest: Iterable[bytes] = ()) -> None:
        self._begun = begun
        self._rest = rest
        self._released = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._begun
        self._released.wait(PATIENCE)
        yield from self._rest

    def release(self) -> None:
        self._released.set()


@contextmanager
def sending(service: Service, collection: str, body: Held) -> Generator[list[int]]:
    """An import in a thread, until the end of the block; its status is there then, if it was answered."""
    statuses: list[int] = []

    def send() -> None:
        with service.client() as client, suppress(HTTPError):
            statuses.append(imported(client, collection, body).status_code)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield statuses
    finally:
        body.release()
        thread.join()


@pytest.fixture(scope="module")
def dsn(server: EmbeddedPostgres) -> str:
    return new_database(server, "imports")


@pytest.fixture(scope="module")
def service(dsn: str) -> Generator[Service]:
    with running(database_url=dsn, run_operations="false") as started:
        yield started


@pytest.fixture
def client(service: Service) -> Generator[Client]:
    with service.client() as opened:
        yield opened


# Signals and crashes


def test_an_import_that_a_crash_ended_is_made_whole_by_another_one(server: EmbeddedPostgres) -> None:
    dsn = new_database(server, "killed")
    with running(database_url=dsn, run_operations="false") as service:
        body = Held(lines(0, 9000), lines(9000, 20_000))
        with sending(service, "shop", body) as statuses:
            eventually(lambda: stored(dsn) > 0)
            service.process.kill()
            service.wait()
        assert statuses == []
    assert stored(dsn) in {CHUNK, 2 * CHUNK}
    with running(database_url=dsn, run_operations="false") as service, service.client() as client:
        again = imported(client, "shop", lines(0, 20_000)).raise_for_status().json()
        assert (again["lines"], again["created"] + again["unchanged"], again["failed"]) == (20_000, 20_000, 0)
        assert again["unchanged"] in {CHUNK, 2 * CHUNK}
        assert imported(client, "elsewhere", lines(0, 20_000)).json()["created"] == 20_000
        assert exported(service, "shop") == exported(service, "elsewhere")


def test_an_import_that_an_outage_ended_says_how_far_it_came(postgres: EmbeddedPostgres) -> None:
    with running(database_url=postgres.dsn(), run_operations="false", pool_timeout=0.5) as service:
        body = Held(lines(0, 9000), lines(9000, 20_000))
        with sending(service, "shop", body) as statuses:
            eventually(lambda: stored(postgres.dsn()) == 2 * CHUNK)
            postgres.stop()
        assert statuses == [503]
        postgres.start()
        service.wait_until_ready()
        with service.client() as client:
            again = imported(client, "shop", lines(0, 20_000)).raise_for_status().json()
            assert (again["unchanged"], again["created"]) == (2 * CHUNK, 20_000 - 2 * CHUNK)
    assert "Traceback" not in service.log
    assert "never retrieved" not in service.log


@contextmanager
def locked(dsn: str) -> Generator[Callable[[], None]]:
    """Documents can't be written until the function is called, or the block ends."""
    with psycopg.connect(dsn) as connection:
        connection.execute("LOCK TABLE document IN SHARE MODE")
        yield connection.rollback


def waiting_for_a_lock(dsn: str) -> int:
    return len(execute(dsn, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@pytest.mark.parametrize("in_time", [True, False], ids=["in time", "too slow"])
def test_a_stop_within_a_batch_leaves_all_of_it_or_nothing(server: EmbeddedPostgres, in_time: bool) -> None:
    """HT-08: a batch and the chunk of an import, each of them in a transaction that waits when the signal comes."""
    dsn = new_database(server, "stopped_in_time" if in_time else "stopped_too_slow")
    documents = list(map(line, range(BATCH)))
    bodies = {
        "batch/documents/batch": ("application/json", b'{"documents": [' + b",".join(documents) + b"]}"),
        "lines/import": (LINES["Content-Type"], b"".join(documents)),
    }
    statuses: list[int] = []

    def send(path: str) -> None:
        kind, body = bodies[path]
        with service.client() as client, suppress(HTTPError):
            answer = client.post(f"/v1/collections/{path}", content=body, headers={"Content-Type": kind})
            statuses.append(answer.status_code)

    with running(database_url=dsn, run_operations="false", shutdown_timeout=SHUTDOWN) as service:
        with service.client() as client:
            for name in ("batch", "lines"):
                client.post("/v1/collections", json={"name": name}).raise_for_status()
        with ThreadPoolExecutor() as threads, locked(dsn) as unlock:
            sent = [threads.submit(send, path) for path in bodies]
            eventually(lambda: waiting_for_a_lock(dsn) == 2)
            service.process.send_signal(signal.SIGTERM)
            if in_time:
                assert service.logs("Shutting down")
                unlock()
            assert service.wait() == 0
            for each in sent:
                each.result()
    assert (stored(dsn), statuses == [200, 200]) == ((2 * BATCH, True) if in_time else (0, False))
    assert "Traceback" not in service.log or not in_time  # what is broken off is told


def test_a_stop_need_not_wait_for_who_reads_an_export_slowly(server: EmbeddedPostgres) -> None:
    """HT-08."""
    dsn = new_database(server, "slow_reader")
    with running(database_url=dsn, run_operations="false", shutdown_timeout=SHUTDOWN) as service:
        with service.client() as client:
            documents = (json.dumps({"key": f"{each}", "text": "word " * 40_000}) + "\n" for each in range(60))
            imported(client, "shop", map(str.encode, documents)).raise_for_status()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", service.port))
            reader.sendall(b"GET /v1/collections/shop/export?text=true HTTP/1.1\r\nHost: t\r\n\r\n")
            assert reader.recv(1000).startswith(b"HTTP/1.1 200")
            assert service.stop() == 0
            received = sum(map(len, iter(lambda: received_from(reader), b"")))
        assert received < 60 * 200_000


def received_from(connection: socket.socket) -> bytes:
    with suppress(ConnectionResetError):
        return connection.recv(65_536)
    return b""


# Others meanwhile


@contextmanager
def meanwhile(clients: int, ask: Callable[[Client, int], None], service: Service) -> Generator[Counter[str]]:
    """Several clients ask again and again until the end of the block; how often, and what went wrong."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def work(number: int) -> None:
        with service.client() as client:
            while not over.is_set():
                try:
                    ask(client, number)
                except (AssertionError, HTTPError) as error:
                    seen[repr(error)] += 1
                else:
                    seen["right"] += 1
                number += clients

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_what_was_there_before_is_found_all_through_an_import(service: Service, client: Client) -> None:
    before = 500
    imported(client, "busy", lines(0, before)).raise_for_status()

    def look_up(asking: Client, number: int) -> None:
        known = number % before
        query = {"fingerprint": f"{fingerprint(known) ^ (1 << number % 60):016x}", "threshold": 3, "limit": 100}
        answer = asking.post("/v1/collections/busy/near-duplicates", json=query)
        assert answer.status_code == 200, answer.text
        found = {match["key"]: match["distance"] for match in answer.json()["matches"]}
        assert found.get(f"{known:06}") == 1, found

    with meanwhile(4, look_up, service) as seen:
        answer = imported(client, "busy", chain(lines(before, 15_000), lines(0, before))).raise_for_status().json()
    assert (answer["created"], answer["unchanged"], answer["failed"]) == (14_500, before, 0)
    assert set(seen) == {"right"}, seen
    assert seen["right"] > 20


def test_large_writes_keep_nobody_else_waiting_for_ever(service: Service, client: Client) -> None:
    """HT-04: ten texts of 5 MB and an import at once; every 100 ms the service is asked whether it lives."""
    words = " ".join(f"word{number % 5000:06}" for number in range(5 * MEGABYTE // 11))
    imported(client, "large", lines(0, 100)).raise_for_status()
    pause = threading.Event()

    def live(asking: Client, _: int) -> None:
        assert asking.get("/livez").status_code == 200
        pause.wait(0.1)

    def look_up(asking: Client, number: int) -> None:
        query = {"fingerprint": f"{fingerprint(number % 100):016x}", "threshold": 0}
        answer = asking.post("/v1/collections/large/near-duplicates", json=query)
        assert answer.status_code == 200, answer.text
        assert [match["key"] for match in answer.json()["matches"]] == [f"{number % 100:06}"]

    def write(number: int) -> int:
        with service.client() as writing:
            path = f"/v1/collections/large/documents/large-{number}"
            return writing.put(path, json={"text": words, "metadata": {"of": number}}).status_code

    with (
        ThreadPoolExecutor(11) as threads,
        meanwhile(1, live, service) as lives,
        meanwhile(1, look_up, service) as lookups,
    ):
        importing = threads.submit(imported, client, "large", lines(100, 5000))
        written = list(threads.map(write, range(10)))
        assert importing.result().json()["created"] == 4900
    assert written == [201] * 10
    assert set(lives) == set(lookups) == {"right"}, (lives, lookups)


@pytest.mark.parametrize("route", ["documents", "documents/batch", "import"])
def test_clients_that_go_away_leave_nothing_behind(service: Service, client: Client, route: str) -> None:
    """HT-06."""
    collection = f"gone-{route.replace('/', '-')}"
    body = {
        "documents": b'{"key": "x", "text": "' + b"x" * 10_000,
        "documents/batch": b'{"documents": [' + b",".join(map(line, range(200))),
        "import": b"".join(map(line, range(200))),
    }[route]
    kind = LINES["Content-Type"] if route == "import" else "application/json"
    head = (
        f"POST /v1/collections/{collection}/{route} HTTP/1.1\r\nHost: t\r\n"
        f"Content-Type: {kind}\r\nContent-Length: 1000000\r\n\r\n"
    )
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", service.port)) as raw:
            raw.sendall(head.encode() + body)
    assert client.put(f"/v1/collections/{collection}-after/documents/a", json={"text": "text"}).status_code == 201
    assert client.get(f"/v1/collections/{collection}").status_code == 404
    assert "Traceback" not in service.log
    assert " 500 " not in service.log


# Memory


@pytest.fixture(scope="module")
def measured(server: EmbeddedPostgres) -> Generator[Service]:
    """A service that does nothing else."""
    with running(database_url=new_database(server, "measured"), run_operations="false") as started:
        yield started


def most_megabytes(service: Service) -> float:
    """That the process has ever had in memory."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_an_import_of_any_length_needs_the_same_memory(measured: Service, tmp_path: Path) -> None:
    """40 MB of real texts; 2 GB with TIROIR_LONG=1."""
    size = 2048 * MEGABYTE if os.environ.get("TIROIR_LONG") == "1" else 40 * MEGABYTE
    revisions = [json.loads(each) for each in gzip.decompress(REVISIONS.read_bytes()).splitlines()]
    file = tmp_path / "revisions.ndjson"
    documents = 0
    with file.open("wb") as writing:
        while writing.tell() < size:
            text = revisions[documents % len(revisions)]["text"]
            writing.write(json.dumps({"key": f"{documents:08}", "text": f"{documents} {text}"}).encode() + b"\n")
            documents += 1
    with file.open("rb") as reading, Client(base_url=measured.url, timeout=None) as client:
        answer = imported(client, "revisions", iter(lambda: reading.read(MEGABYTE), b"")).raise_for_status().json()
    assert (answer["created"], answer["failed"], answer["complete"]) == (documents, 0, True)
    with Tiroir(measured.url, timeout=PATIENCE) as tiroir:
        assert sum(1 for _ in tiroir.export("revisions", text=True)) == documents
    assert most_megabytes(measured) < MOST_MEGABYTES


def compressed(parts: Iterable[bytes]) -> bytes:
    compressor = zlib.compressobj(9, wbits=31)
    return b"".join(map(compressor.compress, parts)) + compressor.flush()


BOMBS: dict[str, tuple[bytes, int, int]] = {
    "one line": (b"x" * MEGABYTE, 300, 1),
    "blank lines": (b"\n" * MEGABYTE, 3, 0),
    "lines that are no documents": (b"{}\n" * 50_000, 4, 200_000),
}
"""What is repeated, how often, and how many lines fail."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_few_bytes_that_hold_very_many_are_answered(measured: Service, bomb: str) -> None:
    part, times, failed = BOMBS[bomb]
    with measured.client() as client:
        answer = imported(client, "bomb", compressed(repeat(part, times)), **{"Content-Encoding": "gzip"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["created"], answer.json()["failed"]) == (0, failed)
        assert client.get("/v1/collections/bomb").status_code == 404
    assert most_megabytes(measured) < MOST_MEGABYTES


def test_a_line_of_100_megabytes_is_passed_over(measured: Service) -> None:
    body = chain([line(0), b'{"key": "long", "text": "'], repeat(b"word " * 200_000, 100), [b'"}\n', line(1)])
    with measured.client() as client:
        answer = imported(client, "long-line", body).raise_for_status().json()
    assert (answer["lines"], answer["created"], answer["failed"]) == (3, 2, 1)
    assert [(error["line"], error["code"]) for error in answer["errors"]] == [(2, "line_too_long")]
    assert most_megabytes(measured) < MOST_MEGABYTES


def test_memory_depends_neither_on_what_is_stored_nor_on_what_was_asked(server: EmbeddedPostgres) -> None:
    """SK-09, in a small size: five times as many documents, and 30,000 lookups."""
    asked = {"queries": [{"fingerprint": f"{fingerprint(number):016x}"} for number in range(1000)], "threshold": 3}
    with (
        running(database_url=new_database(server, "flat"), run_operations="false") as service,
        service.client() as client,
    ):

        def ask(times: int) -> None:
            for _ in range(times):
                answer = client.post("/v1/collections/flat/near-duplicates/batch", json=asked).raise_for_status()
                assert answer.text.count('"distance":0') == 1000

        imported(client, "flat", lines(0, 12_000)).raise_for_status()
        ask(5)
        before = most_megabytes(service)
        imported(client, "flat", lines(12_000, 60_000)).raise_for_status()
        ask(30)
        assert most_megabytes(service) < before + 20


# What PostgreSQL makes of it


def test_right_after_an_import_lookups_probe(server: EmbeddedPostgres) -> None:
    """DB-03: the database was empty, and nothing has analyzed it."""
    documents, lookups = 20_000, 50
    dsn = new_database(server, "just_imported")
    with running(database_url=dsn, run_operations="false") as service, service.client() as client:
        imported(client, "shop", lines(0, documents)).raise_for_status()
        for number in range(lookups):
            query: dict[str, Any] = {"fingerprint": f"{fingerprint(number):016x}", "threshold": 3, "explain": True}
            answer = client.post("/v1/collections/shop/near-duplicates", json=query).raise_for_status().json()
            assert [match["key"] for match in answer["matches"]] == [f"{number:06}"]
            assert not answer["plan"]["scan"]
        [(plan,)] = execute(dsn, "EXPLAIN (FORMAT JSON) SELECT FROM fingerprint WHERE collection_id = 1")
    # A session tells what it has read when it ends.
    [(all_read,)] = execute(dsn, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'fingerprint'")
    assert all_read < documents
    [(probed,)] = execute(
        dsn, "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname LIKE 'fingerprint_b%'"
    )
    assert 0 < probed < lookups * 100
    assert documents / 10 < plan[0]["Plan"]["Plan Rows"] < documents * 10


def test_an_import_by_the_plainest_client_is_answered_while_it_is_sent(service: Service) -> None:
    """A client that reads nothing before it has sent all isn't kept waiting, whatever the answer is."""
    connection = HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
    body = chain([b"nonsense\n"], islice(repeat(line(0) * 1000), 500))
    connection.request("POST", "/v1/collections/plain/import?on_error=abort", body, LINES, encode_chunked=True)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert (answer["complete"], answer["failed"], answer["created"]) == (False, 1, 0)
