"""Administration over HTTP: rebuilds and audits as operations, and the report on the bands."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from itertools import combinations, product
from random import Random
from typing import Any

import psycopg
import pytest
from anyio import create_task_group, fail_after, sleep
from httpx2 import AsyncClient, Response

from app.core.cost import ALWAYS_PROBE_BELOW
from app.core.layout import cut
from app.core.probes import plan_probes
from app.settings import Settings
from tests.api.support import JSON, assert_problem, execute, find, hex_of, keep_house, keys_of, ok, put, send
from tests.conftest import client_of
from tests.store.brute_force import Stored, signed, unsigned
from tests.store.databases import create_collection, load

ADMIN = "/v1/admin"
REBUILDS = f"{ADMIN}/rebuilds"
AUDITS = f"{ADMIN}/audits"
KINDS = {REBUILDS: {"threshold": 7}, AUDITS: {}}
NEVER = 2**31 - 1  # an id that no operation has

OPERATION_MEMBERS = {
    "id",
    "kind",
    "status",
    "parameters",
    "progress",
    "created_at",
    "started_at",
    "finished_at",
    "result",
    "error",
}
TIMES = ("created_at", "started_at", "finished_at")


@pytest.fixture
async def held(settings: Settings) -> AsyncGenerator[AsyncClient]:
    """Nobody works on operations: they stay in the queue."""
    async with client_of(settings.model_copy(update={"run_operations": False})) as client:
        yield client


@pytest.fixture
async def client(settings: Settings) -> AsyncGenerator[AsyncClient]:
    """Works on operations, and drops old bands at once."""
    async with client_of(settings.model_copy(update={"layout_grace": 0, "run_operations": True})) as client:
        yield client


def assert_operation(operation: Mapping[str, Any]) -> None:
    """Of the documented shape, and no member contradicts another."""
    assert set(operation) == OPERATION_MEMBERS
    assert set(operation["progress"]) == {"phase", "done", "total"}
    times = {name: operation[name] and datetime.fromisoformat(operation[name]) for name in TIMES}
    assert all(time is None or time.tzinfo is not None for time in times.values())
    ended = operation["status"] in {"succeeded", "failed", "canceled"}
    assert ended or operation["status"] in {"queued", "running"}
    assert (times["finished_at"] is not None) == ended
    assert (operation["result"] is not None) == (operation["status"] == "succeeded")
    if ended:
        assert (operation["error"] is not None) == (operation["status"] == "failed")
    if operation["status"] == "queued":
        assert (times["started_at"], operation["progress"]["phase"]) == (None, None)
    happened = [time for time in times.values() if time is not None]
    assert happened == sorted(happened)


def url_of(operation: Mapping[str, Any]) -> str:
    return f"{ADMIN}/{operation['kind']}s/{operation['id']}"


async def begin(client: AsyncClient, url: str, body: object, *, key: str | None = None) -> Any:
    """An operation that is begun as it must be."""
    answer = await send(client, "POST", url, body, headers={"Idempotency-Key": key} if key else None)
    assert answer.status_code == 202, answer.text
    operation = answer.json()
    assert_operation(operation)
    assert answer.headers["location"] == url_of(operation) == f"{url}/{operation['id']}"
    return operation


async def cancel(client: AsyncClient, operation: Mapping[str, Any]) -> Response:
    return await client.post(f"{url_of(operation)}/cancel")


async def until_phase(client: AsyncClient, operation: Mapping[str, Any], *phases: str | None) -> Any:
    """The operation, as soon as it is in one of these phases."""
    with fail_after(60):
        while True:
            seen = await ok(client, "GET", url_of(operation))
            assert_operation(seen)
            if seen["progress"]["phase"] in phases:
                return seen
            assert seen["finished_at"] is None, seen
            await sleep(0.01)


async def ended(client: AsyncClient, operation: Mapping[str, Any]) -> Any:
    """The operation, as soon as it is finished."""
    with fail_after(60):
        while True:
            seen = await ok(client, "GET", url_of(operation))
            assert_operation(seen)
            if seen["finished_at"] is not None:
                return seen
            await sleep(0.01)


async def succeeded(client: AsyncClient, url: str, body: object) -> Any:
    operation = await ended(client, await begin(client, url, body))
    assert operation["status"] == "succeeded", operation
    return operation


async def layout(client: AsyncClient) -> Any:
    return await ok(client, "GET", f"{ADMIN}/layout")


# Beginning


ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (REBUILDS, {"threshold": 7, "bands": None}, {"threshold": 7, "bands": None, "force": False}),
    (REBUILDS, {"threshold": 0}, {"threshold": 0, "bands": None, "force": False}),
    (REBUILDS, {"threshold": 63, "bands": 2}, {"threshold": 63, "bands": 2, "force": False}),
    (REBUILDS, {"threshold": 3, "bands": 16, "force": True}, {"threshold": 3, "bands": 16, "force": True}),
    (AUDITS, {"sample": 1000, "threshold": 3}, {"sample": 1000, "threshold": 3}),
    (AUDITS, {}, {"sample": 1000, "threshold": None}),
    (AUDITS, {"sample": 1, "threshold": 0}, {"sample": 1, "threshold": 0}),
    (AUDITS, {"sample": 100_000, "threshold": None}, {"sample": 100_000, "threshold": None}),
    (AUDITS, {"threshold": 63}, {"sample": 1000, "threshold": 63}),
]


async def test_an_operation_is_accepted_and_can_be_watched(held: AsyncClient, subtests: pytest.Subtests) -> None:
    for url, body, parameters in ACCEPTED:
        with subtests.test(f"{url} {body}"):
            operation = await begin(held, url, body)
            assert {name: operation[name] for name in OPERATION_MEMBERS - {"id", "created_at"}} == {
                "kind": "rebuild" if url == REBUILDS else "audit",
                "status": "queued",
                "parameters": parameters,
                "progress": {"phase": None, "done": 0, "total": None},
                "started_at": None,
                "finished_at": None,
                "result": None,
                "error": None,
            }
            assert await ok(held, "GET", url_of(operation)) == operation
            assert (await ok(held, "GET", url))["items"][0] == operation
            await ok(held, "POST", f"{url_of(operation)}/cancel")


async def test_one_rebuild_at_a_time_and_the_answer_says_which(held: AsyncClient, database: str) -> None:
    running = await begin(held, REBUILDS, {"threshold": 7})
    for body in ({"threshold": 7}, {"threshold": 3, "bands": 8, "force": True}):
        answer = await send(held, "POST", REBUILDS, body)
        problem = answer.json()
        assert problem.pop("operation_id") == running["id"]
        assert (answer.status_code, problem["code"]) == (409, "rebuild_running")
        assert set(problem) == {"type", "title", "status", "detail", "code", "request_id"}
        assert f"rebuild {running['id']} is queued" in problem["detail"]
        assert "location" not in answer.headers
    assert queued(database) == [running["id"]]
    assert (await cancel(held, running)).status_code == 200
    again = await begin(held, REBUILDS, {"threshold": 7})
    assert again["id"] != running["id"]


async def test_audits_wait_for_nothing(held: AsyncClient) -> None:
    rebuild = await begin(held, REBUILDS, {"threshold": 7})
    audits = [await begin(held, AUDITS, {}) for _ in range(3)]
    assert len({each["id"] for each in [rebuild, *audits]}) == 4


async def test_of_many_rebuilds_at_once_one_is_accepted(held: AsyncClient, database: str) -> None:
    answers: list[Response] = []

    async def post() -> None:
        answers.append(await send(held, "POST", REBUILDS, {"threshold": 7}))

    async with create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(post)
    assert Counter(answer.status_code for answer in answers) == {202: 1, 409: 11}
    [accepted] = [answer.json()["id"] for answer in answers if answer.status_code == 202]
    assert {answer.json()["operation_id"] for answer in answers if answer.status_code == 409} == {accepted}
    assert queued(database) == [accepted]


# The Idempotency-Key


def queued(database: str) -> list[int]:
    """What each job in the queue stands for."""
    return [
        row[0]
        for row in execute(
            database, "SELECT (args ->> 'operation_id')::int FROM tiroir_queue.procrastinate_jobs ORDER BY 1"
        )
    ]


@pytest.mark.parametrize("url", KINDS)
async def test_the_same_key_finds_the_operation_of_the_first_request(
    held: AsyncClient, database: str, url: str
) -> None:
    body = KINDS[url]
    first = await begin(held, url, body, key="k-1")
    assert await begin(held, url, body, key="k-1") == first
    assert await begin(held, url, {**body, **first["parameters"]}, key="k-1") == first  # the same, spelled out
    assert queued(database) == [first["id"]]
    canceled = (await cancel(held, first)).json()
    assert await begin(held, url, body, key="k-1") == canceled  # also when it is over
    other = await begin(held, url, body, key="K-1")
    assert other["id"] != first["id"]


async def test_a_key_stands_for_one_request(held: AsyncClient) -> None:
    rebuild = await begin(held, REBUILDS, {"threshold": 7, "bands": 4}, key="k")
    audit = await begin(held, AUDITS, {"sample": 5}, key="l")
    for url, body, key in [
        (REBUILDS, {"threshold": 6, "bands": 4}, "k"),
        (REBUILDS, {"threshold": 7}, "k"),
        (REBUILDS, {"threshold": 7, "bands": 4, "force": True}, "k"),
        (AUDITS, {}, "k"),
        (AUDITS, {"sample": 6}, "l"),
        (AUDITS, {"sample": 5, "threshold": 3}, "l"),
        (REBUILDS, {"threshold": 7, "bands": 4}, "l"),
    ]:
        answer = await send(held, "POST", url, body, headers={"Idempotency-Key": key})
        assert_problem(answer, 422, "idempotency_key_reused", "/Idempotency-Key")
    assert await ok(held, "GET", url_of(rebuild)) == rebuild
    assert await ok(held, "GET", url_of(audit)) == audit


async def test_a_refused_request_does_not_use_its_key_up(held: AsyncClient) -> None:
    running = await begin(held, REBUILDS, {"threshold": 7})
    for body, status in (({"threshold": 5}, 409), ({"threshold": 64}, 422)):
        assert (await send(held, "POST", REBUILDS, body, headers={"Idempotency-Key": "k"})).status_code == status
    await cancel(held, running)
    rebuild = await begin(held, REBUILDS, {"threshold": 4}, key="k")
    assert rebuild["parameters"]["threshold"] == 4


async def test_of_many_requests_with_one_key_all_find_one_operation(held: AsyncClient, database: str) -> None:
    found: list[Any] = []

    async def post() -> None:
        found.append(await begin(held, AUDITS, {}, key="once"))

    async with create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(post)
    assert len(found) == 12
    assert all(operation == found[0] for operation in found)
    assert queued(database) == [found[0]["id"]]


LONGEST = "".join(chr(0x21 + number % 94) for number in range(255))  # all that is allowed


NO_KEYS = [b"", b" ", b"a b", b"a\tb", b"a\nb", b"\0", b"\x7f", b"caf\xc3\xa9", b"caf\xe9", b"a" * 256, b"a" * 60_000]


async def test_keys_that_are_none(held: AsyncClient, database: str, subtests: pytest.Subtests) -> None:
    for url, key in product(KINDS, NO_KEYS):
        with subtests.test(f"{url} {key[:10]!r}"):
            headers = [(b"content-type", b"application/json"), (b"idempotency-key", key)]
            answer = await held.post(url, json=KINDS[url], headers=headers)
            assert answer.status_code == 422, answer.text
            [invalid] = answer.json()["errors"]
            assert invalid["pointer"].lower() == "/idempotency-key"
            assert_problem(answer, 422, "invalid_input", invalid["pointer"])
            assert queued(database) == []


async def test_a_key_may_have_any_visible_character(held: AsyncClient) -> None:
    operation = await begin(held, AUDITS, {}, key=LONGEST)
    assert await begin(held, AUDITS, {}, key=LONGEST) == operation


# Watching and cancelling


@pytest.mark.parametrize(("url", "other"), [(REBUILDS, AUDITS), (AUDITS, REBUILDS)])
async def test_an_operation_is_found_among_its_own_kind_alone(held: AsyncClient, url: str, other: str) -> None:
    operation = await begin(held, url, KINDS[url])
    for path in (f"{other}/{operation['id']}", f"{url}/{operation['id'] + 1}", f"{url}/{NEVER}"):
        assert_problem(await held.get(path), 404, "operation_not_found")
        assert_problem(await held.post(f"{path}/cancel"), 404, "operation_not_found")
    assert await ok(held, "GET", url_of(operation)) == operation
    assert await ok(held, "GET", other) == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("url", KINDS)
async def test_what_nobody_has_begun_is_canceled_at_once_and_once(held: AsyncClient, url: str) -> None:
    operation = await begin(held, url, KINDS[url])
    answer = await cancel(held, operation)
    assert answer.status_code == 200
    canceled = answer.json()
    assert_operation(canceled)
    assert (canceled["status"], canceled["started_at"]) == ("canceled", None)
    assert {name: canceled[name] for name in ("id", "kind", "parameters", "created_at")} == {
        name: operation[name] for name in ("id", "kind", "parameters", "created_at")
    }
    problem = assert_problem(await cancel(held, operation), 409, "not_cancelable")
    assert "canceled" in problem["detail"]
    assert await ok(held, "GET", url_of(operation)) == canceled


async def test_what_was_canceled_in_the_queue_is_never_begun(held: AsyncClient, settings: Settings) -> None:
    before = await layout(held)
    rebuild = await begin(held, REBUILDS, {"threshold": 7, "bands": 8})
    canceled = (await cancel(held, rebuild)).json()
    audit = await begin(held, AUDITS, {})
    async with client_of(settings.model_copy(update={"run_operations": True})) as working:
        assert (await ended(working, audit))["status"] == "succeeded"  # it stood behind the rebuild
        assert await ok(working, "GET", url_of(rebuild)) == canceled
        assert await layout(working) == before


async def test_what_was_queued_is_begun_by_whoever_comes_to_work(held: AsyncClient, settings: Settings) -> None:
    rebuild = await begin(held, REBUILDS, {"threshold": 5, "bands": 4})
    async with client_of(settings.model_copy(update={"layout_grace": 0, "run_operations": True})) as working:
        assert (await ended(working, rebuild))["status"] == "succeeded"
    assert (await layout(held))["threshold"] == 5


@pytest.mark.parametrize("url", KINDS)
async def test_what_has_succeeded_can_not_be_canceled(client: AsyncClient, url: str) -> None:
    operation = await succeeded(client, url, KINDS[url])
    problem = assert_problem(await cancel(client, operation), 409, "not_cancelable")
    assert "succeeded" in problem["detail"]
    assert await ok(client, "GET", url_of(operation)) == operation


async def test_an_audit_that_runs_ends_soon_when_it_is_canceled(client: AsyncClient, database: str) -> None:
    fill(database, uniform=3000)
    audit = await begin(client, AUDITS, {"sample": 100_000, "threshold": 7})
    seen = await until_phase(client, audit, "comparing")
    assert (seen["status"], seen["progress"]["total"]) == ("running", 3000)
    answer = await cancel(client, audit)
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    over = await ended(client, audit)
    assert (over["status"], over["result"], over["error"]) == ("canceled", None, None)
    assert over["progress"]["done"] < 3000
    assert_problem(await cancel(client, audit), 409, "not_cancelable")


async def test_a_rebuild_that_has_switched_only_cleans_up(settings: Settings) -> None:
    async with client_of(settings.model_copy(update={"layout_grace": 3600, "run_operations": True})) as client:
        await put(client, "a", fingerprint=hex_of(7))
        rebuild = await begin(client, REBUILDS, {"threshold": 7, "bands": 8})
        waiting = await until_phase(client, rebuild, "waiting")
        assert waiting["status"] == "running"
        problem = assert_problem(await cancel(client, rebuild), 409, "not_cancelable")
        assert "switched" in problem["detail"]
        answer = await send(client, "POST", REBUILDS, {"threshold": 7})
        assert (answer.status_code, answer.json()["operation_id"]) == (409, rebuild["id"])
        report = await layout(client)
        assert (report["bands"], report["threshold"]) == (8, 7)
        assert sorted((each["state"], each["bands"]) for each in report["layouts"]) == [("active", 8), ("retired", 4)]
        assert len({each["table"] for each in report["layouts"]}) == 2
        assert keys_of(await find(client, fingerprint=hex_of(0))) == ["a"]  # at the new default of 7


# Starting and stopping


async def test_an_application_that_stops_as_soon_as_it_has_started_ends(settings: Settings) -> None:
    """Whatever those who work on operations were just doing."""

    async def start_and_stop(seconds: float) -> None:
        async with client_of(settings.model_copy(update={"run_operations": True})):
            await sleep(seconds)

    for number in range(10):
        life = asyncio.create_task(start_and_stop(number / 500))
        ended, _ = await asyncio.wait([life], timeout=30)
        assert ended, number
        await life


# Listing


async def test_operations_are_listed_in_pages_the_youngest_first(held: AsyncClient) -> None:
    ids = [(await begin(held, AUDITS, {}))["id"] for _ in range(7)]
    rebuild = await begin(held, REBUILDS, {"threshold": 7})
    for limit in (1, 3, 7, 100):
        listed: list[int] = []
        cursor = ""
        while True:
            page = await ok(held, "GET", f"{AUDITS}?limit={limit}{cursor}")
            assert set(page) == {"items", "next_cursor"}
            for item in page["items"]:
                assert_operation(item)
            listed += [item["id"] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            assert len(page["items"]) == limit
            cursor = f"&cursor={page['next_cursor']}"
        assert listed == ids[::-1]
    assert [item["id"] for item in (await ok(held, "GET", REBUILDS))["items"]] == [rebuild["id"]]


async def test_operations_that_are_begun_meanwhile_move_no_page(held: AsyncClient) -> None:
    ids = [(await begin(held, AUDITS, {}))["id"] for _ in range(4)]
    first = await ok(held, "GET", f"{AUDITS}?limit=2")
    await begin(held, AUDITS, {})
    second = await ok(held, "GET", f"{AUDITS}?limit=2&cursor={first['next_cursor']}")
    assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
    assert second["next_cursor"] is None


async def test_a_page_has_twenty_unless_it_is_asked_for_more(held: AsyncClient) -> None:
    for _ in range(21):
        await begin(held, AUDITS, {"sample": 1})
    assert len((await ok(held, "GET", AUDITS))["items"]) == 20
    assert len((await ok(held, "GET", f"{AUDITS}?limit=100"))["items"]) == 21


# What they do


async def test_a_rebuild_changes_the_bands_and_no_answer(client: AsyncClient) -> None:
    for number in range(20):
        await put(client, f"{number:02}", fingerprint=hex_of((1 << number) - 1))
    before = await find(client, fingerprint=hex_of(0), threshold=9)
    tables = {(await layout(client))["table"]}
    for bands, threshold in ((8, 7), (2, 1), (4, 3)):
        operation = await succeeded(client, REBUILDS, {"threshold": threshold, "bands": bands})
        result = operation["result"]
        assert (result["bands"], result["threshold"], result["changed"]) == (bands, threshold, True)
        assert result["verified"]["fingerprints"] == result["verified"]["rows"] == 20
        report = await layout(client)
        assert (report["bands"], report["threshold"], report["rows"]) == (bands, threshold, 20)
        assert report["widths"] == list(cut(bands).widths)
        assert report["layouts"] == [{"bands": bands, "table": report["table"], "state": "active"}]
        assert report["table"] not in tables
        tables.add(report["table"])
        found = await find(client, fingerprint=hex_of(0), threshold=9)
        assert found["matches"] == before["matches"]
        assert (await find(client, fingerprint=hex_of(0)))["threshold"] == threshold


async def test_another_threshold_alone_takes_no_other_table(client: AsyncClient) -> None:
    await put(client, "a", fingerprint=hex_of(0b11111))
    before = await layout(client)
    operation = await succeeded(client, REBUILDS, {"threshold": 5, "bands": 4})
    result = operation["result"]
    assert (result["changed"], result["rebuilt"], result["before"]) == (True, False, {"bands": 4, "threshold": 3})
    after = await layout(client)
    assert after["threshold"] == 5
    assert {name: after[name] for name in ("bands", "table", "layouts")} == {
        name: before[name] for name in ("bands", "table", "layouts")
    }
    found = await find(client, fingerprint=hex_of(0))
    with fail_after(30):
        while found["threshold"] == 3:  # what a process remembers is seconds old; the grace is longer elsewhere
            await sleep(0.05)
            found = await find(client, fingerprint=hex_of(0))
    assert (found["threshold"], keys_of(found)) == (5, ["a"])


async def test_what_is_as_it_should_be_stays_and_force_makes_it_anew(client: AsyncClient, database: str) -> None:
    await put(client, "a", fingerprint=hex_of(7))
    await put(client, "a", fingerprint=hex_of(5))  # 7 is a row that no document uses now
    before = await layout(client)
    operation = await succeeded(client, REBUILDS, {"threshold": 3, "bands": 4})
    assert (operation["result"]["changed"], operation["result"]["rebuilt"]) == (False, False)
    assert await layout(client) == before
    assert before["rows"] == 2
    operation = await succeeded(client, REBUILDS, {"threshold": 3, "bands": 4, "force": True})
    assert (operation["result"]["changed"], operation["result"]["rebuilt"]) == (True, True)
    after = await layout(client)
    assert (after["bands"], after["rows"]) == (4, 1)
    assert after["table"] != before["table"]
    assert execute(database, "SELECT to_regclass('fingerprint') IS NULL") == [(True,)]


async def test_left_out_bands_are_chosen_and_the_result_says_why(client: AsyncClient) -> None:
    await put(client, "a", fingerprint=hex_of(7))
    for threshold in (7, 15, 1):
        [said] = [cost for cost in (await layout(client))["costs"] if cost["threshold"] == threshold]
        result = (await succeeded(client, REBUILDS, {"threshold": threshold}))["result"]
        assert 2 <= result["bands"] <= 16
        assert set(result["choice"]) == {"reason", "expected"}
        assert result["choice"]["reason"]
        assert set(result["choice"]["expected"]) == set(map(str, range(2, 17)))
        for expected in result["choice"]["expected"].values():
            assert set(expected) == {"microseconds", "candidates", "scan"}
        assert said["cheapest_bands"] == result["bands"], "the report said what a rebuild would choose"
        assert (await layout(client))["bands"] == result["bands"]


async def test_a_rebuild_that_can_not_be_done_says_why_and_leaves_the_bands(client: AsyncClient, database: str) -> None:
    execute(database, "CREATE TABLE fingerprint_2 ()")  # the next layout's table would have this name
    await put(client, "a", fingerprint=hex_of(7))
    before = await layout(client)
    failed = await ended(client, await begin(client, REBUILDS, {"threshold": 7, "bands": 8}))
    assert failed["status"] == "failed"
    assert 'relation "fingerprint_2" already exists' in failed["error"]
    assert failed["progress"]["phase"] == "creating"
    problem = assert_problem(await cancel(client, failed), 409, "not_cancelable")
    assert "failed" in problem["detail"]
    assert await layout(client) == before
    execute(database, "DROP TABLE fingerprint_2")
    await succeeded(client, REBUILDS, {"threshold": 7, "bands": 8})


SUMMARY = {"mean", "p50", "p99", "max"}
AUDIT_RESULT = {
    "lookups",
    "threshold",
    "bands",
    "misses",
    "invented",
    "matches",
    "probed",
    "candidates",
    "lookup_ms",
    "scan_ms",
}


async def test_an_audit_of_nothing_finds_nothing(client: AsyncClient) -> None:
    result = (await succeeded(client, AUDITS, {"sample": 10}))["result"]
    assert set(result) == AUDIT_RESULT
    assert (result["lookups"], result["misses"], result["matches"]) == (0, 0, 0)
    assert (result["candidates"], result["lookup_ms"], result["scan_ms"]) == (None, None, None)


async def test_an_audit_compares_as_many_lookups_as_it_is_asked_for(client: AsyncClient, database: str) -> None:
    fill(database, uniform=300)
    for asked, threshold in ((40, 7), (1, 0), (40, None)):
        operation = await succeeded(client, AUDITS, {"sample": asked, "threshold": threshold})
        result = operation["result"]
        assert set(result) == AUDIT_RESULT
        assert (result["lookups"], result["probed"], result["bands"]) == (asked, asked, 4)
        assert result["threshold"] == (3 if threshold is None else threshold)
        assert (result["misses"], result["invented"]) == (0, 0)
        assert set(result["candidates"]) == set(result["lookup_ms"]) == set(result["scan_ms"]) == SUMMARY
        assert operation["progress"] == {"phase": "comparing", "done": asked, "total": asked}
    assert result["matches"] > 0


async def test_an_audit_finds_what_lookups_miss(client: AsyncClient, database: str) -> None:
    """Probes that look for the bits of other bands than the columns hold: the audit exists for this."""
    fill(database, uniform=300)
    execute(database, "UPDATE band_layout SET widths = '{15,16,16,17}'")
    result = (await succeeded(client, AUDITS, {"sample": 60, "threshold": 3}))["result"]
    assert result["misses"] > 0
    assert result["invented"] == 0


# The report on the bands


def fill(
    database: str,
    *,
    uniform: int = 0,
    name: str = "pages",
    bits: int = 63,
    families: tuple[int, ...] = (),
    orphans: tuple[int, ...] = (),
) -> list[int]:
    """A collection of random fingerprints, and families of so many that differ in their last 16 bits alone.

    The fingerprints of the collection, `orphans` included, which no document uses.
    """
    rng = Random(f"{name} {bits}")
    simhashes = {rng.getrandbits(bits) for _ in range(uniform)}
    for size in families:
        template = rng.getrandbits(bits) >> 16 << 16
        simhashes |= {template | low for low in rng.sample(range(min(2**16, 2**bits)), size)}
    chosen = [signed(simhash) for simhash in sorted(simhashes)]
    with psycopg.connect(database) as connection:
        collection_id = create_collection(connection, name, bits=bits)
        load(connection, collection_id, [Stored(str(each), each) for each in chosen], orphans)
    return sorted({*chosen, *orphans})


def buckets(stored: Mapping[str, list[int]], bands: int) -> list[dict[str, Any]]:
    """Counted one by one: the ten fullest."""
    counts = Counter(
        (name, band.index, unsigned(simhash) >> band.shift & band.mask)
        for name, simhashes in stored.items()
        for simhash in simhashes
        for band in cut(bands).bands
    )
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0][1], item[0][0], item[0][2]))
    return [
        {"collection": name, "band": band, "value": value, "fingerprints": count}
        for (name, band, value), count in ranked[:10]
    ]


async def test_the_fullest_buckets_are_those_that_counting_finds(client: AsyncClient, database: str) -> None:
    stored = {
        "crawl": fill(database, name="crawl", uniform=200, families=(400, 250, 120, 60, 30)),
        "all-bits": fill(database, name="all-bits", bits=64, uniform=100, families=(400, 170), orphans=(-1, -2, 2**62)),
        "Narrow": fill(database, name="Narrow", bits=20, families=(333, 77)),
        "few": fill(database, name="few", uniform=3, families=(21, 12)),
    }
    assert any(simhash < 0 for simhash in stored["all-bits"])
    for bands in (4, 2, 8):
        if bands != 4:
            await succeeded(client, REBUILDS, {"threshold": 3, "bands": bands})
            stored["all-bits"] = [each for each in stored["all-bits"] if each not in {-1, -2, 2**62}]
        report = await layout(client)
        assert report["rows"] == sum(map(len, stored.values()))
        expected = buckets(stored, bands)
        assert len({each["collection"] for each in expected}) > 1
        assert report["fullest_buckets"] == expected


async def test_the_report_says_what_there_is(client: AsyncClient, settings: Settings, database: str) -> None:
    report = await layout(client)
    assert set(report) == {
        "bands",
        "widths",
        "threshold",
        "table",
        "rows",
        "bytes",
        "fullest_buckets",
        "costs",
        "layouts",
    }
    assert {name: report[name] for name in ("bands", "widths", "threshold", "table", "rows", "fullest_buckets")} == {
        "bands": 4,
        "widths": [16, 16, 16, 16],
        "threshold": 3,
        "table": "fingerprint",
        "rows": 0,
        "fullest_buckets": [],
    }
    assert report["layouts"] == [{"bands": 4, "table": "fingerprint", "state": "active"}]
    fill(database, uniform=500)
    filled = await layout(client)
    assert filled["rows"] == 500
    assert execute(database, "SELECT pg_total_relation_size('fingerprint')") == [(filled["bytes"],)]
    assert filled["bytes"] > report["bytes"] > 0
    await ok(client, "DELETE", "/v1/collections/pages")
    assert (await layout(client))["fullest_buckets"] == []
    await keep_house(settings)
    assert ((await layout(client))["rows"], (await layout(client))["fullest_buckets"]) == (0, [])


async def test_the_report_tells_nothing_of_a_deleted_collection(client: AsyncClient, database: str) -> None:
    """Its rows are there still, and they are in the fullest buckets that there are."""
    stored = {"left": fill(database, name="left", families=(100, 90, 80, 70))}
    fill(database, name="gone", families=tuple([200] * 30))
    await ok(client, "DELETE", "/v1/collections/gone")
    assert (await layout(client))["fullest_buckets"] == buckets(stored, 4)


async def test_the_costs_are_those_of_what_is_stored(client: AsyncClient, database: str) -> None:
    stored = fill(database, uniform=100, families=(200,))
    costs = (await layout(client))["costs"]
    thresholds = [cost["threshold"] for cost in costs]
    assert thresholds == sorted(set(thresholds))
    assert {0, 3, 7} < set(thresholds)
    pairs = list(combinations(stored, 2))
    apart = [Counter((band.value(a) ^ band.value(b)).bit_count() for a, b in pairs) for band in cut(4).bands]
    for cost in costs:
        assert set(cost) == {"threshold", "probes", "expected", "scan", "cheapest_bands"}
        assert set(cost["expected"]) == {"candidates", "probing_us", "scan_us"}
        plan = plan_probes(cut(4), 63, cost["threshold"])
        assert cost["probes"] == plan.probes
        assert 2 <= cost["cheapest_bands"] <= 16
        probing, scan = cost["expected"]["probing_us"], cost["expected"]["scan_us"]
        if abs(probing - scan) > 1 and abs(probing - ALWAYS_PROBE_BELOW) > 1:  # they are rounded
            assert cost["scan"] == (probing > max(scan, ALWAYS_PROBE_BELOW))
        read = 0.0
        for band, radius, probes in zip(plan.layout.bands, plan.radii, plan.probes_by_band, strict=True):
            alike = sum(count for bits, count in apart[band.index].items() if bits <= radius) / len(pairs)
            read += len(stored) * max(alike, probes / 2 ** band.live_width(63))
        assert abs(cost["expected"]["candidates"] - read) <= 0.51, cost
    assert len({cost["expected"]["scan_us"] for cost in costs}) == 1


async def test_an_explained_lookup_says_what_was_expected_of_it(client: AsyncClient, database: str) -> None:
    fill(database, uniform=400)
    execute(database, "ANALYZE fingerprint")
    for threshold in (0, 3, 10, 30, 63):
        plan = (
            await ok(
                client,
                "POST",
                "/v1/collections/pages/near-duplicates",
                {"fingerprint": hex_of(0), "threshold": threshold, "explain": True},
            )
        )["plan"]
        expected = plan["expected"]
        assert set(expected) == {"candidates", "probing_us", "scan_us"}
        assert all(isinstance(value, int) for value in expected.values())
        probes = zip(plan_probes(cut(4), 63, threshold).probes_by_band, cut(4).bands, strict=True)
        share = sum(values / 2 ** band.live_width(63) for values, band in probes)
        assert abs(expected["candidates"] - 400 * share) <= 0.51
        assert plan["scan"] == (expected["probing_us"] > max(expected["scan_us"], ALWAYS_PROBE_BELOW))
    assert plan["scan"]
    assert plan["candidates"] == 400


@pytest.mark.parametrize("url", KINDS)
async def test_a_body_that_comes_with_a_cancel_changes_nothing(held: AsyncClient, url: str) -> None:
    operation = await begin(held, url, KINDS[url])
    answer = await held.post(f"{url_of(operation)}/cancel", content=b'{"force": true}', headers=JSON)
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled")
