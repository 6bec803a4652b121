"""A database is brought to this version's schema once, or refused in one line that says why."""

import logging
import socket
import struct
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from app.core.errors import StartupError, UnavailableError
from app.core.model import OperationKind, OperationStatus, Outcome
from app.postgres.migrate import migrate
from app.runtime import process
from app.settings import Settings
from tests.conftest import Server
from tests.store.brute_force import Stored, nearest
from tests.store.databases import create_collection, one_value, settings_of
from tests.store.pages import Pages
from tests.store.revisions import downgrade, upgrade
from tests.store.waiting import wait_until, waiting_for_locks


def refusal(conninfo: str) -> str:
    with pytest.raises(StartupError) as caught:
        migrate(conninfo, connect_timeout=2)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Several at once

WAITING = "waiting for the migrations of another process"
ALL = [
    "Running upgrade  -> 0001",
    "Running upgrade 0001 -> 0002",
    "Running upgrade 0002 -> 0003",
    "Running upgrade 0003 -> 0004",
]


def upgrades(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.split(",")[0] for message in caplog.messages if message.startswith("Running upgrade")]


def test_three_at_once_all_succeed_and_each_migration_runs_once(
    empty_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ready = threading.Barrier(3)

    def start() -> None:
        ready.wait()
        migrate(empty_database, connect_timeout=10)

    with ThreadPoolExecutor(3) as threads:
        for started in [threads.submit(start) for _ in range(3)]:
            started.result()
    assert upgrades(caplog) == ALL
    assert one_value(empty_database, b"SELECT count(*) FROM band_layout") == 1


def test_who_waits_for_the_migrations_of_another_says_so(empty_database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with (
        psycopg.connect(empty_database) as obstacle,
        psycopg.connect(empty_database, autocommit=True) as observer,
        ThreadPoolExecutor(2) as threads,
    ):
        obstacle.execute("CREATE TABLE alembic_version ()")  # uncommitted: whoever makes it too has to wait
        first = threads.submit(migrate, empty_database, connect_timeout=10)
        wait_until(lambda: waiting_for_locks(observer) == 1)
        assert WAITING not in caplog.messages
        second = threads.submit(migrate, empty_database, connect_timeout=10)
        wait_until(lambda: WAITING in caplog.messages)
        obstacle.rollback()
        first.result()
        second.result()
    assert caplog.messages.count(WAITING) == 1
    assert upgrades(caplog) == ALL


# From the previous release

STORED: dict[int, list[int | None]] = {
    63: [0, 1, 7, 2**63 - 1, None],
    64: [0, 1, -1, -(2**63), 2**63 - 1, None],
    8: [0, 1, 7, 255, None],
}


def write_as_0001(connection: psycopg.Connection, name: str, key: str, simhash: int | None) -> None:
    """As the first release does."""
    row = connection.execute("SELECT id FROM collection WHERE name = %s::text", [name]).fetchone()
    assert row
    connection.execute(
        "INSERT INTO document (collection_id, key, content_hash, simhash, words, text, metadata)"
        " VALUES (%s::int, %s::text, NULL, %s::bigint, NULL, NULL, '{}')",
        [row[0], key, simhash],
    )
    if simhash is not None:
        connection.execute(
            "INSERT INTO fingerprint (collection_id, simhash) VALUES (%s::int, %s::bigint) ON CONFLICT DO NOTHING",
            [row[0], simhash],
        )


@pytest.fixture
def previous(empty_database: str) -> str:
    """A database as the first release left it, with documents in collections of 63, 64 and 8 bits."""
    upgrade(empty_database, "0001")
    with psycopg.connect(empty_database) as connection:
        for bits, simhashes in STORED.items():
            create_collection(connection, f"of-{bits}", bits=bits)
            for number, simhash in enumerate(simhashes):
                write_as_0001(connection, f"of-{bits}", str(number), simhash)
    return empty_database


def content(conninfo: str) -> list[tuple[object, ...]]:
    """All that the first release knows of."""
    with psycopg.connect(conninfo) as connection:
        return [
            row
            for query in (
                (
                    "SELECT id, name, tokenizer, shingle_size, bits, min_words, store_text, created_at"
                    " FROM collection ORDER BY id"
                ),
                "SELECT collection_id, key, simhash, words, text, metadata, updated_at FROM document ORDER BY 1, 2",
                "SELECT * FROM fingerprint ORDER BY collection_id, simhash",
                "SELECT id, widths, threshold, table_name, state, created_at FROM band_layout",
            )
            for row in connection.execute(query.encode()).fetchall()
        ]


def bits_of_documents(conninfo: str) -> dict[str, list[int]]:
    """Those that stand in the rows, by collection."""
    with psycopg.connect(conninfo) as connection:
        return dict(
            connection.execute("""
                SELECT c.name, array_agg(DISTINCT d.bits) FROM document d JOIN collection c ON c.id = d.collection_id
                GROUP BY c.name
            """).fetchall()
        )


def test_an_upgrade_keeps_all_there_is_and_so_does_the_way_back(previous: str) -> None:
    before = content(previous)
    for _ in range(2):
        migrate(previous, connect_timeout=10)
        assert content(previous) == before
        assert bits_of_documents(previous) == {"of-63": [63], "of-64": [64], "of-8": [8]}
        downgrade(previous, "0001")
        assert content(previous) == before


async def test_on_the_way_back_no_document_of_a_deleted_collection_comes_back(previous: str) -> None:
    migrate(previous, connect_timeout=10)
    async with process(settings_of(previous)) as opened:
        await opened.services.collections.delete("of-64")
    assert one_value(previous, b"SELECT count(*) FROM document WHERE bits = 64") == len(STORED[64])
    downgrade(previous, "0002")
    assert bits_of_documents(previous) == {"of-63": [63], "of-8": [8]}
    assert one_value(previous, b"SELECT count(*) FROM document WHERE bits = 64") == 0


async def test_after_an_upgrade_everything_is_found_and_can_be_written(previous: str) -> None:
    migrate(previous, connect_timeout=10)
    async with process(settings_of(previous)) as opened:
        for bits, simhashes in STORED.items():
            pages = Pages(opened.services, f"of-{bits}")
            documents = [Stored(str(number), value) for number, value in enumerate(simhashes) if value is not None]
            for document, threshold in product(documents, (0, 3, 63)):
                found = await pages.found(document.simhash, threshold)
                assert found == nearest(documents, document.simhash, threshold)
            for key in ("0", "new"):
                assert await pages.put(key, 5) in Outcome
                assert key in await pages.keys(5, 0)
    assert bits_of_documents(previous) == {"of-63": [63], "of-64": [64], "of-8": [8]}


def test_the_previous_release_goes_on_writing_on_the_new_schema(previous: str) -> None:
    """While processes are replaced one after the other, both releases serve.

    One thing it can't: it doesn't say that a fingerprint may have the highest bit, so that is refused (CHANGELOG).
    """
    migrate(previous, connect_timeout=10)
    refused: list[int | None] = []
    with psycopg.connect(previous, autocommit=True) as connection:
        for bits, simhashes in STORED.items():
            for number, simhash in enumerate(simhashes):
                try:
                    write_as_0001(connection, f"of-{bits}", f"later {number}", simhash)
                except psycopg.errors.CheckViolation:
                    refused.append(simhash)
    assert refused == [simhash for simhash in STORED[64] if simhash is not None and simhash < 0]


async def test_what_the_previous_release_wrote_on_the_new_schema_can_be_replaced(previous: str) -> None:
    migrate(previous, connect_timeout=10)
    with psycopg.connect(previous) as connection:
        for name in ("of-63", "of-64", "of-8"):
            write_as_0001(connection, name, "later", 5)
    async with process(settings_of(previous)) as opened:
        for name, simhash in {"of-63": 2**63 - 1, "of-64": -1, "of-8": 255}.items():
            pages = Pages(opened.services, name)
            assert await pages.put("later", simhash) == Outcome.REPLACED
            assert "later" in await pages.keys(simhash, 0)


def test_an_upgrade_by_three_at_once_runs_once(previous: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    with ThreadPoolExecutor(3) as threads:
        for started in [threads.submit(migrate, previous, connect_timeout=10) for _ in range(3)]:
            started.result()
    assert upgrades(caplog) == ALL[1:]


@pytest.mark.parametrize(
    ("in_the_way", "why"),
    [
        pytest.param("CREATE SCHEMA tiroir_queue", 'schema "tiroir_queue" already exists', id="a schema of this name"),
        pytest.param("CREATE TABLE operation ()", 'relation "operation" already exists', id="a table of this name"),
        pytest.param(
            "UPDATE document SET simhash = 256 WHERE key = '1' AND simhash = 1",
            'check constraint "document_simhash_check" of relation "document" is violated by some row',
            id="a fingerprint with a bit too many",
        ),
    ],
)
def test_an_upgrade_that_can_not_be_made_changes_nothing(previous: str, in_the_way: str, why: str) -> None:
    with psycopg.connect(previous) as connection:
        connection.execute(in_the_way.encode())
    before = content(previous)
    message = refusal(previous)
    assert message.startswith("the database schema could not be migrated: ")
    assert why in message
    assert one_value(previous, b"SELECT array_agg(version_num) FROM alembic_version") == ["0001"]
    assert content(previous) == before
    left = b"SELECT count(*) FROM pg_attribute WHERE attname = 'bits' AND attrelid >= 16384"
    assert one_value(previous, left) == 1  # that of collections


async def test_a_database_may_have_a_search_path_of_its_own(empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA mine")
        name = sql.Identifier(str(conninfo_to_dict(empty_database)["dbname"]))
        connection.execute(sql.SQL("ALTER DATABASE {} SET search_path = mine").format(name))
    migrate(empty_database, connect_timeout=10)
    there = b"SELECT array_agg(DISTINCT relnamespace::regnamespace::text) FROM pg_class WHERE relname = ANY(%s)"
    tables = ["alembic_version", "collection", "document", "fingerprint", "band_layout", "operation"]
    assert one_value(empty_database, there, (tables,)) == ["mine"]
    assert one_value(empty_database, there, (["procrastinate_jobs"],)) == ["tiroir_queue"]
    async with process(settings_of(empty_database)) as opened:
        pages = Pages(opened.services)
        await pages.put("a", 7)
        assert await pages.keys(7) == ["a"]
        audit = await opened.services.operations.begin(
            OperationKind.AUDIT, {"sample": 1, "threshold": None}, idempotency_key=None
        )
        canceled = await opened.services.operations.cancel(OperationKind.AUDIT, audit.id)
        assert canceled.status == OperationStatus.CANCELED


# Databases that don't fit


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


@contextmanager
def a_server_of_version(version: str) -> Generator[str]:
    """As much of PostgreSQL's protocol as it takes to let a client in, which learns the version at that."""
    parameters = {"server_version": version, "server_encoding": "UTF8", "client_encoding": "UTF8"}
    welcome = _message(b"R", struct.pack(">i", 0))
    for name, value in parameters.items():
        welcome += _message(b"S", f"{name}\0{value}\0".encode())
    welcome += _message(b"Z", b"I")

    def serve() -> None:
        with suppress(OSError):  # the listener was closed: no client came
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(welcome)
                client.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"host=127.0.0.1 port={listener.getsockname()[1]} user=x dbname=x sslmode=disable gssencmode=disable"
    thread.join()


def test_a_postgresql_that_is_too_old() -> None:
    with a_server_of_version("13.16") as conninfo:
        assert refusal(conninfo) == "PostgreSQL 13 is too old: 14 is the oldest that Tiroir runs on"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_that_can_not_hold_every_text(server: Server, encoding: str) -> None:
    name = f"encoding_{encoding.lower()}"
    provider = sql.SQL("LOCALE_PROVIDER libc" if server.version >= 15 else "")  # before, there is no other
    server.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} {} LOCALE 'C'").format(
            sql.Identifier(name), sql.Literal(encoding), provider
        )
    )
    message = refusal(server.postgres.dsn(name))
    assert message == f"the database has the encoding {encoding}: create one with ENCODING 'UTF8'"
    server.drop(name)


def test_a_schema_of_a_newer_version(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    message = refusal(database)
    assert "'9999'" in message
    assert message.endswith("Was it made by a newer version?")


def test_a_database_that_does_not_exist(server: Server) -> None:
    message = refusal(server.postgres.dsn("nowhere"))
    assert message.startswith("can't connect to PostgreSQL: ")
    assert 'database "nowhere" does not exist' in message


@pytest.mark.parametrize("address", ["host=127.0.0.1 port=1", "host=nowhere.invalid", "host=/nowhere"])
def test_a_server_that_is_not_there(address: str) -> None:
    assert refusal(address).startswith("can't connect to PostgreSQL: ")


def test_a_database_with_other_tables_of_these_names(empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE document ()")
    message = refusal(empty_database)
    assert message.startswith("the database schema could not be migrated: ")
    assert 'relation "document" already exists' in message
    assert one_value(empty_database, b"SELECT to_regclass('collection') IS NULL") is True  # all or nothing


# Passwords

PASSWORD = "hunter2"
SPECIAL = ["#", "@", "%", "/", ":", "?", " ", "&a=b", "[", "'", '"', "\\", "ö", "%41"]
RAW_IN_URL = {"#", ":", "?", "&a=b", "[", "'", '"', "\\", "ö"}


class Guarded:
    """A database of a role that must give a password."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.host = str(conninfo_to_dict(server.postgres.dsn())["host"])

    def change_password(self, password: str) -> None:
        self.server.execute(sql.SQL("ALTER ROLE guarded PASSWORD {}").format(sql.Literal(password)))

    def url(self, quoted_password: str, dbname: str = "guarded") -> str:
        return f"postgresql://guarded:{quoted_password}@/{dbname}?host={quote(self.host, safe='')}"


@pytest.fixture(scope="module")
def guarded(server: Server) -> Generator[Guarded]:
    found = one_value(server.postgres.dsn("postgres"), b"SHOW hba_file")
    assert isinstance(found, str)
    rules = Path(found)
    before = rules.read_text()
    rules.write_text(f"local all guarded scram-sha-256\n{before}")
    server.execute(sql.SQL("SELECT pg_reload_conf()").format())
    server.execute(sql.SQL("CREATE ROLE guarded LOGIN").format())
    server.execute(sql.SQL("CREATE DATABASE guarded OWNER guarded").format())
    started = Guarded(server)
    yield started
    server.drop("guarded")
    server.execute(sql.SQL("DROP ROLE guarded").format())
    rules.write_text(before)
    server.execute(sql.SQL("SELECT pg_reload_conf()").format())


async def serve_once(settings: Settings) -> None:
    assert settings.database_url
    migrate(settings.database_url.get_secret_value(), connect_timeout=2)
    async with process(settings) as opened:
        await opened.services.health.require_database()


@pytest.mark.parametrize("special", SPECIAL)
async def test_a_password_may_have_any_characters(guarded: Guarded, special: str) -> None:
    password = f"{PASSWORD}{special}x"
    guarded.change_password(password)
    await serve_once(settings_of(guarded.url(quote(password, safe=""))))
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    await serve_once(settings_of(f"host={guarded.host} user=guarded dbname=guarded password='{quoted}'"))
    if special in RAW_IN_URL:
        await serve_once(settings_of(guarded.url(password)))


@pytest.mark.parametrize("special", sorted(set(SPECIAL) - RAW_IN_URL - {"%41"}))
def test_what_a_url_must_encode_is_asked_for(guarded: Guarded, special: str) -> None:
    with pytest.raises(ValidationError, match="percent-encode") as caught:
        settings_of(guarded.url(f"{PASSWORD}{special}x"))
    assert PASSWORD not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize("special", ["", "#", "@", "%", "/"])
async def test_a_wrong_password_is_not_told(guarded: Guarded, caplog: pytest.LogCaptureFixture, special: str) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.change_password("another")
    url = guarded.url(quote(f"{PASSWORD}{special}x", safe=""))
    message = refusal(url)
    assert "password authentication failed" in message
    with pytest.raises(UnavailableError) as caught:
        await serve_once_migrated(settings_of(url, pool_timeout=0.1))
    assert PASSWORD not in f"{message} {caught.value} {caplog.text}"


async def serve_once_migrated(settings: Settings) -> None:
    async with process(settings) as opened:
        await opened.services.health.require_database()


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://user:hunter2@nowhere.invalid/db",
        "postgresql://user:hunter2@127.0.0.1:1/db",
        "postgresql://user:hunter2@127.0.0.1:1,127.0.0.1:2/db",
        "postgresql://user:hunter2@127.0.0.1:port/db",
        "postgresql://user:hunter2@[::1/db",
        "postgresql://user:hunter2@127.0.0.1:1/db?nonsense=1",
        "postgresql://user:hunter2@127.0.0.1:1/db?sslmode=nonsense",
        "postgresql://user:hunter2/db",  # the host was forgotten
        "postgresql://user:hunter2:5432/db",
        "postgresql://user:@hunter2@127.0.0.1:1/db",
        "postgresql://user:1/hunter2@127.0.0.1:1/db",
        "postgresql://user:hunter2%zz@127.0.0.1:1/db",
        "postgresql://user:x hunter2@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?password=hunter2",
        "postgresql://127.0.0.1:1/db?password=a=hunter2",
        "postgresql://127.0.0.1:1/db?password=hunter2%",
        "host=127.0.0.1 port=1 password=hunter2",
        "host=127.0.0.1 port=1 password=x hunter2",
        "host=127.0.0.1 port=1 password='hunter2",
        "host=127.0.0.1 port=1 password='x'hunter2",
        "hunter2",
        "user:hunter2@127.0.0.1:1/db",
        "mysql://user:hunter2@127.0.0.1:1/db",
    ],
)
async def test_no_mistake_in_a_connection_string_gives_a_password_away(
    conninfo: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    try:
        settings = settings_of(conninfo, pool_timeout=0.1, connect_timeout=2)
    except ValidationError as error:
        told += [str(error), repr(error)]
    else:
        told += [refusal(conninfo), repr(settings)]
        with pytest.raises(UnavailableError) as caught:
            await serve_once_migrated(settings)
        told += [str(caught.value)]
    assert PASSWORD not in "\n".join([*told, caplog.text])


def test_a_role_that_may_not_create_tables(guarded: Guarded, empty_database: str) -> None:
    guarded.change_password(PASSWORD)
    dbname = str(conninfo_to_dict(empty_database)["dbname"])
    message = refusal(guarded.url(PASSWORD, dbname))
    assert message.startswith("the database schema could not be migrated: ")
    assert "permission denied for schema public" in message
