"""How the tests fill a database, and open the service on it so that they see its pool."""

from collections.abc import Iterable

import psycopg
from psycopg import sql

from app.core.layout import Layout
from app.core.model import StoredLayout
from app.settings import Settings
from app.store import bands
from tests.store.brute_force import Stored


def settings_of(conninfo: str, **others: float) -> Settings:
    return Settings(database_url=conninfo, **others)  # pyright: ignore[reportArgumentType]  pydantic converts them


def create_collection(connection: psycopg.Connection, name: str, *, bits: int = 63) -> int:
    row = connection.execute(
        """
        INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)
        VALUES (%s::text, 'article', 3, %s::smallint, 20, false)
        RETURNING id
        """,
        [name, bits],
    ).fetchone()
    assert row
    return int(row[0])


def load(
    connection: psycopg.Connection, collection_id: int, documents: Iterable[Stored], orphans: Iterable[int] = ()
) -> None:
    """The rows that the service would write for documents with fingerprints of the caller's, many times as fast.

    `orphans` are fingerprints that no document uses any more.
    """
    documents = list(documents)
    row = connection.execute("SELECT bits FROM collection WHERE id = %s::int", [collection_id]).fetchone()
    assert row
    with connection.cursor().copy("COPY document (collection_id, key, simhash, bits, metadata) FROM STDIN") as copy:
        for document in documents:
            copy.write_row((collection_id, document.key, document.simhash, row[0], "{}"))
    with connection.cursor().copy("COPY fingerprint (collection_id, simhash) FROM STDIN") as copy:
        for simhash in {document.simhash for document in documents} | set(orphans):
            copy.write_row((collection_id, simhash))


def one_value(conninfo: str, query: bytes, parameters: tuple[object, ...] = ()) -> object:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query, parameters).fetchone()
        assert row
        return row[0]


def rows_of_dead_collections(conninfo: str) -> dict[str, int]:
    """How many documents, and rows of each layout's table, belong to no collection; only tables that have some."""
    query = sql.SQL("SELECT count(*) FROM {} WHERE collection_id NOT IN (SELECT id FROM collection)")
    with psycopg.connect(conninfo) as connection:
        layouts = connection.execute("SELECT table_name FROM band_layout ORDER BY id").fetchall()
        tables = ["document", *(table for (table,) in layouts)]
        counts = {table: connection.execute(query.format(sql.Identifier(table))).fetchone() for table in tables}
    return {table: row[0] for table, row in counts.items() if row and row[0]}


def add_layout(connection: psycopg.Connection, layout: Layout, table: str, state: str) -> StoredLayout:
    """Another layout with its table, filled from `fingerprint`, as a rebuild of the bands leaves it."""
    row = connection.execute(
        "INSERT INTO band_layout (widths, threshold, table_name, state)"
        " VALUES (%s::smallint[], 3, %s::text, %s::text) RETURNING id",
        [list(layout.widths), table, state],
    ).fetchone()
    assert row
    named = sql.Identifier(table)
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (collection_id integer NOT NULL, simhash bigint NOT NULL, {},"
            " PRIMARY KEY (collection_id, simhash))"
        ).format(named, bands.columns(layout))
    )
    connection.execute(
        sql.SQL("INSERT INTO {} (collection_id, simhash) SELECT collection_id, simhash FROM fingerprint").format(named)
    )
    for band in layout.bands:
        connection.execute(
            sql.SQL("CREATE INDEX ON {} (collection_id, {}, simhash)").format(named, sql.Identifier(band.column))
        )
    return StoredLayout(int(row[0]), layout, 3, table, state)
