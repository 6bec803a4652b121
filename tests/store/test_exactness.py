"""A lookup finds what comparing every stored fingerprint finds: always all of it, and nothing else."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from random import Random

import psycopg
import pytest

from app.core.scheme import given
from app.runtime import Process
from app.service.fingerprinting import Simhash
from app.service.near_duplicates import Key, Options, plan_lookup
from app.settings import Settings
from app.store.lookups import Sought, queue_lookup
from tests.conftest import Server
from tests.store.brute_force import (
    LARGEST,
    SMALLEST,
    Stored,
    assert_right,
    flipped,
    nearest,
    planted,
    real_fingerprints,
    spread,
    uniform,
    within,
)
from tests.store.databases import create_collection, load, settings_of

THRESHOLDS = (*range(16), 20, 31, 40, 63)
LIMIT = 1000

# In a dictionary "a" comes before "B", "é" before "z" and "-" nowhere; by their bytes they come as they stand here.
KEYS = (" ", "-", "0", "B", "Z", "_", "a", "z", "~", "é", "ß", "日", "😀")

# Probing takes a second where it means nearly all values of all bands: one such lookup is enough.
PROBES = 20_000


@dataclass(frozen=True)
class Family:
    """Fingerprints of one kind, in a collection of their own."""

    bits: int
    fingerprints: tuple[int, ...]
    queries: tuple[int, ...]

    @cached_property
    def orphans(self) -> tuple[int, ...]:
        """Fingerprints of documents that are gone."""
        return self.fingerprints[5::7]

    @cached_property
    def documents(self) -> list[Stored]:
        """Some fingerprints have a few documents, most have one, the orphans none."""
        gone = set(self.orphans)
        return [
            Stored(f"{KEYS[(number + copy) % len(KEYS)]}{number}", simhash)
            for number, simhash in enumerate(self.fingerprints)
            if simhash not in gone
            for copy in range(4 if number % 11 == 0 else 1)
        ]


def family(bits: int, fingerprints: Sequence[int], queries: Sequence[int]) -> Family:
    return Family(bits, tuple(dict.fromkeys(fingerprints)), tuple(queries))


def sample(fingerprints: Sequence[int], bits: int = 63) -> Family:
    """Queries: some of the fingerprints themselves, and some with a few bits flipped."""
    random = Random(7)
    stored = random.sample(fingerprints, 2)
    near = [flipped(each, random.sample(range(bits), 2 + number)) for number, each in enumerate(stored)]
    return family(bits, fingerprints, [*stored, *near])


def neighbourhoods(bits: int, others: int) -> Family:
    """Around each query a fingerprint at every distance, or several, and others that are anywhere."""
    random = Random(bits)
    queries = uniform(random, 3, bits)
    around = [each for query in queries for each in (*planted(random, query, bits), *spread(query, bits))]
    return family(bits, around + uniform(random, others, bits), queries)


def edges(bits: int) -> Family:
    """Each bit alone, all but one, and the ends of the range."""
    every = flipped(0, range(bits))
    single = [flipped(0, [bit]) for bit in range(bits)]
    but_one = [flipped(every, [bit]) for bit in range(bits)]
    queries = [0, every, single[-1], flipped(0, [0, 16, 32, 48])]
    return family(bits, [0, every, *single, *but_one], queries)


@cache
def families() -> dict[str, Family]:
    return {
        "real_mixed": sample(real_fingerprints("real_mixed")),
        "real_one_site": sample(real_fingerprints("real_one_site")),
        "uniform": sample(uniform(Random(1), 2000, 63)),
        "planted": neighbourhoods(63, others=500),
        "edges": edges(63),
        "planted_64_bits": neighbourhoods(64, others=500),
        "edges_64_bits": edges(64),
        "all_8_bits": family(8, range(256), [0, 255, 0b10101010]),
        "planted_20_bits": neighbourhoods(20, others=300),
        "planted_32_bits": neighbourhoods(32, others=300),
    }


@pytest.fixture(scope="module")
def loaded(server: Server) -> Generator[str]:
    """All families, each in its collection of one database, where many share their fingerprints."""
    conninfo = server.create("exactness")
    with psycopg.connect(conninfo) as connection:
        for name, each in families().items():
            load(connection, create_collection(connection, name, bits=each.bits), each.documents, each.orphans)
    yield conninfo
    server.drop("exactness")


@pytest.fixture
def settings(loaded: str) -> Settings:
    return settings_of(loaded, pool_max_size=1)


def test_the_extremes_are_among_the_families() -> None:
    assert {0, LARGEST, 2**62} <= set(families()["edges"].fingerprints)
    assert {0, LARGEST, SMALLEST, -1} <= set(families()["edges_64_bits"].fingerprints)
    assert all(any(each < 0 for each in family.queries) for name, family in families().items() if "64" in name)


@pytest.mark.parametrize("name", families())
async def test_a_lookup_equals_the_comparison_with_all(service: Process, name: str) -> None:
    for simhash in families()[name].queries:
        everything = nearest(families()[name].documents, simhash, 64)
        for threshold in THRESHOLDS:
            found = await service.services.near_duplicates.find(
                name, Simhash(simhash, "/simhash"), Options(threshold, LIMIT), explain=False
            )
            assert_right(found.matches, within(everything, threshold), limit=LIMIT)


@pytest.mark.parametrize("scan", [False, True], ids=["probing", "scanning"])
@pytest.mark.parametrize("name", families())
async def test_probing_and_scanning_are_both_exact(service: Process, name: str, scan: bool) -> None:
    place = await service.catalog.place(name)
    probes = dict.fromkeys(THRESHOLDS, 0)
    async with service.database.connection() as connection:
        for simhash in families()[name].queries:
            everything = nearest(families()[name].documents, simhash, 64)
            for threshold in THRESHOLDS:
                if not scan and probes[threshold] > PROBES:
                    continue
                planned = await plan_lookup(service.profiles, connection, place, Options(threshold, LIMIT))
                lookup = replace(planned, scan=scan)
                probes[threshold] += lookup.probes.probes
                matches = await (await queue_lookup(connection, lookup, Sought(given(simhash)))).result()
                assert_right(matches, within(everything, threshold), limit=LIMIT)


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize("limit", [1, 2, 10, 100])
async def test_a_limit_keeps_the_nearest(service: Process, name: str, limit: int) -> None:
    simhash = families()[name].queries[-1]
    everything = nearest(families()[name].documents, simhash, 64)
    for threshold in (0, 3, 10, 63):
        found = await service.services.near_duplicates.find(
            name, Simhash(simhash, "/simhash"), Options(threshold, limit), explain=False
        )
        assert_right(found.matches, within(everything, threshold), limit=limit)


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize("threshold", [0, 3, 10])
async def test_a_lookup_by_key_leaves_out_that_document_alone(service: Process, name: str, threshold: int) -> None:
    documents = families()[name].documents
    for document in documents[::400]:
        expected = nearest(documents, document.simhash, threshold, except_key=document.key)
        for limit in (LIMIT, 1):
            found = await service.services.near_duplicates.find(
                name, Key(document.key), Options(threshold, limit), explain=False
            )
            assert_right(found.matches, expected, limit=limit)


async def test_the_plan_that_a_lookup_reports_counts_what_it_read(service: Process) -> None:
    family = families()["uniform"]
    for threshold, scan in ((3, False), (40, True)):
        found = await service.services.near_duplicates.find(
            "uniform", Simhash(family.queries[0], "/simhash"), Options(threshold, LIMIT), explain=True
        )
        assert found.explanation
        assert found.explanation.scan == scan
        read = len(family.fingerprints) if scan else _sharing_a_block(family.fingerprints, family.queries[0])
        assert found.explanation.candidates == read


def _sharing_a_block(fingerprints: Sequence[int], simhash: int) -> int:
    """Counted once for each of the four blocks that is shared."""
    return sum((each ^ simhash) >> shift & 0xFFFF == 0 for each in fingerprints for shift in (0, 16, 32, 48))
