"""Nothing within the threshold may be missed: for every layout, width and threshold."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations, product
from math import comb
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import (
    BANDS,
    LARGEST,
    SMALLEST,
    THRESHOLDS,
    WIDTHS,
    ball,
    band_values,
    differing_bits,
    flip,
    live_positions,
    random_fingerprint,
    real_fingerprints,
    signed,
)

from app.core.cost import Profile, cost, uniform
from app.core.layout import Layout, cut
from app.core.probes import NOT_PROBED, ProbePlan, plan_probes

# Plans beyond are judged by their radii: listing their values would take the time, and say nothing new.
LISTABLE = 20_000

UNEVEN = Layout((40, 9, 5, 4, 3, 3))


def live_widths(plan: ProbePlan) -> list[int]:
    return [len(positions) for positions in live_positions(plan.layout.widths, plan.bits)]


def sharing_bands(plan: ProbePlan, a: int, b: int) -> list[int]:
    """The bands on which a lookup of `a` probes the value of `b`, by the listed values where that's possible."""
    mine, theirs = band_values(a, plan.layout.widths), band_values(b, plan.layout.widths)
    if plan.probes <= LISTABLE:
        hits = [value in probed for value, probed in zip(theirs, plan.values(a), strict=True)]
    else:
        hits = [(x ^ y).bit_count() <= radius for x, y, radius in zip(mine, theirs, plan.radii, strict=True)]
    return [band for band, hit in enumerate(hits) if hit]


def spread(rng: Random, plan: ProbePlan, distances: Sequence[int]) -> list[int]:
    """Positions to flip: in each band as many as `distances` says, chosen among its live bits."""
    live = live_positions(plan.layout.widths, plan.bits)
    return [bit for bits, count in zip(live, distances, strict=True) for bit in rng.sample(bits, count)]


@st.composite
def plans(draw: st.DrawFn) -> ProbePlan:
    layout = draw(st.sampled_from([*map(cut, BANDS), UNEVEN]))
    return plan_probes(layout, draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(THRESHOLDS)))


@settings(max_examples=1_000, deadline=None)
@given(plans(), st.data())
def test_two_fingerprints_within_the_threshold_share_a_probed_value(plan: ProbePlan, data: st.DataObject) -> None:
    a = signed(data.draw(st.integers(0, 2**plan.bits - 1)))
    positions = st.integers(0, plan.bits - 1)
    changed = data.draw(st.sets(positions, max_size=min(plan.threshold, plan.bits)))
    assert sharing_bands(plan, a, flip(a, changed))


@pytest.mark.parametrize("bands", BANDS)
def test_random_pairs_at_exactly_the_threshold_share_a_probed_value(bands: int) -> None:
    rng = Random(bands)
    for bits, threshold in product(WIDTHS, THRESHOLDS):
        plan = plan_probes(cut(bands), bits, threshold)
        a = random_fingerprint(rng, bits)
        for _ in range(3):
            b = flip(a, rng.sample(range(bits), min(threshold, bits)))
            assert sharing_bands(plan, a, b), (plan, a, b)


@cache
def splits(parts: int, most: int) -> NDArray[np.int64]:
    """All ways to split 0 to `most` differing bits over `parts` bands, one a row: stars and bars."""
    bars = np.array(list(combinations(range(most + parts), parts)), np.int64)
    return np.diff(bars, axis=1, prepend=-1) - 1


def largest_split(parts: int, rows: int = 30_000) -> int:
    """The highest threshold up to 20 whose splits number no more than `rows`."""
    return max(most for most in range(21) if most == 0 or comb(most + parts, parts) <= rows)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("layout", [*map(cut, BANDS), UNEVEN], ids=lambda layout: "-".join(map(str, layout.widths)))
def test_every_split_of_the_differing_bits_is_within_a_radius_somewhere(layout: Layout, bits: int) -> None:
    """The pigeonhole, by exhaustion: each tuple of distances of the bands that a threshold allows."""
    widths = np.array([len(positions) for positions in live_positions(layout.widths, bits)])
    live = np.flatnonzero(widths)
    most = largest_split(len(live))
    distances = splits(len(live), most)
    distances = distances[(distances <= widths[live]).all(axis=1)]
    for threshold in range(most + 1):
        plan = plan_probes(layout, bits, threshold)
        within = distances[distances.sum(axis=1) <= threshold]
        assert len(within) > 0
        assert (within <= np.array(plan.radii)[live]).any(axis=1).all(), plan


