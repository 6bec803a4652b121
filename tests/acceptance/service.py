"""Starts the real process, as a user would."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import psycopg
from httpx2 import Client, TransportError
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from app.postgres.embedded import EmbeddedPostgres

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds, for a shared machine


@contextmanager
def short_folder() -> Generator[Path]:
    """A folder with a short path, for a socket; other accounts can enter it, for the server where we are root."""
    folder = Path(tempfile.mkdtemp(prefix="tiroir-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Service:
    """`tiroir serve`, or another command that serves, with settings of its own; what it logs is kept."""

    def __init__(self, command: tuple[str, ...] = (), **settings: str | Path | float) -> None:
        self.port = free_port()
        self.environment = _without_settings(os.environ) | {
            f"TIROIR_{name.upper()}": str(value) for name, value in settings.items()
        }
        self.environment.setdefault("TIROIR_PORT", str(self.port))
        self._command = command or (sys.executable, "-m", "app.cli", "serve")
        self._log: list[str] = []

    def start(self) -> Self:
        self.process = subprocess.Popen(
            ("/usr/bin/env", *self._command),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        return self

    def _read(self, output: IO[str]) -> None:
        with output:
            self._log.extend(output)

    @property
    def log(self) -> str:
        return "".join(self._log)

    def logs(self, text: str) -> bool:
        """Whether this is logged, or is so soon: a pipe and a thread are between us."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.log and time.monotonic() < deadline:
            time.sleep(0.02)
        return text in self.log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Client:
        return Client(base_url=self.url, timeout=PATIENCE)

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + PATIENCE
        with self.client() as client:
            while True:
                assert self.process.poll() is None, self.log
                try:
                    if client.get("/readyz").status_code == 200:
                        return self
                except TransportError:
                    pass
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Its process doesn't run within the block, as on a machine that sleeps or swaps."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(("TIROIR_", "PG"))}


class Worker(Service):
    """`tiroir worker`."""

    def __init__(self, **settings: str | Path | float) -> None:
        super().__init__((sys.executable, "-m", "app.cli", "worker"), **settings)

    def wait_until_ready(self) -> Self:
        assert self.logs("working on operations"), self.log
        return self


@contextmanager
def running(**settings: str | Path | float) -> Generator[Service]:
    """A service that is ready, and stopped at the end if it still runs."""
    with all_running(Service((), **settings)) as [service]:
        yield service


@contextmanager
def working(**settings: str | Path | float) -> Generator[Service]:
    """A worker, likewise."""
    with all_running(Worker(**settings)) as [worker]:
        yield worker


@contextmanager
def all_running(*services: Service) -> Generator[tuple[Service, ...]]:
    """The same for several, which start at once."""
    with ExitStack() as stopped:
        for service in services:
            stopped.enter_context(stopped_at_the_end(service.start()))
        for service in services:
            service.wait_until_ready()
        yield services


@contextmanager
def stopped_at_the_end(service: Service) -> Generator[Service]:
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def new_database(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.dsn(name)


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def crash(postgres: EmbeddedPostgres) -> None:
    """Ends the server at once, without a checkpoint, and starts it again: it recovers from its log."""
    folder = conninfo_to_dict(postgres.dsn())["host"]
    postmaster, *_ = (Path(str(folder)) / "postmaster.pid").read_text().splitlines()
    os.kill(int(postmaster), signal.SIGQUIT)
    postgres.stop()  # waits until the last process of the server is gone
    postgres.start()


def ends(process: int) -> bool:
    """Whether a process that isn't our child has ended, or does so soon: its parent may still have to reap it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
