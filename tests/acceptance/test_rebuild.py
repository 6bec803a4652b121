"""Rebuilds of the bands by the real processes: under load, through crashes and stops, on a full disk, after an upgrade.

TIROIR_LONG=1 lets each victim crash in every phase.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from service import PATIENCE, Service, Worker, all_running, crash, running, short_folder

from app.core.fingerprint import to_hex
from app.core.scheme import ARTICLE, digest, given
from app.postgres.binaries import best_binaries
from app.postgres.embedded import EmbeddedPostgres
from app.postgres.migrate import migrate
from app.store import layouts
from bench.rebuild_load import COLLECTION, Kind, Load, LoadClient, Oracle, documents, fill, under_load
from tests.store.brute_force import SMALLEST
from tests.store.databases import one_value
from tests.store.revisions import upgrade

LONG = os.environ.get("TIROIR_LONG") == "1"

# More than are copied in one transaction, so that a copy can be met between two of them.
PAGES = documents(25_000)
# A fingerprint that is copied late. No client writes it, so a test may keep its row to itself.
LATE = 0x7FFF_FFFF_0000_FFFF
STORED = {**PAGES, "late": LATE}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


@dataclass(frozen=True)
class Database:
    """What its tables say, whatever the services do."""

    dsn: str

    def value(self, query: bytes, *parameters: object) -> Any:
        return one_value(self.dsn, query, parameters)

    def table(self, state: str) -> sql.Identifier:
        return sql.Identifier(self.value(b"SELECT table_name FROM band_layout WHERE state = %s", state))

    def runs(self, operation: int) -> int:
        return self.value(b"SELECT runs FROM operation WHERE id = %s", operation)

    def progress(self, operation: int) -> tuple[str | None, int]:
        """Phase and `done` of an operation that isn't finished."""
        status, phase, done = self.value(
            b"SELECT array[status, phase, done::text] FROM operation WHERE id = %s", operation
        )
        assert status in {"queued", "running"}, f"it has {status}"
        return phase, int(done)

    def reaches(self, operation: int, phase: str) -> None:
        eventually(lambda: self.progress(operation)[0] == phase)

    def sessions(self) -> list[int]:
        """The processes of PostgreSQL that work for operations."""
        return self.value(b"""
            SELECT array(SELECT pid FROM pg_stat_activity
                         WHERE application_name = 'tiroir operation' AND datname = current_database())
            """)

    def waits_for(self, lock: str) -> bool:
        """Whether an operation waits for a lock of this kind."""
        return self.value(
            b"""
            SELECT count(*) > 0 FROM pg_stat_activity
            WHERE pid = ANY(%s) AND wait_event_type = 'Lock' AND wait_event = %s
            """,
            self.sessions(),
            lock,
        )

    def require_one_layout(self, bands: int) -> None:
        """No row, table or index is left of another one."""
        assert self.value(b"SELECT array_agg(state) FROM band_layout") == ["active"]
        [table] = self.value(b"SELECT array_agg(table_name) FROM band_layout")
        tables = b"SELECT array(SELECT relname::text FROM pg_class WHERE relname ~ '^fingerprint' AND relkind = 'r')"
        assert self.value(tables) == [table]
        indexes = self.value(b"SELECT array_agg(indisvalid) FROM pg_index WHERE indrelid = %s::regclass", table)
        assert indexes == [True] * (bands + 1)


# Each of these begins a rebuild, and keeps it in a phase until the end of the block. All by locks of a session, which
# are gone when the server is.

Begin = Callable[[], int]


def session(database: Database) -> closing[psycopg.Connection]:
    """With a transaction, which ends with the block."""
    return closing(psycopg.connect(database.dsn))


def snapshot(database: Database) -> closing[psycopg.Connection]:
    """As of a report that runs for hours: whoever builds an index concurrently waits for its end."""
    connection = psycopg.connect(database.dsn)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT")
    return closing(connection)


DOCUMENTS = "LOCK TABLE document IN ACCESS EXCLUSIVE MODE"

