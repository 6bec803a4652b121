"""A database is brought to this version's schema once, or refused in one line that says why."""

import logging
import socket
import struct
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from app.core.errors import StartupError, UnavailableError
from app.postgres.migrate import migrate
from app.runtime import services
from app.settings import Settings
from tests.conftest import Server
from tests.store.databases import one_value, settings_of
from tests.store.waiting import wait_until, waiting_for_locks


def refusal(conninfo: str) -> str:
    with pytest.raises(StartupError) as caught:
        migrate(conninfo, connect_timeout=2)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Several at once

WAITING = "waiting for the migrations of another process"


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
    assert upgrades(caplog) == ["Running upgrade  -> 0001"]
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
    assert upgrades(caplog) == ["Running upgrade  -> 0001"]


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
    async with services(settings) as opened:
        await opened.health.require_database()


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
    async with services(settings) as opened:
        await opened.health.require_database()


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
