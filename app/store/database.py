"""The pool of connections, and what psycopg's errors mean to a caller."""

import select
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

import numpy as np
from psycopg import (
    AsyncConnection,
    AsyncTransaction,
    Error,
    InterfaceError,
    InternalError,
    IsolationLevel,
    OperationalError,
    errors,
)
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from app.core.errors import OverloadedError, QueryTimeoutError, UnavailableError
from app.settings import Settings
from app.store.arrays import BigintsDumper

APPLICATION_NAME = "tiroir"

# The pool tries to reconnect at ever longer intervals: after an outage of minutes, requests would wait for minutes
# until the next attempt. Given up early and begun anew, an attempt comes every second.
_RECONNECT_SECONDS = 2.0


# What every statement relies on, as the session's defaults, so that nothing a transaction sets outlives it. Through a
# pooler in transaction mode there is no session of our own: there each use-case sets them in its transaction.
#
# The shape of each plan is fixed, so planning it once is right and halves the time of a lookup. A parallel worker takes
# longer to start than a lookup takes. Sequential and bitmap scans read the heap where the covering indexes have all
# that is needed; on a table that was small when a plan was made they would stay for as long as it is kept.
_COMMON_OPTIONS = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "plan_cache_mode": "force_generic_plan",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}

# An operation's session is idle only while its process is stopped: PostgreSQL ends it, and another process goes on.
_OPERATION_IDLE_SECONDS = 60.0
# In a transaction it holds what writes may wait for.
_OPERATION_IDLE_IN_TRANSACTION_SECONDS = 5.0
# A snapshot holds up nobody, and its process may be busy with what it has read.
_SNAPSHOT_IDLE = "60s"
# A statement whose process was killed is broken off, not finished for nobody.
_CONNECTION_CHECK_SECONDS = 1.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def _connection(conninfo: str, settings: Settings, application_name: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "connect_timeout": settings.connect_timeout,
        "client_encoding": "UTF8",
        "application_name": conninfo_to_dict(conninfo).get("application_name") or application_name,
    }


def _session(conninfo: str, options: dict[str, str]) -> dict[str, Any]:
    """A session of our own; options of the connection string hold too, where ours don't contradict."""
    # What a write relies on behind its lock is a snapshot a statement.
    options = {"default_transaction_isolation": r"read\ committed"} | _COMMON_OPTIONS | options
    ours = " ".join(f"-c {name}={value}" for name, value in options.items())
    given = conninfo_to_dict(conninfo).get("options") or ""
    return {"prepare_threshold": 0, "options": f"{given} {ours}".strip()}


def _request_options(settings: Settings) -> dict[str, str]:
    return _COMMON_OPTIONS | {
        "statement_timeout": _milliseconds(settings.statement_timeout),
        "lock_timeout": _milliseconds(settings.lock_timeout),
        "idle_in_transaction_session_timeout": _milliseconds(settings.statement_timeout * 2),
    }


def create_pool(conninfo: str, settings: Settings) -> AsyncConnectionPool[AsyncConnection]:
    """A pool that isn't open yet. Autocommit: a lookup is one statement and needs no transaction around it.

    With TIROIR_POOLER_URL its connections go to the pooler instead: nothing is prepared there and no session has
    options, since the next transaction may be another server's.
    """
    if settings.pooler_url is None:
        parameters = _connection(conninfo, settings, APPLICATION_NAME) | _session(conninfo, _request_options(settings))
    else:
        conninfo = settings.pooler_url.get_secret_value()
        parameters = _connection(conninfo, settings, APPLICATION_NAME) | {"prepare_threshold": None}
    pool: AsyncConnectionPool[AsyncConnection] = AsyncConnectionPool(
        conninfo,
        kwargs=parameters,
        configure=None if settings.pooler_url is None else _read_committed,
        min_size=min(settings.pool_min_size, settings.pool_max_size),
        max_size=settings.pool_max_size,
        timeout=settings.pool_timeout,
        reconnect_timeout=_RECONNECT_SECONDS,
        reconnect_failed=_begin_anew,
        open=False,
        name=APPLICATION_NAME,
    )
    return pool


def transaction_settings(settings: Settings) -> Mapping[str, str]:
    """What each use-case has to set in a transaction around it: nothing where the session has it already."""
    return {} if settings.pooler_url is None else _request_options(settings)


async def _read_committed(connection: AsyncConnection) -> None:
    """Says so in each BEGIN, whatever the default of the server's session is."""
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


async def connect_for_operation(conninfo: str, settings: Settings) -> AsyncConnection:
    """A connection outside of the pool, on which a statement may take as long as an operation's may."""
    options = {
        "statement_timeout": _milliseconds(settings.operation_statement_timeout),
        "lock_timeout": "0",
        # Distinct fingerprints come in order from an index; a hash table of all of them would fill the memory.
        "enable_hashagg": "off",
        "client_connection_check_interval": _milliseconds(_CONNECTION_CHECK_SECONDS),
        "idle_session_timeout": _milliseconds(_OPERATION_IDLE_SECONDS),
        "idle_in_transaction_session_timeout": _milliseconds(_OPERATION_IDLE_IN_TRANSACTION_SECONDS),
    }
    parameters = _connection(conninfo, settings, "tiroir operation") | _session(conninfo, options)
    return await AsyncConnection.connect(conninfo, **parameters)


@asynccontextmanager
async def snapshot(conninfo: str, settings: Settings) -> AsyncGenerator[AsyncConnection]:
    """A session of an operation that sees one moment, whatever is written meanwhile, until the body ends.

    What it writes is there after the body, or not at all. It keeps nobody waiting; it may idle for a minute at most.
    """
    async with await connect_for_operation(conninfo, settings) as connection:
        connection.adapters.register_dumper(np.ndarray, BigintsDumper)
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with connection.transaction():
            await connection.execute(_SET_LOCAL, [["idle_in_transaction_session_timeout"], [_SNAPSHOT_IDLE]])
            yield connection