# What keeps it in a phase, and lets it pass those before.
OBSTACLES: dict[str, LiteralString] = {
    "planning": DOCUMENTS,
    "creating": "SELECT pg_advisory_xact_lock_shared({lock})",
    "switching": "SELECT FROM band_layout WHERE state = 'active' FOR UPDATE",
    "waiting": "LOCK TABLE {active} IN ACCESS SHARE MODE",  # it may go on to the next phase, no further
    "dropping": "LOCK TABLE {active} IN ACCESS SHARE MODE",
}


@contextmanager
def held(database: Database, phase: str, begin: Begin) -> Generator[int]:
    """Yields the rebuild's number."""
    if phase in SPECIAL:
        with SPECIAL[phase](database, begin) as rebuild:
            yield rebuild
        return
    with obstructed(database, phase):
        rebuild = begin()
        database.reaches(rebuild, phase)
        yield rebuild


@contextmanager
def obstructed(database: Database, phase: str) -> Generator[None]:
    with session(database) as obstacle:
        obstacle.execute(sql.SQL(OBSTACLES[phase]).format(active=database.table("active"), lock=layouts.LOCK))
        yield


@contextmanager
def held_copying(database: Database, begin: Begin) -> Generator[int]:
    """When it has copied some, and comes to a fingerprint that another session is about to write."""
    with session(database) as obstacle:
        with session(database) as start:
            with held(database, "creating", begin) as rebuild:
                start.execute(DOCUMENTS)
            database.reaches(rebuild, "copying")
            obstacle.execute(
                sql.SQL("INSERT INTO {} (collection_id, simhash) SELECT id, {} FROM collection WHERE name = {}").format(
                    database.table("building"), LATE, COLLECTION
                )
            )
        eventually(lambda: database.progress(rebuild)[1] > 0 and database.waits_for("transactionid"))
        yield rebuild


@contextmanager
def held_indexing(database: Database, begin: Begin) -> Generator[int]:
    """When the first index is built, but isn't valid yet."""
    with snapshot(database):
        rebuild = begin()
        eventually(lambda: database.progress(rebuild) == ("indexing", 0) and database.waits_for("virtualxid"))
        yield rebuild


