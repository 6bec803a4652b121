"""Collections that are purged after their deletion, and documents that expire.

Rules: raw SQL only. Nothing that rewrites a table or blocks its writers: a new column has no volatile default, a new
index on a table that holds rows is built CONCURRENTLY inside `op.get_context().autocommit_block()`, and a generated
column means a new table beside the old one. The previous release must go on working on the new schema.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # now() is one value for the whole statement, so no row is rewritten.
    op.execute("ALTER TABLE document ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now()")
    op.execute("""
        ALTER TABLE collection
            ADD COLUMN ttl        integer CHECK (ttl > 0),
            ADD COLUMN ttl_since  timestamptz NOT NULL DEFAULT now(),
            ADD COLUMN expired_at timestamptz
    """)
    # Documents and fingerprints of these are still there, and nobody finds them.
    op.execute("""
        CREATE TABLE deleted_collection (
            id         integer PRIMARY KEY,
            deleted_at timestamptz NOT NULL DEFAULT now()
        )
    """)


def downgrade() -> None:
    op.execute("""
        DELETE FROM document WHERE collection_id IN (SELECT id FROM deleted_collection)
    """)
    op.execute("DROP TABLE deleted_collection")
    op.execute("ALTER TABLE collection DROP COLUMN ttl, DROP COLUMN ttl_since, DROP COLUMN expired_at")
    op.execute("ALTER TABLE document DROP COLUMN seen_at")
