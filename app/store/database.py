"""The pool of connections, and what psycopg's errors mean to a caller."""

import select
from types import TracebackType

from psycopg import AsyncConnection, Error, InterfaceError, OperationalError, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from app.core.errors import OverloadedError, QueryTimeoutError, UnavailableError
from app.settings import Settings

APPLICATION_NAME = "tiroir"

# The pool tries to reconnect at ever longer intervals: after an outage of minutes, requests would wait for minutes
# until the next attempt. Given up early and begun anew, an attempt comes every second.
_RECONNECT_SECONDS = 2.0


def _session_options(settings: Settings) -> str:
    """What every statement relies on, as the session's defaults, so that nothing a transaction sets outlives it.

    The shape of each plan is fixed, so planning it once is right and halves the time of a lookup. A parallel worker
    takes longer to start than a lookup takes. Sequential and bitmap scans read the heap where the covering indexes
    have all that is needed; on a table that was small when a plan was made they would stay for as long as it is kept.
    """
    options = {
        # What a write relies on behind its lock is a snapshot a statement.
        "default_transaction_isolation": r"read\ committed",
        "datestyle": "ISO",
        "timezone": "UTC",
        "plan_cache_mode": "force_generic_plan",
        "max_parallel_workers_per_gather": "0",
        "jit": "off",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "statement_timeout": f"{settings.statement_timeout * 1000:.0f}",
        "lock_timeout": f"{settings.lock_timeout * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{settings.statement_timeout * 2000:.0f}",
    }
    return " ".join(f"-c {name}={value}" for name, value in options.items())


def create_pool(conninfo: str, settings: Settings) -> AsyncConnectionPool[AsyncConnection]:
    """A pool that isn't open yet. Autocommit: a lookup is one statement and needs no transaction around it."""
    given = conninfo_to_dict(conninfo)
    pool: AsyncConnectionPool[AsyncConnection] = AsyncConnectionPool(
        conninfo,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "connect_timeout": settings.connect_timeout,
            "client_encoding": "UTF8",
            "application_name": given.get("application_name") or APPLICATION_NAME,
            "options": f"{given.get('options') or ''} {_session_options(settings)}".strip(),
        },
        min_size=min(settings.pool_min_size, settings.pool_max_size),
        max_size=settings.pool_max_size,
        timeout=settings.pool_timeout,
        reconnect_timeout=_RECONNECT_SECONDS,
        reconnect_failed=_begin_anew,
        open=False,
        name=APPLICATION_NAME,
    )
    return pool


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

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection]) -> None:
        self._pool = pool
        self._held = 0

    def connection(self) -> "_Lease":
        """`async with` it: a connection in autocommit mode. Failures that a caller can wait out are UnavailableError.

        Transactions are the use-cases' own, so there is nothing to end; where one was broken off, the pool rolls back.
        """
        return _Lease(self)

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

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: AsyncConnection | None = None

    async def __aenter__(self) -> AsyncConnection:
        try:
            self._connection = await self._database.take()
        except Error as error:
            raise _translated(error) from error
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101  entered
        if isinstance(error, errors.ReadOnlySqlTransaction):
            await connection.close()  # the session may stay read-only when the database isn't any more
        await self._database.give_back(connection)
        if isinstance(error, Error) and not isinstance(error, errors.UndefinedTable):  # that tells a stale catalog
            translated = _translated(error)
            if isinstance(translated, UnexpectedDatabaseError):
                raise translated.with_traceback(traceback) from None
            raise translated from error


# SQLSTATE classes and codes: the server is gone, going, full, or read-only.
_UNAVAILABLE = ("08", "53", "57P", "58", "25006", "40")
_UNREACHABLE = "the database can't be reached or can't take requests now; try again"
_TOO_LONG = (
    errors.QueryCanceled,
    errors.LockNotAvailable,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)


def _translated(error: Error) -> Exception:
    """Tells what a caller can wait out from what is our own mistake; by SQLSTATE, since messages are translated."""
    if isinstance(error, _TOO_LONG):
        return QueryTimeoutError("the database took too long; try again, or ask for less")
    lost = isinstance(error, OperationalError | InterfaceError) and error.sqlstate is None
    if lost or (error.sqlstate or "").startswith(_UNAVAILABLE):
        return UnavailableError(_UNREACHABLE)
    return UnexpectedDatabaseError(f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}")
