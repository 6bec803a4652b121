"""Analyses beside what all pairs of documents, one by one, say."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from random import Random
from typing import Any

import anyio
import networkx as nx
import psycopg
import pytest
from psycopg import sql

from app.core.errors import (
    AnalysisNotFoundError,
    AnalysisTooLargeError,
    AnalysisUnfinishedError,
    CollectionNotFoundError,
    InvalidInputError,
    NotCancelableError,
    SchemesDifferError,
)
from app.core.model import (
    Change,
    Cluster,
    Clustering,
    Difference,
    Flagged,
    Json,
    Member,
    Operation,
    OperationKind,
    OperationStatus,
    Pair,
    Preference,
    WithoutFingerprint,
)
from app.core.scheme import ARTICLE, Scheme
from app.runtime import process
from app.service import analysis
from app.service.analyses import WITHOUT_FINGERPRINT, NewAnalysis
from app.service.housekeeping import Housekeeping
from app.settings import Settings
from app.store import analyses
from tests.service.operations import Gate, Moment, Worker, opened
from tests.store.brute_force import SMALLEST, distance, flipped, real_fingerprints, signed, uniform
from tests.store.pages import Pages
from tests.store.plans import entries_read

TABLES = ("analysis", "analysis_cluster", "analysis_fingerprint", "analysis_block", "analysis_difference")
PHASES = ("reading", "pairing", "clustering", "writing")


@pytest.fixture
async def worker(settings: Settings) -> AsyncGenerator[Worker]:
    async with opened(settings) as works:
        yield works


@dataclass
class Reports:
    """Analyses of one collection, as they end, and all that they tell."""

    worker: Worker
    pages: Pages

    async def begin(
        self,
        threshold: int | None = 3,
        clusters: Clustering = Clustering.COMPONENTS,
        representative: Preference = Preference.OLDEST,
        against: str | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        new = NewAnalysis(threshold, clusters, representative, against)
        begin = self.worker.services.analyses.begin
        return await begin(self.pages.name, new, idempotency_key=idempotency_key)

    async def get(self, operation_id: int) -> Operation:
        return await self.worker.services.analyses.get(self.pages.name, operation_id)

    async def run(
        self,
        threshold: int | None = 3,
        clusters: Clustering = Clustering.COMPONENTS,
        representative: Preference = Preference.OLDEST,
        against: str | None = None,
    ) -> Operation:
        begun = await self.begin(threshold, clusters, representative, against)
        await self.worker.perform(begun.id)
        ended = await self.get(begun.id)
        assert ended.status is OperationStatus.SUCCEEDED, ended.error
        return ended

    async def clusters(self, operation: Operation, limit: int = 7) -> list[Cluster]:
        found: list[Cluster] = []
        while part := await self.worker.services.analyses.clusters(
            self.pages.name, operation.id, after=found[-1].number if found else 0, limit=limit
        ):
            found += part
        return found

    async def members(self, operation: Operation, cluster: int, limit: int = 3) -> list[Member]:
        found: list[Member] = []
        while part := await self.worker.services.analyses.members(
            self.pages.name, operation.id, cluster, after=_place(found), limit=limit
        ):
            found += part
        return found

    async def flagged(self, operation: Operation, limit: int = 5) -> list[Flagged]:
        found: list[Flagged] = []
        while part := await self.worker.services.analyses.documents(
            self.pages.name, operation.id, after=_place(found), limit=limit
        ):
            found += part
        return found

    async def pairs(self, operation: Operation, limit: int = 11) -> list[Pair]:
        found: list[Pair] = []
        while part := await self.worker.services.analyses.pairs(
            self.pages.name, operation.id, start=len(found), limit=limit
        ):
            found += part
        return found

    async def differences(self, operation: Operation, change: Change | None = None, limit: int = 3) -> list[Difference]:
        found: list[Difference] = []
        while part := await self.worker.services.analyses.differences(
            self.pages.name, operation.id, change=change, after=found[-1].key if found else "", limit=limit
        ):
            found += part
        return found


def _place(found: Sequence[Flagged]) -> tuple[int, str]:
    if not found:
        return 0, ""
    last = found[-1]
    return last.number if isinstance(last, Member) else WITHOUT_FINGERPRINT, last.key


@pytest.fixture
def reports(worker: Worker) -> Reports:
    return Reports(worker, Pages(worker.services))


def left(observer: psycopg.Connection) -> dict[str, int]:
    """Rows of results that there are."""
    counts: dict[str, int] = {}
    for table in TABLES:
        row = observer.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        assert row
        counts[table] = row[0]
    return counts


NOTHING = dict.fromkeys(TABLES, 0)


# What all pairs say


def components_of(stored: dict[str, int], threshold: int) -> set[frozenset[str]]:
    """What chains of documents within the threshold connect: more than one."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_edges_from((a, b) for a, b in combinations(stored, 2) if distance(stored[a], stored[b]) <= threshold)
    return {frozenset(component) for component in nx.connected_components(graph)}


def histogram_of(stored: dict[str, int], threshold: int) -> list[int]:
    """At 0 the fingerprints that several documents share, beyond the pairs of distinct ones."""
    documents = Counter(stored.values())
    counts = [0] * (threshold + 1)
    counts[0] = sum(count > 1 for count in documents.values())
    for a, b in combinations(documents, 2):
        if distance(a, b) <= threshold:
            counts[distance(a, b)] += 1
    return counts


def widest(keys: frozenset[str], stored: dict[str, int]) -> int:
    return max(distance(stored[a], stored[b]) for a, b in combinations(keys, 2))


async def members_by_cluster(reports: Reports, operation: Operation) -> dict[int, list[Member]]:
    return {
        cluster.number: await reports.members(operation, cluster.number)
        for cluster in await reports.clusters(operation)
    }


