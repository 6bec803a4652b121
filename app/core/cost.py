"""What a lookup costs by probing and by a scan, and which number of bands makes lookups cheapest.

Both ways are exact, so a wrong estimate makes a lookup slower, never wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import comb

import numpy as np
from numpy.typing import NDArray

from app.core.layout import Layout, cut
from app.core.probes import ProbePlan, plan_probes

# Microseconds on one core: PostgreSQL 18, warm, covering indexes. Fitted to the medians of lookups in 2 to 16 bands, at
# thresholds 0 to 15, among 100,000 and a million fingerprints, uniform and of one site (docs/performance.md). Only the
# ratios matter.
LOOKUP_COST = 50.0
BAND_COST = 40.0
PROBE_COST = 1.5  # in an index of a million; in larger ones more of the way down is out of the processor's caches
PROBE_GROWTH = 0.3  # the power of the size
PROBE_COST_FROM = 100_000  # below, an index is in the caches whatever its size
CANDIDATE_COST = 0.135
SCAN_ROW_COST = 0.115

# The size of a collection is an estimate, and a poor one right after a bulk load. Where probing is this cheap anyway,
# a scan could save little and lose much.
ALWAYS_PROBE_BELOW = 1000.0

MIN_BANDS, MAX_BANDS = 2, 16

# Fingerprints.
CHOSEN_FOR_AT_LEAST = 100_000

# Building another table is worth it where lookups get cheaper by more than the model may be wrong.
WORTH_A_REBUILD = 0.8


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two fingerprints of a collection are: for each band and radius, how many of all pairs are within it.

    What a probe reads depends on it: one templated site has buckets many times as full as uniform fingerprints.
    """

    layout: Layout
    bits: int
    within: tuple[tuple[float, ...], ...]  # for each band, by radius from 0 to its live width


@lru_cache(maxsize=256)
def uniform(layout: Layout, bits: int) -> Likeness:
    """That of random fingerprints."""
    widths = [band.live_width(bits) for band in layout.bands]
    return Likeness(
        layout,
        bits,
        tuple(
            tuple(count / (1 << width) for count in accumulate(comb(width, radius) for radius in range(width + 1)))
            for width in widths
        ),
    )


def likeness(sample: NDArray[np.int64], layout: Layout, bits: int) -> Likeness:
    """That of a sample of distinct fingerprints, by all their pairs; never less alike than random ones.

    A thousand fingerprints make half a million pairs: a band of 16 bits then has eight equal pairs where the
    fingerprints are uniform, and many where buckets are full enough to matter. Takes about 10 ms a band for them.
    """
    least = uniform(layout, bits)
    if len(sample) < 2:
        return least
    first, second = np.triu_indices(len(sample), 1)
    different = (sample[first] ^ sample[second]).view(np.uint64)
    within: list[tuple[float, ...]] = []
    for band, random in zip(layout.bands, least.within, strict=True):
        bits_apart = np.bitwise_count((different >> np.uint64(band.shift)) & np.uint64(band.mask))
        pairs = np.bincount(bits_apart, minlength=len(random))[: len(random)]
        shares = np.cumsum(pairs) / len(different)
        within.append(tuple(max(share, floor) for share, floor in zip(shares.tolist(), random, strict=True)))
    return Likeness(layout, bits, tuple(within))


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a collection before a lookup."""

    fingerprints: int
    likeness: Likeness


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one lookup, in microseconds; `candidates` are the rows that its probes are expected to read."""

    candidates: float
    probing: float
    scan: float

    @property
    def scan_is_cheaper(self) -> bool:
        return self.probing > ALWAYS_PROBE_BELOW and self.probing > self.scan

    @property
    def cheaper(self) -> float:
        return self.scan if self.scan_is_cheaper else self.probing


def probe_cost(fingerprints: int) -> float:
    """Of one value looked up in a collection of this size, without the rows that it finds."""
    return PROBE_COST * (max(fingerprints, PROBE_COST_FROM) / 1_000_000) ** PROBE_GROWTH


def cost(plan: ProbePlan, profile: Profile) -> Cost:
    share = sum(
        within[radius] for radius, within in zip(plan.radii, profile.likeness.within, strict=True) if radius >= 0
    )
    candidates = share * profile.fingerprints
    return Cost(
        candidates=candidates,
        probing=LOOKUP_COST
        + BAND_COST * len(plan.radii)
        + probe_cost(profile.fingerprints) * plan.probes
        + CANDIDATE_COST * candidates,
        scan=LOOKUP_COST + SCAN_ROW_COST * profile.fingerprints,
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """Some of the fingerprints of a collection, and how many it has."""

    bits: int
    fingerprints: int
    sampled: NDArray[np.int64]


def grown(samples: Sequence[Sample]) -> list[Sample]:
    """The same collections, as large as they must be for the number of bands to matter: in proportion, if they aren't.

    Bands that are chosen for a handful of documents would be the worst when there are a million.
    """
    total = sum(each.fingerprints for each in samples)
    if not total:
        return [Sample(63, CHOSEN_FOR_AT_LEAST, np.empty(0, dtype=np.int64))]
    factor = max(1, -(-CHOSEN_FOR_AT_LEAST // total))
    return [replace(each, fingerprints=each.fingerprints * factor) for each in samples]


def mean_costs(samples: Sequence[Sample], layout: Layout, thresholds: Sequence[int]) -> list[Cost]:
    """Of a lookup at each threshold, in a collection that is asked as often as it is large. One has fingerprints."""
    profiles = [Profile(each.fingerprints, likeness(each.sampled, layout, each.bits)) for each in samples]
    total = sum(profile.fingerprints for profile in profiles)
    costs: list[Cost] = []
    for threshold in thresholds:
        weighted = [
            (profile.fingerprints / total, cost(plan_probes(layout, profile.likeness.bits, threshold), profile))
            for profile in profiles
        ]
        costs.append(
            Cost(
                candidates=sum(weight * each.candidates for weight, each in weighted),
                probing=sum(weight * each.probing for weight, each in weighted),
                scan=sum(weight * each.scan for weight, each in weighted),
            )
        )
    return costs


def costs_by_bands(samples: Sequence[Sample], thresholds: Sequence[int]) -> dict[int, list[Cost]]:
    """For each number of bands the costs at each threshold, when the collections have grown. A second for a few."""
    expected = grown(samples)
    return {bands: mean_costs(expected, cut(bands), thresholds) for bands in range(MIN_BANDS, MAX_BANDS + 1)}


def cheapest_bands(costs: dict[int, Cost], now: int | None = None) -> int:
    """The number of bands whose lookups cost least; `now`, where it is one of them and a rebuild isn't worth it."""
    best = min(costs, key=lambda bands: costs[bands].cheaper)
    if now in costs and costs[best].cheaper > costs[now].cheaper * WORTH_A_REBUILD:
        return now
    return best
