"""Multi-index hashing: which values of which bands to look up, so that no fingerprint within a threshold is missed.

With m bands and threshold k, write k = m·r + a, 0 <= a < m. Two fingerprints within k agree within r bits on one of
the first a + 1 bands, or within r - 1 bits on one of the others: else the distances of the bands would add up to at
least (a + 1)·(r + 1) + (m - a - 1)·r = k + 1. (Norouzi, Punjani and Fleet 2012.) Threshold 3 on four bands is radius 0
everywhere, the article's pigeonhole.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

from app.core.layout import Band, Layout

NOT_PROBED = -1


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Up to how many bits of each band may differ, and what that costs."""

    layout: Layout
    bits: int
    threshold: int
    radii: tuple[int, ...]  # one a band; NOT_PROBED: not looked up
    probes_by_band: tuple[int, ...]  # values looked up

    @property
    def probes(self) -> int:
        return sum(self.probes_by_band)

    def values(self, simhash: int) -> list[list[int]]:
        """For each band the values to look up: all within its radius of the band's value, and in its live bits."""
        listed: list[list[int]] = []
        for band, masks in _band_masks(self):
            value = band.value(simhash)
            listed.append([value ^ mask for mask in masks])
        return listed

    def flips(self) -> list[tuple[int, ...]]:
        """For each band what makes its values of a fingerprint's own one, by exclusive or: the same for all."""
        return [masks for _, masks in _band_masks(self)]


@lru_cache(maxsize=1024)
def plan_probes(layout: Layout, bits: int, threshold: int) -> ProbePlan:
    """The radii for fingerprints of `bits` bits (1 to 64) and a threshold of 0 to 63. Counts, enumerates nothing.

    A band without live bits is the same for all fingerprints of the collection: it neither separates nor counts.
    """
    widths = [band.live_width(bits) for band in layout.bands]
    live = [index for index, width in enumerate(widths) if width]
    radius, rest = divmod(threshold, len(live))
    radii = [NOT_PROBED] * len(widths)
    for position, index in enumerate(live):
        # A radius beyond the width already allows every value.
        radii[index] = min(radius if position <= rest else radius - 1, widths[index])
    counts = [_count(width, radius) for width, radius in zip(widths, radii, strict=True)]
    return ProbePlan(
        layout=layout,
        bits=bits,
        threshold=threshold,
        radii=tuple(radii),
        probes_by_band=tuple(counts),
    )


def _count(width: int, radius: int) -> int:
    return sum(comb(width, flips) for flips in range(radius + 1))


@lru_cache(maxsize=256)
def _band_masks(plan: ProbePlan) -> tuple[tuple[Band, tuple[int, ...]], ...]:
    """Each band with what is to be flipped in its value."""
    return tuple(
        (band, flips_within(band.live_width(plan.bits), radius))
        for band, radius in zip(plan.layout.bands, plan.radii, strict=True)
    )


@lru_cache(maxsize=256)
def flips_within(width: int, radius: int) -> tuple[int, ...]:
    """All numbers of `width` bits with at most `radius` ones, the fewest first."""
    return tuple(
        sum(1 << bit for bit in ones) for flips in range(radius + 1) for ones in combinations(range(width), flips)
    )
