"""All SQL that depends on a layout: its table's columns, what is written there, and how it is looked up."""

from dataclasses import dataclass
from functools import lru_cache

from psycopg import sql

from app.core.fingerprint import to_signed
from app.core.layout import Band, Layout
from app.core.model import StoredLayout


@dataclass(frozen=True, slots=True)
class _Query:
    """What is looked up, in SQL: the one query of a statement, or each of many, a row `q`."""

    simhash: sql.SQL
    content_hash: sql.SQL
    except_key: sql.SQL
    is_one_of_many: bool

    def distance(self) -> sql.Composed:
        """A cast to bit without a length would keep one bit, and bit_count(bigint) doesn't exist."""
        return sql.SQL("bit_count((simhash # {simhash})::bit(64))").format(simhash=self.simhash)

    def probes(self, band: Band) -> sql.Composed:
        """The values of a band to look up: a parameter. Many queries share their radii, so there it is what to flip."""
        parameter = sql.SQL("{values}::{type}[]").format(
            values=sql.Placeholder(_probes_parameter(band)), type=_type(band)
        )
        if not self.is_one_of_many:
            return parameter
        return sql.SQL(
            "ARRAY(SELECT (({simhash} >> {shift}) & {mask})::{type} # flips FROM unnest({flips}) flips)"
        ).format(
            simhash=self.simhash,
            shift=sql.Literal(band.shift),
            mask=sql.Literal(band.mask),
            type=_type(band),
            flips=parameter,
        )


_ONE = _Query(
    sql.SQL("%(simhash)s::bigint"), sql.SQL("%(content_hash)s::bytea"), sql.SQL("%(except_key)s::text"), False
)
_EACH = _Query(sql.SQL("q.simhash"), sql.SQL("q.content_hash"), sql.SQL("q.except_key"), True)


def _probes_parameter(band: Band) -> str:
    return f"probes_{band.index}"


def _radius_parameter(band: Band) -> str:
    return f"radius_{band.index}"


@lru_cache(maxsize=64)
def probe_parameters(layout: Layout) -> tuple[str, ...]:
    """The names of a lookup's parameters that depend on its probes: the radii of all bands, then their values."""
    return (*map(_radius_parameter, layout.bands), *map(_probes_parameter, layout.bands))


def _type(band: Band) -> sql.SQL:
    return sql.SQL("integer") if band.width < 32 else sql.SQL("bigint")


def columns(layout: Layout) -> sql.Composed:
    """The generated columns of a layout. STORED: the default of PostgreSQL 18 is virtual, and can't be indexed."""
    return sql.SQL(", ").join(
        sql.SQL("{column} {type} NOT NULL GENERATED ALWAYS AS ((simhash >> {shift}) & {mask}) STORED").format(
            column=sql.Identifier(band.column),
            type=_type(band),
            shift=sql.Literal(band.shift),
            mask=sql.Literal(band.mask),
        )
        for band in layout.bands
    )


def create(stored: StoredLayout) -> sql.Composed:
    """The layout's table without the indexes of its bands: those are faster built once it is filled.

    Rows are only added, so autovacuum must come for inserts: a page that isn't marked all-visible costs every
    index-only scan a heap visit.
    """
    return sql.SQL("""
        CREATE TABLE {table} (
            collection_id integer NOT NULL, simhash bigint NOT NULL, {columns}, PRIMARY KEY (collection_id, simhash)
        ) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)
        """).format(table=sql.Identifier(stored.table), columns=columns(stored.layout))


def index_name(stored: StoredLayout, band: Band) -> str:
    return f"{stored.table}_{band.column}_idx"


def create_index(stored: StoredLayout, band: Band) -> sql.Composed:
    """The covering index of one band; CONCURRENTLY, since writes go to the table meanwhile."""
    return sql.SQL("CREATE INDEX CONCURRENTLY {name} ON {table} (collection_id, {column}, simhash)").format(
        name=sql.Identifier(index_name(stored, band)),
        table=sql.Identifier(stored.table),
        column=sql.Identifier(band.column),
    )


