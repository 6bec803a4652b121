"""Every test runs real servers, and real processes that use, share and lose them."""

import multiprocessing
import os
import pwd
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import psycopg
import pytest

from app.postgres.binaries import Binaries, all_binaries, best_binaries, copy_of_wheel
from app.postgres.embedded import THROWAWAY_SETTINGS, EmbeddedPostgres, EmbeddedPostgresError

AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="only root can act as another user")

DISK = Path("/tmp")
MEMORY = Path("/dev/shm")
MEMORY_HAS_ROOM = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 30

# A process that prepares and uses servers elsewhere than here must not share our memory or open files.
SPAWN = multiprocessing.get_context("spawn")


def name_of(binaries: Binaries) -> str:
    return f"postgresql-{binaries.version}"


@pytest.fixture(params=all_binaries(), ids=name_of)
def binaries(request: pytest.FixtureRequest) -> Binaries:
    return request.param


@contextmanager
def short_folder(parent: Path) -> Generator[Path]:
    """With a short path, for the socket; open to the account that runs the server where we are root."""
    folder = Path(tempfile.mkdtemp(prefix="tiroir-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for pidfile in folder.glob("*/data/postmaster.pid"):  # the server of a test that failed
            with suppress(ProcessLookupError):
                os.kill(first_number(pidfile), signal.SIGKILL)
        shutil.rmtree(folder)


@pytest.fixture
def place() -> Generator[Path]:
    """In memory, where it can be: initdb writes 46 MB, and most tests begin with one."""
    with short_folder(MEMORY if MEMORY_HAS_ROOM else DISK) as folder:
        yield folder


@pytest.fixture
def base(place: Path) -> Path:
    return place / "base"


def embedded(base: Path, binaries: Binaries | None = None, **options: str) -> EmbeddedPostgres:
    return EmbeddedPostgres(base, binaries or best_binaries(), options={**THROWAWAY_SETTINGS, **options})


def first_number(file: Path) -> int:
    return int(file.read_text().split()[0])


def postmaster(base: Path) -> int:
    return first_number(base / "data" / "postmaster.pid")


def ask(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row
        return row[0]


def started_at(server: EmbeddedPostgres) -> object:
    return ask(server, "SELECT pg_postmaster_start_time()")


def runs(base: Path) -> bool:
    return (base / "data" / ".s.PGSQL.5432").exists()


def store(server: EmbeddedPostgres, number: int) -> None:
    """Committed in earnest: throw-away servers acknowledge before they write."""
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute("CREATE TABLE kept (number int)")
        connection.execute("INSERT INTO kept VALUES (%s::int)", [number])


def stored(server: EmbeddedPostgres) -> object:
    return ask(server, "SELECT number FROM kept")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Other processes


@dataclass(frozen=True)
class OtherProcess:
    process: BaseProcess
    pipe: Connection

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def leave(self) -> None:
        self.pipe.send("leave")
        self.process.join()
        assert self.process.exitcode == 0


@contextmanager
def other_process(
    what: Callable[[Connection, EmbeddedPostgres], None], server: EmbeddedPostgres
) -> Generator[OtherProcess]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=what, args=(theirs, server))
    process.start()
    theirs.close()
    assert isinstance(ours, Connection)  # Windows has others
    with ours:
        try:
            yield OtherProcess(process, ours)
        finally:
            process.kill()
            process.join()
            process.close()


def use(pipe: Connection, server: EmbeddedPostgres) -> None:
    with server:
        pipe.send("uses")
        pipe.recv()


def use_as_nobody(pipe: Connection, server: EmbeddedPostgres) -> None:
    """A child that changes its account itself: Python need not be executable by nobody."""
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
    use_or_say_why_not(pipe, server)


def use_without_disk_space(pipe: Connection, server: EmbeddedPostgres) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    use_or_say_why_not(pipe, server)


def use_or_say_why_not(pipe: Connection, server: EmbeddedPostgres) -> None:
    try:
        use(pipe, server)
    except EmbeddedPostgresError as error:
        pipe.send(str(error))


def leave_before_a_forked_child(pipe: Connection, server: EmbeddedPostgres) -> None:
    server.start()
    if os.fork() == 0:
        pipe.recv()
        server.stop()
        os._exit(0)
    server.stop()
    pipe.send("left")
    os.wait()


# One user


def test_a_server_runs_from_start_to_stop(base: Path, binaries: Binaries) -> None:
    server = embedded(base, binaries)
    with server:
        assert str(ask(server, "SHOW server_version")).startswith(str(binaries.version))
        assert ask(server, "SELECT current_database()") == "tiroir"
        assert ask(server, "SHOW server_encoding") == "UTF8"
        assert ask(server, "SELECT datcollate FROM pg_database WHERE datname = 'tiroir'") == "C"
        assert ask(server, "SHOW TimeZone") == "UTC"
        assert os.getsid(postmaster(base)) != os.getsid(0)  # no Ctrl-C of ours reaches it
    assert not runs(base)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.dsn())


def test_a_restart_keeps_the_data(base: Path, binaries: Binaries) -> None:
    with embedded(base, binaries) as server:
        store(server, 7)
    with embedded(base, binaries) as server:
        assert stored(server) == 7


def test_start_and_stop_may_be_repeated(base: Path) -> None:
    server = embedded(base)
    server.stop()
    with server.start() as again:
        assert again is server
        assert ask(server.start(), "SELECT 1") == 1
    server.stop()
    assert not runs(base)
    with server:
        assert ask(server, "SELECT 1") == 1


def test_only_its_owner_reaches_the_server(base: Path) -> None:
    with embedded(base) as server:
        assert ask(server, "SHOW listen_addresses") == ""
        assert (base / "data").stat().st_mode & 0o077 == 0
        assert base.stat().st_mode & 0o066 == 0
        files = [path for path in base.iterdir() if path.is_file()]
        assert {path.name for path in files} == {"start.lock", "users.lock", "server.lock", "postgres.log"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_options_win_over_our_settings_but_not_over_the_socket(base: Path, place: Path) -> None:
    with embedded(base, max_connections="17", unix_socket_directories=str(place)) as server:
        assert ask(server, "SHOW max_connections") == "17"
        assert ask(server, "SHOW jit") == "off"
        assert ask(server, "SHOW fsync") == "off"
        assert not (place / ".s.PGSQL.5432").exists()


def test_a_second_database_is_created_beside_the_first(base: Path) -> None:
    with embedded(base), EmbeddedPostgres(base, best_binaries(), dbname='a "second" one') as second:
        assert ask(second, "SELECT current_database()") == 'a "second" one'
        with psycopg.connect(second.dsn("tiroir")) as connection:
            assert connection.info.dbname == "tiroir"


def test_the_environment_of_another_server_does_not_matter(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGDATA": "/nowhere",
        "PGDATABASE": "other",
        "PGHOST": "192.0.2.1",  # a network for documentation: nobody answers
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "6543",
        "PGUSER": "other",
        "PGSSLMODE": "verify-full",
        "PGGSSENCMODE": "require",
        "PGCHANNELBINDING": "require",
        "PGTARGETSESSIONATTRS": "standby",
        "LC_ALL": "xx_XX.unknown",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    with embedded(base) as server:
        assert ask(server, "SHOW TimeZone") == "UTC"


def test_a_service_that_does_not_exist_is_named_as_the_reason(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICE", "nowhere")
    with pytest.raises(EmbeddedPostgresError, match="PGSERVICE"):
        embedded(base).start()


# Several users


def test_the_last_of_two_processes_stops_the_server(base: Path) -> None:
    server = embedded(base)
    with other_process(use, server) as other:
        assert other.pipe.recv() == "uses"
        with server:
            since = started_at(server)
        assert runs(base)
        with server:
            assert started_at(server) == since
            other.leave()
            assert ask(server, "SELECT 1") == 1
        assert not runs(base)


def test_one_of_two_is_killed_and_the_other_goes_on(base: Path) -> None:
    server = embedded(base)
    with other_process(use, server) as starter:
        assert starter.pipe.recv() == "uses"
        with server:
            since = started_at(server)
            starter.kill()
            assert started_at(server) == since
    assert not runs(base)


def test_many_start_at_once_and_share_one_server(base: Path) -> None:
    server = embedded(base)
    with (
        other_process(use, server) as first,
        other_process(use, server) as second,
        other_process(use, server) as third,
    ):
        others = (first, second, third)
        assert [other.pipe.recv() for other in others] == ["uses"] * 3
        for other in others:
            assert runs(base)
            other.leave()
    assert not runs(base)


def test_a_forked_child_shares_the_use(base: Path) -> None:
    with other_process(leave_before_a_forked_child, embedded(base)) as other:
        assert other.pipe.recv() == "left"
        assert runs(base)
        other.leave()
    assert not runs(base)


# Sudden ends


def test_a_server_whose_only_user_was_killed_is_found_again(base: Path) -> None:
    server = embedded(base)
    with other_process(use, server) as other:
        assert other.pipe.recv() == "uses"
        store(server, 7)
        since = started_at(server)
        other.kill()
    with server:
        assert started_at(server) == since
        assert stored(server) == 7
    assert not runs(base)


def test_committed_data_survives_the_end_of_user_and_postmaster(base: Path, binaries: Binaries) -> None:
    server = embedded(base, binaries)
    with other_process(use, server) as other:
        assert other.pipe.recv() == "uses"
        store(server, 7)
        other.kill()
        os.kill(postmaster(base), signal.SIGKILL)
    with server:
        assert stored(server) == 7
    assert not runs(base)


def test_a_start_waits_for_what_a_killed_postmaster_left_at_work(base: Path, binaries: Binaries) -> None:
    server = embedded(base, binaries)
    with server, closing(psycopg.connect(server.dsn())) as connection:
        store(server, 7)
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 3000000)")
        os.kill(postmaster(base), signal.SIGKILL)
        with embedded(base, binaries) as next_user:
            assert stored(next_user) == 7


def test_a_stop_after_the_postmaster_was_killed_is_no_error(base: Path) -> None:
    server = embedded(base)
    with server:
        os.kill(postmaster(base), signal.SIGKILL)
    with server:
        assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("reached", ["new/PG_VERSION", "data/PG_VERSION", "data/postmaster.pid"])
def test_a_start_may_be_killed_at_any_stage(base: Path, binaries: Binaries, reached: str) -> None:
    server = embedded(base, binaries)
    with other_process(use, server) as other:
        wait_until((base / reached).exists)
        other.kill()
    with server:
        assert ask(server, "SELECT 1") == 1
    assert not runs(base)
    assert not (base / "new").exists()


def test_half_an_initdb_is_begun_anew(base: Path) -> None:
    (base / "new" / "base").mkdir(parents=True)
    (base / "new" / "PG_VERSION").write_text("18\n")
    with embedded(base) as server:
        assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("left", ["postmaster.pid", ".s.PGSQL.5432.lock", "*"])
def test_a_number_that_a_killed_server_left_may_be_another_process_now(
    base: Path, binaries: Binaries, left: str
) -> None:
    server = embedded(base, binaries)
    with server:
        os.kill(postmaster(base), signal.SIGKILL)
    owner = (base / "data").stat().st_uid if AS_ROOT else None
    with subprocess.Popen(["sleep", "60"], user=owner) as foreign:
        for file in (base / "data" / "postmaster.pid", base / "data" / ".s.PGSQL.5432.lock"):
            _, _, rest = file.read_text().partition("\n")
            file.write_text(f"{foreign.pid}\n{rest}")
            if not file.match(left):
                file.unlink()
        with server:
            assert ask(server, "SELECT 1") == 1
        assert foreign.poll() is None
        foreign.kill()


# Paths and their rights


def executable_by_all(binaries: Binaries, place: Path) -> Binaries:
    """The programs, or a copy of them where they lie in a private folder, as a virtual environment of root's may."""
    asked = ["test", "-x", binaries.postgres]
    private = AS_ROOT and subprocess.run(asked, user=pwd.getpwnam("nobody").pw_uid, check=False).returncode != 0
    if not private:
        return binaries
    assert binaries.wheel is not None
    return copy_of_wheel(binaries, binaries.wheel, place / "programs")


def test_a_path_may_hold_blanks_and_quotes(place: Path, binaries: Binaries) -> None:
    """Of the data; initdb itself can't be run from a folder with such a name."""
    base = place / 'it\'s a "place" \\ 100 % $HOME'
    with embedded(base, executable_by_all(binaries, place)) as server:
        assert ask(server, "SELECT 1") == 1


def test_the_longest_path_works_and_a_longer_one_is_refused(place: Path) -> None:
    longest = place / "é".ljust(84 - len(str(place)) - 2, "x")
    with embedded(longest) as server:
        assert ask(server, "SELECT 1") == 1
    with pytest.raises(EmbeddedPostgresError, match=r"TIROIR_DATA_DIR to a path of at most 84 bytes"):
        embedded(longest.with_name(longest.name + "x"))


def test_a_comma_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="comma"):
        embedded(place / "one,two")


def test_data_of_another_version_is_refused_and_left_alone(base: Path) -> None:
    server = embedded(base)
    with server:
        store(server, 7)
    binaries = best_binaries()
    newer = replace(binaries, version=binaries.version + 1)
    with pytest.raises(
        EmbeddedPostgresError,
        match=rf"is of PostgreSQL {binaries.version}, .* is {newer.version}: .*pg_upgrade",
    ):
        embedded(base, newer).start()
    with server:
        assert stored(server) == 7


def test_a_file_in_the_way_is_an_error(base: Path) -> None:
    base.write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"File exists.*TIROIR_DATA_DIR"):
        embedded(base).start()


@only_root
@pytest.mark.parametrize("foreign", [".", "data"])
def test_what_belongs_to_another_user_is_refused(base: Path, foreign: str) -> None:
    with embedded(base):
        pass
    os.chown(base / foreign, 12345, 12345)
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to another user \(12345\).*TIROIR_DATA_DIR"):
        embedded(base).start()


# Accounts


@only_root
def test_an_ordinary_user_runs_the_server_as_itself(place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    if subprocess.run(["test", "-x", best_binaries().postgres], user=nobody.pw_uid, check=False).returncode:
        pytest.skip("the programs lie in a private folder")
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    server = embedded(place / "base")
    with other_process(use_as_nobody, server) as other:
        assert other.pipe.recv() == "uses"
        assert ask(server, "SELECT 1") == 1
        assert (place / "base").stat().st_mode & 0o777 == 0o700
        assert (place / "base" / "data").stat().st_uid == nobody.pw_uid
        other.leave()
    assert not runs(place / "base")


@only_root
def test_a_folder_that_may_not_be_written_is_an_error(base: Path) -> None:
    with other_process(use_as_nobody, embedded(base)) as other:
        assert "Permission denied" in other.pipe.recv()


@only_root
def test_where_we_are_root_the_data_keeps_its_account(base: Path) -> None:
    server = embedded(base)
    with server:
        pass
    nobody = pwd.getpwnam("nobody")
    for path in (base / "data", *(base / "data").rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    with server:
        assert (base / "data" / "postmaster.pid").stat().st_uid == nobody.pw_uid


@only_root
def test_programs_that_the_account_cannot_reach_are_copied_from_the_wheel() -> None:
    best = best_binaries()
    if best.wheel is None:
        pytest.skip("needs the extra tiroir[embedded]")
    with short_folder(DISK) as place:  # programs may not run in shared memory
        private = place / "root"
        private.mkdir(mode=0o700)
        hidden = private / best.wheel.name
        shutil.copytree(best.wheel, hidden, ignore=shutil.ignore_patterns("pginstall", "include"))
        shutil.copytree(f"{best.wheel}.libs", f"{hidden}.libs")
        bindir = hidden / best.bindir.relative_to(best.wheel)
        for _ in range(2):
            with embedded(place / "base", replace(best, bindir=bindir, wheel=hidden)) as server:
                assert ask(server, "SELECT 1") == 1
        with pytest.raises(EmbeddedPostgresError, match=r"can't execute .*TIROIR_DATABASE_URL"):
            embedded(place / "base", Binaries(bindir, best.version)).start()


@only_root
def test_a_folder_that_the_account_cannot_reach_is_an_error(base: Path, place: Path) -> None:
    place.chmod(0o700)
    with pytest.raises(EmbeddedPostgresError, match=r"can't enter .*TIROIR_DATA_DIR"):
        embedded(base).start()


@only_root
def test_without_an_account_for_the_server_root_is_told_what_to_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.postgres.embedded._UNPRIVILEGED_ACCOUNTS", ("no-such-account",))
    with pytest.raises(EmbeddedPostgresError, match=r"no account .*TIROIR_DATABASE_URL"):
        embedded(base).start()


# Failures of the programs, and their log


def test_a_failing_initdb_tells_its_last_lines(base: Path, binaries: Binaries) -> None:
    programs = executable_by_all(binaries, base.parent)
    with other_process(use_without_disk_space, embedded(base, programs)) as other:
        message = other.pipe.recv()
    assert "initdb failed" in message
    assert "File too large" in message
    with embedded(base, binaries) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_failing_server_tells_its_last_lines_and_is_gone(base: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r'(?s)did not start.*"shared_buffers".*"plenty"'):
        embedded(base, shared_buffers="plenty").start()
    with embedded(base) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_long_log_is_moved_aside(base: Path) -> None:
    base.mkdir()
    log, older = base / "postgres.log", base / "postgres.log.1"
    log.write_bytes(b"x" * (8 << 20))
    with embedded(base):
        assert not older.exists()
    with embedded(base):
        assert older.stat().st_size > 8 << 20
        assert log.stat().st_size < 1 << 20