async def _begin_anew(pool: AsyncConnectionPool[AsyncConnection]) -> None:
    """Where the pool has given up its last connection, it goes on trying to make one."""
    if pool.get_stats()["pool_size"] == 0:
        await pool.check()


async def _check_idle(connection: AsyncConnection) -> None:
    """Raises an Error for a connection that died in the pool, at the price of one system call.

    An idle connection has nothing to read. If there is something, the server has said goodbye (or something harmless,
    such as a changed parameter): ask.
    """
    poll = select.poll()  # select() itself refuses file descriptors beyond 1,023
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(connection)


class UnexpectedDatabaseError(Exception):
    """A mistake of ours, to be logged: with PostgreSQL's message, without the details, which quote keys and texts."""


class StaleCatalogError(Exception):
    """The layouts or the collection aren't those that the caller remembered: read them again and retry."""


class Database:
    """Hands out connections for one use-case each."""

    def __init__(
        self, pool: AsyncConnectionPool[AsyncConnection], transaction_settings: Mapping[str, str] | None = None
    ) -> None:
        """With `transaction_settings` each use-case is one transaction, in which they hold."""
        self._pool = pool
        self._held = 0
        self._transaction_settings = transaction_settings or {}

    def connection(self) -> "_Lease":
        """`async with` it: a connection in autocommit mode. Failures that a caller can wait out are UnavailableError.

        Transactions are the use-cases' own, so there is nothing to end; where one was broken off, the pool rolls back.
        """
        return _Lease(self, self._transaction_settings)

    async def take(self) -> AsyncConnection:
        """For _Lease, which gives it back."""
        connection = await self._working_connection()
        self._held += 1
        return connection

    async def give_back(self, connection: AsyncConnection) -> None:
        self._held -= 1
        await self._pool.putconn(connection)

    async def _working_connection(self) -> AsyncConnection:
        """The pool's own check waits seconds after each connection that it finds dead, as all are after a restart."""
        while True:
            try:
                connection = await self._pool.getconn()
            except PoolTimeout as error:
                if self._held:
                    raise OverloadedError("no database connection came free in time; try again") from error
                raise UnavailableError(_UNREACHABLE) from error  # nobody has one, so none could be made
            try:
                await _check_idle(connection)
            except BaseException as error:
                await self._pool.putconn(connection)  # discards it where it is dead, and makes another
                if not isinstance(error, Error):
                    raise
            else:
                return connection


class _Lease:
    """A class, since contextlib's generators, two of them, were a twentieth of the time of a lookup."""

    def __init__(self, database: Database, settings: Mapping[str, str]) -> None:
        self._database = database
        self._settings = settings
        self._connection: AsyncConnection | None = None
        self._transaction: AbstractAsyncContextManager[AsyncTransaction] | None = None

    async def __aenter__(self) -> AsyncConnection:
        try:
            self._connection = await self._database.take()
            if self._settings:
                await self._begin(self._connection)
        except Error as error:
            raise _translated(error) from error
        return self._connection

    async def _begin(self, connection: AsyncConnection) -> None:
        transaction = connection.transaction()
        try:
            await transaction.__aenter__()
            await connection.execute(_SET_LOCAL, [list(self._settings), list(self._settings.values())])
        except BaseException:
            await self._database.give_back(connection)  # which rolls back
            raise
        self._transaction = transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101  entered
        try:
            if self._transaction is not None:
                await self._transaction.__aexit__(kind, error, traceback)
            if isinstance(error, errors.ReadOnlySqlTransaction):
                await connection.close()  # the session may stay read-only when the database isn't any more
        except Error as failed:  # to commit, or to roll back on a connection that is lost
            error = error or failed
        finally:
            await self._database.give_back(connection)
        if isinstance(error, Error) and not isinstance(error, errors.UndefinedTable):  # that tells a stale catalog
            translated = _translated(error)
            if isinstance(translated, UnexpectedDatabaseError):
                raise translated.with_traceback(traceback) from None
            raise translated from error


_SET_LOCAL = b"SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) setting (name, value)"

# SQLSTATE classes and codes: the connection is gone, or can't be had now (57P05, 25P03: it was idle for too long).
_LOST = ("08", "57P", "25P03", "53300")
# The server is full, fails, is read-only, or has broken off a transaction to save another one.
_UNAVAILABLE = ("53", "58", "25006", "40")
_UNREACHABLE = "the database can't be reached or can't take requests now; try again"
_TOO_LONG = (
    errors.QueryCanceled,
    errors.LockNotAvailable,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)


def is_lost(error: Error) -> bool:
    """Whether the connection went away, or couldn't be made: the server stops, starts, or the network fails.

    Where PostgreSQL and a pooler say goodbye one after the other, psycopg gets two answers to one question: its
    own InternalError.
    """
    lost = isinstance(error, OperationalError | InterfaceError | InternalError) and error.sqlstate is None
    return lost or (error.sqlstate or "").startswith(_LOST)


def _translated(error: Error) -> Exception:
    """Tells what a caller can wait out from what is our own mistake; by SQLSTATE, since messages are translated."""
    if isinstance(error, _TOO_LONG):
        return QueryTimeoutError("the database took too long; try again, or ask for less")
    if is_lost(error) or (error.sqlstate or "").startswith(_UNAVAILABLE):
        return UnavailableError(_UNREACHABLE)
    return UnexpectedDatabaseError(f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}")
