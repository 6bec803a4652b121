"""The schema is the same on every version of PostgreSQL, and a table that doesn't fit its layout is noticed."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from psycopg import AsyncConnection

from app.core.errors import StartupError
from app.core.layout import cut
from app.postgres.migrate import config, engine, migrate
from app.runtime import services
from app.settings import Settings
from app.store import bands, layouts
from tests.conftest import Server
from tests.store.databases import add_layout, one_value

PROJECT = Path(__file__).parents[2]

COLUMNS = """
band_layout.id integer identity=a
band_layout.widths smallint[]
band_layout.threshold smallint
band_layout.table_name text
band_layout.state text
band_layout.created_at timestamp with time zone default=now()
collection.id integer identity=a
collection.name text collation=C
collection.tokenizer text
collection.shingle_size smallint
collection.bits smallint
collection.min_words integer
collection.store_text boolean
collection.created_at timestamp with time zone default=now()
document.collection_id integer
document.key text collation=C
document.content_hash bytea null
document.simhash bigint null
document.words integer null
document.text text null
document.metadata jsonb
document.created_at timestamp with time zone default=now()
document.updated_at timestamp with time zone default=now()
fingerprint.collection_id integer
fingerprint.simhash bigint
fingerprint.b0 integer generated=s ((simhash >> 48) & (65535)::bigint)
fingerprint.b1 integer generated=s ((simhash >> 32) & (65535)::bigint)
fingerprint.b2 integer generated=s ((simhash >> 16) & (65535)::bigint)
fingerprint.b3 integer generated=s ((simhash >> 0) & (65535)::bigint)
"""

INDEXES = """
band_layout_one_active_idx unique (state) WHERE (state = 'active'::text)
band_layout_pkey unique (id)
band_layout_table_name_key unique (table_name)
collection_name_key unique (name)
collection_pkey unique (id)
document_content_hash_idx (collection_id, content_hash, key)
document_pkey unique (collection_id, key)
document_simhash_idx (collection_id, simhash, key)
fingerprint_b0_idx (collection_id, b0, simhash)
fingerprint_b1_idx (collection_id, b1, simhash)
fingerprint_b2_idx (collection_id, b2, simhash)
fingerprint_b3_idx (collection_id, b3, simhash)
fingerprint_pkey unique (collection_id, simhash)
"""

_COLUMNS = b"""
SELECT concat_ws(' ', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod),
    CASE WHEN NOT a.attnotnull THEN 'null' END,
    'collation=' || (SELECT collname FROM pg_collation WHERE oid = a.attcollation AND collname <> 'default'),
    'identity=' || nullif(a.attidentity::text, ''),
    CASE WHEN a.attgenerated = '' THEN 'default=' ELSE 'generated=' || a.attgenerated::text || ' ' END
        || pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'alembic_version'
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname COLLATE "C", a.attnum
"""
_INDEXES = b"""
SELECT c.relname || CASE WHEN i.indisunique THEN ' unique' ELSE '' END
    || regexp_replace(pg_get_indexdef(c.oid), '^.* USING btree', '')
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'public'::regnamespace AND c.relname <> 'alembic_version_pkc' AND i.indisvalid AND i.indisready
ORDER BY c.relname COLLATE "C"
"""


def lines(conninfo: str, query: bytes) -> list[str]:
    with psycopg.connect(conninfo) as connection:
        return [line for (line,) in connection.execute(query).fetchall()]


def alembic(action: str, conninfo: str, revision: str) -> None:
    configuration = config()
    with engine(conninfo).connect() as configuration.attributes["connection"]:
        getattr(command, action)(configuration, revision)


def test_the_schema_is_the_same_everywhere(database: str) -> None:
    assert lines(database, _COLUMNS) == COLUMNS.split("\n")[1:-1]
    assert lines(database, _INDEXES) == INDEXES.split("\n")[1:-1]


def test_upgrade_and_downgrade_leave_nothing_behind(empty_database: str) -> None:
    for _ in range(2):
        migrate(empty_database, connect_timeout=10)
        assert lines(empty_database, _COLUMNS) == COLUMNS.split("\n")[1:-1]
        alembic("downgrade", empty_database, "base")
        assert lines(empty_database, _COLUMNS) == []
        assert one_value(empty_database, b"SELECT count(*) FROM pg_class WHERE relname ~ 'collection|layout'") == 0


def test_a_migrated_database_is_left_alone(database: str) -> None:
    layout = one_value(database, b"SELECT row(l.xmin, l.*)::text FROM band_layout l")
    migrate(database, connect_timeout=10)
    assert one_value(database, b"SELECT row(l.xmin, l.*)::text FROM band_layout l") == layout


def test_the_alembic_command_works_on_the_database_of_the_settings(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIROIR_DATABASE_URL", empty_database)
    for action, revision in (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "0001")):
        subprocess.run([sys.executable, "-m", "alembic", action, revision], cwd=PROJECT, check=True)
    assert lines(empty_database, _INDEXES) == INDEXES.split("\n")[1:-1]


# Whether a table is as its layout describes it


@pytest.fixture(scope="module")
def described(server: Server) -> Generator[str]:
    yield server.create("described")
    server.drop("described")


@pytest.fixture
async def connection(described: str) -> AsyncGenerator[AsyncConnection]:
    """In a transaction that is undone."""
    async with await AsyncConnection.connect(described) as opened, opened.transaction(force_rollback=True):
        yield opened


async def require_as_described_after(connection: AsyncConnection, change: str) -> None:
    await connection.execute(change.encode())
    (layout,) = await layouts.live(connection)
    await layouts.require_as_described(connection, layout)


def restored(band: int, expression: str) -> str:
    """A band's column and index dropped, and made again with another expression."""
    return f"""
        ALTER TABLE fingerprint DROP COLUMN b{band};
        ALTER TABLE fingerprint ADD COLUMN b{band} integer NOT NULL GENERATED ALWAYS AS ({expression}) STORED;
        CREATE INDEX fingerprint_b{band}_idx ON fingerprint (collection_id, b{band}, simhash);
    """


