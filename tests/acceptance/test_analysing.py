"""Analyses by the real process: killed, canceled and written to, collections deleted under them, pages by the thousand.

What they find stands beside all pairs of fingerprints, compared one row after the other. TIROIR_LONG=1 makes the
collection of identical pages as large as the issue has it.
"""

import csv
import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import chain
from random import Random
from time import monotonic, sleep
from typing import Any

import numpy as np
import psycopg
import pytest
from httpx2 import Client
from psycopg import sql
from service import PATIENCE, Service, eventually, execute, new_database, running, stopped_at_the_end

from app.postgres.embedded import EmbeddedPostgres

LONG = os.environ.get("TIROIR_LONG") == "1"
BITS = 63
PAGE = 1000
TEXT = " ".join(f"word{number}" for number in range(60))

# A table that an analysis comes to in a phase, and not before, if an earlier one is there for it to go on from.
COMES_TO = {"pairing": "analysis_block", "writing": "analysis_cluster"}


def hex_of(fingerprint: int) -> str:
    return f"{fingerprint:016x}"


def families(random: Random, size: int) -> list[int]:
    """Fingerprints a few bits from one another, chains among them; some are equal."""
    found: list[int] = []
    while len(found) < size:
        at = random.getrandbits(BITS)
        for _ in range(random.randint(1, 6)):
            found.append(at)
            for bit in random.sample(range(BITS), random.choice((0, 1, 2, 3, 3, 4, 6))):
                at ^= 1 << bit
    return found[:size]


# What all pairs say

Pairs = dict[tuple[int, int], int]
"""Two distinct fingerprints, the lower one first, and their distance."""


def pairs_of(fingerprints: Iterable[int], threshold: int) -> Pairs:
    values = np.array(sorted(set(fingerprints)), np.uint64)
    found: Pairs = {}
    for row in range(len(values)):
        apart = np.bitwise_count(values[row + 1 :] ^ values[row])
        for other in np.flatnonzero(apart <= threshold).tolist():
            found[int(values[row]), int(values[row + 1 + other])] = int(apart[other])
    return found


def clusters_of(stored: dict[str, int], pairs: Pairs) -> set[frozenset[str]]:
    """Documents that a chain of pairs connects, and those that share a fingerprint: more than one."""
    keys: defaultdict[int, set[str]] = defaultdict(set)
    for key, fingerprint in stored.items():
        keys[fingerprint].add(key)
    near: defaultdict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    found: set[frozenset[str]] = set()
    left = set(keys)
    while left:
        reached, ahead = set[int](), {left.pop()}
        while ahead:
            at = ahead.pop()
            reached.add(at)
            ahead |= near[at] - reached
        left -= reached
        cluster = frozenset[str]().union(*(keys[each] for each in reached))
        if len(cluster) > 1:
            found.add(cluster)
    return found


# What an analysis says


def imported(client: Client, collection: str, documents: Iterable[dict[str, str]]) -> None:
    lines = (json.dumps(document).encode() + b"\n" for document in documents)
    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.post(f"/v1/collections/{collection}/import", content=lines, headers=headers).raise_for_status()
    assert (answer.json()["failed"], answer.json()["complete"]) == (0, True)


def with_fingerprints(stored: dict[str, int]) -> Iterable[dict[str, str]]:
    return ({"key": key, "fingerprint": hex_of(fingerprint)} for key, fingerprint in stored.items())


def begun(client: Client, collection: str, threshold: int = 3) -> str:
    """The URL of an analysis."""
    answer = client.post(f"/v1/collections/{collection}/analyses", json={"threshold": threshold})
    return answer.raise_for_status().headers["location"]


def number_of(url: str) -> int:
    return int(url.rpartition("/")[2])


def finished(client: Client, url: str) -> dict[str, Any]:
    deadline = monotonic() + PATIENCE
    while True:
        operation = client.get(url).raise_for_status().json()
        if operation["finished_at"] is not None:
            return operation
        assert monotonic() < deadline, operation
        sleep(0.05)


def result_of(client: Client, url: str) -> dict[str, Any]:
    operation = finished(client, url)
    assert operation["status"] == "succeeded", operation
    return operation["result"]


