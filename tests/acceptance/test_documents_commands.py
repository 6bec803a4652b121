"""The commands that index, look up, export and delete documents, as real processes."""

import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from typing import IO

import pytest
from commanding import (
    TIROIR,
    Ended,
    assert_refused,
    close_input,
    end,
    failure,
    hand_over,
    on_a_terminal,
    popen,
)
from pretended import listening, pretending
from service import ROOT, Service, eventually, execute, free_port, new_database, running, stopped_at_the_end

from app.cli.status import Exit
from app.client import Tiroir
from app.postgres.embedded import EmbeddedPostgres

REVISIONS = ROOT / "tests" / "data" / "revisions.jsonl.gz"
TEXT = " ".join(f"word{number}" for number in range(250))
LATIN = "déjà un café".encode("latin-1")


@dataclass(frozen=True)
class Shell:
    """Commands in a folder, for a service."""

    folder: Path
    port: int

    def write(self, name: str | bytes, content: bytes | str) -> Path:
        path = self.folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def start(
        self,
        *arguments: str | bytes | Path,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        return popen(arguments, {"port": self.port}, stdin=stdin, stdout=stdout, folder=self.folder)

    def run(self, *arguments: str | bytes | Path, given: bytes | None = None) -> Ended:
        """`given` goes to its standard input, by a pipe."""
        process = self.start(*arguments, stdin=subprocess.DEVNULL if given is None else subprocess.PIPE)
        if given is not None:
            hand_over(process, given)
            close_input(process)
        return end(process)

    def run_all(self, *several: Sequence[str | bytes | Path]) -> list[Ended]:
        """Those that don't disturb one another, at once."""
        return [end(process) for process in [self.start(*arguments) for arguments in several]]

    def done(self, *arguments: str | bytes | Path, given: bytes | None = None) -> str:
        """The output of a command that says nothing else."""
        ended = self.run(*arguments, given=given)
        assert (ended.status, ended.errors) == (0, ""), ended
        return ended.output


@pytest.fixture(scope="module")
def dsn(server: EmbeddedPostgres) -> str:
    return new_database(server, "documents")


@pytest.fixture(scope="module")
def service(dsn: str) -> Generator[Service]:
    with running(database_url=dsn, run_operations="false") as started:
        yield started


@pytest.fixture(scope="module")
def tiroir(service: Service) -> Generator[Tiroir]:
    with Tiroir(service.url) as client:
        yield client


@pytest.fixture
def shell(service: Service, tmp_path: Path) -> Shell:
    return Shell(tmp_path, service.port)


_numbers = count()


@pytest.fixture
def shop() -> str:
    """A collection of the test's own."""
    return f"shop-{next(_numbers)}"


@pytest.fixture(scope="module")
def many(tiroir: Tiroir) -> str:
    """A collection whose export is larger than any pipe."""
    documents = [{"key": f"{number:05}", "fingerprint": f"{number:016x}"} for number in range(20_000)]
    assert tiroir.import_documents("many", documents).created == 20_000
    return "many"


def keys(tiroir: Tiroir, collection: str) -> list[str]:
    return [json.loads(line)["key"] for line in tiroir.export(collection)]


def counts(**given: int) -> dict[str, int]:
    return dict.fromkeys(("created", "replaced", "unchanged", "short", "too_short", "failed"), 0) | given


# Indexing


def test_files_of_all_kinds_are_indexed_by_one_command(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    shell.write("a.ndjson", f'\ufeff{{"key": "a", "text": "{TEXT}"}}\r\n\n{{"key": "b", "fingerprint": "{1:016x}"}}')
    shell.write("c.csv", f'text,key\n"{TEXT}, and\nmore",c\n')
    shell.write("d.txt", TEXT)
    shell.write("in/e.txt", TEXT)
    shell.write("in/deep/f.tsv", f"key\ttext\nf\t{TEXT}\n")
    shell.write("in/.hidden.txt", TEXT)
    shell.write("g.jsonl.gz", gzip.compress(f'{{"key": "g", "text": "{TEXT}"}}'.encode()))
    piped = gzip.compress(b'{"key": "h", "fingerprint": "0000000000000002"}')
    command = ("index", shop, "a.ndjson", "c.csv", "d.txt", "in", "g.jsonl.gz", "-")
    assert shell.done(*command, given=piped) == ("8 created, 0 replaced, 0 unchanged, 0 short, 0 too_short, 0 failed\n")
    assert keys(tiroir, shop) == ["a", "b", "c", "d.txt", "f", "g", "h", "in/e.txt"]
    assert [match.key for match in tiroir.near(shop, key="a", threshold=0).matches] == ["d.txt", "f", "g", "in/e.txt"]
    again = shell.done(*command, "--json", given=piped)
    assert json.loads(again) == counts(unchanged=8)


def test_real_revisions_are_indexed_by_the_names_of_their_own_members(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    output = shell.done(
        "index", shop, REVISIONS, "--key", "id", "--text", "absent", "--text", "text", "--metadata", "group", "--json"
    )
    expected = [json.loads(line) for line in gzip.decompress(REVISIONS.read_bytes()).splitlines()]
    assert json.loads(output)["created"] == len(expected)
    exported = {line["key"]: line for line in map(json.loads, tiroir.export(shop, text=True))}
    assert {key: line["text"] for key, line in exported.items()} == {each["id"]: each["text"] for each in expected}
    assert all(exported[each["id"]]["metadata"] == {"group": each["group"]} for each in expected)


def test_what_can_not_be_indexed_is_told_line_by_line_and_the_others_stay(
    shell: Shell, tiroir: Tiroir, shop: str
) -> None:
    """CU-11: data on standard output, messages on the other, and one line that sums up."""
    good = [f'{{"key": "{key}", "text": "{TEXT}"}}' for key in "abc"]
    shell.write("docs.ndjson", "\n".join([good[0], "{", good[1], '{"key": "x"}', '{"text": "no key"}', good[2]]))
    ended = shell.run("index", shop, "docs.ndjson", "--json")
    assert ended.status == Exit.INCOMPLETE
    assert json.loads(ended.output) == counts(created=3, failed=3)
    *messages, last = ended.errors.splitlines()
    assert [message.partition(": ")[0] for message in messages] == [f"docs.ndjson:{line}" for line in (2, 4, 5)]
    assert last == "tiroir: 3 of 6 failed; the others are indexed"
    assert keys(tiroir, shop) == ["a", "b", "c"]


def test_files_that_can_not_be_read_are_named_with_the_byte_and_the_others_stay(
    shell: Shell, tiroir: Tiroir, shop: str
) -> None:
    """CU-03."""
    shell.write("a.txt", TEXT)
    shell.write("b.txt", LATIN)
    shell.write(b"caf\xe9.txt", TEXT)
    shell.write("d.txt", TEXT)
    ended = shell.run("index", shop, "a.txt", "b.txt", b"caf\xe9.txt", "absent:key:.txt", "d.txt")
    assert ended.status == Exit.INCOMPLETE
    assert ended.errors.splitlines() == [
        "b.txt: not UTF-8, at byte 2",
        r"caf\udce9.txt: its name is not UTF-8, so it can't be a key",
        "absent:key:.txt: No such file or directory",
        "tiroir: 3 of 5 failed; the others are indexed",
    ]
    assert keys(tiroir, shop) == ["a.txt", "d.txt"]


def test_the_first_failure_ends_it_if_that_is_wanted(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    good = f'{{"key": "a", "text": "{TEXT}"}}'
    shell.write("served.ndjson", f'{good}\n{{"key": "x"}}\n{good.replace("a", "b", 1)}\n{{"key": "y"}}\n')
    shell.write("read.csv", f"key,text\na,{TEXT}\nx\ny\nb,{TEXT}\n")
    served, read = shell.run_all(
        *(("index", shop, name, "--on-error", "abort") for name in ("served.ndjson", "read.csv"))
    )
    for ended, place in ((served, "served.ndjson:2: "), (read, "read.csv:3: ")):
        assert ended.status == Exit.INCOMPLETE
        message, last = ended.errors.splitlines()
        assert message.startswith(place)
        assert last.endswith("; nothing of the rest is indexed")
        assert "1 failed" in ended.output
    assert "b" not in (keys(tiroir, shop) if "1 created" in read.output + served.output else [])


def test_of_two_failures_the_first_one_is_told_whoever_has_found_it(shell: Shell, shop: str) -> None:
    """The service finds the one, the command the other."""
    shell.write("docs.ndjson", '{"id": "a", "text": "nul \\u0000"}\nnonsense\n')
    ended = shell.run("index", shop, "docs.ndjson", "--key", "id", "--on-error", "abort")
    assert ended.status == Exit.INCOMPLETE
    assert [line.partition(": ")[0] for line in ended.errors.splitlines()] == ["docs.ndjson:1", "tiroir"]


def test_nobody_at_the_port_is_status_3(shell: Shell, shop: str) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for ended in shell.run_all(
        ("near", shop, "--text", TEXT, "--url", away),
        ("export", shop, "--url", away, "-o", "x.ndjson"),
        ("delete", shop, "a", "--url", away),
    ):
        assert assert_refused(ended, Exit.UNAVAILABLE).startswith(f"no answer from {away}: ")
    assert list(shell.folder.iterdir()) == []


def test_what_is_refused_because_of_something_else_that_goes_on_is_status_5(shell: Shell, shop: str) -> None:
    busy = (409, "application/problem+json", b'{"code": "rebuild_running", "detail": "wait for it"}')
    with pretending(repeat(busy)) as url:
        assert assert_refused(shell.run("delete", shop, "a", "--url", url), Exit.BUSY) == "wait for it"


# Looking up


def test_each_way_to_look_up_finds_the_same(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    tiroir.index(shop, "a\x1b[31m\n", text=TEXT, metadata={"of": 1})
    tiroir.index(shop, "b", text=TEXT.replace("word3", "other"))
    shell.write("query.txt", b"\xef\xbb\xbf" + TEXT.encode())
    shell.write("query.gz", gzip.compress(TEXT.encode()))
    fingerprint = tiroir.document(shop, "a\x1b[31m\n").fingerprint
    assert fingerprint is not None
    expected = tiroir.near(shop, text=TEXT, threshold=20).matches
    assert [match.match for match in expected] == ["exact", "near"]
    lines = f"0\texact\ta\\x1b[31m\\n\n{expected[1].distance}\tnear\tb\n"
    by_file, by_gzip, by_text, by_fingerprint = shell.run_all(
        ("near", shop, "query.txt", "--threshold", "20"),
        ("near", shop, "query.gz", "--threshold", "20"),
        ("near", shop, "--text", TEXT, "--threshold", "20"),
        ("near", shop, "--fingerprint", fingerprint.upper(), "--threshold", "20"),
    )
    assert by_file == by_gzip == by_text == Ended(0, lines, "")
    assert by_fingerprint == Ended(0, lines.replace("exact", "near"), "")
    assert shell.done("near", shop, "-", "--threshold", "20", given=TEXT.encode()) == lines
    by_key = shell.done("near", shop, "--key", "b", "--threshold", "20")
    assert by_key == f"{expected[1].distance}\tnear\ta\\x1b[31m\\n\n"
    found = json.loads(shell.done("near", shop, "--text", TEXT, "--threshold", "20", "--json"))
    assert found["matches"] == [match.model_dump(exclude_unset=True) for match in expected]


def test_what_a_person_should_know_of_a_lookup_is_told_beside_it(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    for key in "abc":
        tiroir.index(shop, key, text=TEXT)
    too_short, short, more = shell.run_all(
        ("near", shop, "--text", "word"),
        ("near", shop, "--text", " ".join(f"short{number}" for number in range(60)), "--threshold", "0"),
        ("near", shop, "--text", TEXT, "--limit", "2"),
    )
    assert too_short == Ended(0, "", "the text is too short for a fingerprint: only exact duplicates can be found\n")
    assert (short.status, short.output) == (0, "")
    assert short.errors.startswith("the text is short: ")
    assert more == Ended(0, "0\texact\ta\n0\texact\tb\n", "there are more: --limit\n")


def test_fingerprints_of_texts_are_shown_with_their_names(shell: Shell, tiroir: Tiroir) -> None:
    fingerprint = tiroir.fingerprint(TEXT).fingerprint
    shell.write("a.txt", TEXT)
    shell.write(b"caf\xe9.txt", "short")
    assert shell.done("fingerprint", "a.txt", "-", b"caf\xe9.txt", given=TEXT.encode()) == (
        f"{fingerprint}  a.txt\n{fingerprint}  -\ntoo_short  caf\\udce9.txt\n"
    )
    shown = json.loads(shell.done("fingerprint", "--text", TEXT, "--json"))
    assert (shown["fingerprint"], shown["words"], shown["status"]) == (fingerprint, 250, "ok")


def test_a_fingerprint_is_spelled_in_one_way_everywhere(shell: Shell, tiroir: Tiroir, dsn: str, shop: str) -> None:
    """CU-10."""
    shell.write("cu-10.txt", TEXT)
    shell.done("index", shop, "cu-10.txt")
    spelled = {
        "the interface": tiroir.document(shop, "cu-10.txt").fingerprint,
        "the command": shell.done("fingerprint", "cu-10.txt").split()[0],
        "the export": json.loads(shell.done("export", shop))["fingerprint"],
    }
    assert len(set(spelled.values())) == 1, spelled
    [stored] = [simhash for key, simhash in execute(dsn, "SELECT key, simhash FROM document") if key == "cu-10.txt"]
    fingerprint = spelled["the command"]
    assert fingerprint is not None
    assert f"{stored % 2**64:016x}" == fingerprint
    assert shell.done("near", shop, "--fingerprint", fingerprint, "--threshold", "0") == "0\tnear\tcu-10.txt\n"


# Exports


def test_an_export_is_the_same_wherever_it_goes_and_indexed_elsewhere(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    for number in range(30):
        tiroir.index(shop, f"{number}\n é", text=f"{TEXT} {number}", metadata={"of": number})
    tiroir.index(shop, "fingerprint", fingerprint=f"{7:016x}")
    tiroir.index(shop, "short", text="short")
    piped, plain_file, compressed, with_texts = shell.run_all(
        ("export", shop),
        ("export", shop, "-o", "x.ndjson"),
        ("export", shop, "--output", "x.ndjson.gz"),
        ("export", shop, "--text", "-o", "texts.ndjson"),
    )
    assert (piped.status, piped.errors) == (0, "")
    assert plain_file == compressed == with_texts == Ended(0, "", "")
    exported = (shell.folder / "x.ndjson").read_bytes()
    assert piped.output.encode() == exported
    assert gzip.decompress((shell.folder / "x.ndjson.gz").read_bytes()) == exported
    assert sorted(path.name for path in shell.folder.iterdir()) == ["texts.ndjson", "x.ndjson", "x.ndjson.gz"]
    assert exported.count(b"\n") == 32
    shell.done("index", f"{shop}-again", "x.ndjson.gz")
    shell.done("index", f"{shop}-texts", "texts.ndjson")
    again, texts = shell.run_all(("export", f"{shop}-again"), ("export", f"{shop}-texts", "--text"))
    assert again.output.encode() == exported
    assert texts.output.encode() == (shell.folder / "texts.ndjson").read_bytes()


def test_a_reader_that_has_seen_enough_is_no_failure(shell: Shell, many: str) -> None:
    """CU-01."""
    for unbuffered in ("", "1"):
        ended = subprocess.run(
            ["bash", "-c", '"$@" | head -1; echo "${PIPESTATUS[0]}"', "bash", *TIROIR, "export", many],
            cwd=ROOT,
            env=Service((), port=shell.port).environment | {"PYTHONUNBUFFERED": unbuffered},
            capture_output=True,
            text=True,
            check=True,
        )
        first, status = ended.stdout.splitlines()
        assert json.loads(first)["key"] == "00000"
        assert (int(status), ended.stderr) == (Exit.PIPE, "")


def test_an_export_that_fails_leaves_what_was_there(shell: Shell, shop: str) -> None:
    answers = [(503, "application/problem+json", b'{"detail": "the database went away"}')]
    shell.write("x.ndjson", "what was there")
    with pretending(iter(answers)) as url:
        away = shell.run("export", shop, "-o", "x.ndjson", "--url", url)
    assert assert_refused(away, Exit.UNAVAILABLE) == "the database went away"
    absent = shell.run("export", shop, "-o", "x.ndjson")
    assert shop in assert_refused(absent)
    assert [path.name for path in shell.folder.iterdir()] == ["x.ndjson"]
    assert (shell.folder / "x.ndjson").read_text() == "what was there"


def test_a_file_that_can_not_be_written_is_status_6(shell: Shell, many: str) -> None:
    (shell.folder / "folder").mkdir()
    for name, reason in (("absent/x.ndjson", "No such file"), ("folder", "Is a directory")):
        assert reason in assert_refused(shell.run("export", many, "-o", name), Exit.OUTPUT)
    assert [path.name for path in shell.folder.iterdir()] == ["folder"]


def test_a_folder_without_a_name_can_not_be_written_either(shell: Shell, many: str) -> None:
    assert_refused(shell.run("export", many, "-o", "."), Exit.OUTPUT)


def test_an_export_goes_into_a_pipe_with_a_name(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    """Neither it nor a device is replaced by a file."""
    tiroir.index(shop, "a", fingerprint=f"{7:016x}")
    pipe = shell.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    shell.done("export", shop, "-o", "pipe")
    assert pipe.is_fifo()
    assert json.loads(os.read(reader, 65_536))["key"] == "a"
    os.close(reader)


def test_an_output_that_is_full_is_status_6(shell: Shell, tiroir: Tiroir, many: str) -> None:
    text = ("--text", TEXT)
    tiroir.index("full", "a", text=TEXT)
    with Path("/dev/full").open("wb") as full:
        started = [
            shell.start(*arguments, stdout=full)
            for arguments in (
                ("export", many),
                ("export", "full"),
                ("near", "full", *text),
                ("fingerprint", *text),
                ("collections", "--json"),
                ("layout",),
                ("delete", "full", "absent"),
            )
        ]
        for process in started:
            message = failure(end(process), Exit.OUTPUT)
            assert message == "standard output: No space left on device", process.args


def test_an_output_that_is_full_is_status_6_for_the_version_too(shell: Shell) -> None:
    with Path("/dev/full").open("wb") as full:
        assert_refused(end(shell.start("--version", stdout=full)), Exit.OUTPUT)


# Collections and deleting


def test_collections_are_listed_and_one_of_them_is_described(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    tiroir.create_collection(shop, scheme={"shingle_size": 2}, store_text=False, ttl=3600)
    for key in "ab":
        tiroir.index(shop, key, text=TEXT)
    listed, described, as_json, one_as_json = shell.run_all(
        ("collections",), ("collections", shop), ("collections", "--json"), ("collections", shop, "--json")
    )
    assert listed.output.splitlines() == sorted(listed.output.splitlines())
    [line] = [line for line in listed.output.splitlines() if line.startswith(f"{shop} (")]
    assert "2 words a shingle" in line
    assert line.endswith("without texts, ttl 3,600 s)")
    assert described.output == f"{line}: 2 documents, 1 fingerprints, 0 too_short, 2 exact_duplicates\n"
    members = tiroir.collection(shop).model_dump(mode="json")
    assert json.loads(one_as_json.output) == members
    del members["counts"]
    assert members in [json.loads(line) for line in as_json.output.splitlines()]


def test_documents_are_deleted_by_their_keys(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    names = [f"{number:04}" for number in range(1500)]
    odd = ["é", "a b", "b\u2028c", "d\x0ce", "f\x85g", "--all"]
    tiroir.import_documents(shop, [{"key": key, "fingerprint": f"{1:016x}"} for key in [*names, *odd]])
    assert shell.done("delete", shop, "0000", "é", "absent") == "2 deleted\n"
    shell.write("keys.txt", "\ufeff" + "\r\n".join([*names[:1400], "", *odd[1:5]]))
    assert json.loads(shell.done("delete", shop, "--keys-from", "keys.txt", "--json")) == {"deleted": 1403}
    assert shell.done("delete", shop, "--keys-from", "-", given=names[1400].encode()) == "1 deleted\n"
    assert shell.done("delete", shop, "--", "--all") == "1 deleted\n"
    assert keys(tiroir, shop) == names[1401:]


def test_a_whole_collection_is_deleted_only_by_who_means_it(shell: Shell, tiroir: Tiroir, shop: str) -> None:
    tiroir.index(shop, "a", text=TEXT)
    for ended in shell.run_all(
        ("delete", shop, "--all"), ("delete", shop), ("delete", shop, "a", "--all", "--yes"), ("near", shop)
    ):
        assert assert_refused(ended, Exit.USAGE)
    status, written = on_a_terminal("delete", shop, "--all", typed=b"n\n", port=shell.port)
    assert (status, f"Delete {shop} with all its documents?" in written) == (1, True)
    assert keys(tiroir, shop) == ["a"]
    status, written = on_a_terminal("delete", shop, "--all", typed=b"y\n", port=shell.port)
    assert (status, f"{shop} is deleted" in written) == (0, True)
    tiroir.index(shop, "a", text=TEXT)
    assert shell.done("delete", shop, "--all", "--yes") == f"{shop} is deleted\n"
    assert shop in assert_refused(shell.run("delete", shop, "--all", "--yes"))


# What is typed


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("near", "shop", "damaged.gz"), Exit.INCOMPLETE),
        (("near", "shop", "half.gz"), Exit.INCOMPLETE),
        (("near", "shop", "latin.txt"), Exit.INCOMPLETE),
        (("near", "shop", "x" * 300), Exit.INCOMPLETE),
        (("index", "shop", "x" * 300), Exit.INCOMPLETE),
        (("delete", "shop", "--keys-from", "half.gz"), Exit.INCOMPLETE),
        (("near", "shop", "--text", b"caf\xe9"), Exit.FAILED),
        (("collections", b"caf\xe9"), Exit.FAILED),
        (("fingerprint",), Exit.USAGE),
        (("near", "shop", "latin.txt", "--text", "text"), Exit.USAGE),
    ],
    ids=lambda value: value.name if isinstance(value, Exit) else " ".join(map(str, value))[:40],
)
def test_what_can_not_be_done_is_told_without_a_traceback(
    shell: Shell, arguments: tuple[str | bytes, ...], status: Exit
) -> None:
    whole = gzip.compress(os.urandom(1000))
    shell.write("damaged.gz", whole[:100] + b"\xff" * 100 + whole[200:])
    shell.write("half.gz", whole[:100])
    shell.write("latin.txt", LATIN)
    ended = shell.run(*arguments)
    assert ended.status == status, ended
    assert ended.errors.splitlines()[-1].startswith("tiroir: "), ended


def test_a_name_that_is_no_utf_8_goes_into_json_too(shell: Shell) -> None:
    shell.write(b"caf\xe9.txt", TEXT)
    shown = json.loads(shell.done("fingerprint", b"caf\xe9.txt", "--json"))
    assert shown["words"] == 250


# A terminal, and being interrupted


def test_who_indexes_at_a_terminal_sees_how_fast_it_goes(shell: Shell, shop: str) -> None:
    lines = [f'{{"key": "{number}", "fingerprint": "{number:016x}"}}' for number in range(12_000)]
    file = shell.write("docs.ndjson", "\n".join(lines))
    status, written = on_a_terminal("index", shop, file, port=shell.port)
    assert status == 0, written
    assert "━" in written
    assert re.search(r"12,000 documents, [1-9][\d,]*/s", written)
    assert "12,000 created" in written
    status, written = on_a_terminal("export", shop, "-o", shell.folder / "x.ndjson", port=shell.port)
    assert status == 0, written
    assert re.search(r"12,000 documents, [1-9][\d,]*/s", written)


def some(first: int, end: int) -> bytes:
    return b"".join(b'{"key": "%06d", "fingerprint": "%016x"}\n' % (number, number) for number in range(first, end))


def test_who_interrupts_an_import_keeps_what_was_done(
    shell: Shell, service: Service, tiroir: Tiroir, shop: str
) -> None:
    before = service.log.count("import 200")
    process = shell.start("index", shop, "-", stdin=subprocess.PIPE)
    hand_over(process, some(0, 10_001))
    until_imported(service, before + 1)
    process.send_signal(signal.SIGINT)
    close_input(process)
    ended = end(process)
    assert ended.status == Exit.INTERRUPTED
    assert ended.errors.startswith("interrupted: ")
    assert tiroir.collection(shop).counts.documents == 10_000


def until_imported(service: Service, imports: int) -> None:
    """Returns when the service has logged so many imports."""
    eventually(lambda: service.log.count("import 200") >= imports)


def test_who_interrupts_while_the_service_is_away_need_not_wait(shell: Shell, shop: str) -> None:
    """Patience is the command's, not the person's."""
    busy = (503, "application/problem+json", b'{"detail": "all are taken"}')
    shell.write("docs.ndjson", some(0, 3))
    with listening(repeat(busy)) as other:
        process = shell.start("index", shop, "docs.ndjson", "--url", other.url)
        eventually(lambda: len(other.asked) >= 2)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=10)  # of the 60 that it would have patience
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
    assert process.returncode == Exit.INTERRUPTED
    assert errors.startswith("interrupted: ")


def test_a_service_that_dies_and_comes_back_meanwhile_loses_nothing(server: EmbeddedPostgres, tmp_path: Path) -> None:
    dsn = new_database(server, "comes_back")
    with running(database_url=dsn, run_operations="false") as service:
        process = Shell(tmp_path, service.port).start("index", "shop", "-", stdin=subprocess.PIPE)
        hand_over(process, some(0, 10_001))
        until_imported(service, 1)
        service.process.kill()
        service.wait()
    hand_over(process, some(10_001, 20_500))
    again = Service((), database_url=dsn, run_operations="false", port=service.port)
    again.port = service.port
    with stopped_at_the_end(again.start()):
        close_input(process)
        ended = end(process)
        assert (ended.status, ended.errors) == (0, "")
        assert ended.output.startswith("20,500 created, ")
        with Tiroir(again.url) as tiroir:
            assert keys(tiroir, "shop") == [f"{number:06}" for number in range(20_500)]
