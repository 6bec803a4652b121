"""The schema is the same on every version of PostgreSQL, and a table that doesn't fit its layout is noticed."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection

from app.core.errors import StartupError
from app.core.layout import cut
from app.postgres.migrate import migrate
from app.runtime import Process, process
from app.settings import Settings
from app.store import bands, layouts
from tests.conftest import Server
from tests.store.databases import add_layout, create_collection, one_value
from tests.store.pages import Pages
from tests.store.revisions import downgrade, upgrade

PROJECT = Path(__file__).parents[2]

COLUMNS = """
analysis.id integer
analysis.collection_id integer
analysis.against_id integer null
analysis.threshold smallint
analysis.moment timestamp with time zone
analysis.result jsonb
analysis_block.analysis_id integer
analysis_block.kind text
analysis_block.number integer
analysis_block.numbers bytea
analysis_cluster.analysis_id integer
analysis_cluster.number integer
analysis_cluster.first integer
analysis_cluster.fingerprints integer
analysis_cluster.documents integer
analysis_cluster.diameter smallint
analysis_cluster.diameter_is_exact boolean
analysis_cluster.representative text collation=C
analysis_difference.analysis_id integer
analysis_difference.key text collation=C
analysis_difference.status text collation=C
analysis_difference.distance smallint null
analysis_difference.counterpart text null collation=C
analysis_fingerprint.analysis_id integer
analysis_fingerprint.number integer
analysis_fingerprint.simhash bigint
analysis_fingerprint.cluster integer
analysis_fingerprint.distance smallint
analysis_fingerprint.nearest smallint
analysis_fingerprint.documents integer
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
collection.ttl integer null
collection.ttl_since timestamp with time zone default=now()
collection.expired_at timestamp with time zone null
deleted_collection.id integer
deleted_collection.deleted_at timestamp with time zone default=now()
document.collection_id integer
document.key text collation=C
document.content_hash bytea null
document.simhash bigint null
document.words integer null
document.text text null
document.metadata jsonb
document.created_at timestamp with time zone default=now()
document.updated_at timestamp with time zone default=now()
document.bits smallint default=63
document.seen_at timestamp with time zone default=now()
document.content_at timestamp with time zone default=now()
fingerprint.collection_id integer
fingerprint.simhash bigint
fingerprint.b0 integer generated=s ((simhash >> 48) & (65535)::bigint)
fingerprint.b1 integer generated=s ((simhash >> 32) & (65535)::bigint)
fingerprint.b2 integer generated=s ((simhash >> 16) & (65535)::bigint)
fingerprint.b3 integer generated=s ((simhash >> 0) & (65535)::bigint)
operation.id integer identity=a
operation.kind text
operation.parameters jsonb
operation.idempotency_key text null
operation.status text default='queued'::text
operation.phase text null
operation.done bigint default=0
operation.total bigint null
operation.checkpoint jsonb default='{}'::jsonb
operation.cancel_requested boolean default=false
operation.cancelable boolean default=true
operation.result jsonb null
operation.error text null
operation.runs integer default=0
operation.created_at timestamp with time zone default=now()
operation.started_at timestamp with time zone null
operation.finished_at timestamp with time zone null
operation.collection_id integer null
"""

UNFINISHED = "(status = ANY (ARRAY['queued'::text, 'running'::text]))"
INDEXES = f"""
analysis_block_pkey unique (analysis_id, kind, number)
analysis_cluster_pkey unique (analysis_id, number)
analysis_difference_pkey unique (analysis_id, key)
analysis_difference_status_idx (analysis_id, status, key)
analysis_fingerprint_pkey unique (analysis_id, number)
analysis_fingerprint_simhash_idx (analysis_id, simhash)
analysis_pkey unique (id)
band_layout_one_active_idx unique (state) WHERE (state = 'active'::text)
band_layout_pkey unique (id)
band_layout_table_name_key unique (table_name)
collection_name_key unique (name)
collection_pkey unique (id)
deleted_collection_pkey unique (id)
document_content_hash_idx (collection_id, content_hash, key)
document_pkey unique (collection_id, key)
document_simhash_idx (collection_id, simhash, key)
fingerprint_b0_idx (collection_id, b0, simhash)
fingerprint_b1_idx (collection_id, b1, simhash)
fingerprint_b2_idx (collection_id, b2, simhash)
fingerprint_b3_idx (collection_id, b3, simhash)
fingerprint_pkey unique (collection_id, simhash)
operation_collection_idx (collection_id, id) WHERE (collection_id IS NOT NULL)
operation_idempotency_key_key unique (idempotency_key)
operation_one_rebuild_idx unique (kind) WHERE ((kind = 'rebuild'::text) AND {UNFINISHED})
operation_pkey unique (id)
operation_unfinished_idx (id) WHERE {UNFINISHED}
"""

CHECKS = """
analysis_block CHECK ((kind = ANY (ARRAY['pairs', 'fingerprints'])))
analysis_difference CHECK ((status = ANY (ARRAY['new', 'gone', 'moved', 'changed', 'nearly_unchanged'])))
band_layout CHECK ((state = ANY (ARRAY['building', 'active', 'retired'])))
band_layout CHECK (((threshold >= 0) AND (threshold <= 63)))
collection CHECK (((bits >= 1) AND (bits <= 64)))
collection CHECK ((min_words >= 1))
collection CHECK ((name ~ '^[A-Za-z0-9._-]{1,64}$'))
collection CHECK (((shingle_size >= 1) AND (shingle_size <= 10)))
collection CHECK ((ttl > 0))
document CHECK ((octet_length(content_hash) = 16))
document CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 2048)))
document CHECK (CASE WHEN (bits = 64) THEN true WHEN (simhash < 0) THEN false ELSE ((simhash >> bits) = 0) END)
document CHECK ((words >= 0))
operation CHECK ((kind = ANY (ARRAY['rebuild', 'audit', 'analysis'])))
operation CHECK ((status = ANY (ARRAY['queued', 'running', 'succeeded', 'failed', 'canceled'])))
"""

# The text that the library makes its tables and functions with.
QUEUE = "c70ec4b400a60ad9592787653aae5ae77ae41bf801d56b5bd2712751a07f2009"

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


_CHECKS = b"""
SELECT conrelid::regclass || ' ' || replace(replace(replace(
    regexp_replace(pg_get_constraintdef(oid), '\\s+', ' ', 'g'), '::text', ''), '(bits)::integer', 'bits'), '( ', '(')
