from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import (
    BANDS,
    THRESHOLDS,
    WIDTHS,
    ball,
    band_values,
    live_positions,
    random_fingerprint,
    real_fingerprints,
    signed,
)

from app.core.cost import (
    ALWAYS_PROBE_BELOW,
    BAND_COST,
    CANDIDATE_COST,
    CHOSEN_FOR_AT_LEAST,
    LOOKUP_COST,
    MAX_BANDS,
    MIN_BANDS,
    PROBE_COST,
    PROBE_COST_FROM,
    PROBE_GROWTH,
    SCAN_ROW_COST,
    WORTH_A_REBUILD,
    Cost,
    Profile,
    Sample,
    cheapest_bands,
    cost,
    costs_by_bands,
    grown,
    likeness,
    mean_costs,
    probe_cost,
    uniform,
)
from app.core.layout import Layout, cut
from app.core.probes import NOT_PROBED, ProbePlan, plan_probes

SIZES = (0, 1, 10, 100, 1_000, 10_000, 100_000, 10**6, 10**7, 10**8, 10**9)
UNEVEN = Layout((40, 9, 5, 4, 3, 3))


def probes(threshold: int, *, bands: int = 4, bits: int = 63) -> ProbePlan:
    return plan_probes(cut(bands), bits, threshold)


def cost_of(plan: ProbePlan, fingerprints: int) -> Cost:
    """In a collection of uniform fingerprints."""
    return cost(plan, Profile(fingerprints, uniform(plan.layout, plan.bits)))


def scans(plan: ProbePlan, fingerprints: int) -> bool:
    return cost_of(plan, fingerprints).scan_is_cheaper


def share_read(plan: ProbePlan) -> Fraction:
    """How much of a uniform collection the probes read: a row once for each band that finds it."""
    live = live_positions(plan.layout.widths, plan.bits)
    parts = zip(plan.probes_by_band, live, strict=True)
    return sum((Fraction(count, 2 ** len(positions)) for count, positions in parts), Fraction(0))


# What a lookup costs


def test_a_cost_is_the_sum_of_what_the_lookup_does() -> None:
    """The constants as they stand, times what the plan and the size say."""
    for bands, bits, threshold, size in product((2, 4, 16), (8, 63, 64), (0, 3, 7, 20), SIZES):
        plan = probes(threshold, bands=bands, bits=bits)
        found = cost_of(plan, size)
        assert found.candidates == pytest.approx(float(share_read(plan) * size))
        assert found.scan == pytest.approx(LOOKUP_COST + SCAN_ROW_COST * size)
        parts = (LOOKUP_COST, BAND_COST * bands, probe_cost(size) * plan.probes, CANDIDATE_COST * found.candidates)
        assert found.probing == pytest.approx(sum(parts))


def test_a_probe_costs_more_in_a_larger_index() -> None:
    assert probe_cost(10**6) == PROBE_COST
    assert probe_cost(10**7) == pytest.approx(PROBE_COST * 10**PROBE_GROWTH)
    assert probe_cost(0) == probe_cost(PROBE_COST_FROM) < PROBE_COST


def test_the_cheaper_way_is_what_a_lookup_costs() -> None:
    most = ALWAYS_PROBE_BELOW
    assert Cost(candidates=0, probing=most, scan=0).cheaper == most  # probed all the same
    assert Cost(candidates=0, probing=2 * most, scan=most).cheaper == most
    assert Cost(candidates=0, probing=2 * most, scan=2 * most).cheaper == 2 * most
    assert Cost(candidates=0, probing=2 * most, scan=3 * most).cheaper == 2 * most
    ways = [(most, 0.0), (2 * most, most), (2 * most, 2 * most), (2 * most, 3 * most)]
    assert [Cost(candidates=0, probing=p, scan=s).scan_is_cheaper for p, s in ways] == [False, True, False, False]