def alike(random: Random, bits: int, families: int, most: int) -> list[int]:
    """Families of fingerprints a few bits from one another, some of them equal, and the top bit among those."""
    found: list[int] = []
    for centre in uniform(random, families, bits):
        for _ in range(random.randint(1, most)):
            flips = random.sample(range(bits), random.choice((0, 0, 1, 2, 3, 5)))
            found.append(flipped(random.choice([centre, *found[-2:]]), flips))
    return found


async def stored_by(reports: Reports, simhashes: Sequence[int]) -> dict[str, int]:
    """In an order of keys that has nothing to do with the fingerprints; the oldest first."""
    stored = {f"{(number * 7919) % len(simhashes):05}-{number}": each for number, each in enumerate(simhashes)}
    for start in range(0, len(stored), 500):
        await reports.pages.put_many(dict(list(stored.items())[start : start + 500]))
    return stored


@pytest.mark.parametrize("bits", [63, 64, 12])
@pytest.mark.parametrize("threshold", [0, 1, 3, 5, 10])
async def test_components_are_what_chains_of_documents_connect(reports: Reports, bits: int, threshold: int) -> None:
    random = Random(bits * 100 + threshold)
    await reports.worker.services.collections.create(
        reports.pages.name, Scheme(ARTICLE.tokenizer, 3, bits, 20), store_text=True
    )
    stored = await stored_by(reports, [*alike(random, bits, 40, 5), *([SMALLEST, SMALLEST, -1] if bits == 64 else [])])
    analyzed = await reports.run(threshold)
    expected = components_of(stored, threshold)
    clusters = await reports.clusters(analyzed)
    members = await members_by_cluster(reports, analyzed)
    assert {frozenset(each.key for each in listed) for listed in members.values()} == expected
    assert [cluster.number for cluster in clusters] == list(range(1, len(expected) + 1))
    assert [cluster.documents for cluster in clusters] == sorted(map(len, expected), reverse=True)
    for cluster in clusters:
        listed = members[cluster.number]
        keys = frozenset(each.key for each in listed)
        representative = stored[cluster.representative]
        assert cluster.representative in keys
        assert (cluster.diameter, cluster.diameter_is_exact) == (widest(keys, stored), True)
        assert cluster.fingerprints == len({stored[key] for key in keys})
        assert [each.distance for each in listed] == sorted(
            distance(stored[each.key], representative) for each in listed
        )
        assert all(each.distance == distance(stored[each.key], representative) for each in listed)
        assert [(each.key, each.simhash, each.distance) for each in listed][:10] == cluster.members
    assert analyzed.result
    assert analyzed.result["histogram"] == histogram_of(stored, threshold)
    assert analyzed.result["documents"] == len(stored)
    assert analyzed.result["fingerprints"] == len(set(stored.values()))
    assert analyzed.result["near_duplicated"] == sum(map(len, expected))
    assert analyzed.result["clusters"] == len(expected)
    assert analyzed.result["largest_cluster"] == max(map(len, expected), default=0)
    assert analyzed.result["widest_cluster"] == max((widest(keys, stored) for keys in expected), default=0)


@pytest.mark.parametrize("threshold", [0, 3, 6])
async def test_stars_are_near_their_representatives_who_are_the_oldest_and_apart(
    reports: Reports, threshold: int
) -> None:
    stored = await stored_by(reports, alike(Random(threshold), 63, 60, 6))
    # In one transaction all are as old, so the key decides.
    analyzed = await reports.run(threshold, Clustering.STAR, Preference.FIRST_KEY)
    members = await members_by_cluster(reports, analyzed)
    centres: list[str] = []
    for listed in members.values():
        keys = [each.key for each in listed]
        assert listed[0].representative == min(keys)
        assert all(distance(stored[key], stored[min(keys)]) <= threshold for key in keys)
        assert all(each.distance == distance(stored[each.key], stored[min(keys)]) for each in listed)
        centres.append(min(keys))
    assert all(distance(stored[a], stored[b]) > threshold for a, b in combinations(centres, 2))
    flagged = {key for component in components_of(stored, threshold) for key in component}
    in_a_star = [each.key for listed in members.values() for each in listed]
    assert len(in_a_star) == len(set(in_a_star))
    # A fingerprint whose neighbours all went to other stars stands alone, and is one of these clusters.
    assert set(in_a_star) == flagged


@pytest.mark.parametrize(
    ("threshold", "name"), [(3, "real_one_site"), (7, "real_one_site"), (3, "real_mixed"), (10, "real_mixed")]
)
async def test_pairs_of_real_fingerprints_are_those_of_brute_force(reports: Reports, threshold: int, name: str) -> None:
    stored = await stored_by(reports, real_fingerprints(name)[:1500])
    analyzed = await reports.run(threshold)
    found = await reports.pairs(analyzed, limit=1000)
    expected = {
        frozenset((a, b)): distance(a, b) for a, b in combinations(stored.values(), 2) if distance(a, b) <= threshold
    }
    assert len(expected) > 0
    assert len(found) == len(expected)
    assert {
        frozenset((pair.first.simhash, pair.second.simhash)): pair.distance for pair in found if pair.second
    } == expected
    keys = {simhash: key for key, simhash in stored.items()}
    assert all(pair.first.keys == [keys[pair.first.simhash]] for pair in found)
    nearest = {
        each.simhash: each.nearest for each in await reports.flagged(analyzed, limit=500) if isinstance(each, Member)
    }
    assert nearest == {
        simhash: min(away for pair, away in expected.items() if simhash in pair)
        for simhash in frozenset[int]().union(*expected)
    }


async def test_documents_of_one_fingerprint_are_one_pair_and_listed_once(reports: Reports) -> None:
    """Fingerprints that are equal are neither missing nor counted a pair of documents each."""
    await reports.pages.put_many({"a": 5560564293996351713, "b": 5560564293996351713, "c": 4611686018427387904})
    analyzed = await reports.run()
    [pair] = await reports.pairs(analyzed)
    assert (pair.distance, pair.first.documents, pair.first.keys, pair.second) == (0, 2, ["a", "b"], None)
    assert analyzed.result
    assert analyzed.result["histogram"] == [1, 0, 0, 0]
    assert [(each.key, each.nearest) for each in await reports.members(analyzed, 1)] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("copies", [2, 3, 1000])