FROM pg_constraint
WHERE contype = 'c' AND connamespace = 'public'::regnamespace
ORDER BY conrelid::regclass::text COLLATE "C", conname COLLATE "C"
"""
# By name: schemas, tables and whatever else is one to PostgreSQL, functions, types.
_OBJECTS = b"""
SELECT line FROM (
    SELECT oid AS namespace, 'schema ' || nspname FROM pg_namespace
    UNION ALL SELECT relnamespace, 'relation ' || relnamespace::regnamespace || '.' || relname FROM pg_class
    UNION ALL SELECT pronamespace, 'function ' || pronamespace::regnamespace || '.' || proname FROM pg_proc
    UNION ALL SELECT typnamespace, 'type ' || typnamespace::regnamespace || '.' || typname FROM pg_type
) object (namespace, line)
WHERE namespace::regnamespace::text !~ '^pg_|^information_schema$'
ORDER BY line COLLATE "C"
"""
# What a schema holds, in full.
_MADE = b"""
SELECT line FROM (
    SELECT relnamespace, format('%%s %%s', relkind, relname) FROM pg_class
    UNION ALL SELECT relnamespace, concat_ws(' ', relname, a.attname, format_type(a.atttypid, a.atttypmod),
        a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    UNION ALL SELECT relnamespace, pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    UNION ALL SELECT connamespace, concat_ws(' ', conname, pg_get_constraintdef(oid)) FROM pg_constraint
    UNION ALL SELECT relnamespace, pg_get_triggerdef(t.oid)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid AND NOT tgisinternal
    UNION ALL SELECT pronamespace, pg_get_functiondef(oid) FROM pg_proc WHERE prokind = 'f'
    UNION ALL SELECT typnamespace, concat_ws(' ', typname, e.enumsortorder, e.enumlabel)
    FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
) object (namespace, line)
WHERE namespace = %(schema)s::text::regnamespace
ORDER BY replace(line, %(schema)s::text || '.', '') COLLATE "C"
"""


def lines(conninfo: str, query: bytes) -> list[str]:
    with psycopg.connect(conninfo) as connection:
        return [line for (line,) in connection.execute(query).fetchall()]


def schema(conninfo: str) -> list[str]:
    """All that a migration can leave behind."""
    return [line for query in (_COLUMNS, _INDEXES, _CHECKS, _OBJECTS) for line in lines(conninfo, query)]


def test_the_schema_is_the_same_everywhere(database: str) -> None:
    assert lines(database, _COLUMNS) == COLUMNS.split("\n")[1:-1]
    assert lines(database, _INDEXES) == INDEXES.split("\n")[1:-1]
    assert lines(database, _CHECKS) == CHECKS.split("\n")[1:-1]


def test_upgrade_and_downgrade_leave_nothing_behind(empty_database: str) -> None:
    empty = schema(empty_database)
    for _ in range(2):
        migrate(empty_database, connect_timeout=10)
        assert lines(empty_database, _COLUMNS) == COLUMNS.split("\n")[1:-1]
        assert "schema tiroir_queue" in schema(empty_database)
        downgrade(empty_database, "base")
        assert [each for each in schema(empty_database) if "alembic_version" not in each] == empty


def test_each_step_down_is_the_step_up_undone(empty_database: str) -> None:
    for below, above in pairwise(("base", "0001", "0002", "0003")):
        before = schema(empty_database)
        upgrade(empty_database, above)
        after = schema(empty_database)
        assert after != before
        assert ("schema tiroir_queue" in after) == (above >= "0002")
        downgrade(empty_database, below)
        if below != "base":  # of which alembic's own table stays
            assert schema(empty_database) == before
        upgrade(empty_database, above)
        assert schema(empty_database) == after


def test_a_database_whose_bands_were_rebuilt_can_be_taken_down_too(database: str) -> None:
    """The first table of fingerprints is gone then."""
    with psycopg.connect(database) as connection:
        add_layout(connection, cut(3), "fingerprint_2", "building")
        connection.execute("DELETE FROM band_layout WHERE state = 'active'")
        connection.execute("UPDATE band_layout SET state = 'active'")
        connection.execute("DROP TABLE fingerprint")
    downgrade(database, "base")
    left = b"SELECT count(*) FROM pg_class WHERE relname ~ 'fingerprint|collection|document|layout|operation'"
    assert one_value(database, left) == 0


def test_a_migrated_database_is_left_alone(database: str) -> None:
    layout = one_value(database, b"SELECT row(l.xmin, l.*)::text FROM band_layout l")
    migrate(database, connect_timeout=10)
    assert one_value(database, b"SELECT row(l.xmin, l.*)::text FROM band_layout l") == layout


def test_the_alembic_command_works_on_the_database_of_the_settings(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIROIR_DATABASE_URL", empty_database)
    for action, revision in (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head")):
        subprocess.run([sys.executable, "-m", "alembic", action, revision], cwd=PROJECT, check=True)
    assert lines(empty_database, _INDEXES) == INDEXES.split("\n")[1:-1]


# The queue


def test_the_queue_s_schema_is_the_one_that_the_migration_was_written_for() -> None:
    """Databases that exist keep the text of the version that made them, and the library expects its own."""
    assert sha256(SchemaManager.get_schema().encode()).hexdigest() == QUEUE, (
        "this version of procrastinate has another schema. Write a migration that brings the one in tiroir_queue to it "
        "(procrastinate/sql/migrations has the steps, SET LOCAL search_path = tiroir_queue), and that does nothing "
        "where 0002 has made the new one already; then pin the hash of the new text here"
    )


def test_the_queue_stands_in_a_schema_of_its_own_and_complete(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA another")
        connection.execute("SET LOCAL search_path = another")
        connection.execute(SchemaManager.get_schema().encode())
        connection.execute("SET LOCAL search_path = public")
        ours, another = (
            [line.replace(f"{name}.", "") for (line,) in connection.execute(_MADE, {"schema": name}).fetchall()]
            for name in ("tiroir_queue", "another")
        )
        connection.rollback()
    assert len(ours) > 30
    assert ours == another
    assert not [line for line in lines(database, _OBJECTS) if "procrastinate" in line and "tiroir_queue" not in line]


def test_a_second_application_may_have_the_same_queue(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(SchemaManager.get_schema().encode())
    downgrade(database, "base")
    assert one_value(database, b"SELECT to_regclass('procrastinate_jobs') IS NOT NULL") is True


# A fingerprint has no bits beyond those of its collection, whoever writes it

TOO_WIDE = [(63, -1), (63, -(2**63)), (8, -1), (8, 2**8), (8, 2**62), (8, -(2**63)), (1, 2), (62, 2**62)]
FITTING = [
    (64, -1),
    (64, -(2**63)),
    (64, 2**63 - 1),
    (64, 0),
    (63, 2**63 - 1),
    (63, 2**62),
    (63, 0),
    (8, 2**8 - 1),
    (8, 0),
    (1, 1),
    (62, 2**62 - 1),
    (63, None),
    (64, None),
    (8, None),
]


def write_document(connection: psycopg.Connection, bits: int, simhash: int | None) -> None:
    connection.execute(
        "INSERT INTO document (collection_id, key, simhash, bits, text, metadata)"
        " VALUES (1, 'a', %s::bigint, %s::smallint, '', '{}')",
        [simhash, bits],
    )


def test_a_fingerprint_that_fits_its_collection(database: str) -> None:
    with psycopg.connect(database) as connection:
        for bits, simhash in FITTING:
            write_document(connection, bits, simhash)
            connection.execute("UPDATE document SET simhash = NULL")
            connection.execute("UPDATE document SET simhash = %s::bigint", [simhash])
            connection.execute("DELETE FROM document")


def test_a_fingerprint_with_a_bit_too_many(database: str) -> None:
    refused = partial(pytest.raises, psycopg.errors.CheckViolation, match="document_simhash_check")
    into = "COPY document (collection_id, key, simhash, bits, metadata) FROM STDIN"
    with psycopg.connect(database, autocommit=True) as connection:
        for bits, simhash in TOO_WIDE:
            with refused():
                write_document(connection, bits, simhash)
            with refused(), connection.cursor().copy(into) as copy:
                copy.write_row((1, "a", simhash, bits, "{}"))
            write_document(connection, bits, 1)
            with refused():
                connection.execute("UPDATE document SET simhash = %s::bigint", [simhash])
            connection.execute("DELETE FROM document")


@pytest.mark.parametrize("bits", [63, 64, 8])
async def test_a_document_s_row_says_how_many_bits_its_collection_has(
    service: Process, database: str, bits: int
) -> None:
    pages = Pages(service.services)
    with psycopg.connect(database) as connection:
        create_collection(connection, pages.name, bits=bits)
    highest = 2**bits - 1 if bits < 64 else -1
    for key, content in {"highest": highest, "lowest": 0, "empty": "", "short": "oak"}.items():
        await pages.put(key, content)
        await pages.put(key, 1)
        await pages.put(key, content)
    assert one_value(database, b"SELECT array_agg(DISTINCT bits) FROM document") == [bits]
    assert await pages.keys(highest, 0) == ["highest"]


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
    async with process(settings):
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
