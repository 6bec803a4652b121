"""The commands that report on whole collections, as real processes."""

import csv
import json
import os
import re
import signal
import subprocess
from collections.abc import Generator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from commanding import Ended, assert_refused, command, commands, end, failure, on_a_terminal, popen, start
from pretended import Answer, listening, pretending
from service import Service, eventually, new_database, running, working

from app.api.analysis_answers import AnalysisAnswer
from app.cli.status import Exit
from app.client import Tiroir
from app.postgres.embedded import EmbeddedPostgres

ODD = "a\x1b[31m[red]:key:\n"
LONG = "https://shop.example/" + "x" * 400

# Keys and fingerprints. In the new collection two and three of them are near one another, two are the same.
OLD = {"same": 0xFFFF << 40, ODD: 0, "b": 0xFF00FF, "gone": 0xF0F0F0F0F0, "was": 0xFFF << 20, "old": 0xABCDEF << 32}
NEW = {
    "same": 0xFFFF << 40,
    "near": 0xFFFE << 40,
    ODD: 0b1,
    "a2": 0b11,
    "a3": 0b111,
    "b": 0xFFFFFFFFFF,
    "is": 0xFFF << 20,
    LONG: 0xABCDEF << 32 | 1,
}


@pytest.fixture(scope="module")
def service(server: EmbeddedPostgres) -> Generator[Service]:
    """Its operations stay in the queue until somebody works on them."""
    with running(database_url=new_database(server, "reports"), run_operations="false") as started:
        yield started


@pytest.fixture(scope="module")
def tiroir(service: Service) -> Generator[Tiroir]:
    with Tiroir(service.url) as client:
        for collection, documents in (("old", OLD), ("shop", NEW)):
            lines = [{"key": key, "fingerprint": f"{number:016x}"} for key, number in documents.items()]
            assert client.import_documents(collection, lines).created == len(documents)
        for key in ("short-1", "short-2"):
            client.index("shop", key, text="short")
        yield client


@pytest.fixture(scope="module")
def worker(service: Service, tiroir: Tiroir) -> Generator[Tiroir]:
    """Somebody who works on operations, and a client that sees what comes of it."""
    with working(database_url=service.environment["TIROIR_DATABASE_URL"]):
        yield tiroir


# Before anybody works on operations


@pytest.fixture
def canceled_after(tiroir: Tiroir) -> Generator[None]:
    yield
    for collection in ("shop", "old"):
        for analysis in unfinished(tiroir, collection):
            tiroir.cancel_analysis(collection, analysis.id)


def unfinished(tiroir: Tiroir, collection: str = "shop") -> list[AnalysisAnswer]:
    return [each for each in tiroir.analyses(collection).items if each.finished_at is None]


def waits(*arguments: str, service: Service) -> tuple[subprocess.Popen[str], int]:
    """A command that waits for its analysis, and the number of that."""
    process = start(*arguments, port=service.port)
    assert process.stderr is not None
    said = re.fullmatch(r"analysis (\d+) is queued\n", process.stderr.readline())
    assert said
    return process, int(said[1])


@pytest.mark.usefixtures("canceled_after")
def test_who_does_not_wait_is_told_which_analysis_begins(service: Service, tiroir: Tiroir) -> None:
    ended = command("report", "shop", "--no-wait", port=service.port)
    [begun] = unfinished(tiroir)
    assert ended == Ended(0, f"analysis {begun.id} is queued\n", "")
    assert begun.parameters == {"threshold": 3, "clusters": "components", "representative": "oldest"}
    as_json = command("diff", "old", "shop", "--threshold", "5", "--no-wait", "--json", port=service.port)
    [comparison] = [each for each in unfinished(tiroir) if each.id != begun.id]
    assert comparison.parameters == {"threshold": 5, "against": "old"}
    assert (as_json.status, as_json.errors) == (0, "")
    assert json.loads(as_json.output) == comparison.model_dump(mode="json")


