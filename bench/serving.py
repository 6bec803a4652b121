"""Lookups over HTTP beside an endpoint that does nothing, on the real process."""

import json
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
from bench.load import Load, get, load, post

_CONNECTIONS = 8
_BATCH_CONNECTIONS = 2
_ROUNDS = 3  # in turn, so that a machine that slows down slows both
_PATIENCE = 60  # seconds


@dataclass(frozen=True, slots=True)
class Serving:
    idle: Load
    lookups: Load
    batched_per_second: float  # lookups, all queries a request
    resident_megabytes: float | None  # of the process before its first request; None where /proc isn't


def measure(conninfo: str, filled: Filled, seconds: float) -> Serving:
    path = f"/v1/collections/{COLLECTION}/near-duplicates"
    fingerprints = [to_hex(query) for query in filled.queries]
    lookups = [get(f"{path}?fingerprint={fingerprint}") for fingerprint in fingerprints]
    queries = {"queries": [{"fingerprint": fingerprint} for fingerprint in fingerprints], "threshold": 3}
    batch = [post(f"{path}/batch", json.dumps(queries).encode())]
    with service(conninfo) as (port, process):
        resident = megabytes(process, "VmRSS")
        rounds = [
            (
                uvloop.run(load(port, [get("/livez")], connections=_CONNECTIONS, seconds=seconds)),
                uvloop.run(load(port, lookups, connections=_CONNECTIONS, seconds=seconds)),
            )
            for _ in range(_ROUNDS)
        ]
        batches = uvloop.run(load(port, batch, connections=_BATCH_CONNECTIONS, seconds=seconds))
    idle, single = sorted(rounds, key=lambda pair: pair[1].per_second / pair[0].per_second)[_ROUNDS // 2]
    return Serving(idle, single, batches.per_second * len(filled.queries), resident)


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


def megabytes(process: int, name: str) -> float | None:
    """Of its memory now (VmRSS) or at most until now (VmHWM); None where /proc isn't."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return None
    [line] = [line for line in status.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024
