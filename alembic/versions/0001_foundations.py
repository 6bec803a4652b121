"""Collections, documents, fingerprints and the first layout of their bands.

Rules: raw SQL only. Nothing that rewrites a table or blocks its writers: a new column has no volatile default, a new
index on a table that holds rows is built CONCURRENTLY inside `op.get_context().autocommit_block()`, and a generated
column means a new table beside the old one. The previous release must go on working on the new schema.
"""

from alembic import op
from sqlalchemy import text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # collection_id stands in every key and there are neither foreign keys nor triggers, so that the tables can be
    # distributed by it. Names and keys compare bytewise: the same order on every machine, and no index breaks when
    # a system library changes its idea of the alphabet.
    op.execute("""
        CREATE TABLE collection (
            id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            name         text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
            tokenizer    text NOT NULL,
            shingle_size smallint NOT NULL CHECK (shingle_size BETWEEN 1 AND 10),
            bits         smallint NOT NULL CHECK (bits BETWEEN 1 AND 64),
            min_words    integer NOT NULL CHECK (min_words >= 1),
            store_text   boolean NOT NULL,
            created_at   timestamptz NOT NULL DEFAULT now()
        )
    """)
    # words is null where the caller gave the fingerprint, content_hash also where the text has no letter or digit,
    # simhash where the text is too short for one. A low toast_tuple_target keeps the texts out of the heap.
    op.execute("""
        CREATE TABLE document (
            collection_id integer NOT NULL,
            key           text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 2048),
            content_hash  bytea CHECK (octet_length(content_hash) = 16),
            simhash       bigint,
            words         integer CHECK (words >= 0),
            text          text,
            metadata      jsonb NOT NULL,
            created_at    timestamptz NOT NULL DEFAULT now(),
            updated_at    timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (collection_id, key)
        ) WITH (toast_tuple_target = 256)
    """)
    op.execute("CREATE INDEX document_simhash_idx ON document (collection_id, simhash, key)")
    op.execute("CREATE INDEX document_content_hash_idx ON document (collection_id, content_hash, key)")
    op.execute("""
        CREATE TABLE band_layout (
            id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            widths     smallint[] NOT NULL,
            threshold  smallint NOT NULL CHECK (threshold BETWEEN 0 AND 63),
            table_name text NOT NULL UNIQUE,
            state      text NOT NULL CHECK (state IN ('building', 'active', 'retired')),
            created_at timestamptz NOT NULL DEFAULT now()
        )
    """)
    op.execute("CREATE UNIQUE INDEX band_layout_one_active_idx ON band_layout (state) WHERE state = 'active'")
    # STORED: without the word PostgreSQL 18 makes a virtual column, which can't be indexed. Rows are only added, so
    # autovacuum must come for inserts: a page that isn't marked all-visible costs every index-only scan a heap visit.
    op.execute("""
        CREATE TABLE fingerprint (
            collection_id integer NOT NULL,
            simhash       bigint NOT NULL,
            b0 integer NOT NULL GENERATED ALWAYS AS ((simhash >> 48) & 65535) STORED,
            b1 integer NOT NULL GENERATED ALWAYS AS ((simhash >> 32) & 65535) STORED,
            b2 integer NOT NULL GENERATED ALWAYS AS ((simhash >> 16) & 65535) STORED,
            b3 integer NOT NULL GENERATED ALWAYS AS ((simhash >> 0) & 65535) STORED,
            PRIMARY KEY (collection_id, simhash)
        ) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)
    """)
    for band in range(4):
        op.execute(f"CREATE INDEX fingerprint_b{band}_idx ON fingerprint (collection_id, b{band}, simhash)")
    op.execute("""
        INSERT INTO band_layout (widths, threshold, table_name, state)
        VALUES ('{16,16,16,16}', 3, 'fingerprint', 'active')
    """)


def downgrade() -> None:
    # A rebuild of the bands gives them a table of another name.
    tables = op.get_bind().execute(text("SELECT quote_ident(table_name) FROM band_layout")).scalars()
    op.execute(f"DROP TABLE {', '.join(tables)}, band_layout, document, collection")
