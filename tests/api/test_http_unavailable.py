"""When the database is slow, locked, busy or gone: 503 that says when to come back, and nothing of the driver's."""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import pytest
from anyio import Event, create_task_group, fail_after
from httpx2 import AsyncClient, Response
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from app.api.problems import RETRY_AFTER
from app.settings import Settings
from tests.api.support import (
    TABLES,
    assert_problem,
    disconnect_waiting,
    execute,
    find,
    keys_of,
    locked,
    ok,
    put,
    rows,
    send,
    text_of,
    until_waiting,
)
from tests.conftest import Server, client_of

SHOP = "/v1/collections/shop"
REQUESTS: dict[str, tuple[str, str, object]] = {
    "index": ("POST", f"{SHOP}/documents", {"key": "b", "text": text_of(30)}),
    "index again": ("PUT", f"{SHOP}/documents/a", {"text": text_of(30)}),
    "index in a new collection": ("PUT", "/v1/collections/new/documents/a", {"text": text_of(30)}),
    "read": ("GET", f"{SHOP}/documents/a", None),
    "list": ("GET", f"{SHOP}/documents", None),
    "delete": ("DELETE", f"{SHOP}/documents/a", None),
    "look up a text": ("POST", f"{SHOP}/near-duplicates", {"text": text_of(30), "explain": True}),
    "look up a short text": ("POST", f"{SHOP}/near-duplicates", {"text": "oak"}),
    "look up a key": ("GET", f"{SHOP}/near-duplicates?key=a", None),
    "create": ("POST", "/v1/collections", {"name": "new"}),
    "create again": ("POST", "/v1/collections", {"name": "shop"}),
    "list collections": ("GET", "/v1/collections", None),
    "describe": ("GET", SHOP, None),
    "delete a collection": ("DELETE", SHOP, None),
    "report on the bands": ("GET", "/v1/admin/layout", None),
    "begin a rebuild": ("POST", "/v1/admin/rebuilds", {"threshold": 7}),
    "begin an audit": ("POST", "/v1/admin/audits", {}),
    "list rebuilds": ("GET", "/v1/admin/rebuilds", None),
    "watch an audit": ("GET", "/v1/admin/audits/1", None),
    "cancel an audit": ("POST", "/v1/admin/audits/1/cancel", None),
}
# Words of the messages that PostgreSQL, libpq and psycopg write.
DRIVER_TEXT = ("cancel", "statement", "lock", "psycopg", "timeout", "ERROR", "relation", "server", "connection to")


async def ask(client: AsyncClient, method: str, url: str, body: object) -> Response:
    return await (client.request(method, url) if body is None else send(client, method, url, body))


def assert_unavailable(answer: Response, code: str) -> None:
    problem = assert_problem(answer, 503, code)
    assert answer.headers["retry-after"] == str(RETRY_AFTER)
    assert not [word for word in DRIVER_TEXT if word in problem["detail"]], problem["detail"]


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
async def test_what_waits_for_a_lock_too_long_is_given_up(
    settings: Settings, database: str, subtests: pytest.Subtests, limit: str
) -> None:
    answers: dict[str, Response] = {}

    async def request_at_once(client: AsyncClient, name: str) -> None:
        answers[name] = await ask(client, *REQUESTS[name])

    # Long enough for whatever doesn't wait, also on a busy machine; a connection for each request.
    limits = {limit: 0.5, "pool_max_size": len(REQUESTS), "pool_timeout": 30, "run_operations": False}
    async with client_of(settings.model_copy(update=limits)) as client:
        await put(client, "a", text=text_of(30))
        before = rows(database)
        with locked(database, *TABLES):
            async with create_task_group() as tasks:
                for name in REQUESTS:
                    tasks.start_soon(request_at_once, client, name)
        for name, answer in answers.items():
            with subtests.test(name):
                assert_unavailable(answer, "query_timeout")
        assert rows(database) == before
        for name, request in REQUESTS.items():
            with subtests.test(f"{name}, afterwards"):
                assert (await ask(client, *request)).status_code < 500


CONDITIONS = {
    "57014": "query_timeout",  # canceled
    "55P03": "query_timeout",  # lock not available
    "25P03": "query_timeout",  # idle in transaction
    "40001": "database_unavailable",  # serialization failure
    "40P01": "database_unavailable",  # deadlock
    "53100": "database_unavailable",  # disk full
    "53300": "database_unavailable",  # too many connections
    "57P01": "database_unavailable",  # shutting down
    "57P03": "database_unavailable",  # starting up
    "58030": "database_unavailable",  # I/O error
    "25006": "database_unavailable",  # read-only
    "08006": "database_unavailable",  # connection failure
}