@contextmanager
def held_vacuuming(database: Database, begin: Begin) -> Generator[int]:
    """By a lock that would stop the building of the indexes too: it is asked for while the last of them is built."""
    with session(database) as obstacle:
        with ExitStack() as snapshots:
            snapshots.enter_context(snapshot(database))
            rebuild = begin()
            database.reaches(rebuild, "indexing")
            last = database.value(b"SELECT total - 1 FROM operation WHERE id = %s", rebuild)
            for band in range(last + 1):
                at_band = ("indexing", band)
                eventually(lambda at=at_band: database.progress(rebuild) == at and database.waits_for("virtualxid"))
                if band < last:
                    older = snapshots.pop_all()
                    snapshots.enter_context(snapshot(database))
                    older.close()
            lock = sql.SQL("BEGIN; LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(database.table("building"))
            obstacle.pgconn.send_query(lock.as_bytes())
            waiting = b"SELECT count(*) > 0 FROM pg_locks WHERE pid = %s AND NOT granted"
            eventually(lambda: database.value(waiting, obstacle.info.backend_pid))
        database.reaches(rebuild, "vacuuming")
        yield rebuild


@contextmanager
def held_verifying(database: Database, begin: Begin) -> Generator[int]:
    with session(database) as obstacle:
        with held_indexing(database, begin) as rebuild:
            obstacle.execute(DOCUMENTS)
        database.reaches(rebuild, "verifying")
        yield rebuild


SPECIAL = {
    "copying": held_copying,
    "indexing": held_indexing,
    "vacuuming": held_vacuuming,
    "verifying": held_verifying,
}


class Administration:
    """The operations of a service."""

    def __init__(self, database: Database, service: Service) -> None:
        self.database = database
        self._service = service

    def begin(self, kind: str, **body: object) -> int:
        with self._service.client() as client:
            return client.post(f"/v1/admin/{kind}", json=body).raise_for_status().json()["id"]

    def other_bands(self) -> int:
        """3 or 4, as there aren't now: each test rebuilds, whatever the one before has been through."""
        return 7 - self.database.value(b"SELECT cardinality(widths) FROM band_layout WHERE state = 'active'")

    def rebuild_begins(self, bands: int, threshold: int = 3) -> Begin:
        return partial(self.begin, "rebuilds", bands=bands, threshold=threshold)

    def cancel(self, rebuild: int) -> None:
        with self._service.client() as client:
            client.post(f"/v1/admin/rebuilds/{rebuild}/cancel").raise_for_status()

    def finished(self, kind: str, operation: int) -> dict[str, Any]:
        deadline = monotonic() + 3 * PATIENCE
        with self._service.client() as client:
            while True:
                found = client.get(f"/v1/admin/{kind}/{operation}").raise_for_status().json()
                if found["finished_at"] is not None:
                    return found
                assert monotonic() < deadline, found
                sleep(0.05)

    def require_rebuilt(self, rebuild: int, bands: int, threshold: int = 3) -> None:
        found = self.finished("rebuilds", rebuild)
        assert found["status"] == "succeeded", found
        assert (found["result"]["bands"], found["result"]["threshold"]) == (bands, threshold)
        self.database.require_one_layout(bands)

    def require_no_misses(self, sample: int = 40, *, at_least: int = 20) -> None:
        audit = self.finished("audits", self.begin("audits", sample=sample))
        assert audit["status"] == "succeeded", audit
        result = audit["result"]
        assert (result["misses"], result["invented"]) == (0, 0)
        assert result["lookups"] == result["probed"] >= at_least


def use(*clients: LoadClient) -> None:
    """Writes, deletions and lookups, each of which must be right."""
    for _ in range(20):
        for client in clients:
            client.step()


# The databases, and what runs on them


@pytest.fixture(scope="module")
def own_postgres() -> Generator[EmbeddedPostgres]:
    with (
        short_folder() as folder,
        EmbeddedPostgres(folder / "postgres", best_binaries(), options={"fsync": "off"}) as postgres,
    ):
        yield postgres


_numbers = count()


def create_database(postgres: EmbeddedPostgres, template: str = "template0") -> Database:
    name = f"rebuild_{next(_numbers)}"
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        connection.execute("CHECKPOINT")  # else a crash of PostgreSQL sets the copied sequences back
    return Database(postgres.dsn(name))


@pytest.fixture(scope="module")
def template(own_postgres: EmbeddedPostgres) -> str:
    """A database that holds STORED."""
    filled = create_database(own_postgres)
    migrate(filled.dsn, connect_timeout=10)
    fill(filled.dsn, STORED)
    return str(conninfo_to_dict(filled.dsn)["dbname"])


@pytest.fixture
def stored(own_postgres: EmbeddedPostgres, template: str) -> Database:
    return create_database(own_postgres, template)


# Under load


def test_lookups_and_writes_are_right_during_whole_rebuilds(stored: Database) -> None:
    oracle = Oracle(STORED)
    services = [Service((), database_url=stored.dsn, layout_grace=1) for _ in range(2)]
    with all_running(*services) as (first, second):
        administration = Administration(stored, first)
        with under_load([first.url, second.url], oracle, PAGES, pause=0.1) as load:
            everybody_is_answered(load, monotonic())
            for bands, threshold, phase in ((3, 5, "indexing"), (8, 5, "switching"), (4, 5, "dropping")):
                start = monotonic()
                with held(stored, phase, administration.rebuild_begins(bands, threshold)) as rebuild:
                    everybody_is_answered(load, monotonic())
                administration.require_rebuilt(rebuild, bands, threshold)
                assert all(each >= {Kind.LOOKUP, Kind.WRITE} for each in kinds(load, start, monotonic()))
            everybody_is_answered(load, monotonic())
        administration.require_no_misses()
        assert {Kind.DELETE} <= set().union(*kinds(load, 0, monotonic()))
        assert (first.stop(), second.stop()) == (0, 0)
    assert "Traceback" not in first.log + second.log


def kinds(load: Load, start: float, end: float) -> list[set[Kind]]:
    """For each client, what it was answered."""
    return [{each.kind for each in answered} for answered in load.answered(start, end)]


def everybody_is_answered(load: Load, since: float) -> None:
    def done() -> bool:
        load.require_no_failure()
        return all(each >= {Kind.LOOKUP, Kind.WRITE} for each in kinds(load, since, monotonic()))

    eventually(done)


# Crashes


class Installation(Administration):
    """A serving process, and what runs the operations: a worker, or the serving process itself."""

    def __init__(self, database: Database, serving: Service, operating: Service, client: LoadClient) -> None:
        super().__init__(database, serving)
        self.operating = operating
        self.client = client
        self._serving = serving

    def recover(self) -> None:
        if self.operating.process.poll() is not None:
            self.operating.start()
        self._serving.wait_until_ready()

    def kill(self) -> None:
        self.operating.stop(signal.SIGKILL)
        eventually(lambda: not self.database.sessions())  # what it had under way is broken off

    def require_sound(self) -> None:
        use(self.client)
        self.require_no_misses()


@contextmanager
def installed(database: Database, *, apart: bool) -> Generator[Installation]:
    settings: dict[str, str | float] = {"database_url": database.dsn, "layout_grace": 0.5, "pool_timeout": 1}
    serving = Service((), run_operations=not apart, **settings)
    operating = Worker(**settings) if apart else serving
    with (
        all_running(*{serving, operating}),
        closing(LoadClient([serving.url], Oracle(STORED), PAGES)) as client,
    ):
        installation = Installation(database, serving, operating, client)
        yield installation
        bands = installation.other_bands()
        installation.require_rebuilt(installation.rebuild_begins(bands)(), bands)
        assert (operating.stop(), serving.wait() if serving is operating else serving.stop()) == (0, 0)
    assert "a defect" not in serving.log + operating.log


@pytest.fixture(scope="module")
def together(own_postgres: EmbeddedPostgres, template: str) -> Generator[Installation]:
    with installed(create_database(own_postgres, template), apart=False) as installation:
        yield installation


@pytest.fixture(scope="module")
def apart(own_postgres: EmbeddedPostgres, template: str) -> Generator[Installation]:
    with installed(create_database(own_postgres, template), apart=True) as installation:
        yield installation


PHASES = ("planning", "creating", "copying", "indexing", "vacuuming", "verifying", "switching", "waiting", "dropping")

# Held by locks that the client's requests would wait for as well.
NOBODY_IS_SERVED = ("planning", "copying", "verifying")


def some(*phases: str) -> pytest.MarkDecorator:
    """These phases, where not all of them are asked for; each is among those of one test."""
    return pytest.mark.parametrize("phase", PHASES if LONG else phases)


def require_survival(installation: Installation, phase: str, crashes: Callable[[], None]) -> None:
    """The rebuild goes on to the end, and nothing is lost or left."""
    bands = installation.other_bands()
    with held(installation.database, phase, installation.rebuild_begins(bands)) as rebuild:
        if phase not in NOBODY_IS_SERVED:
            use(installation.client)
        crashes()
    installation.recover()
    installation.require_rebuilt(rebuild, bands)
    assert installation.database.runs(rebuild) > 1
    installation.require_sound()


@pytest.mark.parametrize("installation", ["together", "apart"])
def test_a_signal_breaks_a_rebuild_off_and_the_next_start_resumes_it(
    request: pytest.FixtureRequest, installation: str
) -> None:
    chosen: Installation = request.getfixturevalue(installation)
    bands = chosen.other_bands()
    with held(chosen.database, "indexing", chosen.rebuild_begins(bands)) as rebuild:
        assert chosen.operating.stop() == 0
        assert chosen.database.progress(rebuild)[0] == "indexing"
        assert not chosen.database.sessions()
    assert "Traceback" not in chosen.operating.log
    chosen.recover()
    chosen.require_rebuilt(rebuild, bands)
    assert chosen.database.runs(rebuild) == 2


@pytest.mark.long
@some("planning", "verifying", "waiting")
def test_a_rebuild_survives_that_the_serving_process_is_killed(together: Installation, phase: str) -> None:
    require_survival(together, phase, together.kill)


@pytest.mark.long
@some("copying", "vacuuming", "dropping")
def test_a_rebuild_survives_that_the_worker_is_killed(apart: Installation, phase: str) -> None:
    require_survival(apart, phase, apart.kill)


def test_what_is_canceled_while_nobody_works_on_it_is_removed(apart: Installation) -> None:
    bands = apart.other_bands()
    with held(apart.database, "indexing", apart.rebuild_begins(bands)) as rebuild:
        apart.kill()
    apart.cancel(rebuild)
    use(apart.client)  # writes go to both tables
    apart.recover()
    assert apart.finished("rebuilds", rebuild)["status"] == "canceled"
    apart.database.require_one_layout(7 - bands)
    apart.require_sound()


@pytest.mark.long
@some("creating", "indexing", "switching")
def test_a_rebuild_survives_a_crash_of_postgresql(
    own_postgres: EmbeddedPostgres, apart: Installation, phase: str
) -> None:
    require_survival(apart, phase, partial(crash, own_postgres))


# Processes that stand still for a while


@dataclass(frozen=True)
class Replicas:
    """Two serving processes, a client of one and several of the other, and two workers."""

    administration: Administration
    client: LoadClient
    there: Service
    clients_there: list[LoadClient]
    workers: tuple[Service, Service]


@pytest.fixture(scope="module")
def replicas(own_postgres: EmbeddedPostgres, template: str) -> Generator[Replicas]:
    database = create_database(own_postgres, template)
    settings: dict[str, str | float] = {"database_url": database.dsn, "layout_grace": 0}
    here, there = [Service((), run_operations=False, **settings) for _ in range(2)]
    first, second = [Worker(**settings) for _ in range(2)]
    oracle = Oracle(STORED)
    with all_running(here, there, first, second), ExitStack() as opened:
        client, *clients_there = [
            opened.enter_context(closing(LoadClient([url], oracle, PAGES, number=number, clients=5)))
            for number, url in enumerate([here.url, *[there.url] * 4])
        ]
        yield Replicas(Administration(database, here), client, there, clients_there, (first, second))
        for each in (here, there, first, second):
            each.process.terminate()
        assert [each.wait() for each in (here, there, first, second)] == [0] * 4
    assert "Traceback" not in here.log + there.log + first.log + second.log


def change_here(replicas: Replicas) -> list[int]:
    """What a process that stands still can't know of."""
    for _ in range(4):
        replicas.client.replace()
        replicas.client.create()
    return list(replicas.client.recent)


def test_a_serving_process_that_stands_still_over_switch_and_drop(replicas: Replicas) -> None:
    """It goes on with lookups that are on their way to a table that isn't there any more."""
    administration, database = replicas.administration, replicas.administration.database
    bands = administration.other_bands()
    others = replicas.clients_there
    with ThreadPoolExecutor() as threads:
        with ExitStack() as standstill, ExitStack() as jam:
            with held(database, "switching", administration.rebuild_begins(bands)) as rebuild:
                use(*others)
                jam.enter_context(session(database)).execute("LOCK TABLE collection IN ACCESS EXCLUSIVE MODE")
                on_their_way = [threads.submit(other.look_up) for other in others]
                eventually(lambda: database.value(JAMMED) == len(others))
                standstill.enter_context(replicas.there.paused())
            administration.require_rebuilt(rebuild, bands)
            jam.close()
            near = change_here(replicas)
        for lookup in on_their_way:
            lookup.result()
    for other in others:
        other.look_up(near)
        other.step()
    use(replicas.client, *others)
    administration.require_no_misses()


JAMMED = b"""
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'tiroir' AND wait_event = 'relation' AND datname = current_database()
"""


def test_a_serving_process_that_stands_still_over_the_switch(replicas: Replicas) -> None:
    """It goes on with the old bands, while another one writes that knows them as retired."""
    administration, database = replicas.administration, replicas.administration.database
    bands = administration.other_bands()
    with obstructed(database, "dropping"):
        with ExitStack() as standstill:
            with held(database, "switching", administration.rebuild_begins(bands)) as rebuild:
                sleep(2.5)  # until what it remembers is old, and read again
                for other in replicas.clients_there:
                    other.step()
                standstill.enter_context(replicas.there.paused())
            database.reaches(rebuild, "dropping")
            near = change_here(replicas)
        for other in replicas.clients_there:
            for fingerprint in near:
                other.look_up([fingerprint])
    administration.require_rebuilt(rebuild, bands)
    use(replicas.client, *replicas.clients_there)
    administration.require_no_misses()


@pytest.mark.parametrize("ended", [True, False], ids=["postgresql ends its session", "its session stays"])
def test_a_worker_that_stands_still_in_the_middle_of_the_copy(replicas: Replicas, ended: bool) -> None:
    """PostgreSQL ends a session in which nothing happens for a while; a test may say when that is over."""
    administration, (first, second) = replicas.administration, replicas.workers
    database, bands = administration.database, administration.other_bands()
    with ExitStack() as hold, ExitStack() as standstill:
        with second.paused():
            rebuild = hold.enter_context(held(database, "copying", administration.rebuild_begins(bands)))
        standstill.enter_context(first.paused())
        hold.close()
        if ended:
            [backend] = database.sessions()
            database.value(b"SELECT pg_terminate_backend(%s)", backend)
            administration.require_rebuilt(rebuild, bands)
        replicas.client.create(LATE)  # which is among those that are being copied
        use(replicas.client)
    administration.require_rebuilt(rebuild, bands)
    if ended:
        assert first.logs(f"operation {rebuild} was broken off")
    use(replicas.client)
    administration.require_no_misses()


# A full disk


def limit_files(postgres: EmbeddedPostgres, process: int, most: int) -> None:
    """For a process of the server no file may grow beyond `most` bytes, as if the disk were full.

    Done as the account that the server runs as: root may not do that everywhere.
    """
    data = Path(str(conninfo_to_dict(postgres.dsn())["host"])).stat()
    root = os.geteuid() == 0
    subprocess.run(
        ["/usr/bin/env", "prlimit", f"--pid={process}", f"--fsize={most}"],
        cwd="/",
        user=data.st_uid if root else None,
        group=data.st_gid if root else None,
        extra_groups=[] if root else None,
        check=True,
    )


def test_a_disk_that_fills_up_during_the_copy(own_postgres: EmbeddedPostgres, stored: Database) -> None:
    with (
        running(database_url=stored.dsn, layout_grace=0) as service,
        closing(LoadClient([service.url], Oracle(STORED), PAGES)) as client,
    ):
        most = 16 << 20  # as the files of PostgreSQL's log have
        add_fingerprints(stored, 140_000)  # so that a table with 16 bands has more than that
        administration = Administration(stored, service)
        with held(stored, "creating", administration.rebuild_begins(16)) as rebuild:
            [backend] = stored.sessions()
            limit_files(own_postgres, backend, most)
        while stored.sessions():
            client.step()
        found = administration.finished("rebuilds", rebuild)
        assert (found["status"], found["progress"]["phase"]) == ("failed", "copying")
        assert found["error"].startswith("PostgreSQL: could not extend file")
        stored.require_one_layout(4)
        use(client)
    assert "Traceback" not in service.log


def add_fingerprints(database: Database, size: int) -> None:
    """Of another collection."""
    with psycopg.connect(database.dsn) as connection:
        connection.execute("""
            INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)
            VALUES ('others', 'article', 3, 63, 20, true)
            """)
        connection.execute(
            """
            INSERT INTO document (collection_id, key, simhash, metadata)
            SELECT c.id, number::text, hashint8extended(number, 0) & 9223372036854775807, '{}'
            FROM collection c, generate_series(1, %s) number WHERE c.name = 'others'
            """,
            [size],
        )
        connection.execute("""
            INSERT INTO fingerprint (collection_id, simhash)
            SELECT DISTINCT collection_id, simhash FROM document d
            WHERE collection_id = (SELECT id FROM collection WHERE name = 'others')
            """)


# An upgrade

TEXT = " ".join(f"word{number}" for number in range(250))
NEGATIVE = -0x0123_4567_89AB_CDEF


def written_by_the_previous_release(database: Database) -> None:
    """Its statements, on its schema."""
    upgrade(database.dsn, "0001")
    page = digest(TEXT, ARTICLE)
    rows = [("shop", 63, "lyon", page), ("wide", 64, "negative", given(NEGATIVE)), ("wide", 64, "zero", given(0))]
    with psycopg.connect(database.dsn) as connection:
        for name, bits, key, its in rows:
            connection.execute(
                """
                INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)
                VALUES (%s, 'article', 3, %s, 20, true) ON CONFLICT DO NOTHING
                """,
                (name, bits),
            )
            connection.execute(
                """
                INSERT INTO document (collection_id, key, content_hash, simhash, words, text, metadata)
                SELECT id, %s, %s, %s, %s, %s, '{"town": "Lyon"}' FROM collection WHERE name = %s
                """,
                (key, its.content_hash, its.simhash, its.words, None if its.words is None else TEXT, name),
            )
            connection.execute(
                """
                INSERT INTO fingerprint (collection_id, simhash) SELECT id, %s FROM collection WHERE name = %s
                """,
                (its.simhash, name),
            )


def test_a_database_of_the_previous_release_is_upgraded_in_place(own_postgres: EmbeddedPostgres) -> None:
    database = create_database(own_postgres)
    written_by_the_previous_release(database)
    with (
        running(database_url=database.dsn, layout_grace=0) as service,
        service.client() as http,
    ):
        administration = Administration(database, service)

        def found(collection: str, **query: str) -> list[tuple[str, int, str]]:
            answer = http.get(f"/v1/collections/{collection}/near-duplicates", params=query).raise_for_status()
            return [(match["key"], match["distance"], match["match"]) for match in answer.json()["matches"]]

        def written(collection: str, key: str, **body: str) -> str:
            answer = http.put(f"/v1/collections/{collection}/documents/{key}", json=body).raise_for_status()
            return answer.json()["result"]

        assert found("shop", text=TEXT) == [("lyon", 0, "exact")]
        assert found("wide", fingerprint=to_hex(NEGATIVE ^ 5)) == [("negative", 2, "near")]
        assert found("wide", fingerprint=to_hex(SMALLEST)) == [("zero", 1, "near")]
        assert written("shop", "lyon", text=TEXT) == "unchanged"
        assert written("shop", "bordeaux", text=TEXT) == "created"
        assert written("wide", "below", fingerprint=to_hex(SMALLEST + 1)) == "created"
        administration.require_rebuilt(administration.rebuild_begins(3)(), 3)
        assert found("shop", text=TEXT) == [("bordeaux", 0, "exact"), ("lyon", 0, "exact")]
        assert found("wide", fingerprint=to_hex(NEGATIVE ^ 5)) == [("negative", 2, "near")]
        assert found("wide", fingerprint=to_hex(SMALLEST)) == [("zero", 1, "near"), ("below", 1, "near")]
        administration.require_no_misses(at_least=4)
        town = http.get("/v1/collections/shop/documents/lyon").raise_for_status().json()["metadata"]
        assert town == {"town": "Lyon"}
    assert "Traceback" not in service.log