def drop_index(stored: StoredLayout, band: Band) -> sql.Composed:
    return sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {name}").format(name=sql.Identifier(index_name(stored, band)))


def drop(stored: StoredLayout) -> sql.Composed:
    return sql.SQL("DROP TABLE IF EXISTS {table}").format(table=sql.Identifier(stored.table))


def vacuum(stored: StoredLayout) -> sql.Composed:
    """Statistics for the planner, and the visibility map, without which index-only scans visit the heap."""
    return sql.SQL("VACUUM (ANALYZE) {table}").format(table=sql.Identifier(stored.table))


def copy_batch(stored: StoredLayout) -> sql.Composed:
    """Adds the next `size` fingerprints that documents use, in the order of the keys, and tells where it came to.

    Collections after the last that there was when the table was made are left out: all writes to them go to it.

    One row: collection_id, simhash and the number of fingerprints; none where nothing is left.
    """
    return sql.SQL("""
        WITH batch AS MATERIALIZED (
            SELECT DISTINCT collection_id, simhash FROM document
            WHERE simhash IS NOT NULL AND (collection_id, simhash) > (%(collection_id)s::int, %(simhash)s::bigint)
              AND collection_id <= %(last_collection_id)s::int
            ORDER BY collection_id, simhash
            LIMIT %(size)s::int
        ), inserted AS (
            INSERT INTO {table} (collection_id, simhash) SELECT collection_id, simhash FROM batch
            ON CONFLICT DO NOTHING
        )
        SELECT collection_id, simhash, count(*) OVER () FROM batch ORDER BY collection_id DESC, simhash DESC LIMIT 1
        """).format(table=sql.Identifier(stored.table))


def compare_with_documents(stored: StoredLayout) -> sql.Composed:
    """How many distinct fingerprints the documents have, how many of them the table lacks, how many rows it has."""
    return sql.SQL("""
        SELECT count(*), count(*) FILTER (WHERE f.simhash IS NULL), (SELECT count(*) FROM {table})
        FROM (SELECT DISTINCT collection_id, simhash FROM document WHERE simhash IS NOT NULL) d
        LEFT JOIN {table} f ON (f.collection_id, f.simhash) = (d.collection_id, d.simhash)
        """).format(table=sql.Identifier(stored.table))


def count(stored: StoredLayout) -> sql.Composed:
    """The number of rows."""
    return sql.SQL("SELECT count(*) FROM {table}").format(table=sql.Identifier(stored.table))


def fullest_buckets(stored: StoredLayout) -> sql.Composed:
    """The `limit` values of a band that most fingerprints of a collection share, over all bands."""
    return sql.SQL("""
        SELECT c.name, b.band, b.value, b.fingerprints
        FROM ({buckets}) b JOIN collection c ON c.id = b.collection_id
        ORDER BY b.fingerprints DESC, b.band, c.name, b.value
        LIMIT %(limit)s::int
        """).format(
        buckets=sql.SQL(" UNION ALL ").join(
            sql.SQL("""
            (SELECT collection_id, {index}::int AS band, {column}::bigint AS value, count(*) AS fingerprints
             FROM {table} WHERE collection_id = ANY(ARRAY(SELECT id FROM collection))
             GROUP BY collection_id, {column} ORDER BY count(*) DESC LIMIT %(limit)s::int)
            """).format(
                index=sql.Literal(band.index), column=sql.Identifier(band.column), table=sql.Identifier(stored.table)
            )
            for band in stored.layout.bands
        )
    )


@lru_cache(maxsize=64)
def insert(stored: StoredLayout) -> bytes:
    """Adds a fingerprint to the layout's table, unless it is there."""
    return (
        sql.SQL("""
        INSERT INTO {table} (collection_id, simhash) VALUES (%(collection_id)s::int, %(simhash)s::bigint)
        ON CONFLICT DO NOTHING
        """)
        .format(table=sql.Identifier(stored.table))
        .as_bytes()
    )


