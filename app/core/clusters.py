"""Clusters of fingerprints, made of their pairs: components and stars; how wide they are. All of it deterministic.

Fingerprints are meant by their indices, pairs are two arrays of indices.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.core.pairs import Fingerprints, Indices

# Pairs that are looked at together: what comes along with them is small beside the pairs themselves.
_PAIRS = 1 << 20
_CENTRES = 1 << 16

# Up to so many members a cluster's diameter is computed by all its pairs, in all clusters together up to so many pairs.
_EXACT_MEMBERS = 20_000
_EXACT_PAIRS = 1 << 30
_SMALL = 16
_SWEEPS = 4


GoOn = Callable[[], None]
"""Called now and then by what takes long; raises where it is to be broken off."""


def always() -> None:
    """For who waits for the end."""


def components(size: int, first: NDArray[np.integer], second: NDArray[np.integer], go_on: GoOn = always) -> Indices:
    """For each fingerprint the lowest one that a chain of pairs connects it with: union-find, many pairs at a time.

    Each round hooks the roots of the pairs onto lower ones and shortens all ways to the root, so at least every second
    root that isn't alone is gone after it: no chain is followed step by step.
    """
    parent = np.arange(size)
    for start in range(0, len(first), _PAIRS):
        go_on()
        a, b = parent[first[start : start + _PAIRS]], parent[second[start : start + _PAIRS]]
        while len(apart := np.flatnonzero(a != b)):
            a, b = a[apart], b[apart]
            np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))
            while np.any(parent != (grandparent := parent[parent])):
                parent = grandparent
            a, b = parent[a], parent[b]
    return parent


def stars(rank: Indices, first: NDArray[np.integer], second: NDArray[np.integer], go_on: GoOn = always) -> Indices:
    """For each fingerprint the centre of its star, with which it makes a pair unless it is the centre itself.

    Greedy: of the fingerprints that no star holds yet the one with the lowest rank takes all its neighbours that are
    free. So each centre has a lower rank than its members, and no two centres make a pair. `rank`: 0, 1, … once each.
    """
    size = len(rank)
    # Each pair from its lower to its higher rank, in one number: sorted, they are the lists of neighbours.
    codes = np.empty(len(first), "<u8")
    for start in range(0, len(first), _PAIRS):
        go_on()
        a, b = rank[first[start : start + _PAIRS]], rank[second[start : start + _PAIRS]]
        codes[start : start + _PAIRS] = np.minimum(a, b) << 32 | np.maximum(a, b)
    codes.sort()
    higher = codes.view("<u4")[::2]  # the low half of each
    ranks = np.arange(size)
    starts = np.searchsorted(codes, ranks.astype(np.uint64) << np.uint64(32))
    ends = np.append(starts[1:], len(codes))
    centre = np.full(size, -1)  # by rank
    for number, low in enumerate(np.flatnonzero(starts < ends).tolist()):
        if number % _CENTRES == 0:
            go_on()
        if centre[low] < 0:
            centre[low] = low
            members = higher[starts[low] : ends[low]]
            centre[members[centre[members] < 0]] = low
    centre = np.where(centre < 0, ranks, centre)
    by_rank = np.empty(size, np.int64)
    by_rank[rank] = np.arange(size)
    return by_rank[centre[rank]]


def nearest(
    size: int, first: NDArray[np.integer], second: NDArray[np.integer], fingerprints: Fingerprints
) -> NDArray[np.int16]:
    """The distance of each fingerprint to the nearest that it makes a pair with; 64 where there is none."""
    least = np.full(size, 64, np.int16)
    for start in range(0, len(first), _PAIRS):
        a, b = first[start : start + _PAIRS], second[start : start + _PAIRS]
        apart = np.bitwise_count(fingerprints[a] ^ fingerprints[b]).astype(np.int16)
        np.minimum.at(least, a, apart)
        np.minimum.at(least, b, apart)
    return least


@dataclass(frozen=True, slots=True)
class Clusters:
    """Clusters, the largest first, and their fingerprints in that order, the representative of each in front."""

    order: Indices  # which fingerprint stands at each place
    cluster: Indices  # for each place
    distance: NDArray[np.uint8]  # for each place: to the representative
    starts: Indices  # for each cluster: its first place
    sizes: Indices  # for each cluster: its fingerprints
    documents: Indices  # for each cluster
    diameters: "Diameters"


def arrange(fingerprints: Fingerprints, documents: NDArray[np.integer], labels: Indices, rank: Indices) -> Clusters:
    """Clusters of fingerprints that have the same label; the lowest rank of each is the representative.

    By the number of documents, then of fingerprints, then by rank; within a cluster by the distance to the
    representative, then by fingerprint. `documents`: how many each fingerprint has.
    """
    by_label = np.lexsort((rank, labels))
    label = labels[by_label]
    starts = np.flatnonzero(np.append(True, label[1:] != label[:-1])) if len(label) else np.empty(0, np.int64)
    sizes = np.diff(np.append(starts, len(label)))
    representatives = by_label[starts]
    of_clusters = np.add.reduceat(documents[by_label].astype(np.int64), starts) if len(starts) else starts
    largest_first = np.lexsort((rank[representatives], -sizes, -of_clusters))
    number = np.empty(len(starts), np.int64)
    number[largest_first] = np.arange(len(starts))
    cluster = np.empty(len(label), np.int64)
    cluster[by_label] = np.repeat(number, sizes)
    distance = np.empty(len(label), np.uint8)
    distance[by_label] = np.bitwise_count(fingerprints[by_label] ^ np.repeat(fingerprints[representatives], sizes))
    order = np.lexsort((fingerprints, distance, cluster))
    sizes = sizes[largest_first]
    starts = np.cumsum(sizes) - sizes
    return Clusters(
        order=order,
        cluster=cluster[order],
        distance=distance[order],
        starts=starts,
        sizes=sizes,
        documents=of_clusters[largest_first],
        diameters=diameters(fingerprints[order], starts),
    )


@dataclass(frozen=True, slots=True)
class Diameters:
    """The largest distance within each cluster. Where it is not exact it is a bound: no two are farther apart."""

    bits: NDArray[np.int16]
    exact: NDArray[np.bool_]


def diameters(fingerprints: Fingerprints, starts: Indices) -> Diameters:
    """Of clusters that stand one behind the other in `fingerprints`, each from its start to that of the next.

    Exact for clusters of up to 20,000 fingerprints, as long as all of them together have no more than a billion pairs;
    beyond, where the bounds meet. Small clusters come first, so whether one is exact depends on those that there are.
    """
    sizes = np.diff(np.append(starts, len(fingerprints)))
    widest = np.zeros(len(starts), np.int16)
    exact = np.ones(len(starts), bool)
    for size in range(2, _SMALL + 1):
        same = np.flatnonzero(sizes == size)
        members = [fingerprints[starts[same] + number] for number in range(size)]
        for number, each in enumerate(members):
            for other in members[:number]:
                widest[same] = np.maximum(widest[same], np.bitwise_count(each ^ other))
    spent = 0
    larger = np.flatnonzero(sizes > _SMALL)
    for cluster in larger[np.argsort(sizes[larger], kind="stable")].tolist():
        size = int(sizes[cluster])
        members = fingerprints[starts[cluster] : starts[cluster] + size]
        spent += size * size // 2
        if size <= _EXACT_MEMBERS and spent <= _EXACT_PAIRS:
            widest[cluster] = max(
                int(np.bitwise_count(members[row + 1 :] ^ members[row]).max(initial=0)) for row in range(size)
            )
        else:
            widest[cluster], exact[cluster] = _bounded(members)
    return Diameters(widest, exact)


def _bounded(members: Fingerprints) -> tuple[int, bool]:
    """An upper bound, and whether two members are that far apart.

    No two differ in more bits than differ anywhere among them, nor by more than twice what one is from all. The
    farthest of a member, and the farthest of that, are a lower bound.
    """
    upper = int(np.bitwise_or.reduce(members) ^ np.bitwise_and.reduce(members)).bit_count()
    lower = 0
    at = members[0]
    for _ in range(_SWEEPS):
        apart = np.bitwise_count(members ^ at)
        farthest = int(np.argmax(apart))
        lower, upper = max(lower, int(apart[farthest])), min(upper, 2 * int(apart[farthest]))
        at = members[farthest]
    return upper, lower == upper
