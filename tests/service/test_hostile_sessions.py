"""Defaults of the database or of its roles that would change what our statements mean: our sessions don't take them."""

from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from app.core.errors import UnavailableError
from app.runtime import process
from app.service.documents import NewDocument
from app.service.fingerprinting import Text
from app.service.near_duplicates import Key, Options
from app.settings import Settings
from app.store.database import create_pool

TEXT = "日本語の文章 " * 30

HOSTILE = {
    "client_encoding": "LATIN1",
    "datestyle": "SQL, DMY",
    "default_transaction_isolation": "repeatable read",
    "timezone": "Pacific/Chatham",
}


@pytest.fixture
def hostile(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for name, value in HOSTILE.items():
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value)
                )
            )


@pytest.mark.usefixtures("hostile")
async def test_defaults_of_the_database_change_nothing(settings: Settings) -> None:
    async with process(settings) as opened:
        indexed = await opened.services.documents.index("shop", NewDocument("鍵", Text(TEXT), {"町": "京都"}), None)
        assert indexed.document.key == "鍵"
        stored = await opened.services.documents.get("shop", "鍵")
        assert (stored.metadata, stored.created_at.utcoffset()) == ({"町": "京都"}, timedelta(0))
        found = await opened.services.near_duplicates.find("shop", Text(TEXT), Options(3, 5), explain=False)
        assert [match.key for match in found.matches.items] == ["鍵"]
        again = await opened.services.near_duplicates.find("shop", Key("鍵"), Options(3, 5), explain=False)
        assert again.matches.items == []


@pytest.mark.usefixtures("hostile")
async def test_a_transaction_has_a_snapshot_a_statement(settings: Settings, database: str) -> None:
    """What a write checks behind its lock must be younger than the lock."""
    async with create_pool(database, settings) as pool, pool.connection() as connection, connection.transaction():
        row = await (await connection.execute("SHOW transaction_isolation")).fetchone()
    assert row == ("read committed",)


async def test_a_spell_of_read_only_ends_for_the_sessions_that_met_it(settings: Settings, database: str) -> None:
    def set_read_only(value: str) -> None:
        with psycopg.connect(database, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(
                    sql.Identifier(connection.info.dbname), sql.Literal(value)
                )
            )

    one_session = settings.model_copy(update={"pool_min_size": 1, "pool_max_size": 1})
    async with process(one_session) as opened:
        set_read_only("on")
        with psycopg.connect(database, autocommit=True) as connection:  # the next session is a read-only one
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tiroir'"
            )
        with pytest.raises(UnavailableError):
            await opened.services.documents.index("shop", NewDocument("a", Text(TEXT), None), None)
        set_read_only("off")
        indexed = await opened.services.documents.index("shop", NewDocument("a", Text(TEXT), None), None)
    assert indexed.document.key == "a"
