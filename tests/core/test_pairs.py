"""Every pair within the threshold, each exactly once: for every way to look for them, width and threshold."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product
from math import comb
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import THRESHOLDS, as_array, ball, distances, near_pairs, real_fingerprints

from app.core.pairs import (
    SAMPLE,
    Fingerprints,
    PairList,
    PairPlan,
    Pass,
    Selection,
    Step,
    band_passes,
    block_masks,
    block_passes,
    bytes_needed,
    choose_plan,
    differences,
    expected_pairs,
    find_pairs,
    pairs_that_fit,
)

FAMILIES = ("chosen", "every pair", "blocks", "bands")
SOURCES = ("real_one_site", "real_mixed")
SMALL = range(1, 13)


def every_pair(threshold: int) -> PairPlan:
    return PairPlan("every pair", 1, threshold, (Pass(0, 0),), 0, 0)


def by_blocks(bits: int, threshold: int, blocks: int) -> PairPlan:
    return PairPlan("blocks", blocks, threshold, block_passes(bits, threshold, blocks), 0, 0)


def by_bands(bits: int, threshold: int, bands: int) -> PairPlan:
    return PairPlan("bands", bands, threshold, band_passes(bits, threshold, bands), 0, 0)


def sample_of(fingerprints: Fingerprints, count: int = SAMPLE) -> Fingerprints:
    """The differences of some of them."""
    chosen = Random(1).sample(range(len(fingerprints)), min(count, len(fingerprints)))
    return differences(fingerprints[chosen])


def chosen(fingerprints: Fingerprints, bits: int, threshold: int, starting: int | None = None) -> PairPlan:
    return choose_plan(sample_of(fingerprints, 100), len(fingerprints), bits, threshold, starting)


def plans_of(bits: int, threshold: int) -> Iterator[PairPlan]:
    """All that take no more than moments for a few hundred fingerprints."""
    yield every_pair(threshold)
    for blocks in range(threshold + 1, min(threshold + 4, bits) + 1):
        if comb(blocks, threshold) <= 40:
            yield by_blocks(bits, threshold, blocks)
    for bands in (2, 3, 4, 5, 8, 16):
        plan = by_bands(bits, threshold, bands)
        tables = [each.width for each in plan.passes if each.radius]
        if max(tables, default=0) <= 16 and sum(each.flips for each in plan.passes) <= 150:
            yield plan


def family(name: str, fingerprints: Fingerprints, threshold: int, starting: int | None = None) -> list[PairPlan]:
    """The plans of a kind for 63 bits."""
    match name:
        case "chosen":
            return [choose_plan(sample_of(fingerprints), len(fingerprints), 63, threshold, starting)]
        case "every pair":
            return [every_pair(threshold)]
        case "blocks":
            return [by_blocks(63, threshold, threshold + more) for more in (1, 2)]
        case _:
            return [by_bands(63, threshold, bands) for bands in (4, 7)]


def in_order(steps: Sequence[Step]) -> NDArray[np.int64]:
    """What was found, one pair a row, sorted: a pair that was found twice is there twice."""
    nothing = np.empty(0, np.int64)
    first = np.concatenate([nothing, *(step.first for step in steps)])
    second = np.concatenate([nothing, *(step.second for step in steps)])
    return np.stack([first, second], axis=1)[np.lexsort((second, first))]


def found(fingerprints: Fingerprints, plan: PairPlan, selection: Selection | None = None) -> NDArray[np.int64]:
    return in_order(list(find_pairs(fingerprints, plan, selection)))


def wanted(pairs: NDArray[np.int64], selection: Selection) -> NDArray[np.int64]:
    """Those of the pairs that have all of the flags between them: looked up for each two flags that there can be."""
    ones = [set[int](), {0}, {1}, {0, 1}]
    enough = np.array([[one | other >= ones[selection.wanted] for other in ones] for one in ones])
    first, second = selection.flags[pairs].T
    return pairs[enough[first, second]]


def assert_same(pairs: NDArray[np.int64], expected: NDArray[np.int64], plan: PairPlan) -> None:
    np.testing.assert_array_equal(pairs, expected, f"{plan.kind}, {plan.parts}, within {plan.threshold}", strict=True)


# Passes: any two within the threshold meet in one


def meets(each: Pass, different: int) -> bool:
    return (different & each.mask).bit_count() <= each.radius


def have_met(passes: Sequence[Pass], bits: int) -> NDArray[np.bool_]:
    """For each difference of so many bits whether some pass compares two fingerprints that have it."""
    different = np.arange(1 << bits)
    met = np.zeros(2**bits, bool)
    for each in passes:
        met |= COUNTS[different & each.mask] <= each.radius
    return met


COUNTS = np.array([number.bit_count() for number in range(2 ** max(SMALL))])


@pytest.mark.parametrize("bits", SMALL)
def test_all_small_differences_within_the_threshold_are_met_by_blocks(bits: int) -> None:
    for threshold in range(bits):
        within = COUNTS[: 2**bits] <= threshold
        for blocks in range(threshold + 1, bits + 1):
            assert have_met(block_passes(bits, threshold, blocks), bits)[within].all(), (threshold, blocks)


@pytest.mark.parametrize("bits", SMALL)
def test_all_small_differences_within_the_threshold_are_met_by_bands(bits: int) -> None:
    for threshold, bands in product([*range(bits + 2), 63], range(2, 17)):
        within = COUNTS[: 2**bits] <= threshold
        assert have_met(band_passes(bits, threshold, bands), bits)[within].all(), (threshold, bands)


@pytest.mark.parametrize("bits", SMALL)
def test_no_pass_over_blocks_is_in_vain(bits: int) -> None:
    for threshold, blocks in product(range(bits), range(1, 7)):
        if threshold < blocks <= bits:
            passes = block_passes(bits, threshold, blocks)
            within = COUNTS[: 2**bits] <= threshold
            for left_out in passes:
                others = [each for each in passes if each != left_out]
                assert not have_met(others, bits)[within].all(), (threshold, blocks)


@pytest.mark.parametrize("bits", range(1, 65))
def test_blocks_are_all_bits_once_in_parts_as_equal_as_they_can_be(bits: int) -> None:
    for blocks in range(1, bits + 1):
        masks = block_masks(bits, blocks)
        digits = [format(mask, "064b") for mask in masks]
        assert len(masks) == blocks
        assert [column.count("1") for column in map("".join, zip(*digits, strict=True))] == [0] * (64 - bits) + [
            1
        ] * bits
        assert all(set(each.strip("0")) == {"1"} for each in digits)  # consecutive bits
        assert {each.count("1") for each in digits} <= {bits // blocks, -(-bits // blocks)}
        assert masks == sorted(masks, reverse=True)


@st.composite
def differences_within(draw: st.DrawFn) -> tuple[int, int, int]:
    """Bits, a threshold, and a difference within it."""
    bits = draw(st.sampled_from([20, 32, 48, 62, 63, 64]))
    threshold = draw(st.integers(0, bits))
    positions = draw(st.sets(st.integers(0, bits - 1), max_size=threshold))
    return bits, threshold, sum(1 << position for position in positions)


@settings(max_examples=200, deadline=None)
@given(differences_within(), st.data())
def test_a_difference_within_the_threshold_is_met(case: tuple[int, int, int], data: st.DataObject) -> None:
    bits, threshold, different = case
    bands = data.draw(st.integers(2, 16))
    assert any(meets(each, different) for each in band_passes(bits, threshold, bands))
    numbers = [blocks for blocks in range(threshold + 1, bits + 1) if comb(blocks, threshold) <= 1000]
    if numbers:
        blocks = data.draw(st.sampled_from(numbers))
        assert any(meets(each, different) for each in block_passes(bits, threshold, blocks))


@cache
def are_complete(passes: tuple[Pass, ...], bits: int, threshold: int) -> bool:
    """Whether any difference within the threshold is met, for any width.

    Passes without a radius: bits that are in the same passes stand for one another. As many such groups as there are
    bits within the threshold can differ, and all their bits may. Others share no bits: the cheapest difference that
    none meets has one bit more than its radius in each.
    """
    if not any(each.radius for each in passes):
        groups: dict[tuple[bool, ...], int] = {}
        for bit in range(bits):
            key = tuple(bool(each.mask >> bit & 1) for each in passes)
            groups[key] = groups.get(key, 0) | 1 << bit
        differing = combinations(groups.values(), min(threshold, len(groups)))
        return all(any(meets(each, sum(masks)) for each in passes) for masks in differing)
    assert all(one.mask & other.mask == 0 for one, other in combinations(passes, 2))
    if any(each.radius >= each.mask.bit_count() for each in passes):
        return True
    return sum(each.radius + 1 for each in passes) > threshold


# The choice of a plan


RANDOM = Random(2)
UNIFORM = as_array([RANDOM.getrandbits(63) for _ in range(2_000)])
SIZES = (0, 1, 2, 100, 10_000, 10**6, 10**8)


@cache
def real(name: str) -> Fingerprints:
    return as_array(real_fingerprints(name))


@cache
def sampled(name: str) -> Fingerprints:
    return sample_of(UNIFORM if name == "uniform" else real(name), 150)


@pytest.mark.parametrize("bits", [1, 2, 8, 13, 32, 63, 64])
def test_whatever_is_chosen_is_complete(bits: int) -> None:
    kinds: set[str] = set()
    different = sampled("real_mixed") & np.uint64(2**bits - 1)
    for threshold, size in product([*range(13), 20, 31, 32, 62, 63], (0, 10_000, 10**8)):
        for starting in (None, size // 100):
            plan = choose_plan(different, size, bits, threshold, starting)
            assert plan.threshold == threshold
            assert are_complete(plan.passes, bits, threshold), plan
            kinds.add(plan.kind)
    assert kinds == {"every pair", "blocks", "bands"} if bits > 30 else "every pair" in kinds


@pytest.mark.parametrize("source", ["uniform", *SOURCES])
def test_more_fingerprints_cost_more(source: str) -> None:
    for bits, threshold in ((63, 0), (64, 1), (63, 3), (64, 7), (63, 12), (64, 63)):
        costs = [choose_plan(sampled(source), size, bits, threshold).seconds for size in SIZES]
        assert costs == sorted(costs)
        assert costs[-1] > 100 * costs[0] >= 0


@pytest.mark.parametrize("source", ["uniform", *SOURCES])
def test_few_rows_to_start_from_cost_less_than_all(source: str) -> None:
    for size, threshold in product((1_000, 10**6), (0, 3, 7, 12)):
        costs = [
            choose_plan(sampled(source), size, 63, threshold, starting).seconds
            for starting in (0, 1, size // 100, size // 10, size // 2, size)
        ]
        everything = choose_plan(sampled(source), size, 63, threshold).seconds
        assert costs == sorted(costs)
        assert costs[2] < (everything / 2 if size > 1_000 else everything)
        assert costs[-1] <= everything * 1.000001


def test_few_are_compared_each_with_each_and_many_are_not() -> None:
    for source in ("uniform", *SOURCES):
        assert choose_plan(sampled(source), 100, 63, 3).kind == "every pair"
        assert choose_plan(sampled(source), 10**6, 63, 3).kind in {"blocks", "bands"}
        assert choose_plan(sampled(source), 10**6, 63, 63).kind == "every pair"


@pytest.mark.parametrize("threshold", [0, 1, 3, 5, 8, 12])
@pytest.mark.parametrize("source", SOURCES)
def test_candidates_are_as_many_as_are_compared_where_the_sample_is_all_there_is(source: str, threshold: int) -> None:
    """Each pass by itself: a pair that meets in two passes is compared twice. Random ones are expected at least."""
    fingerprints = real(source)[:300]
    different = differences(fingerprints)
    plan = choose_plan(different, len(fingerprints), 63, threshold)
    meeting = [sum(meets(each, value) for value in different.tolist()) for each in plan.passes]
    shares = [ball(each.mask.bit_count(), each.radius) / 2 ** each.mask.bit_count() for each in plan.passes]
    random = [share * len(different) for share in shares]
    each_at_least = sum(map(max, meeting, random)) if plan.kind == "bands" else max(sum(meeting), sum(random))
    assert plan.candidates == pytest.approx(each_at_least)


def test_all_differences_of_a_sample_are_there_once() -> None:
    fingerprints = real("real_one_site")[:40]
    expected = [a ^ b for a, b in combinations(fingerprints.tolist(), 2)]
    assert differences(fingerprints).tolist() == expected
    assert len(differences(fingerprints[:1])) == len(differences(fingerprints[:0])) == 0


@pytest.mark.parametrize("source", SOURCES)
def test_as_many_pairs_are_expected_as_the_sample_has(source: str) -> None:
    fingerprints = real(source)[:700]
    apart = distances(fingerprints)
    different = differences(fingerprints)
    for threshold in (*range(3, 12), 20, 31, 40, 63):
        pairs = len(near_pairs(apart, threshold))
        random = ball(63, threshold) / 2**63 * 700 * 699 / 2
        assert expected_pairs(different, 700, 63, threshold) == pytest.approx(max(pairs, random))
        if pairs > random:
            assert expected_pairs(different, 7_000, 63, threshold) == pytest.approx(pairs * 7_000 * 6_999 / 700 / 699)


def test_never_fewer_pairs_are_expected_than_of_random_fingerprints() -> None:
    nothing = differences(as_array([]))
    apart = as_array([0xFFFF_FFFF_FFFF_FFFF])
    for bits, threshold, size in product((1, 8, 63, 64), THRESHOLDS, SIZES):
        random = ball(bits, threshold) / 2**bits * size * (size - 1) / 2
        assert expected_pairs(nothing, size, bits, threshold) == pytest.approx(random)
        assert expected_pairs(apart, size, bits, threshold) == pytest.approx(random)
        assert expected_pairs(sampled("real_one_site"), size, bits, threshold) >= random * 0.999999


# Pairs


@cache
def crowd(source: str) -> tuple[Fingerprints, NDArray[np.uint8]]:
    """Some of its fingerprints, and how far they are apart."""
    fingerprints = as_array(real_fingerprints(source)[:COUNT])
    return fingerprints, distances(fingerprints)


COUNT = 1_000  # fingerprints, for every family; the chosen plan has whole samples below


@pytest.mark.parametrize("threshold", range(11))
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_pairs_of_real_fingerprints_are_those_of_brute_force(source: str, name: str, threshold: int) -> None:
    fingerprints, apart = crowd(source)
    expected = near_pairs(apart, threshold)
    for plan in family(name, fingerprints, threshold):
        assert_same(found(fingerprints, plan), expected, plan)


@cache
def near_of(source: str) -> tuple[Fingerprints, NDArray[np.int64], NDArray[np.uint8]]:
    """Fingerprints, their pairs within ten bits, and the distance of each: every pair is looked at."""
    fingerprints = as_array(real_fingerprints(source))
    first: list[NDArray[np.int64]] = []
    second: list[NDArray[np.int64]] = []
    for row in range(len(fingerprints)):
        near = row + 1 + np.flatnonzero(np.bitwise_count(fingerprints[row + 1 :] ^ fingerprints[row]) <= 10)
        first.append(np.full(len(near), row))
        second.append(near)
    pairs = np.stack([np.concatenate(first), np.concatenate(second)], axis=1)
    return fingerprints, pairs, np.bitwise_count(fingerprints[pairs[:, 0]] ^ fingerprints[pairs[:, 1]])


@pytest.mark.parametrize("threshold", range(11))
@pytest.mark.parametrize(("source", "count"), [("real_one_site", 2686), ("real_mixed_20000", 19274)])
def test_all_pairs_of_whole_samples(source: str, count: int, threshold: int) -> None:
    fingerprints, pairs, apart = near_of(source)
    assert len(fingerprints) == count
    for plan in family("chosen", fingerprints, threshold):
        assert_same(found(fingerprints, plan), pairs[apart <= threshold], plan)


@pytest.mark.parametrize("threshold", [3, 5])
def test_a_bucket_that_is_far_too_full_is_looked_through(threshold: int) -> None:
    """A third of all share one band, and some of these are near."""
    rng = np.random.default_rng(threshold)
    fingerprints = rng.integers(0, 2**63, 6000, dtype=np.uint64)
    fingerprints[:1800] = fingerprints[:1800] & ~np.uint64(0xFFFF << 16) | np.uint64(0xABCD << 16)
    fingerprints[:300] = fingerprints[300:600] ^ (np.uint64(1) << rng.integers(0, 63, 300, dtype=np.uint64))
    expected = near_pairs(distances(fingerprints), threshold)
    assert len(expected) >= 300
    for plan in (*family("chosen", fingerprints, threshold), *family("bands", fingerprints, threshold)):
        assert_same(found(fingerprints, plan), expected, plan)


@pytest.mark.parametrize("threshold", [*range(9), 40, 63])
def test_all_fingerprints_of_eight_bits(threshold: int) -> None:
    fingerprints = np.random.default_rng(8).permutation(np.arange(2**8, dtype=np.uint64))
    expected = near_pairs(distances(fingerprints), threshold)
    assert len(expected) == 2**8 * (ball(8, threshold) - 1) / 2
    for plan in [*plans_of(8, threshold), chosen(fingerprints, 8, threshold)]:
        assert_same(found(fingerprints, plan), expected, plan)


@pytest.mark.parametrize("threshold", [0, 1, 4])
def test_all_fingerprints_of_ten_bits(threshold: int) -> None:
    fingerprints = np.random.default_rng(10).permutation(np.arange(2**10, dtype=np.uint64))
    expected = near_pairs(distances(fingerprints), threshold)
    assert len(expected) == 2**10 * (ball(10, threshold) - 1) / 2
    for plan in [*plans_of(10, threshold), chosen(fingerprints, 10, threshold)]:
        assert_same(found(fingerprints, plan), expected, plan)


def around_the_highest_bits(bits: int, count: int) -> Fingerprints:
    """Some equal, some apart in the highest bits only, some anywhere."""
    rng = Random(bits)
    middles = [0, 1 << 62, 2**bits - 1, 1 << (bits - 1), rng.getrandbits(bits)]
    fingerprints: list[int] = []
    for _ in range(count):
        high = rng.randrange(16) << (bits - 4)
        anywhere = sum(1 << bit for bit in rng.sample(range(bits), rng.choice((0, 0, 1, 2, rng.randrange(bits)))))
        fingerprints.append(rng.choice(middles) ^ high ^ anywhere)
    return as_array(fingerprints)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("bits", [63, 64])
def test_all_thresholds_at_the_widths_that_people_use(bits: int, threshold: int) -> None:
    fingerprints = around_the_highest_bits(bits, 80)
    expected = near_pairs(distances(fingerprints), threshold)
    for plan in [*plans_of(bits, threshold), chosen(fingerprints, bits, threshold)]:
        assert_same(found(fingerprints, plan), expected, plan)


@pytest.mark.parametrize("bits", [8, 63, 64])
def test_nothing_one_and_two(bits: int) -> None:
    highest, near = 1 << (bits - 1), 1 << (bits - 1) | 5
    for threshold in (0, 1, 2):
        for values in ([], [highest], [highest, highest], [near, highest], [highest, near]):
            fingerprints = as_array(values)
            expected = [[0, 1]] if len(values) == 2 and (values[0] == values[1] or threshold >= 2) else []
            for plan in [*plans_of(bits, threshold), chosen(fingerprints, bits, threshold)]:
                assert found(fingerprints, plan).tolist() == expected
                for flags, starting in product((0, 1), repeat=2):
                    selection = Selection(np.array([flags, starting][: len(values)], np.uint8), 1)
                    some = expected if flags or starting else []
                    assert found(fingerprints, plan, selection).tolist() == some


def test_copies_are_all_pairs() -> None:
    fingerprints = as_array([7] * 100)
    expected = [list(pair) for pair in combinations(range(100), 2)]
    for threshold in (0, 3, 7):
        for plan in [*plans_of(63, threshold), chosen(fingerprints, 63, threshold)]:
            assert found(fingerprints, plan).tolist() == expected


@st.composite
def crowds(draw: st.DrawFn) -> tuple[int, Fingerprints]:
    """Bits, and fingerprints that are near one another, often in the highest bits, or equal."""
    bits = draw(st.sampled_from([*range(1, 17), 62, 63, 63, 64, 64]))
    middles = draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=3))
    position = st.integers(0, bits - 1) | st.integers(max(bits - 3, 0), bits - 1)
    near = st.tuples(st.sampled_from(middles), st.sets(position, max_size=5))
    drawn = draw(st.lists(near, max_size=40))
    return bits, as_array([middle ^ sum(1 << bit for bit in flips) for middle, flips in drawn])


NARROW = st.integers(0, 12)


@settings(max_examples=200, deadline=None)
@given(crowds(), NARROW | st.integers(0, 63), st.data())
def test_the_pairs_are_those_of_brute_force(
    case: tuple[int, Fingerprints], threshold: int, data: st.DataObject
) -> None:
    bits, fingerprints = case
    plans = [*plans_of(bits, threshold), chosen(fingerprints, bits, threshold)]
    plan = data.draw(st.sampled_from(plans))
    assert_same(found(fingerprints, plan), near_pairs(distances(fingerprints), threshold), plan)


# Some of the pairs


@settings(max_examples=200, deadline=None)
@given(crowds(), NARROW, st.sampled_from([1, 3]), st.data())
def test_the_wanted_pairs_are_those_of_brute_force(
    case: tuple[int, Fingerprints], threshold: int, all_of: int, data: st.DataObject
) -> None:
    """Flags 1: rows that are new, wanted with any other. Flags 1 and 2: two sides, some rows on both or on neither."""
    bits, fingerprints = case
    size = len(fingerprints)
    flags = data.draw(st.lists(st.integers(0, all_of), min_size=size, max_size=size))
    selection = Selection(np.array(flags, np.uint8), all_of)
    plans = [*plans_of(bits, threshold), chosen(fingerprints, bits, threshold, sum(flag & 1 for flag in flags))]
    plan = data.draw(st.sampled_from(plans))
    expected = wanted(near_pairs(distances(fingerprints), threshold), selection)
    assert_same(found(fingerprints, plan, selection), expected, plan)


def one_in(number: int, size: int) -> NDArray[np.uint8]:
    return (np.random.default_rng(size).integers(number, size=size) == 0).astype(np.uint8)


def fresh(size: int, number: int) -> Selection:
    """One row in so many is fresh."""
    return Selection(one_in(number, size), 1)


def two_sides(size: int, number: int) -> Selection:
    """One row in so many is on the first side, the others on the second."""
    return Selection(2 - one_in(number, size), 3)


@pytest.mark.parametrize("threshold", [0, 1, 3, 6, 10])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_pairs_of_fresh_rows_and_of_two_sides_are_those_of_brute_force(
    source: str, name: str, threshold: int
) -> None:
    fingerprints, apart = crowd(source)
    size = len(fingerprints)
    pairs = near_pairs(apart, threshold)
    for selection in (fresh(size, 20), fresh(size, 1), two_sides(size, 3), two_sides(size, 100)):
        starting = int((selection.flags & 1).sum())
        expected = wanted(pairs, selection)
        for plan in family(name, fingerprints, threshold, starting)[:1]:
            assert_same(found(fingerprints, plan, selection), expected, plan)


def test_a_row_without_a_flag_starts_nothing() -> None:
    fingerprints, apart = crowd("real_mixed")
    pairs = near_pairs(apart, 3)
    for all_of, flag in ((1, 0), (3, 1), (3, 2)):
        selection = Selection(np.full(len(fingerprints), flag, np.uint8), all_of)
        assert len(wanted(pairs, selection)) == 0 < len(pairs)
        for name in FAMILIES:
            for plan in family(name, fingerprints, 3, 0):
                assert len(found(fingerprints, plan, selection)) == 0


# Steps


def compared(plan: PairPlan, fingerprints: Fingerprints) -> int:
    """How many pairs meet in the passes, of all pairs."""
    apart = [distances(fingerprints & np.uint64(each.mask)) for each in plan.passes]
    return sum(len(near_pairs(pass_apart, each.radius)) for pass_apart, each in zip(apart, plan.passes, strict=True))


@pytest.mark.parametrize("name", FAMILIES[1:])
@pytest.mark.parametrize("threshold", [0, 3, 6])
def test_a_step_has_few_pairs(name: str, threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = np.concatenate([real("real_one_site")[:400], as_array([7] * 100)])
    size = len(fingerprints)
    expected = near_pairs(distances(fingerprints), threshold)
    for plan, selection in product(family(name, fingerprints, threshold), (None, fresh(size, 3))):
        large = list(find_pairs(fingerprints, plan, selection))
        with monkeypatch.context() as patched:
            patched.setattr("app.core.pairs._STEP_PAIRS", 100)
            patched.setattr("app.core.pairs._ROWS", 64)
            small = list(find_pairs(fingerprints, plan, selection))
        at_once = size if name == "every pair" else 64
        assert max(len(step.first) for step in large) > 100 + at_once
        assert max(len(step.first) for step in small) <= 100 + at_once
        assert len(small) > len(large)
        assert_same(in_order(small), expected if selection is None else wanted(expected, selection), plan)
        assert_same(in_order(small), in_order(large), plan)


@pytest.mark.parametrize("name", FAMILIES[1:])
@pytest.mark.parametrize("threshold", [0, 3, 6])
def test_a_step_compares_few(name: str, threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be found for a long time: steps come all the same."""
    fingerprints = real("real_one_site")[:300]
    for plan in family(name, fingerprints, threshold):
        large = list(find_pairs(fingerprints, plan))
        with monkeypatch.context() as patched:
            patched.setattr("app.core.pairs._STEP_COMPARED", 100)
            patched.setattr("app.core.pairs._ROWS", 64)
            small = list(find_pairs(fingerprints, plan))
        at_once = len(fingerprints) if name == "every pair" else 64
        assert len(small) >= compared(plan, fingerprints) / (100 + at_once)
        if compared(plan, fingerprints) > 1_000:
            assert len(small) > len(large)
        assert_same(in_order(small), in_order(large), plan)


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_say_how_many_passes_are_done(name: str) -> None:
    """A pair is found by the first pass that it meets in."""
    fingerprints = real("real_one_site")[:500]
    for plan in family(name, fingerprints, 6):
        steps = list(find_pairs(fingerprints, plan))
        done = [step.passes for step in steps]
        assert done == sorted(done)
        assert 0 <= done[0] <= done[-1] <= len(plan.passes)
        for step in steps:
            for first, second in zip(step.first.tolist(), step.second.tolist(), strict=True):
                different = int(fingerprints[first]) ^ int(fingerprints[second])
                number = [meets(each, different) for each in plan.passes].index(True)
                assert number <= step.passes <= number + 1


