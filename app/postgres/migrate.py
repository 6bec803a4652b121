"""Brings a database to this version's schema, one process at a time."""

import logging
import time
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

import app
from app.core.errors import StartupError

_log = logging.getLogger(__name__)

OLDEST_VERSION = 140000  # bit_count() came with PostgreSQL 14
_LOCK = 0x7469726F69720002  # "tiroir" and a number; app.store.layouts has another
_POLL = 0.1  # seconds
_PATIENCE = 600.0  # seconds for another process's migrations, then something is wrong with it


def engine(conninfo: str) -> Engine:
    """SQLAlchemy, which alembic needs, on a connection that psycopg makes: libpq's own syntax and options hold."""
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo, client_encoding="UTF8", application_name="tiroir migrate"),
        poolclass=NullPool,
    )


def config() -> Config:
    """Alembic's configuration; its scripts lie in the package of a wheel, and beside it in a checkout."""
    package = Path(app.__file__).parent
    scripts = next(path for path in (package / "alembic", package.parent / "alembic") if path.is_dir())
    configuration = Config()
    configuration.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return configuration


def migrate(conninfo: str, *, connect_timeout: int) -> None:
    """Checks that the server fits, and runs the migrations that are missing; StartupError says why it can't.

    The lock belongs to the session: it outlives the transactions of the single migrations and goes with the process.
    """
    try:
        with psycopg.connect(
            conninfo,
            autocommit=True,
            client_encoding="UTF8",
            connect_timeout=connect_timeout,
            application_name="tiroir migrate",
        ) as connection:
            _require_server(connection)
            _lock(connection)
            configuration = config()
            migrations = engine(conninfo)
            with migrations.connect() as configuration.attributes["connection"]:
                command.upgrade(configuration, "head")
    except psycopg.OperationalError as error:
        raise StartupError(f"can't connect to PostgreSQL: {_one_line(error)}") from error
    except (DBAPIError, psycopg.Error) as error:
        raise StartupError(f"the database schema could not be migrated: {_one_line(error)}") from error
    except CommandError as error:
        raise StartupError(
            f"the database schema is not one that this version knows: {_one_line(error)}. "
            "Was it made by a newer version?"
        ) from error


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _require_server(connection: psycopg.Connection) -> None:
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        raise StartupError(f"PostgreSQL {version // 10000} is too old: 14 is the oldest that Tiroir runs on")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StartupError(f"the database has the encoding {encoding}: create one with ENCODING 'UTF8'")


def _lock(connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + _PATIENCE
    said = False
    while connection.execute("SELECT pg_try_advisory_lock(%s::bigint)", [_LOCK]).fetchone() != (True,):
        if not said:
            _log.info("waiting for the migrations of another process")
            said = True
        if time.monotonic() > deadline:
            raise StartupError(f"another process has been migrating the database for {_PATIENCE:.0f} s")
        time.sleep(_POLL)
