"""Files of documents as lines of an import: each document comes out as it stands, or is named with the reason."""

import gzip
import io
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli import sources
from app.cli.sources import STANDARD, Fields, Format, Record, Sources, batches, printable, read_text

BOM = b"\xef\xbb\xbf"
CHOSEN = Fields("id", ("text", "html"), ("group",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, so that places are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str | bytes, content: bytes) -> Path:
    path = Path(os.fsdecode(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(*paths: Path, form: Format = Format.AUTO, fields: Fields | None = None) -> list[Record]:
    return list(Sources(paths, form, fields or Fields()).records())


def documents(records: list[Record]) -> list[dict[str, Any]]:
    """Of records without a refusal."""
    assert [record for record in records if record.line is None] == []
    return [json.loads(record.line or b"") for record in records]


def refusals(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.place, record.refusal) for record in records if record.line is None]


def keys(records: list[Record]) -> list[str]:
    return [json.loads(record.line)["key"] for record in records if record.line is not None]


# NDJSON


@pytest.mark.usefixtures("folder")
def test_lines_with_the_service_s_own_names_go_as_they_are() -> None:
    lines = [b'{"key": "a",  "text": "\\u00e9"}', b"no JSON", b"", b'{"key": "b", "fingerprint": "5103e0855a3e3f03"}']
    found = read(written("docs.ndjson", b"\n".join(lines)))
    assert found == [Record(f"docs.ndjson:{number}", line) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", BOM])
@pytest.mark.parametrize("last", [b"", b"\n"])
@pytest.mark.parametrize("fields", [Fields(), Fields("key", ("text", "html"))], ids=["raw", "chosen"])
@pytest.mark.usefixtures("folder")
def test_neither_ends_of_lines_nor_a_byte_order_mark_matter(
    start: bytes, end: bytes, last: bytes, fields: Fields
) -> None:
    lines = [b'{"key": "a", "text": "one"}', b'{"key": "b", "text": "two"}']
    found = read(written("docs.jsonl", start + end.join(lines) + last), fields=fields)
    assert [record.line for record in found] == lines


@pytest.mark.usefixtures("folder")
def test_members_are_chosen_by_their_names() -> None:
    file = written(
        "docs.json",
        b'{"id": "a", "text": "one", "html": "<p>", "group": {"of": 2}, "other": 1}\n'
        b'{"id": 17, "text": null, "html": "two"}\n'
        b"\n"
        b'{"id": -3, "fingerprint": "5103e0855a3e3f03", "group": null}\n'
        b'{"id": "c", "simhash": "-5"}\n',
    )
    found = read(file, fields=CHOSEN)
    assert documents(found) == [
        {"key": "a", "text": "one", "metadata": {"group": {"of": 2}}},
        {"key": "17", "text": "two"},
        {"key": "-3", "fingerprint": "5103e0855a3e3f03", "metadata": {"group": None}},
        {"key": "c", "simhash": "-5"},
    ]
    assert [record.place for record in found] == ["docs.json:1", "docs.json:2", "docs.json:4", "docs.json:5"]


@pytest.mark.usefixtures("folder")
def test_an_object_s_own_metadata_stays_unless_others_are_chosen() -> None:
    file = written("docs.json", b'{"id": "a", "text": "one", "metadata": {"of": 2}, "lang": "fr"}')
    assert documents(read(file, fields=Fields("id"))) == [{"key": "a", "text": "one", "metadata": {"of": 2}}]
    chosen = Fields("id", metadata=("lang",))
    assert documents(read(file, fields=chosen)) == [{"key": "a", "text": "one", "metadata": {"lang": "fr"}}]


def test_a_table_without_the_column_of_metadata_is_refused() -> None:
    file = written("docs.csv", b"key,text,title\na,one,First\n")
    [refused] = read(file, fields=Fields(metadata=("titel",)))
    assert refused.refusal == "there is no column titel for metadata (--metadata)"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "not an object"),
        (b'"text"', "not an object"),
        (b"{", "not JSON: "),
        (b'{"id": "\xe9"}', "not JSON: "),
        (b"[" * 200_000, "not JSON: "),
        (b'{"id": ' + b"1" * 5000 + b"}", "not JSON: "),
        (b'{"text": "one"}', "there is no id for the key"),
        (b'{"id": null, "text": "one"}', "there is no id for the key"),
    ],
    ids=["list", "string", "half", "Latin-1", "deep", "long number", "no key", "null"],
)
@pytest.mark.usefixtures("folder")
def test_a_line_that_holds_no_document_is_named_and_the_others_stay(line: bytes, reason: str) -> None:
    file = written("docs.ndjson", b'{"id": "a"}\n' + line + b'\n{"id": "b"}\n')
    found = read(file, fields=CHOSEN)
    assert keys(found) == ["a", "b"]
    [(place, refusal)] = refusals(found)
    assert place == "docs.ndjson:2"
    assert refusal.startswith(reason)