def reaches(client: Client, url: str, phase: str) -> None:
    eventually(lambda: client.get(url).raise_for_status().json()["progress"]["phase"] == phase)


def lines(client: Client, url: str) -> list[dict[str, Any]]:
    """A stream to its end."""
    answer = client.get(url, headers={"Accept": "application/x-ndjson"}).raise_for_status()
    return [json.loads(line) for line in answer.text.splitlines()]


def table(client: Client, url: str) -> list[dict[str, str]]:
    answer = client.get(url, headers={"Accept": "text/csv"}).raise_for_status()
    return list(csv.DictReader(StringIO(answer.text, newline="")))


def pages(client: Client, url: str) -> list[Any]:
    """The items of all pages, cursor by cursor."""
    items: list[Any] = []
    parameters = {"limit": str(PAGE)}
    while True:
        page = client.get(url, params=parameters).raise_for_status().json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert len(page["items"]) == PAGE
        parameters["cursor"] = page["next_cursor"]


def clusters(listed: Iterable[dict[str, Any]]) -> set[frozenset[str]]:
    members: defaultdict[int, list[str]] = defaultdict(list)
    for each in listed:
        members[each["cluster"]].append(each["key"])
    assert all(len(keys) == len(set(keys)) for keys in members.values())
    return {frozenset(keys) for keys in members.values()}


def distinct(listed: Sequence[dict[str, Any]]) -> Pairs:
    """The pairs of distinct fingerprints, none of which is listed twice."""
    two = [each for each in listed if each["b"] is not None]
    found: Pairs = {}
    for each in two:
        a, b = sorted(int(each[side]["fingerprint"], 16) for side in "ab")
        found[a, b] = each["distance"]
    assert len(found) == len(two)
    return found


def require_brute_force(client: Client, url: str, stored: dict[str, int], threshold: int) -> None:
    result, expected = result_of(client, url), pairs_of(stored.values(), threshold)
    documents = Counter(stored.values())
    shared = {hex_of(fingerprint): count for fingerprint, count in documents.items() if count > 1}
    listed = lines(client, f"{url}/pairs")
    assert distinct(listed) == expected
    assert {each["a"]["fingerprint"]: each["a"]["documents"] for each in listed if each["b"] is None} == shared
    together = clusters_of(stored, expected)
    assert clusters(lines(client, f"{url}/clusters")) == together
    flagged = [each["key"] for each in lines(client, f"{url}/documents")]
    assert sorted(flagged) == sorted(key for cluster in together for key in cluster)
    apart = Counter(expected.values())
    assert result["histogram"] == [apart[away] + (len(shared) if away == 0 else 0) for away in range(threshold + 1)]
    assert (result["documents"], result["fingerprints"]) == (len(stored), len(documents))
    assert (result["clusters"], result["near_duplicated"]) == (len(together), len(flagged))
    assert result["pairs"] == len(listed)


def waits_for_a_lock(dsn: str) -> bool:
    return execute(dsn, WAITING) != []


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def in_tables(dsn: str) -> set[int]:
    """The analyses of which there are rows of whatever kind, that of the operation left aside."""
    return {number for (number,) in execute(dsn, IN_TABLES)}


IN_TABLES = """
    SELECT id FROM analysis UNION
    SELECT analysis_id FROM analysis_cluster UNION
    SELECT analysis_id FROM analysis_fingerprint UNION
    SELECT analysis_id FROM analysis_block UNION
    SELECT analysis_id FROM analysis_difference
    """


@contextmanager
def held(dsn: str, phase: str) -> Generator[None]:
    """Whoever comes to this phase waits there until the end of the block."""
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(COMES_TO[phase])))
        yield
        connection.rollback()


@pytest.fixture(scope="module")
def dsn(server: EmbeddedPostgres) -> str:
    return new_database(server, "analyses")


@pytest.fixture(scope="module")
def service(dsn: str) -> Generator[Service]:
    with running(database_url=dsn) as started:
        yield started
    assert "Traceback" not in started.log
    assert "a defect" not in started.log


@pytest.fixture
def client(service: Service) -> Generator[Client]:
    with service.client() as opened:
        yield opened


# Crashes


