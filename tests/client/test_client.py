"""Both clients: one scenario against the real service, and what they make of services that are away or no services."""

import asyncio
import csv
import io
import json
import logging
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from datetime import datetime
from itertools import chain, count, repeat
from time import sleep
from typing import Any, Literal, cast

import pytest
import uvicorn

from app.api.admin_answers import LayoutAnswer, OperationAnswer
from app.api.analysis_answers import AnalysisAnswer
from app.api.answers import (
    CollectionAnswer,
    CollectionDetail,
    DocumentAnswer,
    FingerprintAnswer,
    ImportAnswer,
    IndexAnswer,
    LookupAnswer,
)
from app.cli.http_protocol import HttpProtocol
from app.client import AsyncTiroir, ServiceError, Tiroir, UnavailableServiceError
from app.client.calls import NewDocument
from app.main import create_app
from app.settings import Settings
from tests.acceptance.pretended import Answer, listening, pretending
from tests.conftest import Server

TEXT = " ".join(f"word{number}" for number in range(60))
NEAR = TEXT.replace("word3", "other")
ODD_KEYS = ["a//b?c#d é", "a/../b", ".", "..", "%2F", "a+b&key=c=d;e", " a ", "\\", '"', "日本\u2028", "\x7f"]


class Blocking:
    """The methods of a `Tiroir`, to await: what is written for one client goes for both."""

    def __init__(self, tiroir: Tiroir) -> None:
        self._tiroir = tiroir

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._tiroir, name)

        async def call(*args: object, **kwargs: object) -> object:
            return method(*args, **kwargs)

        async def lines(*args: object, **kwargs: object) -> AsyncGenerator[bytes]:
            with closing(method(*args, **kwargs)) as parts:
                for part in parts:
                    yield part

        return lines if name in {"export", "stream"} else call


class Recorded:
    """A client that knows which of its methods were used."""

    def __init__(self, tiroir: AsyncTiroir) -> None:
        self._tiroir = tiroir
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._tiroir, name)


@asynccontextmanager
async def opened(kind: type[Tiroir | AsyncTiroir], url: str, **options: Any) -> AsyncGenerator[AsyncTiroir]:
    if kind is AsyncTiroir:
        async with AsyncTiroir(url, **options) as tiroir:
            yield tiroir
    else:
        with Tiroir(url, **options) as blocking:
            yield cast("AsyncTiroir", Blocking(blocking))


