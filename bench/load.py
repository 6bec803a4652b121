"""A client that costs next to nothing, so that the server is what is measured: raw HTTP over kept connections."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import quantiles
from typing import cast


@dataclass(frozen=True, slots=True)
class Load:
    per_second: float
    p50: float  # seconds
    p99: float


class _Client(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next, until time is up."""

    def __init__(
        self, requests: Iterator[bytes], until: float, latencies: list[float], done: asyncio.Future[None]
    ) -> None:
        self._requests = requests
        self._until = until
        self._latencies = latencies
        self._done = done
        self._received = b""
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class isn't a subclass
        self._send(self._transport)

    def _send(self, transport: asyncio.Transport) -> None:
        self._sent = time.perf_counter()
        transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if self._transport is None or not length or len(body) < int(length):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._transport.close()
            self._done.set_exception(RuntimeError(self._received.decode()))
            return
        now = time.perf_counter()
        self._latencies.append(now - self._sent)
        self._received = b""
        if now < self._until:
            self._send(self._transport)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def get(path: str) -> bytes:
    """The request, as it goes over the wire."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    """The same, for a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def load(port: int, each: Sequence[bytes], *, connections: int, seconds: float) -> Load:
    """Throughput and latency of these requests, over and over. RuntimeError at an answer other than 200."""
    requests = cycle(each)
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    ends: list[asyncio.Future[None]] = []
    start = time.perf_counter()
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        ends.append(done)
        client = _Client(requests, start + seconds, latencies, done)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    await asyncio.wait_for(asyncio.gather(*ends), seconds + 60)
    cuts = quantiles(latencies, n=100)
    return Load(len(latencies) / (time.perf_counter() - start), cuts[49], cuts[98])