@pytest.mark.parametrize("bands", BANDS)
def test_no_pair_escapes_at_any_width_and_threshold(bands: int) -> None:
    """A pair escapes where each band with live bits differs in more bits than its radius.

    The cheapest such pair differs in radius + 1 bits of each band. So none escapes if that is more than the threshold
    in sum, or more than a band has.
    """
    for bits, threshold in product(range(1, 65), THRESHOLDS):
        plan = plan_probes(cut(bands), bits, threshold)
        needed = [(radius + 1, width) for radius, width in zip(plan.radii, live_widths(plan), strict=True) if width]
        escape = sum(count for count, _ in needed)
        assert escape > threshold or any(count > width for count, width in needed), plan


@pytest.mark.parametrize("bits", [20, 48, 63, 64])
@pytest.mark.parametrize("bands", BANDS)
def test_no_band_is_probed_in_vain(bands: int, bits: int) -> None:
    """For each probed band some pair within the threshold is found by it alone: a smaller radius would miss that pair.

    Not so where a radius reaches its band's width: that band alone finds everything then.
    """
    rng = Random(bands)
    for threshold in THRESHOLDS:
        plan = plan_probes(cut(bands), bits, threshold)
        widths = live_widths(plan)
        if any(0 < width <= radius for radius, width in zip(plan.radii, widths, strict=True)):
            continue
        beyond = [radius + 1 if width else 0 for radius, width in zip(plan.radii, widths, strict=True)]
        assert sum(beyond) == threshold + 1
        if plan.probes > LISTABLE:
            continue
        a = random_fingerprint(rng, bits)
        for band in [band for band, radius in enumerate(plan.radii) if radius != NOT_PROBED]:
            distances = [count - (index == band) for index, count in enumerate(beyond)]
            b = flip(a, spread(rng, plan, distances))
            assert differing_bits(a, b) == threshold
            assert sharing_bands(plan, a, b) == [band], plan


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("layout", [*map(cut, BANDS), UNEVEN], ids=lambda layout: "-".join(map(str, layout.widths)))
def test_the_values_are_all_those_within_the_radius_each_once(layout: Layout, bits: int) -> None:
    rng = Random(bits)
    for threshold in THRESHOLDS:
        plan = plan_probes(layout, bits, threshold)
        if plan.probes > LISTABLE:
            continue
        a = random_fingerprint(rng, bits)
        mine, listed = band_values(a, layout.widths), plan.values(a)
        assert tuple(map(len, listed)) == plan.probes_by_band
        for value, width, radius, probed in zip(mine, live_widths(plan), plan.radii, listed, strict=True):
            assert len(probed) == len(set(probed)) == ball(width, radius)
            assert all(0 <= each < 2**width and (each ^ value).bit_count() <= radius for each in probed)


@pytest.mark.parametrize("bands", BANDS)
def test_counts_and_shares_are_those_of_balls_at_every_width_and_threshold(bands: int) -> None:
    for bits, threshold in product(range(1, 65), THRESHOLDS):
        plan = plan_probes(cut(bands), bits, threshold)
        expected = [ball(width, radius) for width, radius in zip(live_widths(plan), plan.radii, strict=True)]
        assert list(plan.probes_by_band) == expected
        assert plan.probes == sum(expected)
        read = [Fraction(count, 2**width) for count, width in zip(expected, live_widths(plan), strict=True)]
        assert cost(plan, Profile(1, uniform(plan.layout, bits))).candidates == pytest.approx(float(sum(read)))


@pytest.mark.parametrize("threshold", [*range(13), 20, 40, 63])
def test_a_whole_small_world_against_brute_force(threshold: int) -> None:
    """All 4,096 fingerprints of 12 bits, on bands of 2, 4, 3 and 3 live bits: none within the threshold is missed."""
    plan = plan_probes(UNEVEN, 12, threshold)
    for a in (0, 0xFFF, 0x800, 0x001, 0x5A5, 0x3C9):
        probed = [set(values) for values in plan.values(a)]
        for b in range(4096):
            if (a ^ b).bit_count() <= threshold:
                theirs = band_values(b, UNEVEN.widths)
                assert any(value in values for value, values in zip(theirs, probed, strict=True)), (plan, a, b)


