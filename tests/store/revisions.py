"""Takes a database to a revision of its schema, as the alembic command would."""

from alembic import command

from app.postgres.migrate import config, engine


def upgrade(conninfo: str, revision: str) -> None:
    configuration = config()
    with engine(conninfo).connect() as configuration.attributes["connection"]:
        command.upgrade(configuration, revision)


def downgrade(conninfo: str, revision: str) -> None:
    configuration = config()
    with engine(conninfo).connect() as configuration.attributes["connection"]:
        command.downgrade(configuration, revision)