@pytest.mark.parametrize("bands", BANDS)
def test_every_plan_gets_an_answer_at_every_size(bands: int) -> None:
    """Total and fast: 2^33 probes are counted, neither listed nor too large to multiply."""
    for bits, threshold, size in product(range(1, 65), THRESHOLDS, (0, 2**63)):
        assert scans(probes(threshold, bands=bands, bits=bits), size) in {True, False}


@pytest.mark.parametrize("threshold", range(4))
def test_the_article_s_threshold_never_scans(threshold: int) -> None:
    assert not any(scans(probes(threshold), size) for size in SIZES)


@pytest.mark.parametrize(
    ("size", "threshold"), [(10**6, k) for k in (3, 5, 7, 10, 12, 15)] + [(10**7, k) for k in (3, 5, 7, 9, 10)]
)
def test_probing_is_taken_where_it_was_measured_to_win(size: int, threshold: int) -> None:
    """On four bands: 8.7 ms against 43 at a million and threshold 15, 9.6 ms against 636 at ten million and 10."""
    assert not scans(probes(threshold), size)


@pytest.mark.parametrize("threshold", [32, 40, 50, 63])
@pytest.mark.parametrize("bands", range(2, 9))
def test_a_threshold_that_half_of_everything_meets_scans(bands: int, threshold: int) -> None:
    """Where the collection is large enough for the question: some hundred probes are never given up."""
    plan = probes(threshold, bands=bands)
    asked = [size for size in SIZES if cost_of(plan, size).probing > ALWAYS_PROBE_BELOW]
    assert 10**6 in asked
    assert all(scans(plan, size) for size in asked)


@pytest.mark.parametrize("bands", BANDS)
def test_the_largest_threshold_scans_any_collection_worth_the_question(bands: int) -> None:
    """Where two bands or more find almost everything, each row would be read as many times."""
    judged = 0
    for bits, size in product(WIDTHS, (10**5, 10**6, 10**9)):
        plan = probes(63, bands=bands, bits=bits)
        if share_read(plan) > Fraction(3, 2):
            judged += 1
            assert scans(plan, size), (bits, size)
    assert judged


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_small_collection_scans_where_the_probes_outnumber_it(size: int) -> None:
    dear = [threshold for threshold in THRESHOLDS if probe_cost(size) * probes(threshold).probes > ALWAYS_PROBE_BELOW]
    assert {15, 20, 31} <= set(dear)
    assert all(scans(probes(threshold), size) for threshold in dear)


@pytest.mark.parametrize("size", [0, 1, 100, 10_000])
@pytest.mark.parametrize("threshold", [3, 5, 7])
def test_a_few_probes_are_never_given_up_for_an_estimate_of_a_small_size(threshold: int, size: int) -> None:
    """Right after a bulk load the size is unknown or far too low: 10,000 may be a million."""
    assert not scans(probes(threshold), size)


@pytest.mark.parametrize("bands", BANDS)
def test_a_higher_threshold_never_turns_a_scan_into_probes(bands: int) -> None:
    for bits, size in product(WIDTHS, SIZES):
        ways = [scans(probes(threshold, bands=bands, bits=bits), size) for threshold in THRESHOLDS]
        assert ways == sorted(ways), (bits, size)


@pytest.mark.parametrize("bands", BANDS)
def test_a_growing_collection_is_judged_by_the_share_that_the_probes_read(bands: int) -> None:
    """What the probes themselves cost grows more slowly than the rows: in the end only these count."""
    limit = Fraction(SCAN_ROW_COST) / Fraction(CANDIDATE_COST)
    for bits, threshold in product(WIDTHS, THRESHOLDS):
        plan = probes(threshold, bands=bands, bits=bits)
        if abs(share_read(plan) / limit - 1) > Fraction(1, 1_000_000):
            assert scans(plan, 10**27) is (share_read(plan) > limit), plan


@pytest.mark.parametrize("bands", BANDS)
def test_no_lookup_lists_more_values_than_its_collection_is_worth(bands: int) -> None:
    """What bounds the memory and the array parameters of a lookup."""
    for size, threshold in product(SIZES, THRESHOLDS):
        most = max(ALWAYS_PROBE_BELOW, LOOKUP_COST + size * SCAN_ROW_COST) / probe_cost(size)
        plan = probes(threshold, bands=bands)
        assert plan.probes <= most or scans(plan, size), plan


