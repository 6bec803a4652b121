"""Many clients at once, and several processes on one database."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from anyio import create_task_group
from httpx2 import AsyncClient, Response

from app.settings import Settings
from tests.api.support import (
    assert_problem,
    execute,
    find,
    hex_of,
    keep_house,
    keys_of,
    locked,
    ok,
    put,
    rows,
    send,
    text_of,
    until_waiting,
)
from tests.conftest import client_of

SHOP = "/v1/collections/shop"


async def at_once(*requests: Callable[[], Awaitable[Response]]) -> list[Response]:
    """The answers, in the order in which they came."""
    answers: list[Response] = []

    async def ask(request: Callable[[], Awaitable[Response]]) -> None:
        answers.append(await request())

    async with create_task_group() as tasks:
        for request in requests:
            tasks.start_soon(ask, request)
    return answers


def putting(client: AsyncClient, url: str, body: object) -> Callable[[], Awaitable[Response]]:
    return lambda: send(client, "PUT", url, body)


def statuses(answers: list[Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


async def require_consistency(client: AsyncClient, database: str) -> None:
    """Every document is found by its fingerprint, and no row belongs to a collection that is gone."""
    orphans = "SELECT count(*) FROM {} WHERE collection_id NOT IN (SELECT id FROM collection)"
    assert [execute(database, orphans.format(table)) for table in ("document", "fingerprint")] == [[(0,)], [(0,)]]
    for collection in (await ok(client, "GET", "/v1/collections"))["items"]:
        name = collection["name"]
        for document in (await ok(client, "GET", f"/v1/collections/{name}/documents?limit=1000"))["items"]:
            found = await find(client, collection=name, fingerprint=document["fingerprint"], threshold=0, limit=1000)
            assert document["key"] in keys_of(found)


async def test_50_clients_that_put_the_same_document_make_one(client: AsyncClient, database: str) -> None:
    body = {"text": text_of(300), "metadata": {"n": 1}}
    answers = await at_once(*[putting(client, f"{SHOP}/documents/a", body)] * 50)
    assert statuses(answers) == {201: 1, 200: 49}
    assert Counter(answer.json()["result"] for answer in answers) == {"created": 1, "unchanged": 49}
    assert len({answer.json()["document"]["updated_at"] for answer in answers}) == 1
    assert all(answer.json()["near_duplicates"] == [] for answer in answers)
    assert (rows(database)["document"], rows(database)["fingerprint"]) == (1, 1)


async def test_50_clients_that_put_other_texts_under_one_key_leave_the_last(client: AsyncClient, database: str) -> None:
    texts = [text_of(300, seed=seed) for seed in range(50)]
    answers = await at_once(*[putting(client, f"{SHOP}/documents/a", {"text": text}) for text in texts])
    assert statuses(answers) == {201: 1, 200: 49}
    assert Counter(answer.json()["result"] for answer in answers) == {"created": 1, "replaced": 49}
    assert rows(database)["document"] == 1
    stored = await ok(client, "GET", f"{SHOP}/documents/a")
    for answer in answers:
        fingerprint = answer.json()["document"]["fingerprint"]
        found = await find(client, fingerprint=fingerprint, threshold=0)
        assert keys_of(found) == (["a"] if fingerprint == stored["fingerprint"] else [])


async def test_20_clients_that_write_first_make_one_collection(client: AsyncClient, database: str) -> None:
    requests = [putting(client, f"{SHOP}/documents/{number}", {"text": text_of(300)}) for number in range(20)]
    assert statuses(await at_once(*requests)) == {201: 20}
    assert rows(database) == {
        "collection": 1,
        "deleted_collection": 0,
        "document": 20,
        "fingerprint": 1,
        "band_layout": 1,
        "operation": 0,
    }
    assert len(keys_of(await find(client, text=text_of(300)))) == 20


async def test_20_clients_that_make_one_collection_agree(client: AsyncClient, database: str) -> None:
    def making(bits: int) -> Callable[[], Awaitable[Response]]:
        return lambda: send(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": bits}})

    assert statuses(await at_once(*[making(63)] * 20)) == {201: 1, 200: 19}
    assert (await client.delete(SHOP)).status_code == 204
    answers = await at_once(*[making(63), making(64)] * 10)
    assert statuses(answers) == {201: 1, 200: 9, 409: 10}
    assert rows(database)["collection"] == 1


async def test_of_20_clients_that_delete_a_document_one_does(client: AsyncClient) -> None:
    await put(client, "a", text=text_of(300))
    answers = await at_once(*[lambda: client.delete(f"{SHOP}/documents/a")] * 20)
    assert statuses(answers) == {204: 1, 404: 19}


async def test_a_document_that_is_deleted_while_it_is_put_again(client: AsyncClient, database: str) -> None:
    """The content is seen to be unchanged, which locks nothing; then the document goes, before the write has ended."""
    body = {"text": text_of(30)}
    await put(client, "a", **body)
    answers: list[Response] = []

    async def put_again() -> None:
        answers.append(await send(client, "PUT", f"{SHOP}/documents/a", body))

    async with create_task_group() as tasks:
        with locked(database, "fingerprint"):
            tasks.start_soon(put_again)
            await until_waiting(database, 1)
            assert (await client.delete(f"{SHOP}/documents/a")).status_code == 204
    assert statuses(answers) == {201: 1}
    assert keys_of(await find(client, **body)) == ["a"]


async def test_documents_that_come_and_go_at_once_stay_consistent(client: AsyncClient, database: str) -> None:
    put_again = putting(client, f"{SHOP}/documents/a", {"text": text_of(30)})
    answers = await at_once(*[put_again, put_again, lambda: client.delete(f"{SHOP}/documents/a")] * 50)
    assert set(statuses(answers)) <= {200, 201, 204, 404}
    await require_consistency(client, database)


async def test_a_collection_that_is_deleted_while_clients_write_and_look_up(
    client: AsyncClient, settings: Settings, database: str
) -> None:
    await put(client, "first", text=text_of(300))  # else all deletions may come before the first write is done
    requests: list[Callable[[], Awaitable[Response]]] = []
    for number in range(60):
        requests += [
            putting(client, f"{SHOP}/documents/{number % 20}", {"text": text_of(300, seed=number % 7)}),
            lambda number=number: client.get(f"{SHOP}/near-duplicates?key={number % 20}"),
            lambda: send(client, "POST", f"{SHOP}/near-duplicates", {"text": text_of(300), "explain": True}),
            lambda: client.get(SHOP),
            lambda: client.get(f"{SHOP}/documents"),
        ]
        if number % 10 == 9:
            requests.append(lambda: client.delete(SHOP))
    answers = await at_once(*requests)
    # 503: the collection was gone whenever this one came, several times over.
    assert set(statuses(answers)) <= {200, 201, 204, 404, 503}
    assert statuses(answers)[204] > 0
    await keep_house(settings)
    await require_consistency(client, database)


@dataclass(frozen=True)
class Processes:
    """Two applications on one database. Each remembers what it saw of the collections."""

    one: AsyncClient
    other: AsyncClient


async def two_processes(stack: AsyncExitStack, settings: Settings) -> Processes:
    """Both know the collection "shop", in which there is one document; then the first makes it anew with 64 bits."""
    processes = Processes(*[await stack.enter_async_context(client_of(settings)) for _ in range(2)])
    await put(processes.one, "old", text=text_of(300))
    assert keys_of(await find(processes.other, text=text_of(300))) == ["old"]
    await ok(processes.one, "DELETE", SHOP)
    scheme = {"bits": 64, "min_words": 1}
    await ok(processes.one, "POST", "/v1/collections", {"name": "shop", "scheme": scheme})
    return processes


async def _after_another_scheme(settings: Settings, act: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async with AsyncExitStack() as stack:
        processes = await two_processes(stack, settings)
        await put(processes.one, "new", text="le chat mange la souris")
        return await act(processes.other)


async def test_a_process_that_remembers_a_collection_looks_up_by_the_new_scheme(settings: Settings) -> None:
    found = await _after_another_scheme(settings, lambda other: find(other, text="le chat mange la souris"))
    assert keys_of(found) == ["new"]
    assert found["status"] == "short"


async def test_a_process_that_remembers_a_collection_finds_no_old_document(settings: Settings) -> None:
    found = await _after_another_scheme(settings, lambda other: find(other, text=text_of(300), threshold=63))
    assert keys_of(found) == ["new"]


async def test_a_process_that_remembers_a_collection_writes_by_the_new_scheme(settings: Settings) -> None:
    indexed = await _after_another_scheme(settings, lambda other: put(other, "more", text="le chat mange la souris"))
    [match] = indexed["near_duplicates"]
    assert (match["key"], match["match"]) == ("new", "exact")


async def test_a_process_that_remembers_a_collection_takes_the_bits_of_the_new_scheme(settings: Settings) -> None:
    asked = {"fingerprint": hex_of(2**64 - 1)}
    assert (await _after_another_scheme(settings, lambda other: find(other, **asked)))["simhash"] == "-1"


async def test_a_process_that_remembers_a_collection_stores_the_bits_of_the_new_scheme(settings: Settings) -> None:
    asked = {"simhash": "-1"}
    indexed = await _after_another_scheme(settings, lambda other: put(other, "more", **asked))
    assert indexed["document"]["fingerprint"] == hex_of(2**64 - 1)


async def test_a_process_that_remembers_a_collection_reads_and_lists_the_new_one(settings: Settings) -> None:
    async def read(other: AsyncClient) -> None:
        assert_problem(await other.get(f"{SHOP}/documents/old"), 404, "document_not_found")
        assert (await ok(other, "GET", f"{SHOP}/documents/new"))["words"] == 5

    async def list_all(other: AsyncClient) -> None:
        assert [item["key"] for item in (await ok(other, "GET", f"{SHOP}/documents"))["items"]] == ["new"]

    async def describe(other: AsyncClient) -> None:
        described = await ok(other, "GET", SHOP)
        assert (described["scheme"]["bits"], described["counts"]["documents"]) == (64, 1)

    async def delete(other: AsyncClient) -> None:
        await ok(other, "DELETE", f"{SHOP}/documents/new")

    for act in (read, list_all, describe, delete):
        await _after_another_scheme(settings, act)
        async with client_of(settings) as client:
            await ok(client, "DELETE", SHOP)


async def test_a_process_that_remembers_a_collection_knows_when_it_is_gone(settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        processes = await two_processes(stack, settings)
        await ok(processes.one, "DELETE", SHOP)
        for url in (SHOP, f"{SHOP}/documents", f"{SHOP}/documents/old", f"{SHOP}/near-duplicates?text=a"):
            assert_problem(await processes.other.get(url), 404, "collection_not_found")
        assert (await put(processes.other, "a", fingerprint=hex_of(1)))["result"] == "created"
        assert (await ok(processes.one, "GET", SHOP))["scheme"]["bits"] == 63