def test_fingerprints_stay_as_they_are() -> None:
    fingerprints = real("real_mixed")[:500].copy()
    before = fingerprints.tolist()
    flags = np.ones(500, np.uint8)
    for plan in plans_of(63, 4):
        for selection in (None, Selection(flags, 1)):
            steps = list(find_pairs(fingerprints, plan, selection))
            assert fingerprints.tolist() == before
            assert {step.first.dtype for step in steps} == {step.second.dtype for step in steps} == {np.dtype(np.int64)}
    assert flags.tolist() == [1] * 500


# Lists of pairs


def test_a_list_holds_pairs_in_order_and_by_other_numbers() -> None:
    pairs = PairList(1000)
    expected: list[tuple[int, int]] = []
    rng = Random(1)
    while len(expected) < 900:
        part = [(rng.randrange(2**31), rng.randrange(2**31)) for _ in range(rng.randrange(40))]
        expected += part
        assert pairs.add(np.array([a for a, _ in part], np.int64), np.array([b for _, b in part], np.int64))
    assert len(pairs) == len(expected)
    assert list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == expected
    assert pairs.sorted().tolist() == [list(pair) for pair in sorted(expected)]


def test_numbers_are_put_in_the_place_of_others_the_lower_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.pairs._STEP_PAIRS", 2)
    pairs = PairList(5)
    assert pairs.add(np.array([0, 0, 1, 2, 2]), np.array([1, 2, 2, 3, 2]))
    pairs.renumber(np.array([9, 3, 5, 0]))
    assert pairs.sorted().tolist() == [[0, 5], [3, 5], [3, 9], [5, 5], [5, 9]]


def test_what_has_no_room_is_not_added() -> None:
    pairs = PairList(3)
    assert pairs.add(np.array([1, 2]), np.array([3, 4]))
    assert not pairs.add(np.array([5, 6]), np.array([7, 8]))
    assert pairs.sorted().tolist() == [[1, 3], [2, 4]]
    assert pairs.add(np.array([5]), np.array([6]))


@pytest.mark.parametrize("stars", [False, True])
def test_as_many_pairs_fit_as_bytes_are_needed_for(stars: bool) -> None:
    for most in (0, 100_000_000, 150_000_001, 10**10):
        fits = pairs_that_fit(1_000_000, most, stars=stars)
        assert fits == 0 or bytes_needed(1_000_000, fits, stars=stars) <= most
        assert bytes_needed(1_000_000, fits + 1, stars=stars) > most
    assert pairs_that_fit(10, 10**10, stars=stars) == 45