async def test_one_document_of_each_cluster_is_to_be_kept(reports: Reports, copies: int) -> None:
    singles = uniform(Random(1), 5, 63)
    stored = {f"single-{number}": each for number, each in enumerate(singles)}
    stored |= {f"copy-{number:04}": 77 for number in range(copies)}
    await reports.pages.put_many({key: stored[key] for key in sorted(stored)})
    analyzed = await reports.run(representative=Preference.FIRST_KEY)
    clusters = await reports.clusters(analyzed)
    assert [(cluster.representative, cluster.documents) for cluster in clusters] == [("copy-0000", copies)]
    flagged = {each.key for each in await reports.flagged(analyzed, limit=400)}
    kept = (set(stored) - flagged) | {cluster.representative for cluster in clusters}
    assert len(kept) == 1 + len(singles)
    detail = await reports.worker.services.collections.describe(reports.pages.name)
    assert detail[1].documents == len(stored)  # nothing was deleted


CHAIN = (1229782938247303441, 1229782938247303446, 1229782938252546326, 1229788435810685206)


async def test_a_chain_is_one_component_that_tells_how_wide_it_is_or_several_stars(reports: Reports) -> None:
    assert [distance(a, b) for a, b in pairwise(CHAIN)] == [3, 3, 3]
    await reports.pages.put_many({str(number): each for number, each in enumerate(CHAIN)})
    [component] = await reports.clusters(await reports.run(3, Clustering.COMPONENTS))
    assert (component.documents, component.diameter, component.diameter_is_exact) == (4, 9, True)
    stars = await reports.clusters(await reports.run(3, Clustering.STAR))
    assert [star.documents for star in stars] == [2, 2]
    assert all(away <= 3 for star in stars for _, _, away in star.members)


async def test_a_chain_of_fifty_is_one_component_and_many_stars(reports: Reports) -> None:
    """Each three bits from the next, as long as the bits last, then back with others."""
    random = Random(50)
    chain = [random.getrandbits(63)]
    while len(chain) < 50:
        following = flipped(chain[-1], random.sample(range(63), 3))
        if all(distance(following, each) > 3 for each in chain[:-1]):
            chain.append(following)
    await reports.pages.put_many({f"{number:02}": signed(each) for number, each in enumerate(chain)})
    [component] = await reports.clusters(await reports.run(3))
    assert component.documents == 50
    assert component.diameter == max(distance(a, b) for a, b in combinations(chain, 2)) > 9
    stars = await reports.clusters(await reports.run(3, Clustering.STAR))
    assert len(stars) > 10
    assert sum(star.documents for star in stars) == 50
    assert max(star.diameter for star in stars) <= 6


@pytest.mark.parametrize("count", [2000])
async def test_a_long_chain_is_one_component(reports: Reports, count: int) -> None:
    """Neighbours of a Gray code differ in one bit. core/test_clusters.py has ten times as many."""
    await stored_by(reports, [number ^ (number >> 1) for number in range(count)])
    [component] = await reports.clusters(await reports.run(1))
    assert (component.documents, component.diameter) == (count, 11)


# Digits are no letters: words of them alone would all be one.
WORDS = ["".join(pair) for pair in product("abcdefgh", "mnopqrst")][:60]
TEXT = " ".join(WORDS)


async def test_documents_without_a_fingerprint_have_exact_duplicates_alone(reports: Reports) -> None:
    await reports.pages.put_many({"long-1": TEXT, "long-2": TEXT, "short-1": "two words", "short-2": "Two  Words"})
    await reports.pages.put_many({"short-3": "three words here", "near": TEXT.replace(WORDS[-1], "other")})
    analyzed = await reports.run(threshold=63)
    assert analyzed.result
    told = {name: analyzed.result[name] for name in ("documents", "fingerprints", "too_short", "near_duplicated")}
    assert told == {"documents": 6, "fingerprints": 2, "too_short": 3, "near_duplicated": 3}
    assert (analyzed.result["exact_duplicated"], analyzed.result["exact_groups"]) == (4, 2)
    flagged = await reports.flagged(analyzed, limit=2)
    in_clusters = [(each.key, each.exact) for each in flagged if isinstance(each, Member)]
    assert sorted(in_clusters) == [("long-1", True), ("long-2", True), ("near", False)]
    assert flagged[3:] == [WithoutFingerprint(f"short-{number}", "short-1") for number in (1, 2)]


PREFERRED = {
    Preference.OLDEST: "c-first-of-all",
    Preference.LONGEST: "bb",
    Preference.SHORTEST_KEY: "d",
    Preference.FIRST_KEY: "a-key-that-is-long",
}


@pytest.mark.parametrize("clustering", list(Clustering))
@pytest.mark.parametrize("preference", list(Preference))
async def test_the_representative_is_the_one_that_is_asked_for(
    reports: Reports, observer: psycopg.Connection, preference: Preference, clustering: Clustering
) -> None:
    await reports.pages.put("c-first-of-all", 1)
    await reports.pages.put("a-key-that-is-long", 1)
    await reports.pages.put("bb", 3)
    await reports.pages.put("d", 3)
    observer.execute("UPDATE document SET words = CASE key WHEN 'bb' THEN 90 WHEN 'd' THEN NULL ELSE 50 END")
    [cluster] = await reports.clusters(await reports.run(3, clustering, preference))
    assert cluster.representative == PREFERRED[preference]
    assert cluster.members[0][2] == 0


async def test_an_empty_collection_has_nothing(reports: Reports) -> None:
    await reports.worker.services.collections.create(reports.pages.name, ARTICLE, store_text=True)
    analyzed = await reports.run()
    assert analyzed.result
    assert (analyzed.result["documents"], analyzed.result["clusters"], analyzed.result["histogram"]) == (0, 0, [0] * 4)
    assert await reports.clusters(analyzed) == await reports.flagged(analyzed) == await reports.pairs(analyzed) == []


