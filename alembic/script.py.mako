"""${message}

Rules: raw SQL only. Nothing that rewrites a table or blocks its writers: a new column has no volatile default, a new
index on a table that holds rows is built CONCURRENTLY inside `op.get_context().autocommit_block()`, and a generated
column means a new table beside the old one. The previous release must go on working on the new schema.
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    """)


def downgrade() -> None:
    op.execute("""
    """)