def test_an_analysis_whose_process_is_killed_begins_anew_and_leaves_nothing_of_before(server: EmbeddedPostgres) -> None:
    """Killed twice: while it seeks pairs, and when it has written a part of what it has found."""
    dsn = new_database(server, "analyses_killed")
    stored = {f"page-{number:05}": each for number, each in enumerate(families(Random(1), 3000))}
    service = Service((), database_url=dsn)
    with stopped_at_the_end(service.start().wait_until_ready()), service.client() as client:
        imported(client, "shop", with_fingerprints(stored))
        earlier = begun(client, "shop", threshold=5)
        result_of(client, earlier)
        with held(dsn, "pairing"):
            url = begun(client, "shop")
            reaches(client, url, "pairing")
            service.stop(signal.SIGKILL)
    with held(dsn, "writing"), stopped_at_the_end(service.start().wait_until_ready()), service.client() as client:
        reaches(client, url, "writing")
        eventually(lambda: waits_for_a_lock(dsn))
        service.stop(signal.SIGKILL)
    with stopped_at_the_end(service.start().wait_until_ready()), service.client() as client:
        require_brute_force(client, url, stored, 3)
        require_brute_force(client, earlier, stored, 5)
        assert execute(dsn, "SELECT runs FROM operation ORDER BY id") == [(1,), (3,)]
        assert in_tables(dsn) == {number_of(earlier), number_of(url)}
    assert "a defect" not in service.log


# Others meanwhile

NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass
class Life:
    """Of a document: its fingerprint, and between which times it came and went."""

    fingerprint: int
    coming: datetime
    came: datetime = NEVER
    going: datetime = NEVER
    gone: datetime = NEVER

    def is_surely_there(self, at: datetime) -> bool:
        return self.came < at < self.going

    def may_be_there(self, at: datetime) -> bool:
        return self.coming <= at <= self.gone


# Between the snapshot and the moment that is read within it others may run.
BLUR = timedelta(seconds=0.2)


@contextmanager
def written_to(service: Service, collection: str, stored: dict[str, int]) -> Generator[dict[str, Life]]:
    """Two clients create documents and delete them until the end of the block; those of before stay or go, too."""
    long_ago = datetime.now(UTC)
    lives = {key: Life(fingerprint, long_ago, long_ago) for key, fingerprint in stored.items()}
    over = threading.Event()

    def write(number: int) -> None:
        random = Random(number)
        ours = [key for place, key in enumerate(stored) if place % 2 == number]
        fresh = families(random, 20_000)
        with service.client() as client:
            while not over.is_set():
                key, fingerprint = f"new-{number}-{len(fresh):05}", fresh.pop()
                life = lives[key] = Life(fingerprint, datetime.now(UTC) - BLUR)
                path = f"/v1/collections/{collection}/documents"
                client.put(f"{path}/{key}", json={"fingerprint": hex_of(fingerprint)}).raise_for_status()
                life.came = datetime.now(UTC) + BLUR
                ours.append(key)
                key = ours.pop(random.randrange(len(ours)))
                lives[key].going = datetime.now(UTC) - BLUR
                client.delete(f"{path}/{key}").raise_for_status()
                lives[key].gone = datetime.now(UTC) + BLUR

    with ThreadPoolExecutor() as threads:
        writing = [threads.submit(write, number) for number in range(2)]
        try:
            yield lives
        finally:
            over.set()
        for each in writing:
            each.result()


def test_two_analyses_at_once_are_each_true_of_the_moment_they_state(
    dsn: str, service: Service, client: Client
) -> None:
    stored = {f"old-{number:05}": each for number, each in enumerate(families(Random(2), 4000))}
    imported(client, "busy", with_fingerprints(stored))
    result_of(client, begun(client, "busy", threshold=5))
    with written_to(service, "busy", stored) as lives:
        with held(dsn, "pairing"):
            urls = {threshold: begun(client, "busy", threshold) for threshold in (3, 4)}
            for url in urls.values():
                reaches(client, url, "pairing")
            written = len(lives)
            eventually(lambda: len(lives) > written + 20)  # after their moments
        results = {threshold: result_of(client, url) for threshold, url in urls.items()}
    for threshold, url in urls.items():
        result = results[threshold]
        moment = datetime.fromisoformat(result["moment"])
        surely = {key: life.fingerprint for key, life in lives.items() if life.is_surely_there(moment)}
        perhaps = {key: life.fingerprint for key, life in lives.items() if life.may_be_there(moment)}
        assert len(surely) <= result["documents"] <= len(perhaps)
        found = distinct(lines(client, f"{url}/pairs"))
        assert pairs_of(surely.values(), threshold).items() <= found.items()
        assert found.items() <= pairs_of(perhaps.values(), threshold).items()