@contextmanager
def raising(database: str, sqlstate: str, message: str) -> Generator[None]:
    """Every new document makes PostgreSQL raise this condition."""
    execute(
        database,
        f"""
        CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{sqlstate}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON document FOR EACH ROW EXECUTE FUNCTION refuse()
        """,
    )
    yield
    execute(database, "DROP TRIGGER refuse ON document")


async def test_conditions_are_told_apart_by_their_code_not_by_their_words(
    client: AsyncClient, database: str, subtests: pytest.Subtests
) -> None:
    """A server that speaks another language writes other words."""
    await put(client, "a", text=text_of(30))
    before = rows(database)
    for sqlstate, code in CONDITIONS.items():
        with subtests.test(sqlstate), raising(database, sqlstate, "annulation de la requête"):
            answer = await send(client, "PUT", f"{SHOP}/documents/b", {"text": text_of(30, seed=1)})
            assert_unavailable(answer, code)
            assert "annulation" not in answer.text
            assert rows(database) == before
    assert (await put(client, "b", text=text_of(30, seed=1)))["result"] == "created"


@pytest.mark.parametrize("connections", [1, 2])
async def test_who_finds_no_connection_is_sent_away_and_the_process_lives(
    settings: Settings, database: str, connections: int
) -> None:
    small = settings.model_copy(update={"pool_min_size": 1, "pool_max_size": connections, "pool_timeout": 1})
    answers: list[Response] = []
    turned_away = Event()

    async def look_up(client: AsyncClient) -> None:
        answers.append(await send(client, "POST", f"{SHOP}/near-duplicates", {"text": text_of(300)}))
        if len(answers) == 40 - connections:
            turned_away.set()

    async with client_of(small) as client:
        await put(client, "a", text=text_of(300))
        async with create_task_group() as tasks:
            with locked(database, "document"):
                for _ in range(40):
                    tasks.start_soon(look_up, client)
                await until_waiting(database, connections)
                assert await ok(client, "GET", "/livez") == {"status": "ok"}
                assert_unavailable(await client.get("/readyz"), "overloaded")
                with fail_after(10):
                    await turned_away.wait()
                for answer in answers:
                    assert_unavailable(answer, "overloaded")
                assert await ok(client, "GET", "/livez") == {"status": "ok"}
        assert [answer.status_code for answer in answers[-connections:]] == [200] * connections
        assert await ok(client, "GET", "/readyz") == {"status": "ok"}
        assert keys_of(await find(client, text=text_of(300))) == ["a"]


@pytest.fixture
async def impatient(settings: Settings) -> AsyncGenerator[AsyncClient]:
    async with client_of(settings.model_copy(update={"pool_timeout": 1})) as client:
        yield client


def disconnect(database: str) -> None:
    execute(
        database,
        """
        SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        """,
    )


async def test_connections_that_died_in_the_pool_neither_fail_nor_delay_a_request(
    settings: Settings, database: str
) -> None:
    async with client_of(settings.model_copy(update={"pool_min_size": 8})) as client:
        await put(client, "a", text=text_of(30))
        disconnect(database)
        with fail_after(3):
            assert keys_of(await find(client, text=text_of(30))) == ["a"]


async def test_a_connection_that_dies_under_a_request_is_503(impatient: AsyncClient, database: str) -> None:
    await put(impatient, "a", text=text_of(30))
    answers: dict[str, Response] = {}

    async def request(name: str) -> None:
        answers[name] = await ask(impatient, *REQUESTS[name])

    names = ("look up a text", "index again")
    async with create_task_group() as tasks:
        with locked(database, "document"):
            for name in names:
                tasks.start_soon(request, name)
            await until_waiting(database, len(names))
            disconnect_waiting(database)
    for answer in answers.values():
        assert_unavailable(answer, "database_unavailable")
    assert keys_of(await find(impatient, text=text_of(30))) == ["a"]


async def test_a_database_that_is_gone_and_comes_back(impatient: AsyncClient, database: str, server: Server) -> None:
    await put(impatient, "a", text=text_of(30))
    name = str(conninfo_to_dict(database)["dbname"])
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    disconnect_all = sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}")
    server.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
    server.execute(disconnect_all.format(sql.Literal(name)))
    for url in ("/readyz", f"{SHOP}/documents/a", "/v1/collections"):
        assert_unavailable(await impatient.get(url), "database_unavailable")
    assert await ok(impatient, "GET", "/livez") == {"status": "ok"}
    server.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
    with fail_after(30):
        while (await impatient.get("/readyz")).status_code != 200:
            pass
    assert keys_of(await find(impatient, text=text_of(30))) == ["a"]