async def test_every_threshold_there_is_can_be_asked_for(reports: Reports) -> None:
    stored = await stored_by(reports, uniform(Random(63), 30, 63))
    for threshold in (20, 31, 45, 63):
        analyzed = await reports.run(threshold)
        assert analyzed.result
        assert analyzed.result["histogram"] == histogram_of(stored, threshold)


async def test_without_a_threshold_it_is_that_of_lookups(reports: Reports) -> None:
    await reports.pages.put("a", 1)
    assert (await reports.begin(None)).parameters["threshold"] == 3


# Again after changes


async def everything(reports: Reports, analyzed: Operation) -> tuple[object, ...]:
    """What an analysis tells, whatever it was made from."""
    assert analyzed.result
    told = {
        name: value
        for name, value in analyzed.result.items()
        if name not in ("seconds", "moment", "plan", "based_on", "memory_bytes")
    }
    return (
        told,
        await reports.clusters(analyzed),
        await reports.pairs(analyzed, limit=500),
        await reports.flagged(analyzed, limit=300),
    )


@pytest.mark.parametrize("clustering", list(Clustering))
@pytest.mark.parametrize("threshold", [3, 6])
async def test_an_analysis_after_changes_tells_what_one_from_nothing_tells(
    reports: Reports, clustering: Clustering, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from the pairs of an earlier one, of the same or of a higher threshold."""
    random = Random(threshold)
    stored = await stored_by(reports, [*alike(random, 63, 300, 5), *uniform(random, 1000, 63)])
    before = await reports.run(6, clustering, Preference.FIRST_KEY)
    monkeypatch.setattr(analysis, "_KNOWN_PAIR_SECONDS", 0.0)
    gone = random.sample(sorted(stored), 60)
    await reports.worker.services.documents.delete_many(reports.pages.name, gone)
    kept = [simhash for key, simhash in stored.items() if key not in gone]
    new = [flipped(random.choice(kept), random.sample(range(63), random.randint(0, 4))) for _ in range(40)]
    await reports.pages.put_many({f"new-{number}": each for number, each in enumerate(new)})
    repeated = await reports.run(threshold, clustering, Preference.FIRST_KEY)
    assert repeated.result
    assert repeated.result["based_on"] == before.id
    told = await everything(reports, repeated)
    monkeypatch.setattr(analysis, "_KNOWN_PAIR_SECONDS", 1e9)
    anew = await reports.run(threshold, clustering, Preference.FIRST_KEY)
    assert anew.result
    assert anew.result["based_on"] is None
    assert told == await everything(reports, anew)


async def test_an_analysis_of_a_lower_threshold_is_none_to_go_on_from(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_by(reports, alike(Random(1), 63, 50, 5))
    await reports.run(3)
    monkeypatch.setattr(analysis, "_KNOWN_PAIR_SECONDS", 0.0)
    higher = await reports.run(4)
    assert higher.result
    assert higher.result["based_on"] is None


# What happens meanwhile


async def test_it_speaks_of_one_moment(reports: Reports) -> None:
    """Writes and deletions while it runs, after the moment, are in none of its numbers, and not in its lists."""
    await reports.pages.put_many({"a": 1, "b": 3, "gone": 1, "alone": 2**62 - 1})
    begun = await reports.begin()
    gate = Gate("reading")
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
        await reports.pages.put("later", 1)
        await reports.pages.put("near-alone", 2**62 - 2)
        await reports.pages.delete("gone")
        gate.open()
        await task
    analyzed = await reports.get(begun.id)
    assert analyzed.result
    assert (analyzed.result["documents"], analyzed.result["near_duplicated"]) == (4, 3)
    [cluster] = await reports.clusters(analyzed)
    assert (cluster.documents, cluster.representative) == (3, "a")
    assert [each.key for each in await reports.members(analyzed, 1)] == ["a", "b"]
    assert [each.key for each in await reports.flagged(analyzed)] == ["a", "b"]


async def test_lists_hold_who_still_has_the_content_of_that_moment(
    reports: Reports, observer: psycopg.Connection
) -> None:
    """Not who has come by the same fingerprint later; a change of metadata alone changes nothing."""
    await reports.pages.put_many({"a": 7, "b": 15, "replaced": 2**60 - 1, "replaced-many": 2**50 - 1})
    analyzed = await reports.run(2)
    await reports.pages.put("replaced", 7)
    await reports.pages.put_many({"replaced-many": 7, "new": 7})
    await reports.pages.put("a", 7, {"seen": True})
    assert [each.key for each in await reports.members(analyzed, 1)] == ["a", "b"]
    assert [each.key for each in await reports.flagged(analyzed)] == ["a", "b"]
    [cluster] = await reports.clusters(analyzed)
    assert [key for key, _, _ in cluster.members] == ["a", "b"]
    [pair] = await reports.pairs(analyzed)
    assert pair.first.keys == ["a"]
    for analysis_id in (None, analyzed.id):
        listed, _ = await reports.worker.services.analyses.flagged(
            reports.pages.name, analysis_id, is_flagged=True, after="", limit=9
        )
        assert [document.key for document in listed] == ["a", "b"]
    await reports.pages.put("b", 2**55)
    assert [each.key for each in await reports.flagged(analyzed)] == ["a"]
    assert observer.execute("SELECT count(*) FROM document WHERE content_at > updated_at").fetchone() == (0,)


async def test_one_of_several_analyses_may_be_asked_for_whom_it_flagged(reports: Reports) -> None:
    await reports.pages.put_many({"a": 0, "b": 1, "c": 15})
    narrow, wide = await reports.run(1), await reports.run(4)
    for analysis_id, expected in ((narrow.id, ["a", "b"]), (wide.id, ["a", "b", "c"]), (None, ["a", "b", "c"])):
        listed, _ = await reports.worker.services.analyses.flagged(
            reports.pages.name, analysis_id, is_flagged=True, after="", limit=9
        )
        assert [document.key for document in listed] == expected
    with pytest.raises(AnalysisNotFoundError):
        await reports.worker.services.analyses.flagged(
            reports.pages.name, wide.id + 1, is_flagged=True, after="", limit=9
        )


@pytest.mark.parametrize("phase", PHASES)
async def test_one_that_is_broken_off_anywhere_begins_anew(
    reports: Reports, observer: psycopg.Connection, phase: str
) -> None:
    stored = await stored_by(reports, alike(Random(5), 63, 30, 4))
    begun = await reports.begin()
    gate = Gate(phase)
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
    assert left(observer) == NOTHING
    await reports.worker.perform(begun.id)
    analyzed = await reports.get(begun.id)
    assert (analyzed.status, analyzed.runs) == (OperationStatus.SUCCEEDED, 2)
    members = await members_by_cluster(reports, analyzed)
    assert {frozenset(each.key for each in listed) for listed in members.values()} == components_of(stored, 3)


async def test_one_that_is_broken_off_after_its_results_are_there_has_them(
    reports: Reports, observer: psycopg.Connection
) -> None:
    await reports.pages.put_many({"a": 1, "b": 3})
    analyzed = await reports.run()
    observer.execute("UPDATE operation SET status = 'running', result = NULL, finished_at = NULL")
    await reports.pages.put("c", 1)
    await reports.worker.perform(analyzed.id)
    assert (await reports.get(analyzed.id)).result == analyzed.result
    assert left(observer)["analysis"] == 1


@pytest.mark.parametrize("phase", PHASES)
async def test_one_that_is_canceled_leaves_nothing(reports: Reports, observer: psycopg.Connection, phase: str) -> None:
    await reports.pages.put_many({"a": 1, "b": 3})
    begun = await reports.begin()

    async def cancel(moment: Moment) -> None:
        if moment.phase == phase and moment.told:
            await reports.worker.services.analyses.cancel(reports.pages.name, begun.id)
            gate = Gate(phase, told=False)
            await gate(Moment(phase, told=False))  # until the watch has seen it

    await reports.worker.perform(begun.id, cancel)
    assert (await reports.get(begun.id)).status is OperationStatus.CANCELED
    assert left(observer) == NOTHING
    with pytest.raises(AnalysisUnfinishedError, match="canceled"):
        await reports.clusters(await reports.get(begun.id))
    with pytest.raises(NotCancelableError):
        await reports.worker.services.analyses.cancel(reports.pages.name, begun.id)


async def test_two_at_once_both_end_right(reports: Reports) -> None:
    stored = await stored_by(reports, alike(Random(9), 63, 30, 4))
    first, second = await reports.begin(3), await reports.begin(3)
    gate = Gate("clustering")
    async with reports.worker.performing(first.id, gate) as task:
        await gate.reached(task)
        await reports.worker.perform(second.id)
        gate.open()
        await task
    for begun in (first, second):
        members = await members_by_cluster(reports, await reports.get(begun.id))
        assert {frozenset(each.key for each in listed) for listed in members.values()} == components_of(stored, 3)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_collection_that_is_deleted_meanwhile_ends_it_and_leaves_nothing(
    reports: Reports, observer: psycopg.Connection, phase: str
) -> None:
    await reports.pages.put_many({"a": 1, "b": 3})
    begun = await reports.begin()
    housekeeping = Housekeeping(reports.worker.process.database)
    gate = Gate(phase)
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
        await reports.worker.services.collections.delete(reports.pages.name)
        await housekeeping.do_what_is_due()
        gate.open()
        await task
    ended = await reports.worker.services.operations.get(OperationKind.ANALYSIS, begun.id)
    assert (ended.status, ended.error) == (
        OperationStatus.FAILED,
        "the collection was deleted while it was analysed",
    )
    await housekeeping.do_what_is_due()
    assert left(observer) == NOTHING
    assert observer.execute("SELECT count(*) FROM operation").fetchone() == (0,)
    assert observer.execute("SELECT count(*) FROM deleted_collection").fetchone() == (0,)


async def test_a_collection_that_is_gone_before_it_begins_fails_it(reports: Reports) -> None:
    await reports.pages.put("a", 1)
    begun = await reports.begin()
    await reports.worker.services.collections.delete(reports.pages.name)
    await reports.worker.perform(begun.id)
    ended = await reports.worker.services.operations.get(OperationKind.ANALYSIS, begun.id)
    assert (ended.status, ended.error) == (
        OperationStatus.FAILED,
        "the collection was deleted before it was analysed",
    )


# How long results stay


async def test_results_stay_until_the_next_of_the_same_settings(reports: Reports, observer: psycopg.Connection) -> None:
    await reports.pages.put_many({"a": 1, "b": 3, "other": 2**40})
    housekeeping = Housekeeping(reports.worker.process.database)
    first, other = await reports.run(3), await reports.run(4)
    await housekeeping.do_what_is_due()
    assert len(await reports.clusters(first)) == 1
    failed = await reports.begin(3)
    await reports.worker.services.analyses.cancel(reports.pages.name, failed.id)
    await housekeeping.do_what_is_due()
    assert len(await reports.clusters(first)) == 1
    second = await reports.run(3)
    await housekeeping.do_what_is_due()
    with pytest.raises(AnalysisNotFoundError):
        await reports.clusters(first)
    listed = await reports.worker.services.analyses.page(reports.pages.name, before=2**31, limit=10)
    assert [each.id for each in listed] == [second.id, other.id]
    assert left(observer)["analysis"] == 2
    assert left(observer)["analysis_cluster"] == 2


async def test_a_deleted_analysis_is_gone_with_all_it_found(reports: Reports, observer: psycopg.Connection) -> None:
    await reports.pages.put_many({"a": 1, "b": 3})
    analyzed = await reports.run()
    compared = await Reports(reports.worker, Pages(reports.worker.services)).pages.put("c", 1)
    assert compared
    await reports.worker.services.analyses.delete(reports.pages.name, analyzed.id)
    with pytest.raises(AnalysisNotFoundError):
        await reports.get(analyzed.id)
    with pytest.raises(AnalysisNotFoundError):
        await reports.worker.services.analyses.delete(reports.pages.name, analyzed.id)
    await Housekeeping(reports.worker.process.database).do_what_is_due()
    assert left(observer) == NOTHING


async def test_one_that_runs_is_not_deleted(reports: Reports) -> None:
    await reports.pages.put("a", 1)
    begun = await reports.begin()
    with pytest.raises(AnalysisUnfinishedError, match="cancel it first"):
        await reports.worker.services.analyses.delete(reports.pages.name, begun.id)
    with pytest.raises(AnalysisUnfinishedError, match="queued"):
        await reports.clusters(begun)


async def test_an_analysis_belongs_to_its_collection(reports: Reports) -> None:
    await reports.pages.put_many({"a": 1, "b": 1})
    analyzed = await reports.run()
    elsewhere = Reports(reports.worker, Pages(reports.worker.services))
    await elsewhere.pages.put("a", 1)
    with pytest.raises(AnalysisNotFoundError):
        await elsewhere.get(analyzed.id)
    with pytest.raises(AnalysisNotFoundError):
        await elsewhere.clusters(analyzed)
    with pytest.raises(AnalysisNotFoundError):
        await elsewhere.worker.services.analyses.delete(elsewhere.pages.name, analyzed.id)
    assert len(await reports.clusters(analyzed)) == 1


async def test_the_same_key_finds_the_same_analysis(reports: Reports) -> None:
    await reports.pages.put("a", 1)
    first = await reports.begin(idempotency_key="k")
    assert (await reports.begin(idempotency_key="k")).id == first.id
    elsewhere = Reports(reports.worker, Pages(reports.worker.services))
    await elsewhere.pages.put("a", 1)
    with pytest.raises(InvalidInputError, match="Idempotency-Key"):
        await elsewhere.begin(idempotency_key="k")


# Memory


async def test_what_memory_cannot_hold_is_refused_before_it_begins(settings: Settings) -> None:
    small = settings.model_copy(update={"analysis_memory": 160})
    async with process(small) as parts:
        reports = Reports(Worker(parts), Pages(parts.services))
        await stored_by(reports, uniform(Random(1), 3000, 63))
        await parts.services.documents.analyze()  # the size is the planner's
        await reports.begin(3, Clustering.STAR)
        await reports.begin(40)
        with pytest.raises(AnalysisTooLargeError, match="MB, and TIROIR_ANALYSIS_MEMORY allows 160"):
            await reports.begin(40, Clustering.STAR)


async def test_a_step_may_take_longer_than_sessions_may_idle(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.service.snapshots._AWAKE_SECONDS", 0.05)
    monkeypatch.setattr("app.store.database._SNAPSHOT_IDLE", "1s")
    monkeypatch.setattr("app.store.database._OPERATION_IDLE_SECONDS", 1.0)
    await reports.pages.put_many({"a": 1, "b": 3})
    begun = await reports.begin()
    gate = Gate("clustering")
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
        await anyio.sleep(2)
        gate.open()
        await task
    assert (await reports.get(begun.id)).status is OperationStatus.SUCCEEDED


async def test_a_statement_may_take_longer_than_sessions_may_idle(
    reports: Reports, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the operation idles meanwhile, and nobody else may take it up."""
    monkeypatch.setattr("app.service.snapshots._AWAKE_SECONDS", 0.05)
    monkeypatch.setattr("app.store.database._OPERATION_IDLE_SECONDS", 1.0)
    await reports.pages.put_many({"a": 1, "b": 3})
    begun = await reports.begin()
    async with reports.worker.performing(begun.id) as task:
        with observer.transaction():
            observer.execute("LOCK TABLE analysis_fingerprint IN ACCESS EXCLUSIVE MODE")
            await anyio.sleep(3)
        await task
    assert (await reports.get(begun.id)).status is OperationStatus.SUCCEEDED


async def test_memory_is_stated_before_pairs_are_sought(reports: Reports) -> None:
    await stored_by(reports, uniform(Random(1), 100, 63))
    begun = await reports.begin(3)
    gate = Gate("clustering")
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
        stated = (await reports.get(begun.id)).checkpoint["memory_bytes"]
        gate.open()
        await task
    assert isinstance(stated, int)
    assert stated > 100_000_000


def no_pairs(*_: object) -> float:
    return 0.0


@pytest.mark.parametrize("goes_on", [False, True], ids=["from nothing", "from an earlier one"])
async def test_more_pairs_than_were_expected_end_it(
    settings: Settings, reports: Reports, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """A sample may have none of them."""
    await stored_by(reports, uniform(Random(3), 600, 10))
    monkeypatch.setattr(analysis, "expected_pairs", no_pairs)
    if goes_on:
        await reports.run(10)
        monkeypatch.setattr(analysis, "_KNOWN_PAIR_SECONDS", 0.0)
    begun = await reports.begin(9)
    async with opened(settings.model_copy(update={"analysis_memory": 101})) as small:
        await small.perform(begun.id)
    ended = await reports.get(begun.id)
    assert ended.status is OperationStatus.FAILED
    assert ended.error
    assert "take a lower threshold" in ended.error


# The flagged among all documents


@pytest.mark.parametrize("read", [1, 3, 1000])
async def test_the_list_of_documents_tells_which_are_flagged(
    reports: Reports, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service.analyses._READ", read)
    stored = await stored_by(reports, [*alike(Random(2), 63, 10, 3), *uniform(Random(3), 20, 63)])
    await reports.pages.put("too-short", "one")
    with pytest.raises(AnalysisNotFoundError):
        await reports.worker.services.analyses.flagged(reports.pages.name, None, is_flagged=True, after="", limit=5)
    await reports.run()
    expected = {key for component in components_of(stored, 3) for key in component}
    for is_flagged in (True, False):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page, after = await reports.worker.services.analyses.flagged(
                reports.pages.name, None, is_flagged=is_flagged, after=after, limit=4
            )
            found += [document.key for document in page]
        assert found == sorted(expected if is_flagged else {*stored, "too-short"} - expected)


# What a page costs


async def test_a_page_costs_what_it_holds_however_large_the_cluster(
    reports: Reports, observer: psycopg.Connection
) -> None:
    """Entries of indexes that are read for it, anywhere among five thousand copies and a long chain."""
    stored = {f"copy-{number:05}": 0 for number in range(5000)}
    stored |= {f"chain-{number:05}": number ^ (number >> 1) for number in range(1, 3000)}
    for start in range(0, len(stored), 1000):
        await reports.pages.put_many(dict(list(stored.items())[start : start + 1000]))
    analyzed = await reports.run(1)
    await reports.worker.services.documents.analyze()
    observer.execute("VACUUM ANALYZE")
    assert await _entries(reports, "clusters", analysis_id=analyzed.id, after=0, limit=10, most_members=10) < 100
    for number, after in ((0, ""), (0, "copy-02500"), (0, "copy-04999"), (1500, ""), (2990, "")):
        page = {"analysis_id": analyzed.id, "number": number, "after": after, "end": 3000, "limit": 10}
        assert await _entries(reports, "members", **page) < 150, (number, after)
    assert await _entries(reports, "pairs", analysis_id=analyzed.id, start=2000, limit=10) < 10
    assert await _entries(reports, "described", analysis_id=analyzed.id, numbers=[0, 1, 2999], keys=10) < 40


async def _entries(reports: Reports, read: str, **arguments: Any) -> int:
    """How many are read by a statement, by the plan that a session makes for any values."""
    async with reports.worker.process.database.connection() as connection, connection.transaction():
        before = sum((await entries_read(connection)).values())
        found = await getattr(analyses, read)(connection, **arguments)
        assert len(found) >= 1
        return sum((await entries_read(connection)).values()) - before


# Exact duplicates


async def test_exact_duplicates_are_groups_the_largest_first(reports: Reports) -> None:
    texts = ["one", TEXT, "two words"]
    counts = [3, 12, 2]
    for text, count in zip(texts, counts, strict=True):
        await reports.pages.put_many({f"{text[:5]}-{number:02}": text for number in range(count)})
    await reports.pages.put_many({"alone": "quite alone", "given-1": 5, "given-2": 5})
    documents = reports.worker.services.documents
    groups = await documents.exact_groups(reports.pages.name, after=(2**62, b""), limit=10)
    assert [(group.documents, group.keys[0], len(group.keys)) for group in groups] == [
        (12, "am an-00", 10),
        (3, "one-00", 3),
        (2, "two w-00", 2),
    ]
    paged = [
        await documents.exact_groups(reports.pages.name, after=(last.documents, last.content_hash), limit=1)
        for last in groups
    ]
    assert paged == [[groups[1]], [groups[2]], []]
    keys = await documents.keys_of_content(reports.pages.name, groups[0].content_hash, after="am an-08", limit=2)
    assert keys == ["am an-09", "am an-10"]


async def test_groups_of_the_same_size_come_page_by_page_too(reports: Reports) -> None:
    for number in range(5):
        await reports.pages.put_many({f"{number}-a": f"text {number}", f"{number}-b": f"text {number}"})
    documents = reports.worker.services.documents
    found: list[str] = []
    after = (2**62, b"")
    while page := await documents.exact_groups(reports.pages.name, after=after, limit=2):
        found += [group.keys[0] for group in page]
        after = (page[-1].documents, page[-1].content_hash)
    assert sorted(found) == [f"{number}-a" for number in range(5)]


async def test_exact_duplicates_of_no_collection(reports: Reports) -> None:
    with pytest.raises(CollectionNotFoundError):
        await reports.worker.services.documents.exact_groups("nowhere", after=(9, b""), limit=1)


# Across crawls


@pytest.mark.parametrize("threshold", [0, 3, 7])
async def test_a_comparison_tells_what_became_of_each_document(reports: Reports, threshold: int) -> None:
    random = Random(threshold)
    old = {f"{number:03}": each for number, each in enumerate(alike(random, 63, 40, 3))}
    new = {key: each for key, each in old.items() if random.random() < 0.8}
    for key in random.sample(sorted(new), 25):
        new[key] = flipped(new[key], random.sample(range(63), random.choice((1, 2, 3, 5, 8, 30))))
    gone = sorted(set(old) - set(new))
    gone = random.sample(gone, len(gone) // 2)  # the others stay gone
    for number in range(40):
        source = random.choice([old[random.choice(gone)], old[random.choice(sorted(old))], random.getrandbits(63)])
        new[f"came-{number:02}"] = flipped(source, random.sample(range(63), random.choice((0, 0, 1, 3, 4, 7))))
    earlier = Pages(reports.worker.services)
    await earlier.put_many(old)
    await reports.pages.put_many(new)
    compared = await reports.run(threshold, against=earlier.name)
    found = {each.key: each for each in await reports.differences(compared, None)}
    assert list(found) == sorted(found)

    for key in old.keys() & new.keys():
        away = distance(new[key], old[key])
        if away == 0:
            assert key not in found
        else:
            change = Change.NEARLY_UNCHANGED if away <= threshold else Change.CHANGED
            assert found[key] == Difference(key, change, away, key)
    moved = {each.counterpart: each.key for each in found.values() if each.change is Change.MOVED}
    assert len(moved) == sum(each.change is Change.MOVED for each in found.values())  # each was one document
    for was, key in moved.items():
        assert was in old.keys() - new.keys()
        assert key in new.keys() - old.keys()
        assert found[key].distance == distance(old[was], new[key]) <= threshold
    arrived = new.keys() - old.keys() - set(moved.values())
    left_behind = old.keys() - new.keys() - moved.keys()
    assert not {new[key] for key in arrived} & {old[key] for key in left_behind}
    for keys, mine, others, change in ((arrived, new, old, Change.NEW), (left_behind, old, new, Change.GONE)):
        for key in keys:
            away = min(distance(mine[key], each) for each in others.values())
            assert found[key].change is change
            assert found[key].distance == (away if away <= threshold else None)
            counterpart = found[key].counterpart
            assert (counterpart is None) == (away > threshold)
            assert counterpart is None or distance(mine[key], others[counterpart]) == away
    assert set(found) == {key for key in old.keys() & new.keys() if old[key] != new[key]} | {
        *moved.values(),
        *arrived,
        *left_behind,
    }

    assert len(moved) > 3
    assert len(arrived) > 3
    assert len(left_behind) > 1
    counts = Counter(each.change for each in found.values())
    counts[Change.UNCHANGED] = sum(old[key] == new[key] for key in old.keys() & new.keys())
    assert compared.result
    assert {change: compared.result[change] for change in Change} == {change: counts[change] for change in Change}
    for change in Change:
        listed = [each.key for each in await reports.differences(compared, change)]
        if change is Change.UNCHANGED:
            assert listed == sorted(key for key in old.keys() & new.keys() if old[key] == new[key])
        else:
            assert listed == [key for key, each in found.items() if each.change is change]
    nearly = Counter(each.distance for each in found.values() if each.change is Change.NEARLY_UNCHANGED)
    assert compared.result["histogram"] == [nearly[away] for away in range(threshold + 1)]
    assert (compared.result["documents"], compared.result["documents_before"]) == (len(new), len(old))


async def test_what_has_gone_is_told_even_where_its_content_stays(reports: Reports) -> None:
    """A page is gone though its copy is there, and a copy of a page that stays is new: both name what is there."""
    earlier = Pages(reports.worker.services)
    await earlier.put_many({"page": TEXT, "copy": TEXT})
    await reports.pages.put_many({"page": TEXT, "another-copy-1": TEXT, "another-copy-2": TEXT})
    compared = await reports.run(3, against=earlier.name)
    assert await reports.differences(compared) == [
        Difference("another-copy-1", Change.MOVED, 0, "copy"),
        Difference("another-copy-2", Change.NEW, 0, "copy"),
    ]
    await reports.worker.services.documents.delete_many(reports.pages.name, ["another-copy-1", "another-copy-2"])
    compared = await reports.run(3, against=earlier.name)
    assert await reports.differences(compared) == [Difference("copy", Change.GONE, 0, "page")]


async def test_texts_are_compared_by_their_content(reports: Reports) -> None:
    """Without a fingerprint, too; the same fingerprint of other words is nearly unchanged."""
    earlier = Pages(reports.worker.services)
    other = TEXT.replace(WORDS[-1], "other")
    await earlier.put_many({"same": "two words", "moved": "three words here", "edited": "four of them, short"})
    await earlier.put_many({"page": TEXT, "gone": "gone for good"})
    await reports.pages.put_many({"same": "two words", "elsewhere": "Three words here"})
    await reports.pages.put_many({"edited": "five of them, short", "page": other, "new": "never seen"})
    compared = await reports.run(63, against=earlier.name)
    found = {each.key: (each.change, each.counterpart) for each in await reports.differences(compared)}
    assert found == {
        "elsewhere": (Change.MOVED, "moved"),
        "edited": (Change.CHANGED, "edited"),
        "page": (Change.NEARLY_UNCHANGED, "page"),
        "new": (Change.NEW, None),
        "gone": (Change.GONE, None),
    }
    assert await reports.differences(compared, Change.UNCHANGED) == [Difference("same", Change.UNCHANGED, None, "same")]


async def test_a_comparison_of_collections_that_are_empty(reports: Reports) -> None:
    earlier = Pages(reports.worker.services)
    for name in (reports.pages.name, earlier.name):
        await reports.worker.services.collections.create(name, ARTICLE, store_text=True)
    compared = await reports.run(3, against=earlier.name)
    told: dict[str, Json] = dict.fromkeys(Change, 0)
    assert compared.result
    assert {change: compared.result[change] for change in Change} == told


async def test_what_cannot_be_compared_is_refused(reports: Reports) -> None:
    await reports.pages.put("a", 1)
    with pytest.raises(InvalidInputError, match="another one"):
        await reports.begin(against=reports.pages.name)
    with pytest.raises(CollectionNotFoundError, match="nowhere"):
        await reports.begin(against="nowhere")
    await reports.worker.services.collections.create("wide", Scheme(ARTICLE.tokenizer, 3, 64, 20), store_text=True)
    with pytest.raises(SchemesDifferError):
        await reports.begin(against="wide")


async def test_an_analysis_has_no_differences_and_a_comparison_no_clusters(reports: Reports) -> None:
    earlier = Pages(reports.worker.services)
    await earlier.put("a", 1)
    await reports.pages.put("a", 1)
    compared, analyzed = await reports.run(against=earlier.name), await reports.run()
    with pytest.raises(AnalysisNotFoundError, match="compares two"):
        await reports.clusters(compared)
    with pytest.raises(AnalysisNotFoundError, match="no differences"):
        await reports.differences(analyzed)


async def test_the_earlier_collection_may_go_meanwhile(reports: Reports, observer: psycopg.Connection) -> None:
    earlier = Pages(reports.worker.services)
    await earlier.put("a", 1)
    await reports.pages.put("a", 1)
    begun = await reports.begin(against=earlier.name)
    gate = Gate("comparing")
    async with reports.worker.performing(begun.id, gate) as task:
        await gate.reached(task)
        await reports.worker.services.collections.delete(earlier.name)
        gate.open()
        await task
    ended = await reports.get(begun.id)
    assert (ended.status, left(observer)) == (OperationStatus.FAILED, NOTHING)
