"""Lookups and writes while the bands are rebuilt again and again, each answer judged, beside the same load before."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import psycopg
from httpx2 import Client
from psycopg import sql
from psycopg.conninfo import make_conninfo

from app.postgres.migrate import migrate
from bench import serving
from bench.rebuild_load import Answered, Kind, Load, Oracle, documents, fill, under_load

BANDS = (3, 8, 4)  # one after the other, from the four that there are
_BEFORE_SECONDS = 20.0
_MOST_GRACE = 3.0  # seconds that the old bands stay, so that some requests meet both
_POLL_SECONDS = 0.1
_DATABASE = "under_load"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of lookups, in seconds; `requests` of all kinds were answered as they should be, and none was not."""

    requests: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class UnderLoad:
    size: int
    before: Quantiles
    rebuilds: dict[int, Quantiles]  # by the number of bands
    seconds: dict[int, float]


def measure(conninfo: str, size: int, seconds: float = _BEFORE_SECONDS) -> UnderLoad:
    """AssertionError at the first request that fails, or answer that is wrong."""
    stored = documents(size)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
    own = make_conninfo(conninfo, dbname=_DATABASE)
    migrate(own, connect_timeout=10)
    fill(own, stored)
    with serving.service(own, layout_grace=min(seconds, _MOST_GRACE)) as (port, _):
        url = f"http://127.0.0.1:{port}"
        with under_load([url], Oracle(stored), stored) as load, Client(base_url=url) as admin:
            time.sleep(seconds / 4)  # until caches and plans are warm
            start = time.monotonic()
            time.sleep(seconds)
            before = _quantiles(load, start, time.monotonic())
            rebuilds: dict[int, Quantiles] = {}
            durations: dict[int, float] = {}
            for bands in BANDS:
                start = time.monotonic()
                _rebuild(admin, bands, load)
                rebuilds[bands] = _quantiles(load, start, time.monotonic())
                durations[bands] = time.monotonic() - start
    return UnderLoad(size, before, rebuilds, durations)


def _rebuild(admin: Client, bands: int, load: Load) -> None:
    operation: dict[str, Any] = (
        admin.post("/v1/admin/rebuilds", json={"threshold": 3, "bands": bands}).raise_for_status().json()
    )
    while operation["finished_at"] is None:
        load.require_no_failure()
        time.sleep(_POLL_SECONDS)
        operation = admin.get(f"/v1/admin/rebuilds/{operation['id']}").raise_for_status().json()
    if operation["status"] != "succeeded":
        raise AssertionError(f"the rebuild has {operation['status']}: {operation['error']}")


def _quantiles(load: Load, start: float, end: float) -> Quantiles:
    answered = [each for of_client in load.answered(start, end) for each in of_client]
    cuts = quantiles(_seconds(answered), n=100)
    return Quantiles(len(answered), cuts[49], cuts[98])


def _seconds(answered: Iterable[Answered]) -> Iterator[float]:
    return (each.seconds for each in answered if each.kind is Kind.LOOKUP)