def test_a_collection_may_be_deleted_while_it_is_analysed(dsn: str, service: Service, client: Client) -> None:
    stored = {f"page-{number:05}": each for number, each in enumerate(families(Random(3), 2000))}
    imported(client, "gone", with_fingerprints(stored))
    earlier = begun(client, "gone")
    result_of(client, earlier)
    with held(dsn, "pairing"):
        url = begun(client, "gone")
        reaches(client, url, "pairing")
        client.delete("/v1/collections/gone").raise_for_status()
        assert client.get(url).status_code == 404
    assert service.logs(f"analysis {number_of(url)} is failed: the collection was deleted while it was analysed")
    # Housekeeping comes every few seconds.
    numbers = {number_of(earlier), number_of(url)}
    eventually(lambda: not numbers & in_tables(dsn))
    eventually(lambda: not numbers & {number for (number,) in execute(dsn, "SELECT id FROM operation")})


def test_an_analysis_of_many_seconds_is_canceled(dsn: str, client: Client) -> None:
    """In the midst of its arithmetic: at this threshold it has to compare every pair."""
    client.post("/v1/collections", json={"name": "large"}).raise_for_status()
    execute(dsn, LARGE)
    url = begun(client, "large", threshold=16)
    eventually(lambda: client.get(url).raise_for_status().json()["memory_bytes"] is not None)
    reaches(client, url, "pairing")
    client.post(f"{url}/cancel").raise_for_status()
    assert finished(client, url)["status"] == "canceled"
    assert number_of(url) not in in_tables(dsn)
    assert client.get(f"{url}/clusters").status_code == 409


LARGE = """
    INSERT INTO document (collection_id, key, simhash, metadata)
    SELECT c.id, number::text, hashint8extended(number, 0) & 9223372036854775807, '{}'
    FROM collection c, generate_series(1, 200000) number WHERE c.name = 'large'
    """


# Identical pages


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_half_of_all_documents_are_one_page(client: Client) -> None:
    """20,000 documents; 200,000 with TIROIR_LONG=1."""
    half = 100_000 if LONG else 10_000
    copies = [f"copy-{number:06}" for number in range(half)]
    random = Random(4)
    others = {f"other-{number:06}": random.getrandbits(BITS) for number in range(half)}
    imported(client, "pages", chain(({"key": key, "text": TEXT} for key in copies), with_fingerprints(others)))
    url = begun(client, "pages", threshold=0)
    result = result_of(client, url)
    counts = {name: result[name] for name in ("documents", "fingerprints", "near_duplicated", "exact_duplicated")}
    assert counts == {
        "documents": 2 * half,
        "fingerprints": half + 1,
        "near_duplicated": half,
        "exact_duplicated": half,
    }
    assert (result["clusters"], result["exact_groups"], result["pairs"], result["histogram"]) == (1, 1, 1, [1])
    [cluster] = pages(client, f"{url}/clusters")
    assert (cluster["documents"], cluster["fingerprints"], cluster["representative"]) == (half, 1, copies[0])
    [pair] = pages(client, f"{url}/pairs")
    assert (pair["a"]["documents"], pair["b"]) == (half, None)
    assert [each["key"] for each in pages(client, f"{url}/clusters/1")] == copies
    assert [each["key"] for each in pages(client, f"{url}/documents")] == copies
    for listed in ("clusters", "documents"):
        assert [each["key"] for each in lines(client, f"{url}/{listed}")] == copies
        assert [each["key"] for each in table(client, f"{url}/{listed}")] == copies
    assert (len(lines(client, f"{url}/pairs")), len(table(client, f"{url}/pairs"))) == (1, 1)
    [group] = pages(client, "/v1/collections/pages/exact-duplicates")
    assert group["documents"] == half
    assert pages(client, f"/v1/collections/pages/exact-duplicates/{group['content_hash']}") == copies
