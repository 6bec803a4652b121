"""A PostgreSQL server of our own, for development, demos and small installations. Linux and macOS; no TCP.

Several processes share one server without a daemon, by three locks that the kernel frees however they end:

    start.lock   held by the one process that is starting or stopping the server
    users.lock   shared by all processes that use the server: a reference count
    server.lock  inherited by initdb and by every process of the server: held as long as one of them lives

To start: take start.lock, share users.lock, wait for a server that is still starting or stopping; if none is
left, run a new one (at the first start after an initdb aside and a rename). To stop: take start.lock, give
users.lock up; if nobody shares it any more, interrupt the server and wait until server.lock is free. A server
whose users were all killed runs on: the next user finds it by its socket, and the last user stops it.
"""

import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from app.core.errors import StartupError
from app.postgres.binaries import Binaries, copy_of_wheel

SERVER_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "shared_buffers": "256MB",  # modest: the machine runs other things, and the system caches files too
        "max_connections": "100",  # several processes with a pool of 10 each, their migrations, a psql or two
        "jit": "off",  # it compiles for longer than our queries run, and not every build has it
        "autovacuum": "on",  # index-only scans depend on the visibility map that it keeps
    }
)

# For servers that are thrown away: a crash of the machine, though not of the server, loses their data.
THROWAWAY_SETTINGS: Mapping[str, str] = MappingProxyType(
    {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
)

_SUPERUSER = "postgres"
_PORT = 5432  # no more than a part of the socket's name
_SOCKET = f".s.PGSQL.{_PORT}"
_LONGEST_SOCKET_PATH = 103  # bytes; sun_path holds 104 on macOS and 108 on Linux, with a final NUL

# PGHOSTADDR, PGGSSENCMODE, PGCHANNELBINDING and PGTARGETSESSIONATTRS, set for another server, would lead a
# client there or make it refuse this one.
_DESPITE_ENVIRONMENT = {
    "hostaddr": "",
    "gssencmode": "disable",
    "channel_binding": "disable",
    "target_session_attrs": "any",
}

# Crash recovery, and the checkpoint of a shutdown, may be long. A failure ends the server, and so the wait.
_START_SECONDS = 300
_STOP_SECONDS = 120
_POLL_SECONDS = 0.02

_LONGEST_LOG = 8 << 20  # bytes; a longer one is moved aside at the next launch
_TAIL_BYTES = 4000
_TAIL_LINES = 10

# Who runs the server where we are root; the first that exists. PostgreSQL's packages create one of their own.
_UNPRIVILEGED_ACCOUNTS = ("postgres", "nobody")

# A shell starts the server and ends at once, so that it's no child of ours: nobody has to reap it, and
# whoever started it may leave while others use it.
_IN_BACKGROUND = ("/bin/sh", "-c", '"$@" &', "sh")

# The answer of the kernel, which knows every rule, to the account that asks.
_MAY_EXECUTE = ("/bin/sh", "-c", 'test -x "$1"', "sh")


class EmbeddedPostgresError(StartupError):
    """The embedded server can't be started or stopped; the message says why, and what to do."""


class EmbeddedPostgres:
    """One user, from start() to stop(), of the server whose data, socket, log and locks lie in `base`.

    `options` are settings that win over SERVER_SETTINGS. start() and stop() block, and can be repeated.
    A process forked from a user shares its use, until both have ended or stopped.
    """

    def __init__(
        self,
        base: Path,
        binaries: Binaries,
        *,
        dbname: str = "tiroir",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Raises EmbeddedPostgresError if the socket can't have this path."""
        self._folder = _Folder(base.expanduser().absolute())
        self._binaries = binaries
        self._dbname = dbname
        self._settings = {**SERVER_SETTINGS, **(options or {})}
        self._users_lock: IO[bytes] | None = None
        _refuse_unusable_path(self._folder.data)

    def dsn(self, dbname: str | None = None) -> str:
        """The conninfo of a database, by default ours, as the server's superuser.

        There is no password: the socket lies in the data directory, which nobody but its owner can enter.
        """
        return make_conninfo(
            host=str(self._folder.data),
            port=_PORT,
            user=_SUPERUSER,
            dbname=dbname or self._dbname,
            **_DESPITE_ENVIRONMENT,
        )

    def start(self) -> Self:
        """Run the server or join its users, and create a missing database. Raises EmbeddedPostgresError."""
        if self._users_lock is None:
            with self._errors_named("start"):
                self._folder.prepare()
                with self._folder.one_at_a_time():
                    self._join()
        return self

    def stop(self) -> None:
        """Leave the server's users; the last one stops it. Raises EmbeddedPostgresError."""
        if self._users_lock is not None:
            with self._errors_named("stop"), self._folder.one_at_a_time():
                self._leave(self._users_lock)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _join(self) -> None:
        self._users_lock = users_lock = self._folder.open_private("users.lock")
        try:
            fcntl.flock(users_lock, fcntl.LOCK_SH)
            self._ensure_server()
            self._ensure_database()
        except BaseException:  # an interrupt, too, must leave no server behind
            self._leave(users_lock)
            raise

    def _leave(self, users_lock: IO[bytes]) -> None:
        self._users_lock = None
        users_lock.close()  # not LOCK_UN, which would take the lock from a forked process as well
        if not self._folder.is_held("users.lock"):
            self._stop_server()

    def _ensure_server(self) -> None:
        self._wait_for_server()
        if self._answers():
            return
        with self._folder.server_lock() as lock:
            _Launch(self._folder, _account_for(self._folder.data), lock).run(self._binaries, self._settings)
        self._wait_for_server()
        if not self._answers():
            raise EmbeddedPostgresError(
                f"PostgreSQL did not start in {self._folder.base}:\n{self._folder.end_of_log()}"
            )

    def _wait_for_server(self) -> None:
        self._wait_until(lambda: self._answers() or not self._folder.server_lives(), _START_SECONDS)

    def _ensure_database(self) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s::name"
            if not connection.execute(query, [self._dbname]).fetchone():
                # The backend of a process that was killed just here may create it at the same time.
                with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._dbname)))

    def _stop_server(self) -> None:
        # Only a server that reacts has surely written its own number into postmaster.pid.
        self._wait_until(lambda: not self._folder.server_lives() or self._reacts(), _STOP_SECONDS)
        if self._folder.server_lives() and (postmaster := self._folder.postmaster_pid()):
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(postmaster, signal.SIGINT)  # "fast" shutdown: clients are cut off, data is safe
        self._wait_until(lambda: not self._folder.server_lives(), _STOP_SECONDS)

    def _answers(self) -> bool:
        return self._ping() is Ping.OK

    def _reacts(self) -> bool:
        return self._ping() is not Ping.NO_RESPONSE  # it may refuse us, while it starts or stops

    def _ping(self) -> Ping:
        answer = Ping(PGconn.ping(make_conninfo(self.dsn("postgres"), connect_timeout=3).encode()))
        if answer is Ping.NO_ATTEMPT:
            raise EmbeddedPostgresError("libpq can't use the environment: unset PGSERVICE and other PG* variables")
        return answer

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"PostgreSQL in {self._folder.base} neither runs nor ends after {seconds} s:\n"
                    f"{self._folder.end_of_log()}"
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _errors_named(self, verb: str) -> Generator[None]:
        try:
            yield
        except (OSError, psycopg.Error) as error:
            raise EmbeddedPostgresError(
                f"can't {verb} the embedded PostgreSQL in {self._folder.base}: {error}"
                " (TIROIR_DATA_DIR names another folder, TIROIR_DATABASE_URL another server)"
            ) from error