@pytest.mark.usefixtures("canceled_after")
def test_an_unfinished_analysis_with_the_same_settings_is_not_begun_again(service: Service, tiroir: Tiroir) -> None:
    begun = tiroir.begin_analysis("shop")
    star = tiroir.begin_analysis("shop", clusters="star")
    compared = tiroir.begin_analysis("shop", against="old", threshold=3)
    tiroir.begin_analysis("shop", representative="longest")
    tiroir.begin_analysis("shop", threshold=9)
    before = unfinished(tiroir)
    cases = (
        (("report", "shop"), begun),
        (("report", "shop", "--threshold", "3", "--clusters", "components"), begun),
        (("report", "shop", "--clusters", "star"), star),
        (("diff", "old", "shop"), compared),
        (("diff", "old", "shop", "--threshold", "3"), compared),
    )
    several = commands(*((*arguments, "--no-wait") for arguments, _ in cases), port=service.port)
    assert several == [Ended(0, f"analysis {found.id} is queued\n", "") for _, found in cases]
    assert unfinished(tiroir) == before
    others = (("report", "shop", "--threshold", "4"), ("diff", "old", "shop", "--threshold", "4"))
    for ended in commands(*((*arguments, "--no-wait") for arguments in others), port=service.port):
        assert ended.status == 0
    assert len(unfinished(tiroir)) == len(before) + 2


POLLED = "GET /v1/collections/{collection}/analyses/{id} 200"


@pytest.mark.usefixtures("canceled_after")
def test_who_stops_waiting_stops_nothing_and_is_told_how_to_go_on(service: Service, tiroir: Tiroir) -> None:
    for arguments in (("report", "shop"), ("diff", "old", "shop", "--json")):
        polled = service.log.count(POLLED)
        process = start(*arguments, port=service.port)
        until_polled(service, polled + 1)
        [begun] = unfinished(tiroir)
        process.send_signal(signal.SIGINT)
        ended = end(process)
        assert (ended.status, ended.output) == (Exit.INTERRUPTED, "")
        assert ended.errors.splitlines()[-1] == (
            f"interrupted: analysis {begun.id} goes on; the same command waits for it again,"
            " and with --last shows it when it is finished"
        )
        assert tiroir.analysis("shop", begun.id).status == "queued"
        tiroir.cancel_analysis("shop", begun.id)


def until_polled(service: Service, times: int) -> None:
    eventually(lambda: service.log.count(POLLED) >= times)


