"""Analyses of whole collections, and what they find.

Rules: raw SQL only. Nothing that rewrites a table or blocks its writers: a new column has no volatile default, a new
index on a table that holds rows is built CONCURRENTLY inside `op.get_context().autocommit_block()`, and a generated
column means a new table beside the old one. The previous release must go on working on the new schema.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Since when a document has its content: what an analysis has found is true of those that had theirs before. now()
    # is one value for the whole statement, so no row is rewritten.
    op.execute("ALTER TABLE document ADD COLUMN content_at timestamptz NOT NULL DEFAULT now()")
    # Operations are few: the check and the index take no time worth naming.
    op.execute("""
        ALTER TABLE operation
            ADD COLUMN collection_id integer,
            DROP CONSTRAINT operation_kind_check,
            ADD CONSTRAINT operation_kind_check CHECK (kind IN ('rebuild', 'audit', 'analysis'))
    """)
    op.execute("CREATE INDEX operation_collection_idx ON operation (collection_id, id) WHERE collection_id IS NOT NULL")
    # No foreign keys: all of it is deleted in small transactions after the operation, whose id this is.
    op.execute("""
        CREATE TABLE analysis (
            id            integer PRIMARY KEY,
            collection_id integer NOT NULL,
            against_id    integer,
            threshold     smallint NOT NULL,
            moment        timestamptz NOT NULL,
            result        jsonb NOT NULL
        )
    """)
    # Clusters are numbered from the largest, from 1; the fingerprints of one follow one another, the representative's
    # first, so that a cluster is a range of numbers.
    op.execute("""
        CREATE TABLE analysis_cluster (
            analysis_id        integer  NOT NULL,
            number             integer  NOT NULL,
            first              integer  NOT NULL,
            fingerprints       integer  NOT NULL,
            documents          integer  NOT NULL,
            diameter           smallint NOT NULL,
            diameter_is_exact  boolean  NOT NULL,
            representative     text COLLATE "C" NOT NULL,
            PRIMARY KEY (analysis_id, number)
        )
    """)
    op.execute("""
        CREATE TABLE analysis_fingerprint (
            analysis_id integer  NOT NULL,
            number      integer  NOT NULL,
            simhash     bigint   NOT NULL,
            cluster     integer  NOT NULL,
            distance    smallint NOT NULL,
            nearest     smallint NOT NULL,
            documents   integer  NOT NULL,
            PRIMARY KEY (analysis_id, number)
        )
    """)
    op.execute("CREATE INDEX analysis_fingerprint_simhash_idx ON analysis_fingerprint (analysis_id, simhash)")
    # Millions of small numbers that are read in their order alone: arrays, a thousand bytes for what would be rows of
    # a hundred thousand.
    op.execute("""
        CREATE TABLE analysis_block (
            analysis_id integer NOT NULL,
            kind        text    NOT NULL CHECK (kind IN ('pairs', 'fingerprints')),
            number      integer NOT NULL,
            numbers     bytea   NOT NULL,
            PRIMARY KEY (analysis_id, kind, number)
        )
    """)
    op.execute("ALTER TABLE analysis_block ALTER COLUMN numbers SET STORAGE EXTERNAL")
    # A document that is in both collections under the same key with the same content has no row.
    op.execute("""
        CREATE TABLE analysis_difference (
            analysis_id integer NOT NULL,
            key         text COLLATE "C" NOT NULL,
            status      text COLLATE "C" NOT NULL
                        CHECK (status IN ('new', 'gone', 'moved', 'changed', 'nearly_unchanged')),
            distance    smallint,
            counterpart text COLLATE "C",
            PRIMARY KEY (analysis_id, key)
        )
    """)
    op.execute("CREATE INDEX analysis_difference_status_idx ON analysis_difference (analysis_id, status, key)")


def downgrade() -> None:
    for table in ("analysis_difference", "analysis_block", "analysis_fingerprint", "analysis_cluster", "analysis"):
        op.execute(f"DROP TABLE {table}")
    op.execute("ALTER TABLE document DROP COLUMN content_at")
    op.execute("DELETE FROM operation WHERE kind = 'analysis'")
    op.execute("""
        ALTER TABLE operation
            DROP COLUMN collection_id,
            DROP CONSTRAINT operation_kind_check,
            ADD CONSTRAINT operation_kind_check CHECK (kind IN ('rebuild', 'audit'))
    """)