@lru_cache(maxsize=64)
def insert_many(stored: StoredLayout) -> bytes:
    """Adds fingerprints to the layout's table, in the order in which they are given: writers then can't deadlock."""
    return (
        sql.SQL("""
        INSERT INTO {table} (collection_id, simhash)
        SELECT %(collection_id)s::int, f.simhash
        FROM unnest(%(simhashes)b::bigint[]) WITH ORDINALITY f (simhash, number)
        ORDER BY f.number
        ON CONFLICT DO NOTHING
        """)
        .format(table=sql.Identifier(stored.table))
        .as_bytes()
    )


@lru_cache(maxsize=64)
def delete_next(stored: StoredLayout) -> bytes:
    """Deletes the next `size` fingerprints of a collection after one, and tells the last of them, null for none."""
    return (
        sql.SQL("""
        WITH next AS MATERIALIZED (
            SELECT simhash FROM {table}
            WHERE collection_id = %(collection_id)s::int AND simhash >= %(start)s::bigint
            ORDER BY simhash
            LIMIT %(size)s::int
        ), deleted AS (
            DELETE FROM {table} f USING next
            WHERE f.collection_id = %(collection_id)s::int AND f.simhash = next.simhash
        )
        SELECT max(simhash) FROM next
        """)
        .format(table=sql.Identifier(stored.table))
        .as_bytes()
    )


@lru_cache(maxsize=64)
def estimate(stored: StoredLayout) -> bytes:
    """The planner's estimate, from its statistics alone, of how many fingerprints a collection has."""
    return (
        sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE collection_id = %(collection_id)s::int")
        .format(table=sql.Identifier(stored.table))
        .as_bytes()
    )


@lru_cache(maxsize=64)
def lookup(stored: StoredLayout, *, scan: bool) -> bytes:
    """The statement of a lookup: one for all thresholds, so that each connection prepares it once.

    It yields no row where the collection is gone, one row of nulls where nothing matches, else the `limit` nearest
    documents.
    """
    return (
        sql.SQL("""
        SELECT m.key, m.simhash, m.distance, m.exact, m.metadata
        FROM (SELECT FROM collection WHERE id = %(collection_id)s::int AND name = %(collection)s::text) c
        LEFT JOIN LATERAL ({nearest}) m ON true
        ORDER BY m.distance, m.negative, m.simhash, m.key
        """)
        .format(nearest=_nearest(stored, _ONE, scan=scan))
        .as_bytes()
    )


@lru_cache(maxsize=64)
def lookup_many(stored: StoredLayout, *, scan: bool) -> bytes:
    """The statement of many lookups at one threshold, given by three arrays of equal length.

    No row where the collection is gone; else for each query, by its number from 1, what `lookup` yields.
    """
    return (
        sql.SQL("""
        SELECT q.number, m.key, m.simhash, m.distance, m.exact, m.metadata
        FROM (SELECT FROM collection WHERE id = %(collection_id)s::int AND name = %(collection)s::text) c
        CROSS JOIN unnest(%(simhashes)s::bigint[], %(content_hashes)s::bytea[], %(except_keys)s::text[])
            WITH ORDINALITY q (simhash, content_hash, except_key, number)
        LEFT JOIN LATERAL ({nearest}) m ON true
        ORDER BY q.number, m.distance, m.negative, m.simhash, m.key
        """)
        .format(nearest=_nearest(stored, _EACH, scan=scan))
        .as_bytes()
    )


def _nearest(stored: StoredLayout, query: _Query, *, scan: bool) -> sql.Composed:
    """The `limit` documents nearest to a query, in their order.

    An answer costs what it returns: fingerprints come nearest first, and of each at most `limit` documents by an index
    in key order. The limit can't cut fingerprints before that join, since a row that no document uses any more would
    take the place of one that is used. Fingerprints order as their hex does, so negative ones come last.
    """
    return sql.SQL("""
        SELECT d.key, f.simhash, f.distance, f.negative, d.exact, d.metadata
        FROM (SELECT simhash, distance, simhash < 0 AS negative
              FROM ({matching}) candidate
              ORDER BY distance, negative, simhash) f
        CROSS JOIN LATERAL (
            SELECT key, coalesce(content_hash = {content_hash}, false) AS exact, metadata
            FROM document
            WHERE collection_id = %(collection_id)s::int AND simhash = f.simhash
              AND key IS DISTINCT FROM {except_key}
            ORDER BY key
            LIMIT %(limit)s::int) d
        ORDER BY f.distance, f.negative, f.simhash, d.key
        LIMIT %(limit)s::int
        """).format(
        matching=_matching(stored, query, scan=scan), content_hash=query.content_hash, except_key=query.except_key
    )


