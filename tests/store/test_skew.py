"""One page that stands in a collection many thousand times costs a lookup no more than what it returns."""

import os
from collections.abc import Generator
from dataclasses import replace
from itertools import product

import psycopg
import pytest

from app.core.scheme import given
from app.runtime import Process
from app.service.fingerprinting import Simhash
from app.service.near_duplicates import Key, Options, plan_lookup
from app.settings import Settings
from app.store.lookups import Sought, queue_lookup
from tests.conftest import Server
from tests.store.brute_force import Stored, assert_right, flipped, nearest, within
from tests.store.databases import create_collection, load, settings_of
from tests.store.plans import executed_plan

# The template of a page, as most pages of a crawl that failed have it; others are a bit away, the rest is elsewhere.
COPIED = 5560564293996351713


class Crawl:
    def __init__(self, conninfo: str, size: int) -> None:
        self.conninfo = conninfo
        self.copies = size // 4
        copies = [Stored(f"copy {number}", COPIED) for number in range(self.copies)]
        near = [Stored(f"near {number}", flipped(COPIED, [number % 63])) for number in range(size // 100)]
        rest = [
            Stored(f"page {number}", number * 0x9E3779B97F4A7C15 % 2**63)
            for number in range(1, size - len(copies) - len(near) + 1)
        ]
        self.documents = [*copies, *near, *rest]
        with psycopg.connect(conninfo, autocommit=True) as connection:
            load(connection, create_collection(connection, "crawl"), self.documents)
            connection.execute("ANALYZE")


# TIROIR_LONG=1 has ten times as many as well.
SIZES = [20_000, *([200_000] if os.environ.get("TIROIR_LONG") == "1" else [])]


@pytest.fixture(scope="module", params=SIZES)
def crawl(server: Server, request: pytest.FixtureRequest) -> Generator[Crawl]:
    yield Crawl(server.create("skew"), request.param)
    server.drop("skew")


@pytest.fixture
def settings(crawl: Crawl) -> Settings:
    return settings_of(crawl.conninfo, pool_max_size=1)


async def test_the_answer_is_right_and_cut(service: Process, crawl: Crawl) -> None:
    everything = nearest(crawl.documents, COPIED, 7)
    for threshold, limit in product((0, 1, 3, 7), (1, 20, 1000)):
        found = await service.services.near_duplicates.find(
            "crawl", Simhash(COPIED, "/simhash"), Options(threshold, limit), explain=False
        )
        assert_right(found.matches, within(everything, threshold), limit=limit)
        assert found.matches.truncated


async def test_the_other_copies_of_a_copy_are_found(service: Process, crawl: Crawl) -> None:
    found = await service.services.near_duplicates.find("crawl", Key("copy 7"), Options(3, 20), explain=False)
    assert_right(found.matches, nearest(crawl.documents, COPIED, 3, except_key="copy 7"), limit=20)


@pytest.mark.parametrize("scan", [False, True], ids=["probing", "scanning"])
async def test_documents_are_read_as_far_as_they_are_returned(service: Process, crawl: Crawl, scan: bool) -> None:
    assert crawl.copies > 1000
    place = await service.catalog.place("crawl")
    async with service.database.connection() as connection:
        for except_key, limit in product((None, "copy 1"), (1, 20)):
            planned = await plan_lookup(service.profiles, connection, place, Options(3, limit))
            lookup, sought = replace(planned, scan=scan), Sought(given(COPIED), except_key)
            await (await queue_lookup(connection, lookup, sought)).result()
            plan = await executed_plan(connection, lookup, sought)
            # One more than asked for, the excepted one, and what a sort by groups of 32 rows reads ahead.
            assert sum(node.rows for node in plan.on("document")) <= 2 * limit + 40