@pytest.mark.parametrize("key", ["true", "1.5", "[]", "{}"])
@pytest.mark.usefixtures("folder")
def test_what_is_no_key_is_left_to_the_service_to_judge(key: str) -> None:
    [document] = documents(read(written("docs.ndjson", f'{{"id": {key}}}'.encode()), fields=CHOSEN))
    assert document["key"] == json.loads(key)


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.usefixtures("folder")
def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(sources, "MOST_LINE_BYTES", 20)
    for length in (21, 40, 41, 59, 60, 61, 1000):
        long = b'"' + b"x" * (length - 2) + b'"'
        found = read(written("docs.ndjson", b"\n".join([b'"a"', long, b'"b"', long]) + end))
        assert [record.line for record in found] == [b'"a"', None, b'"b"', None], length
        assert refusals(found) == [(f"docs.ndjson:{number}", "a line has at most 20 bytes") for number in (2, 4)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.usefixtures("folder")
def test_a_line_of_the_greatest_length_is_none_too_long(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(sources, "MOST_LINE_BYTES", 20)
    line = b'"' + b"x" * 18 + b'"'
    assert [record.line for record in read(written("docs.ndjson", line + end))] == [line]


# Compressed by gzip


@pytest.mark.parametrize("name", ["docs.ndjson.gz", "docs.ndjson", "docs.jsonl", "DOCS.NDJSON"])
@pytest.mark.usefixtures("folder")
def test_gzip_is_known_by_its_content_not_by_its_name(name: str) -> None:
    lines = [b'{"key": "a"}', b'{"key": "b"}']
    for content in (gzip.compress(b"\n".join(lines)), b"\n".join(lines)):
        assert [record.line for record in read(written(name, content))] == lines


@pytest.mark.usefixtures("folder")
def test_several_members_are_one_file() -> None:
    content = b"".join(gzip.compress(part) for part in (b'{"key": "a"}\n{"ke', b"", b'y": "b"}\n'))
    assert keys(read(written("docs.ndjson.gz", content))) == ["a", "b"]


@pytest.mark.parametrize("damage", ["truncated", "checksum", "middle", "followed by something else"])
@pytest.mark.usefixtures("folder")
def test_damaged_gzip_is_told_and_the_next_file_is_read(damage: str) -> None:
    whole = gzip.compress(b"".join(b'{"key": "%d"}\n' % number for number in range(5000)))
    middle = len(whole) // 2
    contents = {
        "truncated": whole[:middle],
        "checksum": whole[:-8] + b"\0" * 8,
        "middle": whole[:middle] + b"\xff" * 50 + whole[middle + 50 :],
        "followed by something else": whole + b"something else",
    }
    found = read(written("damaged.ndjson.gz", contents[damage]), written("next.ndjson", b'{"key": "next"}'))
    [(place, reason)] = refusals(found)
    assert place == "damaged.ndjson.gz"
    assert reason.startswith("the gzip data is damaged, or ends too early: ")
    assert found[-1] == Record("next.ndjson:1", b'{"key": "next"}')


# Tables


@pytest.mark.usefixtures("folder")
def test_a_table_has_cells_with_quotes_commas_and_new_lines() -> None:
    file = written(
        "docs.csv",
        'id,text,html,group\r\n1,"one, ""two""\nthree",,x\r\n\r\né,,four,\r\nz,"",,\r\n'.encode(),
    )
    found = read(file, fields=CHOSEN)
    assert documents(found) == [
        {"key": "1", "text": 'one, "two"\nthree', "metadata": {"group": "x"}},
        {"key": "é", "text": "four", "metadata": {}},
        {"key": "z", "metadata": {}},
    ]
    assert [record.place for record in found] == ["docs.csv:3", "docs.csv:5", "docs.csv:6"]


@pytest.mark.parametrize("name", ["docs.tsv", "docs.tsv.gz", "DOCS.TSV"])
@pytest.mark.usefixtures("folder")
def test_tabs_separate_the_cells_of_a_tsv(name: str) -> None:
    file = written(name, BOM + b"key\ttext\na\tone, two\n")
    assert documents(read(file)) == [{"key": "a", "text": "one, two"}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"name,text\na,one\n", "there is no column key for the key (--key); there are: name, text"),
        (b"na\x1b[31mme,text\n", r"there is no column key for the key (--key); there are: na\x1b[31mme, text"),
        (b"", "there is no column key for the key (--key); there are: none"),
        (b"key,text,text\na,one,two\n", "several columns are called text"),
        (b"key,key,text\na,one,two\n", "several columns are called key"),
    ],
    ids=["no key", "control characters", "empty", "two texts", "two keys"],
)
@pytest.mark.usefixtures("folder")
def test_a_table_with_another_header_is_refused_as_a_whole(content: bytes, reason: str) -> None:
    found = read(written("docs.csv", content), written("next.csv", b"key\nb\n"))
    assert refusals(found) == [("docs.csv", reason)]
    assert keys(found) == ["b"]


