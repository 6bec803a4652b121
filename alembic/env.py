"""Runs the migrations on the connection that app.postgres.migrate (or the alembic command) hands over."""

from alembic import context
from sqlalchemy import Connection, text

from app.postgres.migrate import engine
from app.settings import Settings

# A migration that waits for a lock makes every later reader wait behind it: give up early, and let the caller retry.
LOCK_TIMEOUT = "5s"
STATEMENT_TIMEOUT = "10min"


def run(connection: Connection) -> None:
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
    connection.commit()
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    connection = context.config.attributes.get("connection")
    if isinstance(connection, Connection):
        run(connection)
        return
    # The alembic command line, for those who write a migration.
    url = Settings().database_url
    if url is None:
        raise SystemExit("set TIROIR_DATABASE_URL to the database that alembic is to work on")
    with engine(url.get_secret_value()).connect() as own:
        run(own)


main()
