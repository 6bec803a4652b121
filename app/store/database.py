"""The pool of connections, and what psycopg's errors mean to a caller."""

import select
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

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

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """A connection in autocommit mode. Failures that a caller can wait out are raised as UnavailableError.

        Transactions are the use-cases' own, so there is nothing to end; where one was broken off, the pool rolls back.
        """
        with translated_errors():
            connection = await self._working_connection()
            self._held += 1
            try:
                yield connection
            finally:
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


# SQLSTATE classes and codes: the server is gone, going, full, or read-only.
_UNAVAILABLE = ("08", "53", "57P", "58", "25006", "40")
_UNREACHABLE = "the database can't be reached or can't take requests now; try again"


@contextmanager
def translated_errors() -> Generator[None]:
    """Tells what a caller can wait out from what is our own mistake; by SQLSTATE, since messages are translated."""
    try:
        yield
    except (errors.QueryCanceled, errors.LockNotAvailable, errors.IdleInTransactionSessionTimeout) as error:
        raise QueryTimeoutError("the database took too long; try again, or ask for less") from error
    except Error as error:
        lost = isinstance(error, OperationalError | InterfaceError) and error.sqlstate is None
        if lost or (error.sqlstate or "").startswith(_UNAVAILABLE):
            raise UnavailableError(_UNREACHABLE) from error
        if isinstance(error, errors.UndefinedTable):
            raise  # tells the catalog that it is stale
        message = f"{type(error).__name__} {error.sqlstate}: {error.diag.message_primary}"
        raise UnexpectedDatabaseError(message).with_traceback(error.__traceback__) from None
