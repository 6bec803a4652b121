"""All pairs of fingerprints within a threshold, in numpy: exact for every threshold, each pair once.

A pass sorts the fingerprints by some of their bits and compares those that agree there, or nearly agree. The passes of
a plan are such that any two fingerprints within the threshold meet in one of them at least:

- blocks: the bits are cut into m > k blocks. At most k of them can differ, so the two agree on some m - k: a pass for
  every choice of m - k blocks. (Manku, Jain and Das Sarma 2007.)
- bands: the rule of `core.probes`: within a radius on one band. Few passes, each of which looks around every value.
- one pass over no bits at all: every pair is compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb, log2

import numpy as np
from numpy.typing import NDArray

from app.core.layout import cut
from app.core.probes import NOT_PROBED, ProbePlan, flips_within, plan_probes

Fingerprints = NDArray[np.uint64]
Indices = NDArray[np.int64]

# Nanoseconds on one core. Fitted to plans for uniform and real fingerprints (docs/performance.md); the ratios matter.
GATHER_COST = 20.0  # a fingerprint
SORT_COST = 8.0  # a fingerprint, and each doubling of their number
FLIP_COST = 12.0  # a fingerprint, and each value that is looked at
CANDIDATE_COST = 7.0
COMPARE_COST = 0.8  # where every pair is one, one after the other in memory
PASS_COST = 200_000.0

# More blocks than these, or more passes, are never the cheapest where memory holds the pairs at all.
_MORE_BLOCKS = 12
_MOST_PASSES = 1000
_MOST_BANDS = 12
_MOST_FLIPS = 10_000
# A band that is looked around needs a table of its values.
_MOST_TABLE_BITS = 22

SAMPLE = 700  # fingerprints, whose quarter of a million pairs tell a plan what to expect

# Rows whose partners are sought at once: what is in use stays in the processor's caches.
_ROWS = 1 << 17
# After so many a caller may look around: a fraction of a second, and some megabytes.
_STEP_COMPARED = 1 << 25
_STEP_PAIRS = 1 << 18

_FILTER_BITS = 20
_NOTHING = np.empty(0, np.int64)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio: spreads keys over the filter


@dataclass(frozen=True, slots=True)
class Pass:
    """Compares the fingerprints that differ in at most `radius` of the bits of `mask`."""

    mask: int
    radius: int

    @property
    def width(self) -> int:
        return self.mask.bit_count()

    @property
    def flips(self) -> int:
        """How many values of the masked bits are looked at for each, its own included."""
        return sum(comb(self.width, ones) for ones in range(self.radius + 1))


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How the pairs are found, and what that is expected to cost."""

    kind: str  # blocks, bands, or every pair
    parts: int  # blocks or bands; 1: every pair is compared
    threshold: int
    passes: tuple[Pass, ...]
    candidates: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Selection:
    """Which pairs are wanted: those whose flags have, together, all of `wanted`. Bit 0 marks the rows to start from."""

    flags: NDArray[np.uint8]  # one a fingerprint
    wanted: int


@dataclass(frozen=True, slots=True)
class Step:
    """Some of the pairs, as indices of fingerprints, the lower one first."""

    first: Indices
    second: Indices
    passes: float  # of the plan that are done, about


def differences(sample: Fingerprints) -> Fingerprints:
    """The exclusive or of each pair of a sample: how alike the fingerprints of the set are."""
    first, second = np.triu_indices(len(sample), 1)
    return sample[first] ^ sample[second]


def expected_pairs(different: Fingerprints, fingerprints: int, bits: int, threshold: int) -> float:
    """How many pairs are within the threshold; never less than of random fingerprints."""
    random = sum(comb(bits, distance) for distance in range(min(threshold, bits) + 1)) / 2**bits
    return _comparisons(fingerprints, None) * max(random, _share_within(different, threshold))


def _share_within(different: Fingerprints, radius: int) -> float:
    return float(np.mean(np.bitwise_count(different) <= radius)) if len(different) else 0.0


def choose_plan(
    different: Fingerprints, fingerprints: int, bits: int, threshold: int, starting: int | None = None
) -> PairPlan:
    """The plan that should take the least time for a set of this size, whose pairs are like `different`.

    `bits`: how many a fingerprint may have, 1 to 64. `threshold`: 0 to 63. `starting`: how many rows a selection starts
    from; None: there is none.
    """
    setting = _Setting(different, fingerprints, bits, threshold, starting)
    blocks = [
        blocks
        for blocks in range(threshold + 1, min(threshold + _MORE_BLOCKS, bits) + 1)
        if comb(blocks, threshold) <= _MOST_PASSES
    ]
    bands = [
        bands for bands in range(2, _MOST_BANDS + 1) if _can_be_looked_around(plan_probes(cut(bands), bits, threshold))
    ]
    plans = [
        _costed(setting, "every pair", 1, (Pass(0, 0),), 1.0),
        *(_by_blocks(setting, number) for number in blocks),
        *(_by_bands(setting, number) for number in bands),
    ]
    return min(plans, key=lambda plan: plan.seconds)