@pytest.mark.parametrize(
    ("bands", "bits", "threshold", "radii", "probes"),
    [
        (4, 63, 0, (0, -1, -1, -1), 1),
        (4, 63, 1, (0, 0, -1, -1), 2),
        (4, 63, 2, (0, 0, 0, -1), 3),
        (4, 63, 3, (0, 0, 0, 0), 4),  # the article
        (4, 63, 4, (1, 0, 0, 0), 16 + 3),
        (4, 63, 5, (1, 1, 0, 0), 16 + 17 + 2),
        (4, 63, 6, (1, 1, 1, 0), 16 + 17 + 17 + 1),
        (4, 63, 7, (1, 1, 1, 1), 16 + 17 + 17 + 17),
        (4, 64, 3, (0, 0, 0, 0), 4),
        (4, 64, 4, (1, 0, 0, 0), 17 + 3),
        (4, 64, 7, (1, 1, 1, 1), 4 * 17),
        (4, 63, 8, (2, 1, 1, 1), 121 + 3 * 17),
        (4, 63, 10, (2, 2, 2, 1), 121 + 137 + 137 + 17),
        (4, 63, 11, (2, 2, 2, 2), 121 + 3 * 137),
        (4, 63, 63, (15, 15, 15, 15), 2**15 + 3 * (2**16 - 1)),
        (4, 32, 3, (-1, -1, 1, 1), 17 + 17),  # two bands without a live bit
        (4, 32, 0, (-1, -1, 0, -1), 1),
        (4, 33, 3, (-1, 1, 0, 0), 2 + 2),
        (4, 1, 0, (-1, -1, -1, 0), 1),
        (4, 1, 63, (-1, -1, -1, 1), 2),
        (2, 63, 3, (1, 1), 32 + 33),
        (3, 63, 2, (0, 0, 0), 3),
        (3, 63, 3, (1, 0, 0), 22 + 2),
        (3, 63, 5, (1, 1, 1), 3 * 22),
        (8, 63, 7, (0,) * 8, 8),
        (8, 64, 8, (1,) + (0,) * 7, 9 + 7),
        (16, 64, 15, (0,) * 16, 16),
        (16, 63, 3, (0,) * 4 + (-1,) * 12, 4),
        (16, 63, 63, (3,) * 16, 8 + 15 * 15),
    ],
)
def test_plans_by_hand(bands: int, bits: int, threshold: int, radii: tuple[int, ...], probes: int) -> None:
    plan = plan_probes(cut(bands), bits, threshold)
    assert (plan.radii, plan.probes) == (radii, probes)
    assert (plan.layout, plan.bits, plan.threshold) == (cut(bands), bits, threshold)


def test_values_by_hand() -> None:
    assert plan_probes(cut(4), 63, 3).values(0x0123456789ABCDEF) == [[0x0123], [0x4567], [0x89AB], [0xCDEF]]
    assert plan_probes(cut(4), 63, 1).values(0x0123456789ABCDEF) == [[0x0123], [0x4567], [], []]
    high, *others = plan_probes(cut(4), 63, 4).values(0)
    assert sorted(high) == [0] + [1 << bit for bit in range(15)]  # bit 15 of the highest band is the sign: not live
    assert others == [[0], [0], [0]]
    high, *_ = plan_probes(cut(4), 64, 4).values(SMALLEST)
    assert sorted(high) == sorted([0x8000, 0] + [0x8000 | 1 << bit for bit in range(15)])


@pytest.mark.parametrize("a", [0, LARGEST, 1 << 62, 1, 0x5555555555555555, SMALLEST, -1, SMALLEST | 1, -(1 << 62)])
def test_the_ends_of_the_range_and_the_top_bits(a: int) -> None:
    bits = 64 if a < 0 else 63
    rng = Random(a)
    for bands, threshold in product(BANDS, (0, 1, 3, 4, 7, 10)):
        plan = plan_probes(cut(bands), bits, threshold)
        assert sharing_bands(plan, a, a)
        # The top bits, the bottom bits, both ends, and any.
        changes = [range(bits - threshold, bits), range(threshold), rng.sample(range(bits), threshold)]
        changes.append([bit for pair in zip(range(32), range(bits - 1, 31, -1), strict=False) for bit in pair])
        for positions in changes:
            assert sharing_bands(plan, a, flip(a, list(positions)[:threshold])), (plan, positions)


