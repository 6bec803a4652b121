"""Operations: their rows, and the queue that runs them; the width of fingerprints.

Rules: raw SQL only. Nothing that rewrites a table or blocks its writers: a new column has no volatile default, a new
index on a table that holds rows is built CONCURRENTLY inside `op.get_context().autocommit_block()`, and a generated
column means a new table beside the old one. The previous release must go on working on the new schema.
"""

from alembic import op
from procrastinate.schema import SchemaManager
from sqlalchemy import text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE operation (
            id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            kind             text NOT NULL CHECK (kind IN ('rebuild', 'audit')),
            parameters       jsonb NOT NULL,
            idempotency_key  text UNIQUE,
            status           text NOT NULL DEFAULT 'queued'
                             CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'canceled')),
            phase            text,
            done             bigint NOT NULL DEFAULT 0,
            total            bigint,
            checkpoint       jsonb NOT NULL DEFAULT '{}',
            cancel_requested boolean NOT NULL DEFAULT false,
            cancelable       boolean NOT NULL DEFAULT true,
            result           jsonb,
            error            text,
            runs             integer NOT NULL DEFAULT 0,
            created_at       timestamptz NOT NULL DEFAULT now(),
            started_at       timestamptz,
            finished_at      timestamptz
        )
    """)
    op.execute("""
        CREATE UNIQUE INDEX operation_one_rebuild_idx ON operation (kind)
        WHERE kind = 'rebuild' AND status IN ('queued', 'running')
    """)
    op.execute("CREATE INDEX operation_unfinished_idx ON operation (id) WHERE status IN ('queued', 'running')")
    # The queue's own tables and functions, as the library makes them, in a schema of their own: another application
    # in the same database may have the same library. A test compares its text with the one that this migration was
    # written for; where a new version of the library changes it, a new migration is due.
    connection = op.get_bind()
    search_path = connection.execute(text("SELECT current_setting('search_path')")).scalar_one()
    op.execute("CREATE SCHEMA tiroir_queue")
    op.execute("SET LOCAL search_path = tiroir_queue")
    connection.connection.cursor().execute(SchemaManager.get_schema())
    connection.execute(text("SELECT set_config('search_path', :search_path, true)"), {"search_path": search_path})

    # A fingerprint with a bit beyond those of its collection would be found by a scan and missed by probes. A row says
    # how many bits it may have, so that PostgreSQL refuses it whoever writes it.
    op.execute("ALTER TABLE document ADD COLUMN bits smallint NOT NULL DEFAULT 63")
    op.execute("""
        UPDATE document SET bits = c.bits FROM collection c WHERE c.id = collection_id AND c.bits <> 63
    """)
    op.execute("""
        ALTER TABLE document ADD CONSTRAINT document_simhash_check CHECK (
            CASE WHEN bits = 64 THEN true WHEN simhash < 0 THEN false ELSE simhash >> bits = 0 END
        )
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE document DROP COLUMN bits")
    op.execute("DROP SCHEMA tiroir_queue CASCADE")
    op.execute("DROP TABLE operation")