@dataclass(frozen=True, slots=True)
class _Folder:
    """The files of one server, and the locks among them."""

    base: Path

    @property
    def data(self) -> Path:
        return self.base / "data"

    def prepare(self) -> None:
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(self.base, {os.geteuid()})
        if os.geteuid() == 0:  # the server's account has to pass through
            self.base.chmod(stat.S_IMODE(self.base.stat().st_mode) | stat.S_IXOTH)

    def open_private(self, name: str) -> IO[bytes]:
        """Private also where others may enter `base`: whoever can open a lock can hold it."""
        return os.fdopen(os.open(self.base / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+b")

    @contextmanager
    def one_at_a_time(self) -> Generator[None]:
        with self.open_private("start.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def server_lock(self) -> Generator[IO[bytes]]:
        """Held until this context and all processes that inherited it have ended."""
        with self.open_private("server.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.is_held("server.lock"):
                # NFS locks for a process, not for an open file: none of them is inherited.
                raise EmbeddedPostgresError(
                    f"{self.base} is on a file system without flock: set TIROIR_DATA_DIR to a local folder"
                )
            yield lock

    def server_lives(self) -> bool:
        return self.is_held("server.lock")

    def is_held(self, lock_name: str) -> bool:
        with self.open_private(lock_name) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def postmaster_pid(self) -> int | None:
        try:
            number, _, _ = (self.data / "postmaster.pid").read_text().partition("\n")
        except FileNotFoundError:
            return None
        return int(number) if number else None

    def forget_socket(self) -> None:
        """No server lives, so its socket's lock is stale, and its number may be another process's now."""
        (self.data / f"{_SOCKET}.lock").unlink(missing_ok=True)

    def open_log(self) -> IO[bytes]:
        return self.open_private("postgres.log")

    def rotate_log(self) -> None:
        log = self.base / "postgres.log"
        if log.exists() and log.stat().st_size > _LONGEST_LOG:
            log.replace(log.with_name("postgres.log.1"))

    def end_of_log(self) -> str:
        with self.open_log() as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return _last_lines(log.read())


@dataclass(frozen=True, slots=True)
class _Launch:
    """Runs initdb and the server; whatever it runs inherits the server's lock."""

    folder: _Folder
    account: pwd.struct_passwd | None
    """Who runs them: PostgreSQL refuses root. None: we ourselves."""
    lock: IO[bytes]

    def run(self, binaries: Binaries, settings: Mapping[str, str]) -> None:
        if self.account:
            binaries = self._executable(binaries, self.account)
        if not self.folder.data.exists():
            self._create_data(binaries, sync=settings.get("fsync") != "off")
        _refuse_other_version(self.folder.data, binaries)
        self.folder.forget_socket()
        self.folder.rotate_log()
        self._run_server(binaries, settings)

    def _executable(self, binaries: Binaries, account: pwd.struct_passwd) -> Binaries:
        if not self._may_execute(self.folder.base, account):
            raise EmbeddedPostgresError(
                f"PostgreSQL doesn't run as root, and the account {account.pw_name} can't enter"
                f" {self.folder.base}: set TIROIR_DATA_DIR to a folder that it can reach"
            )
        if self._may_execute(binaries.postgres, account):
            return binaries
        if binaries.wheel is None:
            raise EmbeddedPostgresError(
                f"PostgreSQL doesn't run as root, and the account {account.pw_name} can't execute"
                f" {binaries.postgres}: install it where every account can, or set TIROIR_DATABASE_URL"
            )
        # For example a virtual environment under /root. Copied at each launch, so never of another release.
        return copy_of_wheel(binaries, binaries.wheel, self.folder.base / "programs")

    def _may_execute(self, path: Path, account: pwd.struct_passwd) -> bool:
        try:
            return self._execute(*_MAY_EXECUTE, path).returncode == 0
        except PermissionError as error:  # a container's root without CAP_SETUID
            raise EmbeddedPostgresError(
                f"PostgreSQL doesn't run as root, and this root may not become {account.pw_name}:"
                " run as another user, or set TIROIR_DATABASE_URL"
            ) from error

    def _create_data(self, binaries: Binaries, *, sync: bool) -> None:
        new = self.folder.base / "new"  # aside, then renamed: what a killed initdb leaves is no data directory
        if new.exists():
            shutil.rmtree(new)
        new.mkdir(mode=0o700)
        if self.account:
            os.chown(new, self.account.pw_uid, self.account.pw_gid)
        self._initdb(binaries, new, sync=sync)
        new.rename(self.folder.data)
        _sync_folder(self.folder.base)  # else a power failure could undo the rename of data that has grown since

    def _initdb(self, binaries: Binaries, new: Path, *, sync: bool) -> None:
        locale = ["--locale=C"]  # the one that every system has
        if binaries.version >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        access = ["-U", _SUPERUSER, "--auth-host=reject", "--auth-local=trust"]
        done = self._execute(
            binaries.initdb, "-D", new, "-E", "UTF8", *locale, *access, *([] if sync else ["--no-sync"])
        )
        if done.returncode != 0:
            raise EmbeddedPostgresError(f"initdb failed in {new}:\n{_last_lines(done.stdout)}")

    def _run_server(self, binaries: Binaries, settings: Mapping[str, str]) -> None:
        quoted_data = '"' + str(self.folder.data).replace('"', '""') + '"'
        ours = {"listen_addresses": "", "unix_socket_directories": quoted_data, "port": str(_PORT)}
        options = (f"--{name}={value}" for name, value in {**settings, **ours}.items())
        with self.folder.open_log() as log:
            self._execute(
                *_IN_BACKGROUND,
                binaries.postgres,
                "-D",
                self.folder.data,
                *options,
                output=log,
                new_session=True,
            )

    def _execute(
        self, *command: str | Path, output: int | IO[bytes] = subprocess.PIPE, new_session: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        account = self.account
        return subprocess.run(  # noqa: S603 our own words, and paths that no shell parses
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            cwd=self.folder.base,
            pass_fds=[self.lock.fileno()],
            start_new_session=new_session,  # a Ctrl-C is for us, not for the server
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        ours = {"LC_ALL": "C", "TZ": "UTC"}  # messages, sorting and times that don't depend on who started it
        if stale_pid := self.folder.postmaster_pid():
            # A killed server left it. PostgreSQL refuses to start while any process has that number, unless it's
            # an ancestor's. The file stays: by what else it says, a server that was started by hand is noticed.
            ours["PG_GRANDPARENT_PID"] = str(stale_pid)
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | ours


def _account_for(data: Path) -> pwd.struct_passwd | None:
    """Who has to run the server, None: we ourselves. Where we are root, existing data says which account."""
    if os.geteuid() != 0:
        if data.exists():
            _refuse_foreign(data, {os.geteuid()})
        return None
    accounts = {account.pw_uid: account for account in _unprivileged_accounts()}
    if not accounts:
        raise EmbeddedPostgresError(
            "PostgreSQL doesn't run as root, and no account postgres or nobody exists:"
            " run as another user, or set TIROIR_DATABASE_URL"
        )
    if not data.exists():
        return next(iter(accounts.values()))
    _refuse_foreign(data, accounts)
    return accounts[data.stat().st_uid]


def _unprivileged_accounts() -> Iterator[pwd.struct_passwd]:
    for name in _UNPRIVILEGED_ACCOUNTS:
        with suppress(KeyError):
            yield pwd.getpwnam(name)


def _refuse_unusable_path(data: Path) -> None:
    if len(os.fsencode(data / _SOCKET)) > _LONGEST_SOCKET_PATH:
        longest = _LONGEST_SOCKET_PATH - len(f"/{data.name}/{_SOCKET}")
        raise EmbeddedPostgresError(
            f"{data.parent} is too long for the path of a unix socket: set TIROIR_DATA_DIR to a path"
            f" of at most {longest} bytes"
        )
    if "," in str(data):
        raise EmbeddedPostgresError(
            f"{data.parent} has a comma, which ends a host for libpq: set TIROIR_DATA_DIR to another path"
        )


def _refuse_foreign(path: Path, owners: Container[int]) -> None:
    owner = path.stat().st_uid
    if owner not in owners:
        raise EmbeddedPostgresError(
            f"{path} belongs to another user ({owner}): set TIROIR_DATA_DIR to a folder of your own"
        )


def _refuse_other_version(data: Path, binaries: Binaries) -> None:
    version = (data / "PG_VERSION").read_text().strip()
    if version != str(binaries.version):
        raise EmbeddedPostgresError(
            f"{data} is of PostgreSQL {version}, but {binaries.bindir} is {binaries.version}: install"
            f" {version} again, convert the data with pg_upgrade, or set TIROIR_DATA_DIR to another folder"
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _last_lines(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").splitlines()[-_TAIL_LINES:])
