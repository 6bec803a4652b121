"""Lookups over HTTP beside an endpoint that does nothing, on the real process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import uvloop

from app.core.fingerprint import to_hex
from bench.data import COLLECTION, Filled
from bench.load import Load, load

_CONNECTIONS = 8
_ROUNDS = 3  # in turn, so that a machine that slows down slows both
_PATIENCE = 60  # seconds


@dataclass(frozen=True, slots=True)
class Serving:
    idle: Load
    lookups: Load
    resident_megabytes: float | None  # of the process before its first request; None where /proc isn't


def measure(conninfo: str, filled: Filled, seconds: float) -> Serving:
    paths = [f"/v1/collections/{COLLECTION}/near-duplicates?fingerprint={to_hex(query)}" for query in filled.queries]
    with service(conninfo) as (port, process):
        resident = _resident_megabytes(process)
        rounds = [
            (
                uvloop.run(load(port, ["/livez"], connections=_CONNECTIONS, seconds=seconds)),
                uvloop.run(load(port, paths, connections=_CONNECTIONS, seconds=seconds)),
            )
            for _ in range(_ROUNDS)
        ]
    idle, lookups = sorted(rounds, key=lambda pair: pair[1].per_second / pair[0].per_second)[_ROUNDS // 2]
    return Serving(idle, lookups, resident)


@contextmanager
def service(conninfo: str, **settings: float) -> Generator[tuple[int, int]]:
    """The port and the process of a service that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {
        "TIROIR_DATABASE_URL": conninfo,
        "TIROIR_PORT": str(port),
        "TIROIR_LOG_LEVEL": "warning",
    }
    environment |= {f"TIROIR_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen([sys.executable, "-m", "app.cli", "serve"], env=environment)
    try:
        _wait(port)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE)


def _wait(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz"):
                return
        except URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _resident_megabytes(process: int) -> float | None:
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return None
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