def _matching(stored: StoredLayout, query: _Query, *, scan: bool) -> sql.Composed:
    """The fingerprints within the threshold, each once, by a scan or by one arm a band."""
    table = sql.Identifier(stored.table)
    if scan:
        return sql.SQL("""
        SELECT simhash, {distance} AS distance FROM {table}
        WHERE collection_id = %(collection_id)s::int AND {distance} <= %(threshold)s::int
        """).format(distance=query.distance(), table=table)
    return sql.SQL(" UNION ALL ").join(
        sql.SQL("""
        SELECT simhash, {distance} AS distance FROM {table}
        WHERE {probed} AND {distance} <= %(threshold)s::int {not_found_before}
        """).format(
            distance=query.distance(),
            table=table,
            probed=_probed(band, query),
            # A fingerprint that several bands find is kept in the first of them: no DISTINCT is needed.
            not_found_before=sql.SQL("").join(
                _beyond_radius(earlier, query) for earlier in stored.layout.bands[: band.index]
            ),
        )
        for band in stored.layout.bands
    )


def _probed(band: Band, query: _Query) -> sql.Composed:
    return sql.SQL("collection_id = %(collection_id)s::int AND {column} = ANY({probes})").format(
        column=sql.Identifier(band.column), probes=query.probes(band)
    )


def _beyond_radius(band: Band, query: _Query) -> sql.Composed:
    return sql.SQL(" AND bit_count(((simhash # {simhash}) & {mask})::bit(64)) > {radius}::int").format(
        simhash=query.simhash,
        mask=sql.Literal(to_signed(band.mask << band.shift)),
        radius=sql.Placeholder(_radius_parameter(band)),
    )


@lru_cache(maxsize=64)
def count_candidates(stored: StoredLayout, *, scan: bool) -> bytes:
    """How many rows a lookup's probes, or its scan, read."""
    table = sql.Identifier(stored.table)
    if scan:
        query = sql.SQL("SELECT count(*) FROM {table} WHERE collection_id = %(collection_id)s::int").format(table=table)
    else:
        query = sql.SQL("SELECT {sum}").format(
            sum=sql.SQL(" + ").join(
                sql.SQL("(SELECT count(*) FROM {table} WHERE {probed})").format(table=table, probed=_probed(band, _ONE))
                for band in stored.layout.bands
            )
        )
    return query.as_bytes()


# What the catalogue says of a table's band columns, and of the indexes that every lookup can use. The columns by name:
# one that was dropped and restored comes last in the table.
COLUMN_EXPRESSIONS = b"""
SELECT a.attname, format_type(a.atttypid, NULL), a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE a.attrelid = to_regclass(%(table)s::text) AND a.attgenerated <> ''
ORDER BY a.attname
"""
VALID_INDEXES = b"""
SELECT array_agg(a.attname::text ORDER BY k.position), i.indisunique
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
CROSS JOIN unnest(i.indkey) WITH ORDINALITY k (attnum, position)
JOIN pg_attribute a ON (a.attrelid, a.attnum) = (i.indrelid, k.attnum)
WHERE i.indrelid = to_regclass(%(table)s::text) AND i.indisvalid AND i.indpred IS NULL
GROUP BY i.indexrelid, i.indisunique
"""


def create_expected(layout: Layout) -> sql.Composed:
    """A table `expected_bands` with the columns that a layout should have, gone when the transaction ends."""
    return sql.SQL("CREATE TEMPORARY TABLE expected_bands (simhash bigint, {columns}) ON COMMIT DROP").format(
        columns=columns(layout)
    )