# How alike fingerprints are


@pytest.mark.parametrize("bits", [1, 5, 8, 12])
@pytest.mark.parametrize("layout", [UNEVEN, *map(cut, (2, 4, 11, 16))], ids=lambda layout: str(len(layout.widths)))
def test_uniform_is_what_a_whole_small_world_counts(layout: Layout, bits: int) -> None:
    """Beside any one of all fingerprints there are."""
    everything = [band_values(each, layout.widths) for each in range(2**bits)]
    for a in (0, 2**bits - 1, 0xA5C & (2**bits - 1)):
        mine = band_values(a, layout.widths)
        for index, within in enumerate(uniform(layout, bits).within):
            apart = [(mine[index] ^ theirs[index]).bit_count() for theirs in everything]
            counted = [sum(each <= radius for each in apart) / 2**bits for radius in range(len(within))]
            assert list(within) == counted
            assert within[-1] == 1


@pytest.mark.parametrize("bands", BANDS)
def test_uniform_is_that_of_balls_at_every_width(bands: int) -> None:
    for bits in range(1, 65):
        found = uniform(cut(bands), bits)
        assert (found.layout, found.bits) == (cut(bands), bits)
        for within, live in zip(found.within, live_positions(cut(bands).widths, bits), strict=True):
            width = len(live)
            assert within == tuple(ball(width, radius) / 2**width for radius in range(width + 1))


def counted_likeness(sample: Sequence[int], layout: Layout, bits: int) -> list[list[Fraction]]:
    """By its definition: of all pairs, those within each radius on each band."""
    cut_up = [band_values(each, layout.widths) for each in sample]
    pairs = list(combinations(cut_up, 2))
    counted: list[list[Fraction]] = []
    for index, live in enumerate(live_positions(layout.widths, bits)):
        apart = [(a[index] ^ b[index]).bit_count() for a, b in pairs]
        radii = range(len(live) + 1)
        counted.append([Fraction(sum(each <= radius for each in apart), len(pairs)) for radius in radii])
    return counted


def array(sample: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(sample), dtype=np.int64)