def test_what_somebody_cancels_meanwhile_is_no_success(service: Service, tiroir: Tiroir) -> None:
    process, number = waits("report", "shop", service=service)
    tiroir.cancel_analysis("shop", number)
    assert assert_refused(end(process)) == f"analysis {number} was canceled"


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "shop", "--json", "--csv", "tables"),
        ("report", "shop", "--no-wait", "--last"),
        ("diff", "old", "shop", "--no-wait", "--csv", "tables"),
        ("report", "shop", "--csv", "-"),
        ("report", "shop", "--clusters", "squares"),
        ("report",),
        ("diff", "old"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_status_2_and_begins_nothing(
    service: Service, tiroir: Tiroir, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ended = end(popen(arguments, {"port": service.port}, folder=tmp_path))
    assert (ended.status, ended.output) == (Exit.USAGE, "")
    assert unfinished(tiroir) == []
    assert list(tmp_path.iterdir()) == []


def test_what_the_service_refuses_is_one_line(service: Service, tiroir: Tiroir) -> None:
    cases = (
        (("report", "absent"), "absent"),
        (("diff", "absent", "shop"), "absent"),
        (("diff", "shop", "shop"), "another one"),
        (("report", "shop", "--threshold", "64"), "/threshold: Input should be less than or equal to 63"),
        (("report", "old", "--last"), "old has no finished analysis: without --last one begins"),
        (("diff", "old", "shop", "--last", "--threshold", "2"), "shop has no finished analysis with threshold 2, "),
    )
    for (_, reason), ended in zip(cases, commands(*(each for each, _ in cases), port=service.port), strict=True):
        assert reason in assert_refused(ended)
    assert unfinished(tiroir) == []


def test_a_folder_that_can_not_be_made_is_told_before_anything_begins(
    service: Service, tiroir: Tiroir, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("what was there")
    for folder in ("file", "file/in"):
        ended = end(popen(("report", "shop", "--csv", folder), {"port": service.port}, folder=tmp_path))
        assert assert_refused(ended, Exit.OUTPUT).startswith(f"{folder}: ")
    assert unfinished(tiroir) == []


# Reports


def squeezed(output: str) -> str:
    """Lines without frames and bars."""
    return "\n".join(" ".join(re.sub(r"[^\w ,.:;≤%()\[\]\\/-]", " ", line).split()) for line in output.splitlines())


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_report_counts_and_shows_the_largest_clusters(service: Service, worker: Tiroir) -> None:
    ended = command("report", "shop", "--threshold", "3", port=service.port)
    assert ended.status == 0
    analysis = worker.analyses("shop", limit=1).items[0]
    first, *phases = ended.errors.splitlines()
    assert first == f"analysis {analysis.id} is queued"
    assert set(phases) <= {"reading", "pairing", "clustering", "writing"}
    lines = squeezed(ended.output).splitlines()
    assert re.fullmatch(
        r"shop at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: threshold 3, components, representative oldest", lines[0]
    )
    assert lines[1:4] == [
        "10 documents, 8 fingerprints, 2 too short",
        "5 near-duplicated (50.0 %), 2 exact duplicated in 1 groups",
        "2 clusters, the largest of 3 documents, the widest of 2 bits",
    ]
    assert [line for line in lines if re.fullmatch(r"\d \d", line)] == ["0 0", "1 3", "2 1", "3 0"]
    assert [line for line in lines if re.match(r"\d \d \d ", line)] == [
        r"3 3 2 a\x1b[31m[red]:key:\n",
        "2 2 1 near",
    ]
    histogram, _, _ = ended.output.partition("Largest clusters")
    bars = {line.split()[1]: line.count("█") for line in histogram.splitlines() if re.match(r"│ +\d │", line)}
    assert bars == {"0": 0, "1": 40, "2": 13, "3": 0}


def test_a_report_for_programs_is_one_object_and_nothing_else(service: Service, worker: Tiroir) -> None:
    settings = ("--clusters", "star", "--representative", "first_key", "--threshold", "1")
    ended = command("report", "shop", *settings, "--json", port=service.port)
    assert (ended.status, ended.errors, ended.output.count("\n")) == (0, "", 1)
    analysis = worker.analyses("shop", limit=1).items[0]
    told = json.loads(ended.output)
    assert told.pop("largest_clusters") == [
        each.model_dump(mode="json") for each in worker.clusters("shop", analysis.id).items
    ]
    assert told == analysis.model_dump(mode="json")
    assert analysis.parameters == {"threshold": 1, "clusters": "star", "representative": "first_key"}


def test_the_latest_report_is_shown_again_without_beginning_one(service: Service, worker: Tiroir) -> None:
    for settings in (("--threshold", "2"), ("--threshold", "1", "--clusters", "star")):
        assert command("report", "shop", *settings, port=service.port).status == 0
    before = worker.analyses("shop").items
    star, components = before[0], before[1]
    for settings, expected in (
        ((), star),
        (("--threshold", "2"), components),
        (("--clusters", "star"), star),
        (("--clusters", "components"), components),
    ):
        ended = command("report", "shop", "--last", "--json", *settings, port=service.port)
        assert (ended.status, ended.errors) == (0, ""), ended
        assert json.loads(ended.output)["id"] == expected.id, settings
    refused = command("report", "shop", "--last", "--threshold", "2", "--clusters", "star", port=service.port)
    assert assert_refused(refused) == (
        "shop has no finished analysis with threshold 2, clusters star: without --last one begins"
    )
    assert worker.analyses("shop", limit=1).items == [star]


def test_tables_of_a_report_are_whole_files_beside_the_summary(
    service: Service, worker: Tiroir, tmp_path: Path
) -> None:
    ended = end(popen(("report", "shop", "--csv", "made/for it"), {"port": service.port}, folder=tmp_path))
    assert ended.status == 0
    assert "5 near-duplicated (50.0 %)" in ended.output
    folder = tmp_path / "made" / "for it"
    assert sorted(path.name for path in folder.iterdir()) == ["clusters.csv", "documents.csv", "pairs.csv"]
    analysis = worker.analyses("shop", limit=1).items[0]
    assert [(row["cluster"], row["key"], row["distance"]) for row in rows(folder / "clusters.csv")] == [
        ("1", ODD, "0"),
        ("1", "a2", "1"),
        ("1", "a3", "2"),
        ("2", "near", "0"),
        ("2", "same", "1"),
    ]
    assert [row["distance"] for row in rows(folder / "pairs.csv")] == [
        str(pair.distance) for pair in worker.pairs("shop", analysis.id).items
    ]
    assert [row["key"] for row in rows(folder / "documents.csv")] == [
        each.key for each in worker.flagged("shop", analysis.id).items
    ]
    for name in ("clusters", "pairs", "documents"):
        expected = b"".join(worker.stream("shop", analysis.id, name, form="csv"))
        assert (folder / f"{name}.csv").read_bytes() == expected


@pytest.mark.usefixtures("worker")
def test_a_report_of_nothing_has_no_clusters(service: Service, tiroir: Tiroir) -> None:
    tiroir.create_collection("empty")
    ended = command("report", "empty", port=service.port)
    assert ended.status == 0
    lines = squeezed(ended.output).splitlines()
    assert lines[1:4] == [
        "0 documents, 0 fingerprints, 0 too short",
        "0 near-duplicated (0.0 %), 0 exact duplicated in 0 groups",
        "0 clusters",
    ]
    assert "Largest" not in ended.output


@pytest.mark.usefixtures("worker")
def test_who_waits_at_a_terminal_sees_bars_and_what_is_written(service: Service, tmp_path: Path) -> None:
    status, written = on_a_terminal("report", "shop", "--csv", tmp_path / "tables", port=service.port)
    assert status == 0, written
    assert "━" in written
    assert "writing" in written
    assert f"writing {tmp_path / 'tables' / 'pairs.csv'}" in written
    assert "5 near-duplicated" in written
    assert "█" in written


# Differences


@pytest.mark.usefixtures("worker")
def test_differences_are_counted_and_the_first_are_named(service: Service) -> None:
    ended = command("diff", "old", "shop", "--threshold", "3", port=service.port)
    assert ended.status == 0
    lines = squeezed(ended.output).splitlines()
    assert re.fullmatch(r"shop against old at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: threshold 3", lines[0])
    assert lines[1:3] == [
        "10 documents, 6 before",
        "5 new, 1 gone, 2 moved, 1 changed, 1 nearly unchanged, 1 unchanged",
    ]
    assert [line for line in lines if re.fullmatch(r"\d \d", line)] == ["0 0", "1 1", "2 0", "3 0"]
    _, _, named = ended.output.partition("new:\n")
    assert named.splitlines() == [
        r"  2  a2  resembles a\x1b[31m[red]:key:\n",
        r"  3  a3  resembles a\x1b[31m[red]:key:\n",
        "  1  near  resembles same",
        "  short-1",
        "  short-2",
        "gone:",
        "  gone",
        "moved:",
        f"  1  {LONG}  was old",
        "  0  is  was was",
        "changed:",
        "  24  b",
        "nearly unchanged:",
        r"  1  a\x1b[31m[red]:key:\n",
    ]
    shown = command("diff", "old", "shop", "--last", port=service.port)
    assert (shown.output, shown.errors) == (ended.output, "")


def test_differences_for_programs_are_one_object(service: Service, worker: Tiroir) -> None:
    ended = command("diff", "old", "shop", "--json", port=service.port)
    assert (ended.status, ended.errors, ended.output.count("\n")) == (0, "", 1)
    told = json.loads(ended.output)
    first = told.pop("first_differences")
    analysis = worker.analyses("shop", limit=1).items[0]
    assert told == analysis.model_dump(mode="json")
    assert {status: [each["key"] for each in its] for status, its in first.items()} == {
        "new": ["a2", "a3", "near", "short-1", "short-2"],
        "gone": ["gone"],
        "moved": [LONG, "is"],
        "changed": ["b"],
        "nearly_unchanged": [ODD],
    }
    assert first["new"][0] == {"key": "a2", "status": "new", "distance": 2, "counterpart": ODD}


def test_more_than_ten_are_said_to_be_more(service: Service, worker: Tiroir) -> None:
    worker.create_collection("nothing")
    worker.import_documents("many", [{"key": f"{n:02}", "fingerprint": f"{n:016x}"} for n in range(12)])
    new, gone = (command("diff", *names, port=service.port) for names in (("nothing", "many"), ("many", "nothing")))
    for ended, name in ((new, "new"), (gone, "gone")):
        assert ended.status == 0
        _, _, named = ended.output.partition(f"{name}, the first 10:\n")
        assert named.splitlines() == [f"  {n:02}" for n in range(10)]


@pytest.mark.usefixtures("worker")
def test_tables_of_differences_hold_all_documents(service: Service, tmp_path: Path) -> None:
    ended = end(popen(("diff", "old", "shop", "--csv", "."), {"port": service.port}, folder=tmp_path))
    assert ended.status == 0
    assert "5 new, 1 gone" in ended.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["differences.csv", "unchanged.csv"]
    differences, unchanged = rows(tmp_path / "differences.csv"), rows(tmp_path / "unchanged.csv")
    keys = sorted([*NEW.keys() - {"same"}, "gone", "short-1", "short-2"], key=str.encode)
    assert [row["key"] for row in differences] == keys
    assert [(row["key"], row["counterpart"]) for row in unchanged] == [("same", "same")]


# What goes wrong


def analysis_of(status: str, phase: str | None = None, error: str | None = None) -> dict[str, Any]:
    result = {
        "documents": 1_234_567,
        "fingerprints": 1_000_000,
        "too_short": 0,
        "near_duplicated": 30_000,
        "exact_duplicated": 0,
        "exact_groups": 0,
        "clusters": 2,
        "largest_cluster": 25_000,
        "widest_cluster": 17,
        "widest_cluster_is_exact": False,
        "histogram": [0, 7],
        "moment": "2026-12-01T12:00:00+00:00",
    }
    return {
        "id": 12,
        "kind": "analysis",
        "status": status,
        "parameters": {"threshold": 1, "clusters": "components", "representative": "oldest"},
        "progress": {"phase": phase, "done": 0, "total": None},
        "created_at": "2026-12-01T12:00:00Z",
        "started_at": None,
        "finished_at": "2026-12-01T12:00:09Z" if status in {"succeeded", "failed"} else None,
        "result": result if status == "succeeded" else None,
        "error": error,
        "memory_bytes": None,
    }


def answer(told: object, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(told).encode()


NONE = answer({"items": [], "next_cursor": None})
BEGUN = answer(analysis_of("queued"), 202)
SUCCEEDED = answer(analysis_of("succeeded"))
CLUSTERS = answer(
    {
        "items": [
            {
                "cluster": number,
                "representative": LONG,
                "documents": 25_000 // number,
                "fingerprints": 24_000,
                "diameter": 17,
                "diameter_is_exact": number > 1,
                "members": list[object](),
            }
            for number in (1, 2)
        ],
        "next_cursor": None,
    }
)
AWAY: list[Answer] = [
    (503, "application/problem+json", b'{"code": "database_unavailable", "detail": "no database"}'),
    (0, "", b""),
    (502, "text/html", b"<p>Bad Gateway</p>"),
]


def test_who_waits_has_patience_and_widths_that_are_bounds_are_told() -> None:
    with pretending(chain([NONE, BEGUN, *AWAY, SUCCEEDED], repeat(CLUSTERS))) as url:
        ended = command("report", "shop", "--threshold", "1", "--url", url)
    assert (ended.status, ended.errors) == (0, "analysis 12 is queued\n")
    lines = squeezed(ended.output).splitlines()
    assert lines[1:4] == [
        "1,234,567 documents, 1,000,000 fingerprints, 0 too short",
        "30,000 near-duplicated (2.4 %), 0 exact duplicated in 0 groups",
        "2 clusters, the largest of 25,000 documents, the widest of ≤ 17 bits",
    ]
    assert [line for line in lines if LONG in line] == [
        f"25,000 24,000 ≤ 17 {LONG}",
        f"12,500 24,000 17 {LONG}",
    ]


def test_an_unfinished_analysis_is_found_behind_many_others() -> None:
    pages = [
        answer({"items": [analysis_of("succeeded")], "next_cursor": "more"}),
        answer({"items": [analysis_of("running", "pairing")], "next_cursor": None}),
    ]
    with listening(chain([*pages, SUCCEEDED], repeat(CLUSTERS))) as other:
        ended = command("report", "shop", "--threshold", "1", "--url", other.url)
    assert (ended.status, ended.errors) == (0, "analysis 12 is running\npairing\n")
    assert [(asked.method, asked.path) for asked in other.asked] == [
        ("GET", "/v1/collections/shop/analyses?limit=100"),
        ("GET", "/v1/collections/shop/analyses?limit=100&cursor=more"),
        ("GET", "/v1/collections/shop/analyses/12"),
        ("GET", "/v1/collections/shop/analyses/12/clusters?limit=10"),
    ]


def test_the_latest_is_one_that_has_succeeded_and_of_the_same_kind() -> None:
    comparison = analysis_of("succeeded") | {"id": 14, "parameters": {"threshold": 1, "against": "old"}}
    others = [comparison, analysis_of("failed") | {"id": 13}, analysis_of("running") | {"id": 11}]
    listed = answer({"items": [*others, analysis_of("succeeded")], "next_cursor": None})
    with pretending(chain([listed], repeat(CLUSTERS))) as url:
        ended = command("report", "shop", "--last", "--json", "--url", url)
    assert (ended.status, ended.errors) == (0, "")
    assert json.loads(ended.output)["id"] == 12


def test_an_analysis_that_fails_says_why() -> None:
    failed = answer(analysis_of("failed", error="the collection was deleted"))
    with pretending(chain([NONE, BEGUN], repeat(failed))) as url:
        ended = command("report", "shop", "--json", "--url", url)
    assert assert_refused(ended) == "analysis 12 has failed: the collection was deleted"


def test_a_table_that_is_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    """Those before it are whole; the summary isn't told."""
    (tmp_path / "pairs.csv").write_text("what was there")
    tables: list[Answer] = [(200, "text/csv", b"cluster,key\r\n"), (0, "", b"")]
    with pretending(chain([NONE, BEGUN, SUCCEEDED], tables)) as url:
        ended = end(popen(("report", "shop", "--csv", ".", "--url", url), {}, folder=tmp_path))
    assert (ended.status, ended.output) == (Exit.UNAVAILABLE, "")
    assert ended.errors.splitlines()[-1].startswith("tiroir: no answer from ")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "clusters.csv": "cluster,key\n",
        "pairs.csv": "what was there",
    }


def test_a_table_that_can_not_be_written_is_status_6(tmp_path: Path) -> None:
    (tmp_path / "clusters.csv").mkdir()
    with pretending(chain([NONE, BEGUN, SUCCEEDED], repeat((200, "text/csv", b"cluster,key\r\n")))) as url:
        ended = end(popen(("report", "shop", "--csv", ".", "--url", url), {}, folder=tmp_path))
    assert (ended.status, ended.output) == (Exit.OUTPUT, "")
    assert ended.errors.splitlines()[-1] == "tiroir: clusters.csv: Is a directory"
    assert [path.name for path in tmp_path.iterdir()] == ["clusters.csv"]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_reader_that_has_gone_is_no_failure_and_a_full_output_is(options: Sequence[str]) -> None:
    arguments = ("report", "shop", "--last", *options)
    latest = answer({"items": [analysis_of("succeeded")], "next_cursor": None})
    with pretending(chain([latest, CLUSTERS] * 2)) as url:
        read, write = os.pipe()
        os.close(read)
        process = popen((*arguments, "--url", url), {}, stdout=write)
        os.close(write)
        assert end(process) == Ended(Exit.PIPE, "", "")
        with Path("/dev/full").open("wb") as full:
            message = failure(end(popen((*arguments, "--url", url), {}, stdout=full)), Exit.OUTPUT)
    assert message == "standard output: No space left on device"