@pytest.mark.usefixtures("folder")
def test_a_row_with_another_number_of_cells_is_named_and_the_others_stay() -> None:
    found = read(written("docs.csv", b"key,text\na,one\nb\nc,two,three\n,four\nd,five\n"))
    assert keys(found) == ["a", "d"]
    assert refusals(found) == [
        ("docs.csv:3", "1 cells for 2 columns"),
        ("docs.csv:4", "3 cells for 2 columns"),
        ("docs.csv:5", "there is no key for the key"),
    ]


@pytest.mark.usefixtures("folder")
def test_what_is_no_table_ends_the_file_at_its_line() -> None:
    [first, refused] = read(written("docs.csv", b'key,text\na,one\nb,"two" three\nc,four\n'))
    assert documents([first]) == [{"key": "a", "text": "one"}]
    assert refused.place == "docs.csv"
    assert refused.refusal.startswith("not CSV, at line 3: ")
    assert refused.refusal.endswith("; the rest of it was not read")


@pytest.mark.usefixtures("folder")
def test_a_quote_that_is_never_closed_is_told() -> None:
    [refused] = read(written("docs.csv", b'key,text\na,"one\ntwo\n'))
    assert refused.refusal.startswith("not CSV, at line 3: ")


@pytest.mark.parametrize("start", [b"", BOM], ids=["plain", "with a mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.usefixtures("folder")
def test_a_table_in_another_encoding_is_told_with_the_position_in_the_file(start: bytes, end: bytes) -> None:
    content = start + end.join([b"key,text", b"a,one", "b,déjà".encode(), "c,caf\xe9s".encode("latin-1"), b"d,two"])
    found = read(written("docs.csv", content))
    assert keys(found) == ["a", "b"]
    position = content.index(b"\xe9s") + 1
    assert refusals(found) == [("docs.csv", f"not UTF-8, at byte {position}")]


@pytest.mark.usefixtures("folder")
def test_a_nul_in_a_cell_stays_for_the_service_to_judge() -> None:
    assert documents(read(written("docs.csv", b"key,text\na,one\0two\n"))) == [{"key": "a", "text": "one\0two"}]


@pytest.mark.usefixtures("folder")
def test_a_row_that_is_too_long_ends_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_LINE_BYTES", 20)
    found = read(written("docs.csv", b"key,text\na,one\nb," + b"x" * 30 + b"\nc,two\n"))
    assert keys(found) == ["a"]
    assert refusals(found) == [("docs.csv", "a line has at most 20 bytes")]


@pytest.mark.usefixtures("folder")
def test_a_cell_of_many_lines_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_LINE_BYTES", 20)
    found = read(written("docs.csv", b'key,text\na,one\nb,"' + b"x\n" * 30 + b'"\nc,two\n'))
    assert keys(found) == ["a"]
    [(place, reason)] = refusals(found)
    assert place == "docs.csv"
    assert "field larger than field limit (20)" in reason


# Plain texts


@pytest.mark.usefixtures("folder")
def test_a_plain_text_is_a_document_by_its_name() -> None:
    files = [written("a.txt", BOM + "déjà\r\nvu\n".encode()), written("sub/b", gzip.compress(b"two")), Path("./a.txt")]
    found = read(*files)
    assert documents(found) == [
        {"key": "a.txt", "text": "déjà\r\nvu\n"},
        {"key": "sub/b", "text": "two"},
        {"key": "a.txt", "text": "déjà\r\nvu\n"},
    ]
    assert [record.place for record in found] == ["a.txt", "sub/b", "a.txt"]


@pytest.mark.usefixtures("folder")
def test_a_folder_is_read_in_the_order_of_names_without_what_is_hidden() -> None:
    for name in ("in/b.txt", "in/a/z.txt", "in/a/Z.txt", "in/c/d/e.txt", "in/.git/f.txt", "in/c/.hidden", "in/a.txt"):
        written(name, b"text")
    assert keys(read(Path("in"))) == ["in/a.txt", "in/b.txt", "in/a/Z.txt", "in/a/z.txt", "in/c/d/e.txt"]


@pytest.mark.usefixtures("folder")
def test_files_of_a_folder_go_by_their_own_names() -> None:
    written("in/a.ndjson", b'{"key": "a"}')
    written("in/b.csv.gz", gzip.compress(b"key\nb\n"))
    written("in/c.txt", b"text")
    assert keys(read(Path("in"))) == ["a", "b", "in/c.txt"]


@pytest.mark.usefixtures("folder")
def test_a_hidden_file_that_is_named_is_read() -> None:
    assert keys(read(written(".hidden", b"text"))) == [".hidden"]


@pytest.mark.parametrize("name", ["page.html", "page.HTM", "page.xhtml", "page.html.gz"])
@pytest.mark.usefixtures("folder")
def test_html_is_refused_unless_it_is_called_a_text(name: str) -> None:
    page = written(name, b"<p>text</p>")
    assert refusals(read(page)) == [
        (name, "html is not supported yet: extract its text, or give it as --format text"),
    ]
    assert documents(read(page, form=Format.TEXT)) == [{"key": name, "text": "<p>text</p>"}]


@pytest.mark.usefixtures("folder")
def test_a_format_that_is_given_wins_over_names() -> None:
    assert keys(read(written("docs.txt", b'{"key": "a"}'), form=Format.NDJSON)) == ["a"]
    assert keys(read(written("docs.txt", b"key\nb\n"), form=Format.CSV)) == ["b"]
    assert keys(read(written("docs.ndjson", b"key\nb\n"), form=Format.TEXT)) == ["docs.ndjson"]


@pytest.mark.parametrize("start", [b"", BOM], ids=["plain", "with a mark"])
@pytest.mark.usefixtures("folder")
def test_what_is_no_utf_8_is_told_with_its_byte_and_the_others_stay(start: bytes) -> None:
    """CU-03."""
    latin = start + "déjà un café".encode("latin-1")
    binary = start + b"text\0" + bytes(range(128, 160))
    found = read(
        written("a.txt", b"one"), written("b.txt", latin), written("c.bin", binary), written("d.txt", "é".encode())
    )
    assert keys(found) == ["a.txt", "d.txt"]
    assert refusals(found) == [
        ("b.txt", f"not UTF-8, at byte {len(start) + 2}"),
        ("c.bin", f"not UTF-8, at byte {len(start) + 6}"),
    ]


@pytest.mark.usefixtures("folder")
def test_a_name_that_is_no_utf_8_is_told_and_the_others_stay() -> None:
    written(b"in/caf\xe9.txt", b"one")
    written("in/café.txt", b"two")
    found = read(Path("in"))
    assert keys(found) == ["in/café.txt"]
    assert refusals(found) == [(r"in/caf\udce9.txt", "its name is not UTF-8, so it can't be a key")]


@pytest.mark.usefixtures("folder")
def test_the_documents_of_a_file_whose_name_is_no_utf_8_have_keys_of_their_own() -> None:
    [found] = read(written(b"caf\xe9.ndjson", b'{"key": "a"}'))
    assert found == Record(r"caf\udce9.ndjson:1", b'{"key": "a"}')


@pytest.mark.usefixtures("folder")
def test_a_text_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_LINE_BYTES", 20)
    found = read(written("a.txt", b"x" * 20), written("b.txt", b"x" * 21))
    assert keys(found) == ["a.txt"]
    assert refusals(found) == [("b.txt", "a text has at most 20 bytes")]


# What can't be read


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_not_there_is_told_and_the_others_stay() -> None:
    Path("dangling").symlink_to("nowhere")
    found = read(Path("absent.ndjson"), Path("dangling"), Path("a.txt/b"), written("a.txt", b"text"))
    assert keys(found) == ["a.txt"]
    assert refusals(found) == [
        ("absent.ndjson", "No such file or directory"),
        ("dangling", "No such file or directory"),
        ("a.txt/b", "Not a directory"),
    ]


@pytest.mark.usefixtures("folder")
def test_a_name_that_no_file_can_have_is_told_and_the_others_stay() -> None:
    found = read(Path("x" * 300), written("a.txt", b"text"))
    assert keys(found) == ["a.txt"]
    assert refusals(found) == [("x" * 300, "File name too long")]


@contextmanager
def somebody() -> Generator[None]:
    """An account whose permissions count, also where the tests are run by root."""
    account = os.geteuid()
    if account == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(account)


@pytest.fixture
def closed_folder(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The current folder holds it, a file that can't be opened, and one that can."""
    base = Path(tempfile.mkdtemp(prefix="tiroir-", dir="/tmp"))
    monkeypatch.chdir(base)
    written("in/closed/b.txt", b"text")
    written("in/a.txt", b"text").chmod(0)
    written("in/c.txt", b"text")
    for path, mode in ((base, 0o755), (Path("in"), 0o755), (Path("in/closed"), 0)):
        path.chmod(mode)
    yield Path("in/closed")
    Path("in/closed").chmod(0o700)
    shutil.rmtree(base)


@pytest.mark.usefixtures("closed_folder")
def test_a_file_that_may_not_be_opened_is_told_and_the_others_stay() -> None:
    with somebody():
        found = read(Path("in/a.txt"), Path("in/c.txt"))
    assert keys(found) == ["in/c.txt"]
    assert refusals(found) == [("in/a.txt", "Permission denied")]


@pytest.mark.parametrize("path", ["in", "in/closed"])
def test_a_folder_that_may_not_be_listed_is_told(closed_folder: Path, path: str) -> None:
    """What it holds is missing, and nobody would know."""
    with somebody():
        found = read(Path(path))
    assert (str(closed_folder), "Permission denied") in refusals(found)


def test_a_file_in_a_folder_that_may_not_be_entered_is_told_and_the_others_stay(closed_folder: Path) -> None:
    with somebody():
        found = read(closed_folder / "b.txt", Path("in/c.txt"))
    assert keys(found) == ["in/c.txt"]
    assert refusals(found) == [("in/closed/b.txt", "Permission denied")]


# Standard input, pipes


@pytest.mark.parametrize("content", [b'{"key": "a"}\n', gzip.compress(b'{"key": "a"}\n')], ids=["plain", "gzip"])
def test_standard_input_holds_lines_unless_another_format_is_given(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    def piped() -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))

    piped()
    assert read(STANDARD) == [Record("-:1", b'{"key": "a"}')]
    piped()
    assert documents(read(STANDARD, form=Format.TEXT)) == [{"key": "-", "text": '{"key": "a"}\n'}]


@pytest.mark.parametrize("form", [Format.NDJSON, Format.CSV, Format.TEXT])
@pytest.mark.usefixtures("folder")
def test_a_pipe_with_a_name_is_read_like_a_file(form: Format) -> None:
    """As `tiroir index shop <(zcat …)` gives it."""
    contents = {Format.NDJSON: b'{"key": "pipe"}', Format.CSV: b"key\npipe\n", Format.TEXT: b"text"}
    os.mkfifo("pipe")
    writing = threading.Thread(target=Path("pipe").write_bytes, args=(contents[form],))
    writing.start()
    found = read(Path("pipe"), form=form)
    writing.join()
    assert refusals(found) == []
    assert keys(found) == ["pipe"]


# Progress


@pytest.mark.usefixtures("folder")
def test_the_position_grows_to_the_size_of_all_files_as_they_are_on_the_disk() -> None:
    line = b'{"key": "a", "text": "' + b"x" * 100_000 + b'"}\n'
    files = [written("a.ndjson", line * 5), written("b.ndjson.gz", gzip.compress(line * 5)), written("c.txt", b"text")]
    reading = Sources([*files, Path("absent")], Format.AUTO, Fields())
    assert reading.size == sum(file.stat().st_size for file in files)
    positions = [reading.position for _ in reading.records()]
    assert positions == sorted(positions)
    assert 0 < positions[0] < positions[4] <= files[0].stat().st_size < positions[-1]
    assert reading.position == reading.size


@pytest.mark.usefixtures("folder")
def test_what_can_not_be_read_does_not_set_the_position_back() -> None:
    files = [written("a.txt", b"x" * 50), written("b.txt", b"\xe9" * 50), written("c.txt", b"x" * 50)]
    reading = Sources(files, Format.AUTO, Fields())
    positions = [reading.position for _ in reading.records()]
    assert positions == sorted(positions)
    assert reading.position >= 100


# Batches


def record(size: int) -> Record:
    return Record("place", b"x" * size)


def test_batches_hold_all_records_in_order_and_no_more_than_they_may() -> None:
    records = [Record(str(number), b"x" * (number % 7) or None, "") for number in range(100)]
    found = list(batches(records, most_records=10, most_bytes=20))
    assert [each for batch in found for each in batch] == records
    assert all(0 < len(batch) <= 10 for batch in found)
    assert all(sum(len(each.line or b"") for each in batch[:-1]) < 20 for batch in found)


def test_a_batch_is_full_by_its_records_or_by_its_bytes() -> None:
    assert [len(batch) for batch in batches([record(1)] * 5, most_records=2, most_bytes=100)] == [2, 2, 1]
    assert [len(batch) for batch in batches([record(10)] * 5, most_records=100, most_bytes=20)] == [2, 2, 1]
    assert [len(batch) for batch in batches([record(99)] * 2, most_records=100, most_bytes=20)] == [1, 1]
    assert list(batches([], most_records=2, most_bytes=20)) == []


# Texts, and what is shown


@pytest.mark.usefixtures("folder")
def test_a_whole_text_is_read_compressed_or_not() -> None:
    assert read_text(written("a", BOM + "déjà\r\n".encode())) == "déjà\r\n"
    assert read_text(written("b", gzip.compress("déjà".encode()))) == "déjà"
    assert read_text(written("c", b"")) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("déjà vu, 日本", "déjà vu, 日本"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\tb\nc\r\0\x7f", r"a\tb\nc\r\x00\x7f"),
        ("caf\udce9", r"caf\udce9"),
        ("\u202egpj.exe\u2028", r"\u202egpj.exe\u2028"),
        ("", ""),
    ],
)
def test_a_terminal_obeys_nothing_that_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode()  # can be written