def random_sample(rng: Random, bits: int, size: int) -> list[int]:
    """Uniform ones, and families around some of them that differ in few bits: as skewed as a crawl."""
    found = {random_fingerprint(rng, bits) for _ in range(size // 2 + 1)}
    centres = rng.sample(sorted(found), min(3, len(found)))
    while len(found) < min(size, 2**bits):
        flips = sum(1 << bit for bit in rng.sample(range(bits), rng.randint(1, min(bits, 6))))
        found.add(signed((rng.choice(centres) ^ signed(flips)) % 2**64))
    return sorted(found)[:size]


SAMPLES: dict[str, tuple[int, Callable[[Random], list[int]]]] = {
    "8 bits": (8, lambda rng: random_sample(rng, 8, 60)),
    "63 bits": (63, lambda rng: random_sample(rng, 63, 60)),
    "64 bits": (64, lambda rng: random_sample(rng, 64, 60)),
    "64 bits, all negative": (64, lambda rng: [signed(each % 2**63 + 2**63) for each in random_sample(rng, 63, 40)]),
    "both ends of 64 bits": (64, lambda _: [-(2**63), 2**63 - 1, -1, 0, 1]),
    "two": (63, lambda _: [5, 7]),
    "a real site": (63, lambda rng: rng.sample(real_fingerprints("real_one_site"), 60)),
}


@pytest.mark.parametrize("layout", [cut(2), cut(4), cut(7), cut(16), UNEVEN], ids=lambda layout: str(layout.widths))
@pytest.mark.parametrize("name", SAMPLES)
def test_likeness_is_what_all_pairs_of_the_sample_say(name: str, layout: Layout) -> None:
    bits, make = SAMPLES[name]
    sample = make(Random(name))
    assert len(sample) > 1
    found = likeness(array(sample), layout, bits)
    assert (found.layout, found.bits) == (layout, bits)
    for within, counted, floor in zip(
        found.within, counted_likeness(sample, layout, bits), uniform(layout, bits).within, strict=True
    ):
        assert within == pytest.approx([max(float(share), least) for share, least in zip(counted, floor, strict=True)])
        assert within[-1] == 1


def test_the_order_of_a_sample_says_nothing() -> None:
    sample = random_sample(Random(2), 64, 50)
    backwards = likeness(array(reversed(sample)), cut(4), 64)
    assert likeness(array(sample), cut(4), 64) == backwards


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([1, 8, 33, 63, 64]), st.sampled_from([cut(2), cut(4), cut(16), UNEVEN]))
def test_no_sample_is_less_alike_than_uniform(data: st.DataObject, bits: int, layout: Layout) -> None:
    """So that a small or an odd sample can't promise a lookup that reads nothing."""
    sample = data.draw(st.sets(st.integers(0, 2**bits - 1), max_size=12))
    found = likeness(array(map(signed, sample)), layout, bits)
    for within, floor in zip(found.within, uniform(layout, bits).within, strict=True):
        assert len(within) == len(floor)
        assert all(share >= least for share, least in zip(within, floor, strict=True))
        assert all(a <= b for a, b in pairwise(within))


@pytest.mark.parametrize("sample", [[], [7], [-1]])
def test_no_pair_is_no_reason_to_think_of_skew(sample: list[int]) -> None:
    assert likeness(array(sample), cut(4), 64) == uniform(cut(4), 64)


def test_one_bucket_that_holds_all_costs_as_much_as_it_reads() -> None:
    """Fingerprints that share their first band: each lookup at threshold 0 reads the whole collection."""
    sample = [0x1234 << 48 | each << 32 | each << 16 | each for each in range(50)]
    profile = Profile(10**6, likeness(array(sample), cut(4), 63))
    assert cost(probes(0), profile).candidates == 10**6
    assert cost(probes(3), profile).candidates == pytest.approx(10**6 * (1 + 3 / 2**16))
    assert cost(probes(3), profile).probing > cost_of(probes(3), 10**6).probing + CANDIDATE_COST * 9 * 10**5
    assert cost(probes(3), profile).scan == cost_of(probes(3), 10**6).scan


def test_a_band_that_is_not_probed_costs_nothing_however_full_its_buckets_are() -> None:
    sample = [each << 48 | each << 32 | each << 16 | 0xABCD for each in range(50)]  # alike in the last band alone
    profile = Profile(10**6, likeness(array(sample), cut(4), 63))
    assert probes(2).radii[3] == NOT_PROBED
    assert cost(probes(2), profile) == cost_of(probes(2), 10**6)
    assert cost(probes(3), profile).candidates > 10**6


@pytest.mark.parametrize("threshold", [0, 3, 5, 7])
@pytest.mark.parametrize("bands", [3, 4, 8])
@pytest.mark.parametrize("source", ["real_one_site", "real_mixed"])
def test_what_is_expected_is_what_lookups_read_on_average(source: str, bands: int, threshold: int) -> None:
    """Real fingerprints, each looked up among the others: what its own values find is counted here."""
    stored = Random(source).sample(real_fingerprints(source), 400)
    plan = probes(threshold, bands=bands)
    cut_up = [band_values(each, plan.layout.widths) for each in stored]
    columns = [array(column) for column in zip(*cut_up, strict=True)]
    itself = sum(radius != NOT_PROBED for radius in plan.radii)
    read = 0
    for simhash in stored:
        for values, column in zip(plan.values(simhash), columns, strict=True):
            read += int(np.isin(column, array(values)).sum())
        read -= itself
    average = read / len(stored)
    expected = cost(plan, Profile(len(stored) - 1, likeness(array(stored), plan.layout, 63))).candidates
    floor = cost_of(plan, len(stored) - 1).candidates
    assert average - 1e-6 <= expected <= average + floor + 1e-6
    if source == "real_one_site":
        assert average > 1.2 * floor, "this sample is no more alike than random ones: it shows nothing"


# Several collections, and how many bands are best for them


def sample_of(fingerprints: int, *, bits: int = 63, seed: int = 0) -> Sample:
    return Sample(bits, fingerprints, array(random_sample(Random(seed), bits, 40)))


def alone(sample: Sample, layout: Layout, threshold: int) -> Cost:
    plan = plan_probes(layout, sample.bits, threshold)
    return cost(plan, Profile(sample.fingerprints, likeness(sample.sampled, layout, sample.bits)))


def parts(found: Cost) -> tuple[float, float, float]:
    return found.candidates, found.probing, found.scan


def test_the_mean_of_one_collection_is_its_cost_at_each_threshold_in_order() -> None:
    thresholds = (7, 0, 3, 20)
    for bits in (8, 63, 64):
        sample = sample_of(5_000, bits=bits)
        expected = [alone(sample, cut(4), threshold) for threshold in thresholds]
        assert [parts(each) for each in mean_costs([sample], cut(4), thresholds)] == [
            pytest.approx(parts(each)) for each in expected
        ]


@pytest.mark.parametrize("bands", [2, 4, 16])
def test_a_collection_weighs_as_much_as_it_is_large(bands: int) -> None:
    samples = [sample_of(700_000), sample_of(200_000, bits=64, seed=1), sample_of(100_000, bits=8, seed=2)]
    for threshold in (0, 3, 7):
        [found] = mean_costs(samples, cut(bands), [threshold])
        weighted = [(each.fingerprints / 10**6, parts(alone(each, cut(bands), threshold))) for each in samples]
        expected = [sum(weight * each[index] for weight, each in weighted) for index in range(3)]
        assert parts(found) == pytest.approx(tuple(expected))


def test_halves_of_a_collection_are_as_good_as_their_mean_and_an_empty_one_counts_nothing() -> None:
    half = sample_of(50_000)
    [mean] = mean_costs([half, half], cut(4), [3])
    assert parts(mean) == pytest.approx(parts(alone(half, cut(4), 3)))
    [beside_empty] = mean_costs([half, sample_of(0, bits=64)], cut(4), [3])
    assert parts(beside_empty) == pytest.approx(parts(mean))
    one, other = sample_of(10), sample_of(90_000, bits=64)
    [forwards], [backwards] = mean_costs([one, other], cut(4), [3]), mean_costs([other, one], cut(4), [3])
    assert parts(forwards) == pytest.approx(parts(backwards))


def test_nothing_grows_into_a_collection_of_the_default_kind() -> None:
    for samples in ([], [sample_of(0, bits=8)]):
        [only] = grown(samples)
        assert (only.bits, only.fingerprints, len(only.sampled)) == (63, CHOSEN_FOR_AT_LEAST, 0)


def test_small_collections_grow_in_proportion_as_far_as_they_must() -> None:
    samples = [sample_of(3), sample_of(1, bits=64, seed=1), sample_of(0, bits=8, seed=2)]
    larger = grown(samples)
    sizes = [each.fingerprints for each in larger]
    assert CHOSEN_FOR_AT_LEAST <= sum(sizes) < CHOSEN_FOR_AT_LEAST + 4
    assert (sizes[0], sizes[2]) == (3 * sizes[1], 0)
    for before, after in zip(samples, larger, strict=True):
        assert (after.bits, after.sampled.tolist()) == (before.bits, before.sampled.tolist())


@pytest.mark.parametrize("total", [1, 2, 3, 7, 99, 1_000, CHOSEN_FOR_AT_LEAST - 1])
def test_all_that_is_stored_counts_as_large_enough_afterwards(total: int) -> None:
    [one] = grown([sample_of(total)])
    assert CHOSEN_FOR_AT_LEAST <= one.fingerprints < CHOSEN_FOR_AT_LEAST + total


def test_large_collections_stay_as_they_are() -> None:
    for sizes in ([CHOSEN_FOR_AT_LEAST], [CHOSEN_FOR_AT_LEAST - 1, 1], [10**7, 5]):
        samples = [sample_of(size) for size in sizes]
        assert [each.fingerprints for each in grown(samples)] == sizes


def test_each_number_of_bands_is_judged_by_the_collections_as_they_will_be() -> None:
    samples = [sample_of(30), sample_of(10, bits=64, seed=1)]
    thresholds = (3, 7)
    found = costs_by_bands(samples, thresholds)
    assert list(found) == list(range(MIN_BANDS, MAX_BANDS + 1)) == list(BANDS)
    for bands in (2, 4, 16):
        expected = mean_costs(grown(samples), cut(bands), thresholds)
        assert [parts(each) for each in found[bands]] == [parts(each) for each in expected]


def of(*microseconds: float) -> dict[int, Cost]:
    """Costs of two bands and more, by probing."""
    return {bands: Cost(0, probing, 10**9) for bands, probing in enumerate(microseconds, start=MIN_BANDS)}


def test_the_cheapest_bands_are_those_whose_lookups_cost_least() -> None:
    assert cheapest_bands(of(300, 200, 400)) == 3
    assert cheapest_bands(of(300, 400, 200)) == 4
    assert cheapest_bands(of(100)) == 2
    assert cheapest_bands(of(300, 200, 200)) == 3  # the fewer, which are smaller tables


def test_bands_are_judged_by_the_cheaper_way() -> None:
    dear = 10 * ALWAYS_PROBE_BELOW
    costs = {2: Cost(0, 3 * dear, dear), 3: Cost(0, 2 * dear, dear), 4: Cost(0, dear / 2, dear)}
    assert cheapest_bands(costs) == 4
    assert cheapest_bands(costs, 2) == 4
    assert cheapest_bands({2: Cost(0, 3 * dear, dear), 3: Cost(0, 2 * dear, 5 * dear)}) == 2  # by a scan
    scanned = {bands: Cost(0, (9 - bands) * dear, dear) for bands in (2, 3, 4)}
    assert all(cheapest_bands(scanned, now) == now for now in scanned)


@pytest.mark.parametrize("now", [2, 3, 4])
def test_bands_stay_as_they_are_unless_a_rebuild_is_worth_it(now: int) -> None:
    mine, best = 1000.0, 3 if now == 2 else 2
    for share, stays in [(0.5, False), (WORTH_A_REBUILD - 0.01, False), (WORTH_A_REBUILD + 0.01, True), (1.0, True)]:
        costs = {bands: Cost(0, 5 * mine, 10**9) for bands in (2, 3, 4)}
        costs |= {now: Cost(0, mine, 10**9), best: Cost(0, mine * share, 10**9)}
        assert cheapest_bands(costs, now) == (now if stays else best), share
        assert cheapest_bands(costs) == (min(now, best) if share == 1.0 else best)


def test_bands_that_nobody_would_choose_are_left_for_the_cheapest() -> None:
    """A layout of 17 bands or of one, made by hand, is none of those that are judged."""
    for now in (1, 17):
        assert cheapest_bands(of(300, 299, 298), now) == 4


@pytest.mark.parametrize("threshold", [0, 3, 5, 7, 10, 15])
def test_the_choice_never_costs_more_than_any_other_by_more_than_a_rebuild_is_worth(threshold: int) -> None:
    samples = [Sample(63, 10**6, array(Random(3).sample(real_fingerprints("real_mixed"), 200)))]
    costs = {bands: each[0] for bands, each in costs_by_bands(samples, [threshold]).items()}
    least = min(each.cheaper for each in costs.values())
    assert costs[cheapest_bands(costs)].cheaper == least
    for now in costs:
        chosen = cheapest_bands(costs, now)
        assert costs[chosen].cheaper * WORTH_A_REBUILD <= least
        assert cheapest_bands(costs, chosen) == chosen, "a rebuild right after a rebuild changes nothing"