@contextmanager
def serving(database: str, *, run_operations: bool = False) -> Generator[str]:
    """The URL of the real service in a thread. Unless it runs operations, they stay in its queue."""
    settings = Settings(database_url=database, run_operations=run_operations)  # pyright: ignore[reportArgumentType]  pydantic makes it a secret
    config = uvicorn.Config(
        create_app(settings), port=0, http=HttpProtocol, ws="none", log_config=None, log_level=logging.CRITICAL
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


_numbers = count()


@pytest.fixture(scope="module")
def url(server: Server) -> Generator[str]:
    name = f"clients_{next(_numbers)}"
    with serving(server.create(name)) as started:
        yield started
    server.drop(name)


@pytest.fixture
def shop() -> str:
    """A collection of the test's own."""
    return f"shop-{next(_numbers)}"


KINDS = pytest.mark.parametrize("kind", [Tiroir, AsyncTiroir])


@pytest.fixture(params=[Tiroir, AsyncTiroir])
async def tiroir(request: pytest.FixtureRequest, url: str) -> AsyncGenerator[AsyncTiroir]:
    async with opened(request.param, url) as client:
        yield client


async def lines_of(exported: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in exported]


def methods_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


# Every method


def test_both_clients_have_the_same_methods() -> None:
    assert methods_of(Tiroir) == methods_of(AsyncTiroir)
    assert all(getattr(Tiroir, name).__doc__ == getattr(AsyncTiroir, name).__doc__ for name in ("index", "near"))


@KINDS
async def test_every_method_gives_what_the_service_answers(kind: type[Tiroir | AsyncTiroir], database: str) -> None:
    used: set[str] = set()
    with serving(database, run_operations=True) as url:
        async with opened(kind, url) as client:
            recorded = Recorded(client)
            await reports(cast("AsyncTiroir", recorded))
            used |= recorded.used
    with serving(database) as url:
        async with opened(kind, url) as client:
            recorded = Recorded(client)
            await collections_and_documents(cast("AsyncTiroir", recorded))
            await lookups(cast("AsyncTiroir", recorded))
            await operations(cast("AsyncTiroir", recorded))
            await deletions(cast("AsyncTiroir", recorded))
            used |= recorded.used
    assert used == methods_of(AsyncTiroir) - {"send", "close"}


async def finished(tiroir: AsyncTiroir, begun: AnalysisAnswer, collection: str) -> AnalysisAnswer:
    analysis = begun
    while analysis.finished_at is None:
        await asyncio.sleep(0.02)
        analysis = await tiroir.analysis(collection, begun.id)
    assert (analysis.status, analysis.error) == ("succeeded", None)
    return analysis


async def reports(tiroir: AsyncTiroir) -> None:
    await tiroir.import_documents("old", [{"key": key, "fingerprint": f"{number:016x}"} for key, number in OLD])
    await tiroir.import_documents("shop", [{"key": key, "fingerprint": f"{number:016x}"} for key, number in NEW])
    for key in ("m", "n"):
        await tiroir.index("shop", key, text="short")
    await analyses(tiroir)
    await comparisons(tiroir)

    groups = await tiroir.exact_duplicates("shop", limit=1)
    [group] = groups.items
    assert (group.documents, group.keys, groups.next_cursor) == (2, ["m", "n"], None)
    page = await tiroir.keys_of_content("shop", group.content_hash, limit=1)
    assert page.items == ["m"]
    assert (await tiroir.keys_of_content("shop", group.content_hash, cursor=page.next_cursor)).items == ["n"]

    near = await tiroir.documents("shop", near_duplicated=True, limit=2)
    assert [each.key for each in near.items] == ["a", "b"]
    rest = await tiroir.documents("shop", near_duplicated=True, cursor=near.next_cursor)
    assert [each.key for each in rest.items] == ["c", "x", "y"]
    assert [each.key for each in (await tiroir.documents("shop", near_duplicated=False)).items] == ["d", "m", "n"]

    for collection in ("shop", "old"):
        await tiroir.delete_collection(collection)


# Keys and fingerprints, in which a, b and c, and x and y are near one another.
OLD = (("a", 0), ("b", 0xFF00), ("gone", 0xFF00FF00FF00), ("was", 0xFFFF << 40))
NEW = (("a", 0), ("b", 1), ("c", 3), ("d", 0xFFFFFF), ("x", 0xFFFF << 40), ("y", 0xFFFE << 40))


async def analyses(tiroir: AsyncTiroir) -> None:
    begun = await tiroir.begin_analysis("shop", threshold=1, clusters="star", representative="first_key")
    assert type(begun) is AnalysisAnswer
    assert begun.parameters == {"threshold": 1, "clusters": "star", "representative": "first_key"}
    await finished(tiroir, begun, "shop")
    by_default = await tiroir.begin_analysis("shop")
    assert by_default.parameters == {"threshold": 3, "clusters": "components", "representative": "oldest"}
    analysis = await finished(tiroir, by_default, "shop")
    assert analysis.result is not None
    assert (analysis.result["documents"], analysis.result["clusters"]) == (8, 2)
    listed = await tiroir.analyses("shop", limit=1)
    assert listed.items == [analysis]
    assert [each.id for each in (await tiroir.analyses("shop", cursor=listed.next_cursor)).items] == [begun.id]

    await tiroir.delete_analysis("shop", begun.id)
    assert (await tiroir.analyses("shop")).items == [analysis]
    with pytest.raises(ServiceError) as refused:
        await tiroir.cancel_analysis("shop", analysis.id)
    assert (refused.value.status, refused.value.problem) == (409, "not_cancelable")

    first = await tiroir.clusters("shop", analysis.id, limit=1)
    assert [(each.cluster, each.documents, each.diameter) for each in first.items] == [(1, 3, 2)]
    second = await tiroir.clusters("shop", analysis.id, cursor=first.next_cursor)
    assert [(each.cluster, each.documents, each.diameter) for each in second.items] == [(2, 2, 1)]
    members = await tiroir.cluster("shop", analysis.id, 1, limit=2)
    assert [(each.key, each.distance) for each in members.items] == [("a", 0), ("b", 1)]
    others = await tiroir.cluster("shop", analysis.id, 1, cursor=members.next_cursor)
    assert [(each.key, each.distance) for each in others.items] == [("c", 2)]
    pairs = await tiroir.pairs("shop", analysis.id, limit=3)
    more = await tiroir.pairs("shop", analysis.id, cursor=pairs.next_cursor)
    assert [each.distance for each in pairs.items] == [1, 2, 1]
    assert [each.a.keys + each.b.keys for each in more.items if each.b is not None] == [["x", "y"]]
    flagged = await tiroir.flagged("shop", analysis.id, limit=5)
    assert [each.key for each in flagged.items] == ["a", "b", "c", "x", "y"]
    exact = await tiroir.flagged("shop", analysis.id, cursor=flagged.next_cursor)
    assert [(each.key, each.near_duplicated) for each in exact.items] == [("m", False), ("n", False)]

    lines = [json.loads(line) for line in (await whole(tiroir.stream("shop", analysis.id, "documents"))).splitlines()]
    assert lines == [each.model_dump() for each in [*flagged.items, *exact.items]]
    rows = await table(tiroir.stream("shop", analysis.id, "clusters", form="csv"))
    assert [(row["cluster"], row["key"]) for row in rows] == [
        ("1", "a"),
        ("1", "b"),
        ("1", "c"),
        ("2", "x"),
        ("2", "y"),
    ]
    rows = await table(tiroir.stream("shop", analysis.id, "pairs", form="csv"))
    assert [row["distance"] for row in rows] == ["1", "2", "1", "1"]


async def comparisons(tiroir: AsyncTiroir) -> None:
    begun = await tiroir.begin_analysis("shop", threshold=2, against="old")
    assert begun.parameters == {"threshold": 2, "against": "old"}
    comparison = await finished(tiroir, begun, "shop")
    assert comparison.result is not None
    assert comparison.result["changed"] == 1
    page = await tiroir.differences("shop", begun.id, limit=2)
    assert [(each.key, each.status) for each in page.items] == [("b", "changed"), ("c", "new")]
    rest = await tiroir.differences("shop", begun.id, cursor=page.next_cursor)
    assert [(each.key, each.status, each.counterpart) for each in rest.items] == [
        ("d", "new", None),
        ("gone", "gone", None),
        ("m", "new", None),
        ("n", "new", None),
        ("x", "moved", "was"),
        ("y", "new", "was"),
    ]
    assert [each.key for each in (await tiroir.differences("shop", begun.id, status="gone")).items] == ["gone"]
    rows = await table(tiroir.stream("shop", begun.id, "differences", form="csv", status="unchanged"))
    assert [(row["key"], row["counterpart"]) for row in rows] == [("a", "a")]
    rows = await table(tiroir.stream("shop", begun.id, "differences", form="csv"))
    assert [row["key"] for row in rows] == ["b", "c", "d", "gone", "m", "n", "x", "y"]


async def whole(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


async def table(parts: AsyncIterator[bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((await whole(parts)).decode(), newline="")))


async def collections_and_documents(tiroir: AsyncTiroir) -> None:
    created = await tiroir.create_collection("tiny", scheme={"shingle_size": 1, "min_words": 1}, ttl=3600)
    assert (created.name, created.scheme.shingle_size, created.store_text, created.ttl) == ("tiny", 1, True, 3600)
    assert type(created) is CollectionAnswer
    assert isinstance(created.created_at, datetime)
    changed = await tiroir.set_ttl("tiny", None)
    assert (changed.name, changed.ttl) == ("tiny", None)

    first = await tiroir.index("shop", "a", text=TEXT, metadata={"of": [1, None]})
    assert type(first) is IndexAnswer
    assert (first.result, first.document.key, first.document.metadata) == ("created", "a", {"of": [1, None]})
    second = await tiroir.index("shop", "b", text=TEXT, threshold=0, limit=1)
    assert second.near_duplicates is not None
    assert [(match.key, match.distance, match.match) for match in second.near_duplicates] == [("a", 0, "exact")]
    unseen = await tiroir.index("shop", "c", text=NEAR, near_duplicates=False)
    assert (unseen.near_duplicates, unseen.threshold) == (None, None)

    new: list[NewDocument] = [
        {"key": "d", "fingerprint": "5103e0855a3e3f03"},
        {"key": "e", "simhash": "1", "metadata": {"x": 1}},
        {"key": "f", "text": "short"},
    ]
    written = await tiroir.index_many("shop", new)
    assert [(each.key, each.result, each.status) for each in written] == [
        ("d", "created", "given"),
        ("e", "created", "given"),
        ("f", "created", "too_short"),
    ]
    imported = await tiroir.import_documents("shop", [{"key": "g", "text": TEXT}, b'{"key": "h"}'], on_error="continue")
    assert type(imported) is ImportAnswer
    assert (imported.lines, imported.created, imported.failed, imported.complete) == (2, 1, 1, True)

    document = await tiroir.document("shop", "a")
    assert type(document) is DocumentAnswer
    assert document == first.document
    page = await tiroir.documents("shop", limit=4)
    assert [each.key for each in page.items] == ["a", "b", "c", "d"]
    assert [each.key for each in (await tiroir.documents("shop", cursor=page.next_cursor)).items] == ["e", "f", "g"]

    detail = await tiroir.collection("shop")
    assert type(detail) is CollectionDetail
    assert (detail.counts.documents, detail.counts.too_short, detail.counts.exact_duplicates) == (7, 1, 3)
    listed = await tiroir.collections(limit=1)
    assert [each.name for each in listed.items] == ["shop"]
    assert [each.name for each in (await tiroir.collections(cursor=listed.next_cursor)).items] == ["tiny"]

    exported = await lines_of(tiroir.export("shop", text=True))
    assert [line["key"] for line in exported] == list("abcdefg")
    assert exported[0]["text"] == TEXT
    assert "text" not in (await lines_of(tiroir.export("shop")))[0]


async def lookups(tiroir: AsyncTiroir) -> None:
    made = await tiroir.fingerprint(TEXT)
    assert type(made) is FingerprintAnswer
    assert made.words == 60
    assert made.fingerprint is not None
    other = await tiroir.fingerprint(NEAR)
    assert other.fingerprint is not None
    apart = await tiroir.distance(made.fingerprint, other.fingerprint)
    assert apart == (int(made.fingerprint, 16) ^ int(other.fingerprint, 16)).bit_count() > 0

    found = await tiroir.near("shop", text=TEXT, threshold=apart, limit=10)
    assert type(found) is LookupAnswer
    assert [(match.key, match.distance) for match in found.matches] == [("a", 0), ("b", 0), ("g", 0), ("c", apart)]
    assert (await tiroir.near("shop", fingerprint=made.fingerprint, threshold=0)).plan is None
    assert (await tiroir.near("shop", simhash=made.simhash, threshold=0, explain=True)).plan is not None
    assert [match.key for match in (await tiroir.near("shop", key="a", threshold=0, limit=1)).matches] == ["b"]

    several = await tiroir.near_many("shop", [{"text": TEXT}, {"simhash": "1"}, {"key": "f"}], threshold=0, limit=1)
    assert [[match.key for match in each.matches] for each in several] == [["a"], ["e"], []]
    [across] = await tiroir.near_many_across(["shop"], [{"key": "a"}], threshold=0)
    assert (await tiroir.near_across(["shop"], key="a", threshold=0)).matches == across.matches
    assert [(match.collection, match.key) for match in across.matches] == [("shop", "b"), ("shop", "g")]


async def operations(tiroir: AsyncTiroir) -> None:
    begun = await tiroir.begin_rebuild(7, bands=4, force=True)
    assert type(begun) is OperationAnswer
    assert begun.parameters == {"threshold": 7, "bands": 4, "force": True}
    assert await tiroir.rebuild(begun.id) == begun
    audit = await tiroir.begin_audit(sample=5, threshold=0)
    assert (audit.kind, audit.status, audit.parameters) == ("audit", "queued", {"sample": 5, "threshold": 0})
    assert await tiroir.audit(audit.id) == audit
    layout = await tiroir.layout()
    assert type(layout) is LayoutAnswer
    assert sum(layout.widths) == 64


async def deletions(tiroir: AsyncTiroir) -> None:
    await tiroir.delete("shop", "a")
    assert await tiroir.delete_many("shop", ["a", "b", "c"]) == 2
    await tiroir.delete_collection("shop")
    assert [each.name for each in (await tiroir.collections()).items] == ["tiny"]


# What arrives


async def test_keys_arrive_as_they_are(tiroir: AsyncTiroir, shop: str) -> None:
    for number, key in enumerate(ODD_KEYS):
        assert (await tiroir.index(shop, key, fingerprint=f"{number:016x}")).document.key == key
        assert (await tiroir.document(shop, key)).fingerprint == f"{number:016x}"
        assert (await tiroir.near(shop, key=key, threshold=0)).matches == []
    assert [each.key for each in (await tiroir.documents(shop)).items] == sorted(ODD_KEYS, key=str.encode)
    for key in ODD_KEYS:
        await tiroir.delete(shop, key)
    assert (await tiroir.documents(shop)).items == []


async def test_a_lone_surrogate_is_refused_by_the_service(tiroir: AsyncTiroir, shop: str) -> None:
    await tiroir.index(shop, "a", text=TEXT)
    for call in (
        tiroir.index(shop, "b", text="\ud800"),
        tiroir.near(shop, text="caf\udce9"),
        tiroir.near(shop, key="\udce9"),
        tiroir.delete_many(shop, ["\udce9"]),
        tiroir.fingerprint("\ud800"),
    ):
        with pytest.raises(ServiceError) as refused:
            await call
        assert refused.value.status == 422
    imported = await tiroir.import_documents(shop, [{"key": "b", "text": "\ud800"}, {"key": "c", "text": TEXT}])
    assert (imported.created, [error.line for error in imported.errors]) == (1, [1])


async def test_a_lone_surrogate_in_a_url_is_refused_too(tiroir: AsyncTiroir, shop: str) -> None:
    """A name of the command line that is no UTF-8 holds some."""
    await tiroir.index(shop, "a", text=TEXT)
    for call in (
        lambda: tiroir.document(shop, "caf\udce9"),
        lambda: tiroir.index(shop, "caf\udce9", text=TEXT),
        lambda: tiroir.collection("caf\udce9"),
        lambda: tiroir.delete_collection("caf\udce9"),
    ):
        with pytest.raises(ServiceError):
            await call()


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é", "%2e%2e", "x" * 65, "shop?x=1"])
async def test_what_is_no_name_of_a_collection_is_refused(tiroir: AsyncTiroir, name: str) -> None:
    for call in (
        lambda: tiroir.create_collection(name),
        lambda: tiroir.collection(name),
        lambda: tiroir.index(name, "a", text=TEXT),
        lambda: tiroir.import_documents(name, [{"key": "a", "text": TEXT}]),
        lambda: tiroir.delete_collection(name),
        lambda: lines_of(tiroir.export(name)),
    ):
        with pytest.raises(ServiceError) as refused:
            await call()
        assert refused.value.status in {404, 405, 422}


@pytest.mark.parametrize("name", [".", ".."])
async def test_no_collection_has_a_name_that_no_url_leads_to(tiroir: AsyncTiroir, name: str) -> None:
    """Clients take both for steps of a path, so it could be neither read nor deleted."""
    with pytest.raises(ServiceError) as refused:
        await tiroir.create_collection(name)
    assert refused.value.status == 422


@KINDS
async def test_the_key_of_the_interface_goes_along_as_a_bearer_token(kind: type[Tiroir | AsyncTiroir]) -> None:
    with listening(repeat((200, "application/json", b'{"distance": 3}'))) as other:
        async with opened(kind, other.url, api_key="secret") as client:
            await client.distance("0" * 16, "7".zfill(16))
        async with opened(kind, other.url) as client:
            await client.distance("0" * 16, "7".zfill(16))
    assert [asked.headers.get("authorization") for asked in other.asked] == ["Bearer secret", None]


# Imports and exports


def some(number: int) -> Iterator[dict[str, Any]]:
    return ({"key": f"{each:06}", "fingerprint": f"{each:016x}"} for each in range(number))


def some_lines(number: int) -> Iterator[bytes]:
    return (json.dumps(document).encode() for document in some(number))


async def test_what_is_gone_through_once_is_imported_whole(tiroir: AsyncTiroir, shop: str) -> None:
    by_objects = await tiroir.import_documents(shop, some(3000))
    assert (by_objects.lines, by_objects.created, by_objects.complete) == (3000, 3000, True)
    by_lines = await tiroir.import_documents(shop, some_lines(3000))
    assert (by_lines.lines, by_lines.unchanged) == (3000, 3000)
    nothing = await tiroir.import_documents(shop, iter(()))
    assert (nothing.lines, nothing.complete) == (0, True)
    exported = await lines_of(tiroir.export(shop))
    assert [(line["key"], line["fingerprint"]) for line in exported] == [
        (document["key"], document["fingerprint"]) for document in some(3000)
    ]


async def test_an_asynchronous_generator_is_imported_too(url: str, shop: str) -> None:
    async def generated() -> AsyncGenerator[dict[str, Any] | bytes]:
        for document in some(1500):
            yield document
        for line in some_lines(1600):
            yield line

    async with AsyncTiroir(url) as tiroir:
        imported = await tiroir.import_documents(shop, generated())
    assert (imported.lines, imported.created, imported.unchanged) == (3100, 1600, 1500)


async def test_an_import_that_ends_at_an_error_says_where(tiroir: AsyncTiroir, shop: str) -> None:
    documents = chain([b'{"key": "a", "fingerprint": "0000000000000001"}', b"nonsense"], some_lines(200_000))
    imported = await tiroir.import_documents(shop, documents, on_error="abort")
    assert (imported.complete, imported.failed, [error.line for error in imported.errors]) == (False, 1, [2])


async def test_an_import_that_is_refused_before_its_end_says_why(tiroir: AsyncTiroir) -> None:
    with pytest.raises(ServiceError) as refused:
        await tiroir.import_documents("no name", some_lines(200_000))
    assert refused.value.status == 422


async def test_an_export_that_nobody_reads_to_its_end_leaves_the_client_usable(tiroir: AsyncTiroir, shop: str) -> None:
    await tiroir.import_documents(shop, some(5000))
    for _ in range(3):
        exported = tiroir.export(shop)
        assert json.loads(await anext(exported))["key"] == "000000"
        await cast("AsyncGenerator[bytes]", exported).aclose()
    assert (await tiroir.collection(shop)).counts.documents == 5000


async def test_lines_of_an_export_are_whole_however_long_they_are(tiroir: AsyncTiroir, shop: str) -> None:
    text = "wörd " * 300_000
    await tiroir.import_documents(shop, [{"key": "a", "text": text}, {"key": "b", "text": "\n\r\u2028\x85"}])
    exported = await lines_of(tiroir.export(shop, text=True))
    assert [line["text"] for line in exported] == [text, "\n\r\u2028\x85"]


async def test_an_export_of_nothing_says_why(tiroir: AsyncTiroir, shop: str) -> None:
    with pytest.raises(ServiceError) as refused:
        await lines_of(tiroir.export(shop))
    assert (refused.value.status, refused.value.problem) == (404, "collection_not_found")


@contextmanager
def breaking_off(written: bytes) -> Generator[str]:
    """The URL of something that sends this, and then closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(written)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@KINDS
async def test_an_export_that_breaks_off_is_no_whole_one(kind: type[Tiroir | AsyncTiroir]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    line = b'{"key": "a"}\n'
    read: list[bytes] = []
    with breaking_off(head + b"%x\r\n%b\r\n" % (len(line), line)) as url:
        async with opened(kind, url) as client:
            with pytest.raises(UnavailableServiceError):
                read.extend([each async for each in client.export("shop")])


# Results of analyses as streams


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


@KINDS
async def test_a_stream_comes_part_by_part_as_it_is_asked_for(kind: type[Tiroir | AsyncTiroir]) -> None:
    """CSV may break a line within a key: nothing is made of lines."""
    content = b'key,status\r\n"a\nb",new\r\n' * 10_000 + b"the end"
    csv_kind = "text/csv; charset=utf-8"
    with listening(chain([(200, csv_kind, content)], repeat((200, "application/x-ndjson", b"{}\n")))) as other:
        async with opened(kind, other.url) as client:
            read = [part async for part in client.stream("shop", 12, "differences", form="csv", status="new")]
            assert await whole(client.stream("shop", 12, "pairs")) == b"{}\n"
    assert b"".join(read) == content
    assert len(read) > 1
    assert [(asked.path, asked.headers["accept"]) for asked in other.asked] == [
        ("/v1/collections/shop/analyses/12/differences?status=new", "text/csv"),
        ("/v1/collections/shop/analyses/12/pairs", "application/x-ndjson"),
    ]


@KINDS
@pytest.mark.parametrize("form", ["csv", "ndjson"])
async def test_a_stream_that_is_cut_off_is_no_whole_one(
    kind: type[Tiroir | AsyncTiroir], form: Literal["csv", "ndjson"]
) -> None:
    head = STREAM_HEAD % {"csv": b"text/csv", "ndjson": b"application/x-ndjson"}[form]
    with breaking_off(head + b"5\r\na,b\r\n\r\n") as url:
        async with opened(kind, url) as client:
            parts = client.stream("shop", 12, "clusters", form=form)
            assert await anext(parts) == b"a,b\r\n"
            with pytest.raises(UnavailableServiceError):
                await anext(parts)


@KINDS
async def test_a_stream_that_nobody_reads_to_its_end_leaves_the_client_usable(kind: type[Tiroir | AsyncTiroir]) -> None:
    with listening(chain([(200, "text/csv", b"x" * 1_000_000)], repeat(DISTANCE))) as other:
        async with opened(kind, other.url) as client:
            async with aclosing(cast("AsyncGenerator[bytes]", client.stream("shop", 12, "pairs", form="csv"))) as parts:
                assert (await anext(parts)).startswith(b"x")
            assert await client.distance("0", "7") == 3


@KINDS
@pytest.mark.parametrize("kind_of_page", ["text/html", "application/json", ""])
async def test_what_is_no_stream_is_not_taken_for_one(kind: type[Tiroir | AsyncTiroir], kind_of_page: str) -> None:
    with pretending(repeat((200, kind_of_page, b"key,status\r\n"))) as url:
        async with opened(kind, url) as client:
            for parts in (
                client.stream("shop", 12, "pairs", form="csv"),
                client.stream("shop", 12, "pairs"),
                client.export("shop"),
            ):
                with pytest.raises(ServiceError, match=r"is it a Tiroir service\?"):
                    await whole(parts)


async def test_a_stream_of_nothing_says_why(tiroir: AsyncTiroir, shop: str) -> None:
    await tiroir.create_collection(shop)
    begun = await tiroir.begin_analysis(shop)
    for form in ("csv", "ndjson"):
        with pytest.raises(ServiceError) as refused:
            await whole(tiroir.stream(shop, begun.id, "clusters", form=form))
        assert (refused.value.status, refused.value.problem) == (409, "analysis_unfinished")
    with pytest.raises(ServiceError) as refused:
        await whole(tiroir.stream(shop, 999_999, "pairs"))
    assert (refused.value.status, refused.value.problem) == (404, "analysis_not_found")
    with pytest.raises(ServiceError) as refused:
        await whole(tiroir.stream(shop, begun.id, "pairs", status="new"))
    assert refused.value.status == 422


async def test_an_analysis_that_nobody_has_begun_is_canceled_at_once(tiroir: AsyncTiroir, shop: str) -> None:
    await tiroir.create_collection(shop)
    begun = await tiroir.begin_analysis(shop)
    canceled = await tiroir.cancel_analysis(shop, begun.id)
    assert (canceled.id, canceled.status) == (begun.id, "canceled")
    assert (await tiroir.analyses(shop)).items == [canceled]


@pytest.mark.parametrize("given", [{"clusters": "star"}, {"representative": "oldest"}])
async def test_a_comparison_has_neither_clusters_nor_representatives(
    tiroir: AsyncTiroir, shop: str, given: dict[str, Any]
) -> None:
    """What isn't given isn't sent either: `against` alone is accepted above."""
    for name in (shop, f"{shop}-old"):
        await tiroir.create_collection(name)
    with pytest.raises(ServiceError) as refused:
        await tiroir.begin_analysis(shop, against=f"{shop}-old", **given)
    assert refused.value.status == 422


# Errors


async def test_errors_have_the_status_and_the_code_of_the_problem(tiroir: AsyncTiroir, shop: str) -> None:
    await tiroir.create_collection(shop)
    for call, status, code in (
        (tiroir.collection("absent"), 404, "collection_not_found"),
        (tiroir.document(shop, "absent"), 404, "document_not_found"),
        (tiroir.rebuild(999_999), 404, "operation_not_found"),
        (tiroir.create_collection(shop, store_text=False), 409, "collection_exists"),
        (tiroir.near(shop, fingerprint="xyz"), 422, "invalid_fingerprint"),
        (tiroir.near(shop), 422, "invalid_input"),
        (tiroir.index_many(shop, [{"key": "a", "text": "x" * 17_000_000}]), 413, "body_too_large"),
    ):
        with pytest.raises(ServiceError) as refused:
            await call
        assert (refused.value.status, refused.value.problem) == (status, code)
        assert str(refused.value)
        assert not isinstance(refused.value, UnavailableServiceError)


def nobody() -> str:
    """The address of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening_no_more:
        return f"127.0.0.1:{listening_no_more.getsockname()[1]}"


@KINDS
async def test_nobody_at_the_port_is_a_service_that_is_unavailable(kind: type[Tiroir | AsyncTiroir]) -> None:
    address = nobody()
    async with opened(kind, f"http://{address}") as client:
        for call in (
            client.collections,
            lambda: client.import_documents("shop", [{"key": "a"}]),
            lambda: lines_of(client.export("shop")),
        ):
            with pytest.raises(UnavailableServiceError) as away:
                await call()
            assert (away.value.status, away.value.problem) == (None, None)
            assert str(away.value).startswith(f"no answer from http://{address}: ")


BUSY = (503, "application/problem+json", b'{"code": "overloaded", "status": 503, "detail": "all are taken"}')
PAUSES: dict[str, Answer] = {
    "busy": BUSY,
    "a closed connection": (0, "", b""),
    "a gateway": (502, "text/html", b"<p>Bad Gateway</p>"),
    "another gateway": (504, "text/plain", b""),
}
DISTANCE: Answer = (200, "application/json", b'{"distance": 3}')
IMPORTED: Answer = (
    200,
    "application/json",
    json.dumps(
        dict.fromkeys(("lines", "created", "replaced", "unchanged", "short", "too_short", "failed"), 0)
        | {"errors": [], "complete": True}
    ).encode(),
)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts."""
    monkeypatch.setattr("app.client.clients._PAUSE", 0.0)


@KINDS
@pytest.mark.usefixtures("no_pause")
async def test_who_has_no_patience_asks_once(kind: type[Tiroir | AsyncTiroir]) -> None:
    with listening(chain([BUSY], repeat(DISTANCE))) as other:
        async with opened(kind, other.url) as client:
            with pytest.raises(UnavailableServiceError, match="all are taken") as busy:
                await client.distance("0", "7")
    assert (busy.value.status, busy.value.problem) == (503, "overloaded")
    assert len(other.asked) == 1


@KINDS
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.usefixtures("no_pause")
async def test_who_has_patience_asks_until_there_is_an_answer(kind: type[Tiroir | AsyncTiroir], pause: str) -> None:
    with listening(chain([PAUSES[pause]] * 2, repeat(DISTANCE))) as other:
        async with opened(kind, other.url, patience=60) as client:
            assert await client.distance("0", "7") == 3
    assert len(other.asked) == 3


@KINDS
@pytest.mark.usefixtures("no_pause")
async def test_patience_is_not_for_what_is_refused(kind: type[Tiroir | AsyncTiroir]) -> None:
    refusal = (422, "application/problem+json", b'{"code": "invalid_input", "detail": "no"}')
    with listening(chain([refusal], repeat(DISTANCE))) as other:
        async with opened(kind, other.url, patience=60) as client:
            with pytest.raises(ServiceError, match=r"^no$"):
                await client.distance("0", "7")
    assert len(other.asked) == 1


@KINDS
@pytest.mark.usefixtures("no_pause")
async def test_patience_comes_to_its_end(kind: type[Tiroir | AsyncTiroir]) -> None:
    with listening(repeat(BUSY)) as other:
        async with opened(kind, other.url, patience=0.05) as client:
            with pytest.raises(UnavailableServiceError, match="all are taken"):
                await client.distance("0", "7")
    assert len(other.asked) > 1


@pytest.mark.usefixtures("no_pause")
def test_an_import_of_a_sequence_is_sent_again_whole() -> None:
    with listening(chain([BUSY, (0, "", b"")], repeat(IMPORTED))) as other, Tiroir(other.url, patience=60) as tiroir:
        assert tiroir.import_documents("shop", [{"key": "a"}, b'{"key": "b"}']).complete
    assert [asked.body for asked in other.asked] == [b'{"key": "a"}\n{"key": "b"}\n'] * 3
    assert {asked.headers["content-type"] for asked in other.asked} == {"application/x-ndjson"}


@KINDS
@pytest.mark.usefixtures("no_pause")
async def test_an_import_of_what_can_be_gone_through_once_is_not_sent_again(kind: type[Tiroir | AsyncTiroir]) -> None:
    """The rest of it would pass for all."""
    with listening(chain([BUSY], repeat(IMPORTED))) as other:
        async with opened(kind, other.url, patience=60) as client:
            with pytest.raises(UnavailableServiceError):
                await client.import_documents("shop", iter([{"key": "a"}]))
    assert [asked.body for asked in other.asked] == [b'{"key": "a"}\n']


# What is no service, or a newer one


@KINDS
async def test_a_newer_service_may_say_more(kind: type[Tiroir | AsyncTiroir]) -> None:
    counts = {"documents": 1, "fingerprints": 1, "too_short": 0, "exact_duplicates": 0, "new": 1}
    scheme = {"tokenizer": "words", "shingle_size": 4, "bits": 64, "min_words": 8, "new": 1}
    detail = {
        "name": "shop",
        "scheme": scheme,
        "store_text": True,
        "ttl": None,
        "created_at": "2026-12-01T12:00:00Z",
        "counts": counts,
        "new": {"x": 1},
    }
    with pretending(repeat((200, "application/json", json.dumps(detail).encode()))) as url:
        async with opened(kind, url) as client:
            assert (await client.collection("shop")).counts.documents == 1


@KINDS
@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", b"<p>It works!</p>"),
        (200, "application/json", b"[1]"),
        (404, "application/json", b'{"message": "no route"}'),
        (404, "text/html", b"\xff\xfe"),
        (307, "text/html", b""),
        (204, "text/plain", b""),
    ],
    ids=["page", "list", "another's problem", "bytes", "elsewhere", "nothing"],
)
async def test_what_is_no_service_is_told(kind: type[Tiroir | AsyncTiroir], answer: Answer) -> None:
    with pretending(repeat(answer)) as url:
        async with opened(kind, url) as client:
            with pytest.raises(ServiceError, match=r"is it a Tiroir service\?") as refused:
                await client.distance("0", "7")
            assert refused.value.status == answer[0]
            assert not isinstance(refused.value, UnavailableServiceError)


@KINDS
@pytest.mark.parametrize("address", ["nonsense", "ftp://127.0.0.1", "http://[::1", "http://127.0.0.1:port", ""])
async def test_what_is_no_address_is_told(kind: type[Tiroir | AsyncTiroir], address: str) -> None:
    with pytest.raises(ServiceError, match="is no URL of a service") as refused:
        async with opened(kind, address) as client:
            await client.collections()
    assert address in str(refused.value)
    assert not isinstance(refused.value, UnavailableServiceError)


@KINDS
@pytest.mark.parametrize(
    "password", ["hunter2", "hunter2%2F", "hunter2@home", "hunter2/home", "hunter2#home", "hunter2?home"]
)
async def test_a_password_in_an_address_is_not_told(kind: type[Tiroir | AsyncTiroir], password: str) -> None:
    """Not even one that should have been percent-encoded."""
    away = nobody()
    with pretending(repeat((200, "text/html", b"<p>It works!</p>"))) as other:
        for address in (away, other.removeprefix("http://")):
            for scheme in ("http", "ftp"):
                with pytest.raises(ServiceError) as refused:
                    async with opened(kind, f"{scheme}://user:{password}@{address}") as client:
                        await client.collections()
                assert "hunter2" not in str(refused.value)
                assert refused.value.__cause__ is None