async def test_a_column_that_was_restored_is_as_described(connection: AsyncConnection) -> None:
    await require_as_described_after(connection, restored(1, "(simhash >> 32) & 65535"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(restored(1, "(simhash >> 33) & 65535"), id="another shift"),
        pytest.param(restored(0, "(simhash >> 48) & 32767"), id="another mask"),
        pytest.param(restored(3, "simhash & 65535"), id="the same in other words"),
        pytest.param("ALTER TABLE fingerprint DROP COLUMN b2", id="no column"),
        pytest.param(
            "ALTER TABLE fingerprint DROP COLUMN b2; ALTER TABLE fingerprint ADD COLUMN b2 integer NOT NULL DEFAULT 0;"
            "CREATE INDEX ON fingerprint (collection_id, b2, simhash)",
            id="a column that isn't generated",
        ),
        pytest.param(
            "ALTER TABLE fingerprint ADD COLUMN b4 integer GENERATED ALWAYS AS (simhash & 1) STORED", id="one too many"
        ),
        pytest.param("UPDATE band_layout SET widths = '{22,21,21}'", id="another layout"),
        pytest.param("DROP TABLE fingerprint", id="no table"),
    ],
)
async def test_band_columns_that_are_not_those_of_the_layout(connection: AsyncConnection, damage: str) -> None:
    with pytest.raises(StartupError, match="the band columns of table fingerprint aren't those of its layout"):
        await require_as_described_after(connection, damage)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("", id="no index"),
        pytest.param("CREATE INDEX ON fingerprint (collection_id, b2)", id="not covering"),
        pytest.param("CREATE INDEX ON fingerprint (b2, collection_id, simhash)", id="another order"),
        pytest.param("CREATE INDEX ON fingerprint USING brin (collection_id, b2, simhash)", id="another method"),
        pytest.param(
            "CREATE INDEX ON fingerprint (collection_id, b2, simhash) WHERE collection_id < 10", id="of some rows"
        ),
        pytest.param(
            "CREATE INDEX broken ON fingerprint (collection_id, b2, simhash);"
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken'::regclass",
            id="invalid",
        ),
    ],
)
async def test_a_band_without_a_valid_covering_index(connection: AsyncConnection, damage: str) -> None:
    with pytest.raises(StartupError, match="table fingerprint has no valid covering index on b2: rebuild it"):
        await require_as_described_after(connection, f"DROP INDEX fingerprint_b2_idx; {damage}")


async def test_an_index_that_includes_the_fingerprint_covers_too(connection: AsyncConnection) -> None:
    await require_as_described_after(
        connection, "DROP INDEX fingerprint_b2_idx; CREATE INDEX ON fingerprint (collection_id, b2) INCLUDE (simhash)"
    )


async def test_fingerprints_that_could_be_stored_twice(connection: AsyncConnection) -> None:
    with pytest.raises(StartupError, match="table fingerprint has no unique index on collection_id, simhash"):
        await require_as_described_after(connection, "ALTER TABLE fingerprint DROP CONSTRAINT fingerprint_pkey")


# The service looks when it starts


async def start(settings: Settings) -> None:
    async with services(settings):
        pass


async def test_a_service_starts_on_a_new_database_and_leaves_no_table_behind(settings: Settings, database: str) -> None:
    await start(settings)
    assert one_value(database, b"SELECT count(*) FROM pg_class WHERE relname = 'expected_bands'") == 0


async def test_a_service_does_not_start_on_a_table_of_other_bands(settings: Settings, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(restored(1, "(simhash >> 33) & 65535").encode())
    with pytest.raises(StartupError):
        await start(settings)


async def test_every_layout_that_the_code_makes_is_as_described(settings: Settings, database: str) -> None:
    with psycopg.connect(database) as connection:
        for count in range(2, 17):
            add_layout(connection, cut(count), f"of_{count}_bands", "retired")
    await start(settings)


async def test_a_layout_that_is_being_built_needs_no_indexes_yet(settings: Settings, database: str) -> None:
    with psycopg.connect(database) as connection:
        layout = add_layout(connection, cut(3), "other", "building")
        for band in layout.layout.bands:
            connection.execute(f"DROP INDEX other_collection_id_{band.column}_simhash_idx".encode())
    await start(settings)


async def test_a_layout_that_is_being_built_needs_its_columns(settings: Settings, database: str) -> None:
    with psycopg.connect(database) as connection:
        add_layout(connection, cut(3), "other", "building")
        connection.execute("UPDATE band_layout SET widths = '{21,22,21}' WHERE state = 'building'")
    with pytest.raises(StartupError, match="the band columns of table other"):
        await start(settings)


def test_only_one_layout_can_be_active(database: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.UniqueViolation):
        add_layout(connection, cut(8), "other", "active")


def test_a_table_of_the_code_is_that_of_the_migration(database: str) -> None:
    """What a rebuild would make for the first layout has the columns that the migration spells out."""
    with psycopg.connect(database) as connection:
        add_layout(connection, cut(4), "other", "building")
        first, other = (
            connection.execute(bands.COLUMN_EXPRESSIONS, {"table": table}).fetchall()
            for table in ("fingerprint", "other")
        )
    assert first == other