def _can_be_looked_around(plan: ProbePlan) -> bool:
    widths = [band.live_width(plan.bits) for band in plan.layout.bands]
    around = [width for width, radius in zip(widths, plan.radii, strict=True) if radius > 0]
    return max(around, default=0) <= _MOST_TABLE_BITS and max(plan.probes_by_band) <= _MOST_FLIPS


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a plan is for."""

    different: Fingerprints
    fingerprints: int
    bits: int
    threshold: int
    starting: int | None


def _by_blocks(setting: _Setting, blocks: int) -> PairPlan:
    passes = block_passes(setting.bits, setting.threshold, blocks)
    share = 0.0
    if len(setting.different):
        # How many passes two fingerprints meet in depends on how many blocks they agree on.
        masks = block_masks(setting.bits, blocks)
        agreeing = sum(((setting.different & np.uint64(mask)) == 0).astype(np.intp) for mask in masks)
        counts = np.bincount(agreeing)
        met = sum(comb(number, blocks - setting.threshold) * int(pairs) for number, pairs in enumerate(counts))
        share = met / len(setting.different)
    return _costed(setting, "blocks", blocks, passes, max(share, sum(map(_random_share, passes))))


def _by_bands(setting: _Setting, bands: int) -> PairPlan:
    passes = band_passes(setting.bits, setting.threshold, bands)
    share = sum(
        max(_random_share(each), _share_within(setting.different & np.uint64(each.mask), each.radius))
        for each in passes
    )
    return _costed(setting, "bands", bands, passes, share)


def _random_share(each: Pass) -> float:
    """Of the pairs of random fingerprints, how many the pass compares."""
    return each.flips / 2**each.width


def _costed(setting: _Setting, kind: str, parts: int, passes: tuple[Pass, ...], share: float) -> PairPlan:
    size = setting.fingerprints
    looking = size if setting.starting is None else setting.starting
    candidates = share * _comparisons(size, setting.starting)
    nanoseconds = candidates * (CANDIDATE_COST if passes[0].mask else COMPARE_COST)
    for each in passes:
        nanoseconds += each.flips * (PASS_COST + looking * FLIP_COST)
        if each.mask:
            # Without a radius only those are sorted that have the key of a starting row.
            sorted_rows = size if each.radius or setting.starting is None else min(size, 2 * setting.starting)
            nanoseconds += size * GATHER_COST + sorted_rows * SORT_COST * log2(sorted_rows + 2)
    return PairPlan(kind, parts, setting.threshold, passes, candidates, nanoseconds / 1e9)


def _comparisons(fingerprints: int, starting: int | None) -> float:
    """How many pairs there are, or those that have a starting row."""
    others = fingerprints if starting is None else fingerprints - starting
    return fingerprints * (fingerprints - 1) / 2 - (0 if starting is None else others * (others - 1) / 2)


def block_passes(bits: int, threshold: int, blocks: int) -> tuple[Pass, ...]:
    """`blocks`: more than the threshold, and no more than `bits`."""
    return tuple(Pass(sum(chosen), 0) for chosen in combinations(block_masks(bits, blocks), blocks - threshold))


def band_passes(bits: int, threshold: int, bands: int) -> tuple[Pass, ...]:
    plan = plan_probes(cut(bands), bits, threshold)
    live = (1 << bits) - 1
    return tuple(
        Pass((band.mask << band.shift) & live, radius)
        for band, radius in zip(plan.layout.bands, plan.radii, strict=True)
        if radius != NOT_PROBED
    )


def block_masks(bits: int, blocks: int) -> list[int]:
    """The `bits` lowest bits in consecutive blocks as equal as they can be, the highest first."""
    width, wider = divmod(bits, blocks)
    ends = [width * number + min(number, wider) for number in range(blocks + 1)]
    return [(1 << (bits - start)) - (1 << (bits - end)) for start, end in pairwise(ends)]


def find_pairs(fingerprints: Fingerprints, plan: PairPlan, selection: Selection | None = None) -> Iterator[Step]:
    """Each pair within the threshold of the plan once, of those that are wanted; a step takes a fraction of a second.

    The fingerprints may be in any order, and need not be distinct.
    """
    for number, each in enumerate(plan.passes):
        for first, second, share in _meetings(fingerprints, each, plan.threshold, selection):
            new = _are_new(fingerprints[first] ^ fingerprints[second], plan.passes[:number])
            if selection is not None:
                new = new[_are_wanted(first[new], second[new], selection)]
            yield Step(np.minimum(first[new], second[new]), np.maximum(first[new], second[new]), number + share)


def _are_new(different: Fingerprints, earlier: Sequence[Pass]) -> Indices:
    """The numbers of those that no earlier pass has found: a pair that meets in several is found by the first."""
    new = np.arange(len(different))
    for each in earlier:
        apart = np.bitwise_count(different[new] & np.uint64(each.mask))
        new = new[apart > each.radius]
    return new


def _are_wanted(first: Indices, second: Indices, selection: Selection) -> NDArray[np.bool_]:
    """Two starting rows find one another, and a row that looks at its own value finds itself."""
    flags = selection.flags
    has_all = (flags[first] | flags[second]) & selection.wanted == selection.wanted
    return has_all & ((first < second) | (flags[second] & 1 == 0))


def _meetings(
    fingerprints: Fingerprints, each: Pass, threshold: int, selection: Selection | None
) -> Iterator[tuple[Indices, Indices, float]]:
    """The pairs within the threshold that the pass compares, in parts, and how much of it is done."""
    if not each.mask:
        yield from _all_pairs(fingerprints, threshold, selection)
        return
    keys = _gathered(fingerprints, each.mask)
    rows = None
    if selection is not None and not each.radius:
        rows = _rows_of_starting_keys(keys, selection)
        keys = keys[rows]
    order = np.argsort(keys)
    keys = keys[order]
    if rows is not None:
        order = rows[order]
    ordered = fingerprints[order]
    starting = None if selection is None else np.flatnonzero(selection.flags[order] & 1)
    partners = _partners_around(keys, each, starting) if each.radius else _partners(keys, starting)
    for rows, begin, end, share in partners:
        for first, second in _within(ordered, rows, begin, end, threshold):
            yield order[first], order[second], share


def _all_pairs(
    fingerprints: Fingerprints, threshold: int, selection: Selection | None
) -> Iterator[tuple[Indices, Indices, float]]:
    found = _Part()
    rows = range(len(fingerprints)) if selection is None else np.flatnonzero(selection.flags & 1).tolist()
    for row in rows:
        start = row + 1 if selection is None else 0
        near = start + np.flatnonzero(np.bitwise_count(fingerprints[start:] ^ fingerprints[row]) <= threshold)
        found.add(np.full(len(near), row), near, compared=len(fingerprints) - start)
        if found.is_full:
            yield *found.taken(), row / len(fingerprints)
    yield *found.taken(), 1.0


class _Part:
    """Pairs that are collected until there are enough for a step."""

    def __init__(self) -> None:
        self._first: list[Indices] = [_NOTHING]
        self._second: list[Indices] = [_NOTHING]
        self._pairs = self._compared = 0

    def add(self, first: Indices, second: Indices, *, compared: int) -> None:
        self._compared += compared
        if len(first):
            self._first.append(first)
            self._second.append(second)
            self._pairs += len(first)

    @property
    def is_full(self) -> bool:
        return self._compared > _STEP_COMPARED or self._pairs > _STEP_PAIRS

    def taken(self) -> tuple[Indices, Indices]:
        pairs = np.concatenate(self._first), np.concatenate(self._second)
        self.__init__()
        return pairs


def _gathered(fingerprints: Fingerprints, mask: int) -> Fingerprints:
    """The bits of the mask, moved together."""
    keys = np.zeros_like(fingerprints)
    position = 0
    while mask:
        shift = (mask & -mask).bit_length() - 1
        width = (~(mask >> shift) & (mask >> shift) + 1).bit_length() - 1
        keys |= ((fingerprints >> np.uint64(shift)) & np.uint64((1 << width) - 1)) << np.uint64(position)
        position += width
        mask &= ~(((1 << width) - 1) << shift)
    return keys


def _rows_of_starting_keys(keys: Fingerprints, selection: Selection) -> Indices:
    """The rows whose key may be that of a starting row: few need sorting where few have changed."""
    hashed = (keys * _MULTIPLIER) >> np.uint64(64 - _FILTER_BITS)
    starting = np.zeros(1 << _FILTER_BITS, bool)
    starting[hashed[selection.flags & 1 == 1]] = True
    return np.flatnonzero(starting[hashed])


# Rows of the sorted keys, for each from where to where its partners are, and how much of the pass is done with them.
_Meeting = tuple[Indices, Indices, Indices, float]


def _partners(keys: Fingerprints, starting: Indices | None) -> Iterator[_Meeting]:
    """Those with the same key: of all rows each with the ones behind it, of the starting ones with all."""
    rows = np.flatnonzero(keys[1:] == keys[:-1]) if starting is None else starting
    for part, share in _parts(rows):
        begin = part + 1 if starting is None else np.searchsorted(keys, keys[part], "left")
        yield part, begin, np.searchsorted(keys, keys[part], "right"), share


def _partners_around(keys: Fingerprints, each: Pass, starting: Indices | None) -> Iterator[_Meeting]:
    """Those whose keys differ in at most the radius; of two keys the lower one looks, unless only some rows do."""
    begins = np.searchsorted(keys, np.arange((1 << each.width) + 1, dtype=np.uint64))
    rows = np.arange(len(keys)) if starting is None else starting
    flips = flips_within(each.width, each.radius)
    for number, flip in enumerate(flips):
        for part, share in _parts(rows):
            if starting is None and flip:
                highest = np.uint64(1 << (flip.bit_length() - 1))
                part = part[keys[part] & highest == 0]  # noqa: PLW2901  those of the part that look
            partner = (keys[part] ^ np.uint64(flip)).astype(np.int64)
            begin = part + 1 if starting is None and not flip else begins[partner]
            yield part, begin, begins[partner + 1], (number + share) / len(flips)


def _parts(rows: Indices) -> Iterator[tuple[Indices, float]]:
    """The rows, and how many of them these and those before are."""
    for start in range(0, len(rows), _ROWS):
        yield rows[start : start + _ROWS], min(1.0, (start + _ROWS) / len(rows))


def _within(
    ordered: Fingerprints, rows: Indices, begin: Indices, end: Indices, threshold: int
) -> Iterator[tuple[Indices, Indices]]:
    """Compares each row with its partners: the first of each, then the second of those that have two, and so on."""
    found = _Part()
    while True:
        more = np.flatnonzero(begin < end)
        if len(more) < len(rows):
            rows, begin, end = rows[more], begin[more], end[more]
        if not len(rows):
            break
        near = np.flatnonzero(np.bitwise_count(ordered[rows] ^ ordered[begin]) <= threshold)
        found.add(rows[near], begin[near], compared=len(rows))
        if found.is_full:
            yield found.taken()
        begin = begin + 1
    yield found.taken()


# Of a set while its pairs are found and its clusters are made; of each pair that is kept. Measured, and rounded up.
FINGERPRINT_BYTES = 200
COMPONENT_PAIR_BYTES, STAR_PAIR_BYTES = 10, 20
STEP_BYTES = 100_000_000


def bytes_needed(fingerprints: int, pairs: float, *, stars: bool) -> int:
    """The memory that it takes to find so many pairs of so many fingerprints, and to make clusters of them."""
    per_pair = STAR_PAIR_BYTES if stars else COMPONENT_PAIR_BYTES
    return STEP_BYTES + fingerprints * FINGERPRINT_BYTES + int(pairs * per_pair)


def pairs_that_fit(fingerprints: int, most_bytes: int, *, stars: bool) -> int:
    """The reverse: how many pairs so many bytes hold."""
    per_pair = STAR_PAIR_BYTES if stars else COMPONENT_PAIR_BYTES
    pairs = (most_bytes - bytes_needed(fingerprints, 0, stars=stars)) // per_pair
    return max(0, min(pairs, fingerprints * (fingerprints - 1) // 2))


class PairList:
    """Pairs of indices, eight bytes each, at most so many: room is set aside, and taken when it is filled."""

    def __init__(self, most: int) -> None:
        self._codes = np.empty(most, "<u8")  # the first index in the higher half, so that they sort by it
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def first(self) -> NDArray[np.uint32]:
        return self._codes[: self._size].view("<u4")[1::2]

    @property
    def second(self) -> NDArray[np.uint32]:
        return self._codes[: self._size].view("<u4")[::2]

    def add(self, first: Indices, second: Indices) -> bool:
        """False where there is no room for them: then they aren't added."""
        end = self._size + len(first)
        if end > len(self._codes):
            return False
        self._codes[self._size : end] = _codes(first, second)
        self._size = end
        return True

    def renumber(self, numbers: Indices) -> None:
        """Puts `numbers[i]` in the place of each index i; the lower one first."""
        for start in range(0, self._size, _STEP_PAIRS):
            part = slice(start, min(start + _STEP_PAIRS, self._size))
            first, second = numbers[self.first[part]], numbers[self.second[part]]
            self._codes[part] = _codes(np.minimum(first, second), np.maximum(first, second))

    def sorted(self) -> NDArray[np.uint32]:
        """All of them in ascending order, a row each."""
        codes = self._codes[: self._size]
        codes.sort()
        return codes.view("<u4").reshape(-1, 2)[:, ::-1]


def _codes(first: Indices, second: Indices) -> NDArray[np.uint64]:
    return (first << 32 | second).astype("<u8")