def test_a_64_bit_fingerprint_is_found_across_its_sign() -> None:
    plan = plan_probes(cut(4), 64, 3)
    for a in (0, LARGEST, 1 << 62, 0x0123456789ABCDEF):
        assert sharing_bands(plan, a, flip(a, [63])) == [1, 2, 3]
        assert sharing_bands(plan, a, flip(a, [63, 47, 31])) == [3]
        assert sharing_bands(plan, a, flip(a, [63, 62, 61])) == [1, 2, 3]


def test_near_values_that_differ_in_every_place_are_found_and_one_beyond_is_not() -> None:
    """Bands that leave bits out or have wrong widths would miss one of these."""
    stored = 81985529216486895
    plan = plan_probes(cut(4), 63, 3)
    near = {
        81985524921454062: 3,
        81704049944743407: 3,
        81704049944808942: 3,
        81704054239710702: 3,  # one bit in each of three bands
        8152436061464415727: 3,  # bits 60 to 62
        81985529216445935: 3,  # bits 13 to 15
        4693530810155519471: 3,  # bits 47, 48 and 62
        4693671547643874799: 1,  # bit 62
    }
    assert {value: differing_bits(stored, value) for value in near} == near
    assert all(sharing_bands(plan, value, stored) for value in near)
    beyond = 81704049944743406  # one bit in each of four bands
    assert differing_bits(stored, beyond) == 4
    assert sharing_bands(plan, beyond, stored) == []


def pairs_within_3(fingerprints: Sequence[int], count: int) -> list[tuple[int, int]]:
    rng = Random(3)
    chosen = [rng.choice(fingerprints) for _ in range(count)]
    return [(a, flip(a, rng.sample(range(63), rng.randrange(4)))) for a in chosen]


@pytest.mark.parametrize("source", ["uniform", "real_one_site", "real_mixed"])
def test_5000_of_5000_pairs_within_3_share_a_whole_band(source: str) -> None:
    """The article's count, on its own columns."""
    rng = Random(5)
    uniform = [random_fingerprint(rng) for _ in range(5_000)]
    pairs = pairs_within_3(uniform if source == "uniform" else real_fingerprints(source), 5_000)
    plan = plan_probes(cut(4), 63, 3)
    assert {differing_bits(a, b) for a, b in pairs} == {0, 1, 2, 3}
    assert sum(bool(sharing_bands(plan, a, b)) for a, b in pairs) == 5_000


@pytest.mark.parametrize("bands", [2, 3, 4, 5, 8, 11, 16])
@pytest.mark.parametrize("source", ["real_one_site", "real_mixed"])
def test_lookups_on_real_fingerprints_miss_nothing(source: str, bands: int) -> None:
    """Skew is where an index is judged: whole lookups against brute force."""
    stored = np.array(real_fingerprints(source), np.int64)
    widths = cut(bands).widths
    columns = [stored >> (64 - end) & (2**width - 1) for end, width in zip(accumulate(widths), widths, strict=True)]
    plans = [plan_probes(cut(bands), 63, threshold) for threshold in (0, 1, 3, 4, 5, 7, 10, 12, 15)]
    rng = Random(bands)
    for plan in plans:
        for looked_up in rng.sample(real_fingerprints(source), 12 if plan.probes <= LISTABLE else 0):
            query = flip(looked_up, rng.sample(range(63), min(plan.threshold, 2)))
            within = np.bitwise_count((stored ^ query).view(np.uint64)) <= plan.threshold
            probed = np.zeros(len(stored), np.bool_)
            for column, values in zip(columns, plan.values(query), strict=True):
                probed |= np.isin(column, np.array(values, np.int64))
            assert within.any()
            assert probed[within].all(), (plan, query)


def test_plans_are_counted_and_never_enumerated() -> None:
    """Listing these 2^33 values would take longer than any time limit, and all the memory there is."""
    plan = plan_probes(cut(2), 64, 63)
    assert plan.radii == (31, 31)
    assert plan.probes == 2 * (2**32 - 1)
