"""The commands that administrate a running service, and the worker, as real processes."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
from commanding import Ended, assert_refused, command, commands, end, failure, on_a_terminal, popen, start
from pretended import Answer, pretending
from service import Service, eventually, execute, free_port, new_database, running, stopped_at_the_end, working

from app.cli.status import Exit
from app.postgres.embedded import EmbeddedPostgres

PHASES = [
    "planning",
    "creating",
    "copying",
    "indexing",
    "vacuuming",
    "verifying",
    "switching",
    "waiting",
    "dropping",
]


@pytest.fixture(scope="module")
def database(server: EmbeddedPostgres) -> str:
    return new_database(server, "served")


@pytest.fixture(scope="module")
def served(database: str) -> Generator[Service]:
    """A service with 40 documents, that works on operations itself; what it retires stays for a moment."""
    with running(database_url=database, layout_grace=1.2) as service, service.client() as client:
        for number in range(40):
            body = {"fingerprint": f"{Random(number).getrandbits(63):016x}"}
            client.put(f"/v1/collections/shop/documents/{number}", json=body).raise_for_status()
        yield service


@pytest.fixture(scope="module")
def held(server: EmbeddedPostgres) -> Generator[Service]:
    """A service whose operations stay in the queue."""
    with running(database_url=new_database(server, "held"), run_operations="false") as service:
        yield service


def operations(service: Service, kind: str = "rebuilds") -> list[dict[str, Any]]:
    with service.client() as client:
        return client.get(f"/v1/admin/{kind}").raise_for_status().json()["items"]


def cancel(service: Service, kind: str = "rebuilds") -> int:
    """The latest one."""
    latest = operations(service, kind)[0]["id"]
    with service.client() as client:
        client.post(f"/v1/admin/{kind}/{latest}/cancel").raise_for_status()
    return latest


def waits(process: subprocess.Popen[str]) -> str:
    """The first line of a command that then waits for its operation."""
    assert process.stdout
    line = process.stdout.readline()
    assert process.poll() is None
    return line


# Rebuilds


def phases_of(output: str) -> tuple[str, list[str], list[str]]:
    """The line of the beginning, the phases that were seen, and what was said at the end."""
    first, *rest = output.splitlines()
    seen = [line for line in rest if line in PHASES]
    assert rest[: len(seen)] == seen
    assert seen == sorted(set(seen), key=PHASES.index)
    return first, seen, rest[len(seen) :]


def test_a_rebuild_is_shown_step_by_step_and_the_result_at_its_end(served: Service) -> None:
    for bands, threshold, before in ((8, 7, "4, 3"), (4, 3, "8, 7")):
        ended = command("rebuild", "--threshold", str(threshold), "--bands", str(bands), port=served.port)
        assert (ended.status, ended.errors) == (0, "")
        first, seen, last = phases_of(ended.output)
        assert first == f"rebuild {operations(served)[0]['id']} is queued"
        assert "waiting" in seen
        assert last == [f"{bands} bands, threshold {threshold} (before: {before})"]
    unchanged = command("rebuild", "--threshold", "3", "--bands", "4", port=served.port)
    assert (unchanged.status, unchanged.output.splitlines()[-1]) == (0, "4 bands, threshold 3: as they were")
    forced = command("rebuild", "--threshold", "3", "--bands", "4", "--force", port=served.port)
    assert (forced.status, forced.output.splitlines()[-1]) == (0, "4 bands, threshold 3 (before: 4, 3)")


def test_a_rebuild_that_chooses_the_bands_says_why(served: Service) -> None:
    ended = command("rebuild", "--threshold", "3", port=served.port)
    assert (ended.status, ended.errors) == (0, "")
    choice = operations(served)[0]["result"]["choice"]
    assert ended.output.splitlines()[-1] == choice["reason"]


def test_a_rebuild_that_fails_says_why(served: Service, database: str) -> None:
    [(following,)] = execute(database, "SELECT last_value + 1 FROM band_layout_id_seq")
    execute(database, f"CREATE TABLE fingerprint_{following} ()")
    ended = command("rebuild", "--threshold", "9", "--bands", "5", port=served.port)
    execute(database, f"DROP TABLE fingerprint_{following}")
    latest = operations(served)[0]
    assert latest["status"] == "failed"
    assert failure(ended) == f"rebuild {latest['id']} has failed: {latest['error']}"
    assert "already exists" in ended.errors


def test_nobody_has_to_wait(held: Service) -> None:
    ended = command("rebuild", "--threshold", "7", "--no-wait", port=held.port)
    first = operations(held)[0]
    assert ended == Ended(0, f"rebuild {first['id']} is queued\n", "")
    assert first["parameters"] == {"threshold": 7, "bands": None, "force": False}
    second, audit = commands(
        ("rebuild", "--threshold", "8"), ("audit", "--sample", "7", "--threshold", "0", "--no-wait"), port=held.port
    )
    assert assert_refused(second, Exit.BUSY) == f"rebuild {first['id']} is queued: wait for it, or cancel it"
    begun = operations(held, "audits")[0]
    assert audit == Ended(0, f"audit {begun['id']} is queued\n", "")
    assert begun["parameters"] == {"sample": 7, "threshold": 0}
    cancel(held)
    cancel(held, "audits")


def test_what_somebody_cancels_meanwhile_is_no_success(held: Service) -> None:
    process = start("rebuild", "--threshold", "7", port=held.port)
    assert re.fullmatch(r"rebuild \d+ is queued\n", waits(process))
    number = cancel(held)
    message = failure(end(process))
    assert message.startswith(f"rebuild {number} ")
    assert "canceled" in message


def test_who_stops_waiting_stops_nothing(held: Service) -> None:
    process = start("rebuild", "--threshold", "7", port=held.port)
    waits(process)
    process.send_signal(signal.SIGINT)
    ended = end(process)
    assert ended.status == 130, ended
    assert operations(held)[0]["status"] == "queued"
    cancel(held)


def test_a_service_may_go_away_and_come_back_meanwhile(server: EmbeddedPostgres) -> None:
    dsn = new_database(server, "restarted")
    with running(database_url=dsn, run_operations="false") as service:
        process = start("rebuild", "--threshold", "5", "--bands", "4", port=service.port)
        waits(process)
        assert service.stop() == 0
    again = Service((), database_url=dsn, port=service.port, layout_grace=0)
    again.port = service.port
    with stopped_at_the_end(again.start()):
        ended = end(process)
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output.splitlines()[-1] == "4 bands, threshold 5 (before: 4, 3)"


# Audits and the layout


def test_an_audit_shows_what_it_measured(served: Service) -> None:
    ended = command("audit", "--sample", "30", "--threshold", "7", port=served.port)
    assert (ended.status, ended.errors) == (0, "")
    result = operations(served, "audits")[0]["result"]
    assert f"30 lookups at threshold 7, {result['bands']} bands" in ended.output
    for name in ("candidates", "lookup, ms", "scan, ms"):
        assert re.search(rf"{name} .*\d\.\d", ended.output)
    assert ended.output.splitlines()[-1] == f"{result['matches']} matches, 0 misses, 0 invented"


def test_an_audit_that_finds_misses_fails(served: Service, database: str) -> None:
    command("rebuild", "--threshold", "3", "--bands", "4", port=served.port)
    execute(database, "UPDATE band_layout SET widths = '{15,16,16,17}'")
    ended = command("audit", "--sample", "40", "--threshold", "3", port=served.port)
    execute(database, "UPDATE band_layout SET widths = '{16,16,16,16}'")
    assert failure(ended, Exit.MISSED) == "lookups differ from the scan: please report this"
    misses = operations(served, "audits")[0]["result"]["misses"]
    assert misses > 0
    assert f"{misses} misses" in ended.output


def test_the_layout_is_shown_with_its_costs_and_its_fullest_buckets(served: Service) -> None:
    ended = command("layout", port=served.port)
    assert (ended.status, ended.errors) == (0, "")
    with served.client() as client:
        layout = client.get("/v1/admin/layout").raise_for_status().json()
    widths = ", ".join(map(str, layout["widths"]))
    first = " ".join(ended.output.partition("What lookups should cost")[0].split())
    assert first.startswith(f"{layout['bands']} bands of {widths} bits in table {layout['table']}: 40 fingerprints, ")
    assert first.endswith(f"; default threshold {layout['threshold']}")
    for cost in layout["costs"]:
        assert re.search(rf"^\W*{cost['threshold']}\W+{cost['probes']:,}\W", ended.output, re.MULTILINE)
    for bucket in layout["fullest_buckets"]:
        assert re.search(rf"shop\W+{bucket['band']}\W+{bucket['value']:#x}\W+{bucket['fingerprints']}\W", ended.output)


def test_what_is_piped_is_not_folded(served: Service) -> None:
    """A sentence is a line, for whoever looks for it with grep."""
    first, *_ = command("layout", port=served.port).output.splitlines()
    assert re.fullmatch(r"\d+ bands of .* bits in table \w+: 40 fingerprints, .* MB; default threshold \d+", first)


def test_a_reader_that_has_gone_before_the_first_line_is_no_failure(served: Service) -> None:
    read, write = os.pipe()
    os.close(read)
    process = popen(("layout",), {"port": served.port}, stdout=write)
    os.close(write)
    assert end(process) == Ended(Exit.PIPE, "", "")


# What is typed


def test_a_mistake_on_the_command_line_is_status_2(held: Service) -> None:
    for ended in commands(
        ("rebuild",),
        ("rebuild", "--threshold", "seven"),
        ("rebuild", "--treshold", "7"),
        ("worker", "--port", "1"),
        port=held.port,
    ):
        assert (ended.status, ended.output) == (2, "")
        assert "Usage: " in ended.errors
    assert not [each for each in operations(held) if each["finished_at"] is None]


def test_what_the_service_refuses_is_one_line(held: Service) -> None:
    threshold, bands, sample = commands(
        ("rebuild", "--threshold", "64"),
        ("rebuild", "--threshold", "7", "--bands", "17"),
        ("audit", "--sample", "0"),
        port=held.port,
    )
    assert assert_refused(threshold) == "/threshold: Input should be less than or equal to 63"
    assert assert_refused(bands) == "/bands: Input should be less than or equal to 16"
    assert assert_refused(sample) == "/sample: Input should be greater than or equal to 1"


# Where the service is


def test_the_service_is_the_local_one_or_the_one_that_is_named(held: Service) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    local = command("layout", port=held.port)
    by_any_address = command("layout", port=held.port, host="0.0.0.0")  # noqa: S104  where a service would listen
    by_variable = command("layout", url=held.url)
    by_option = command("layout", "--url", f"{held.url}/", url=nobody)
    assert local.status == 0
    assert local == by_any_address == by_variable == by_option


@pytest.mark.parametrize(
    ("host", "address"),
    [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")],  # noqa: S104  as above
)
def test_a_service_that_is_away_is_named(host: str, address: str) -> None:
    port = free_port()
    message = assert_refused(command("layout", host=host, port=port), Exit.UNAVAILABLE)
    assert message.startswith(f"no answer from http://{address}:{port}: ")
    assert message.endswith("Is it running?")


def test_addresses_that_are_none(held: Service) -> None:
    addresses = ["nonsense", "ftp://127.0.0.1", "http://[::1", "http://127.0.0.1:port"]
    for address, ended in zip(
        addresses, commands(*(("layout", "--url", address) for address in addresses), port=held.port), strict=True
    ):
        assert address in assert_refused(ended)


def test_a_password_in_an_address_is_not_told() -> None:
    address = f"http://user:hunter2@127.0.0.1:{free_port()}"
    with pretending(repeat((200, "text/html", b"<p>hello</p>"))) as other:
        away, another = commands(
            ("layout", "--url", address), ("layout", "--url", other.replace("http://", "http://user:hunter2@"))
        )
    assert "hunter2" not in assert_refused(away, Exit.UNAVAILABLE)
    assert "hunter2" not in assert_refused(another)


OTHERS: dict[str, Answer] = {
    "a page": (200, "text/html", b"<!doctype html><p>It works!</p>"),
    "a list": (200, "application/json", b"[1, 2]"),
    "no content": (204, "text/plain", b""),
    "another object": (200, "application/json", b'{"status": "ok"}'),
    "another's problem": (404, "application/json", b'{"message": "no route"}'),
    "a way elsewhere": (307, "text/html", b""),
    "a gateway that is out of order": (503, "text/html", b"<p>503</p>"),
    "a closed connection": (0, "", b""),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_tiroir_service_is_told_in_one_line(other: str) -> None:
    with pretending(repeat(OTHERS[other])) as url:
        ended = command("layout", "--url", url)
    status, _, _ = OTHERS[other]
    assert_refused(ended, Exit.UNAVAILABLE if status in {0, 503} else Exit.FAILED)


def test_a_rebuild_by_what_is_no_tiroir_service_is_refused_in_one_line() -> None:
    with pretending(repeat(OTHERS["another object"])) as url:
        assert_refused(command("rebuild", "--threshold", "7", "--url", url))


def operation(status: str, phase: str | None = None) -> Answer:
    result = {"bands": 4, "threshold": 7, "before": {"bands": 4, "threshold": 3}, "changed": True}
    body = {
        "id": 12,
        "kind": "rebuild",
        "status": status,
        "parameters": {},
        "progress": {"phase": phase, "done": 0, "total": None},
        "created_at": "2026-12-01T12:00:00Z",
        "started_at": None,
        "finished_at": "2026-12-01T12:00:09Z" if status == "succeeded" else None,
        "result": result if status == "succeeded" else None,
        "error": None,
    }
    return 202 if status == "queued" else 200, "application/json", json.dumps(body).encode()


PROBLEM = json.dumps({"code": "database_unavailable", "status": 503, "detail": "the database can't be reached"})
PAUSES: dict[str, Answer] = {
    "the database is away": (503, "application/problem+json", PROBLEM.encode()),
    "the service is away": (0, "", b""),
    "the gateway finds no service": (502, "text/html", b"<p>Bad Gateway</p>"),
    "the gateway waits for a service": (503, "text/html", b"<p>Service Unavailable</p>"),
}


@pytest.mark.parametrize("pause", PAUSES)
def test_who_waits_has_patience(pause: str) -> None:
    with pretending(
        chain(
            [operation("queued"), operation("running", "copying")], [PAUSES[pause]] * 2, repeat(operation("succeeded"))
        )
    ) as url:
        ended = command("rebuild", "--threshold", "7", "--url", url)
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output.splitlines() == ["rebuild 12 is queued", "copying", "4 bands, threshold 7 (before: 4, 3)"]


def test_patience_is_not_for_a_service_that_has_lost_the_operation() -> None:
    gone = (404, "application/problem+json", b'{"code": "operation_not_found", "detail": "there is no rebuild 12"}')
    with pretending(chain([operation("queued")], repeat(gone))) as url:
        assert failure(command("rebuild", "--threshold", "7", "--url", url)) == "there is no rebuild 12"


# A terminal


def test_who_waits_at_a_terminal_sees_a_bar(served: Service) -> None:
    status, written = on_a_terminal("rebuild", "--threshold", "3", "--bands", "4", "--force", port=served.port)
    assert status == 0, written
    assert "\x1b[" in written
    assert "━" in written
    assert "waiting" in written
    assert "4 bands, threshold 3" in written


def test_a_failure_at_a_terminal_is_one_line_too() -> None:
    port = free_port()
    status, written = on_a_terminal("layout", port=port)
    assert status == Exit.UNAVAILABLE
    assert written.startswith(f"tiroir: no answer from http://127.0.0.1:{port}: ")
    assert written.count("\n") == 1


# The worker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_works_until_a_signal_comes(held: Service, number: signal.Signals) -> None:
    threshold = str(10 + number)
    process = start("rebuild", "--threshold", threshold, "--bands", "4", port=held.port)
    waits(process)
    with working(database_url=held.environment["TIROIR_DATABASE_URL"], layout_grace=0) as worker:
        ended = end(process)
        assert (ended.status, ended.errors) == (0, "")
        assert ended.output.splitlines()[-1].startswith(f"4 bands, threshold {threshold} (before: 4, ")
        assert worker.stop(number) == 0
    assert "Traceback" not in worker.log
    assert "out of reach" not in worker.log


def test_what_one_worker_leaves_another_finishes(held: Service) -> None:
    process = start("rebuild", "--threshold", "5", "--bands", "4", "--force", port=held.port)
    waits(process)
    dsn = held.environment["TIROIR_DATABASE_URL"]
    with working(database_url=dsn, layout_grace=3600) as first:
        eventually(lambda: operations(held)[0]["progress"]["phase"] == "waiting")
        assert first.stop() == 0
    assert "Traceback" not in first.log
    assert operations(held)[0]["status"] == "running"
    with working(database_url=dsn, layout_grace=0):
        ended = end(process)
    assert (ended.status, ended.errors) == (0, "")
    assert execute(dsn, "SELECT runs FROM operation ORDER BY id DESC LIMIT 1") == [(2,)]
    assert execute(dsn, "SELECT state FROM band_layout") == [("active",)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tiroir:secret%23pass@127.0.0.1:1/tiroir",
        "postgresql://tiroir:sec@ret#pass@127.0.0.1/tiroir",
    ],
)
def test_a_worker_that_can_not_start_says_why_without_the_password(url: str) -> None:
    message = assert_refused(command("worker", database_url=url))
    assert "pass" not in message.replace("the password", "").replace("user:password@", "")
    assert "ret#" not in message


def test_a_worker_with_a_wrong_setting_says_which(short_path: Path) -> None:
    message = assert_refused(command("worker", data_dir=str(short_path), layout_grace=-1))
    assert message.startswith("TIROIR_LAYOUT_GRACE: ")
