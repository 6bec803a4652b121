"""Components are those of networkx, stars those of a plain greedy, diameters those of brute force."""

from collections.abc import Iterable, Sequence
from itertools import pairwise, permutations
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import as_array, differing_bits, distances, near_pairs, real_documents, signed

from app.core.clusters import components, diameters, nearest, stars
from app.core.pairs import Fingerprints, PairPlan, Pass, find_pairs

Pairs = list[tuple[int, int]]

KINDS = (np.int64, np.int32, np.uint32)

# Each is 3 bits from the next; the first and the last are 9 apart.
CHAIN_OF_FOUR = (1229782938247303441, 1229782938247303446, 1229782938252546326, 1229788435810685206)


def columns(pairs: Pairs, kind: type[np.integer] = np.int64) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    both = np.array(pairs, kind).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def pairs_within(fingerprints: Fingerprints, threshold: int) -> Pairs:
    return [(first, second) for first, second in near_pairs(distances(fingerprints), threshold).tolist()]


def components_of(size: int, pairs: Pairs) -> list[int]:
    return components(size, *columns(pairs)).tolist()


def stars_of(rank: Sequence[int], pairs: Pairs) -> list[int]:
    return stars(np.array(rank, np.int64), *columns(pairs)).tolist()


def lowest_by_networkx(size: int, pairs: Pairs) -> list[int]:
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(pairs)
    lowest = [0] * size
    for component in nx.connected_components(graph):
        for each in component:
            lowest[each] = min(component)
    return lowest


def neighbours(size: int, pairs: Pairs) -> list[set[int]]:
    near: list[set[int]] = [set() for _ in range(size)]
    for first, second in pairs:
        near[first].add(second)
        near[second].add(first)
    return near


def greedy_stars(rank: Sequence[int], pairs: Pairs) -> list[int]:
    """One after the other by rank: who is free is a centre, and takes all of its neighbours that are free."""
    near = neighbours(len(rank), pairs)
    centres: dict[int, int] = {}
    for each in sorted(range(len(rank)), key=lambda index: rank[index]):
        if each not in centres:
            centres[each] = each
            for member in near[each]:
                centres.setdefault(member, each)
    return [centres[index] for index in range(len(rank))]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Pairs]:
    """Pairs in any order and either way round, some of them more than once."""
    size = draw(st.integers(0, 30))
    if size < 2:
        return size, []
    one = st.integers(0, size - 1)
    return size, draw(st.lists(st.tuples(one, one).filter(lambda pair: pair[0] != pair[1]), max_size=60))


def random_graph(seed: int, size: int, count: int) -> Pairs:
    rng = Random(seed)
    return [(first, second) for first, second in (rng.sample(range(size), 2) for _ in range(count))]


def shuffled(rng: Random, pairs: Pairs) -> Pairs:
    """The same in another order, and each either way round."""
    turned = [(second, first) if rng.random() < 0.5 else (first, second) for first, second in pairs]
    rng.shuffle(turned)
    return turned


# Components


@settings(max_examples=200, deadline=None)
@given(graphs(), st.sampled_from(KINDS))
def test_components_are_those_of_networkx(graph: tuple[int, Pairs], kind: type[np.integer]) -> None:
    size, pairs = graph
    assert components(size, *columns(pairs, kind)).tolist() == lowest_by_networkx(size, pairs)


@pytest.mark.parametrize("pairs_at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("count", [100, 400, 600, 2_000])
def test_components_don_t_depend_on_how_many_pairs_are_looked_at_together(
    count: int, pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few pairs to a fingerprint leave small trees, one for each makes a giant among them."""
    monkeypatch.setattr("app.core.clusters._PAIRS", pairs_at_once)
    pairs = random_graph(count, 1_000, count)
    expected = lowest_by_networkx(1_000, pairs)
    assert components_of(1_000, pairs) == expected
    assert components_of(1_000, shuffled(Random(1), pairs)) == expected


def test_a_chain_of_20000_fingerprints_is_one_component() -> None:
    """The Gray code: each differs from the next in one bit."""
    numbers = np.arange(20_000, dtype=np.uint64)
    fingerprints = numbers ^ (numbers >> np.uint64(1))
    assert all((a ^ b).bit_count() == 1 for a, b in pairwise(fingerprints.tolist()))
    # Blocks of seven bits and of eight.
    plan = PairPlan("blocks", 2, 1, (Pass(0x7F00, 0), Pass(0xFF, 0)), 0, 0)
    steps = list(find_pairs(fingerprints, plan))
    first, second = (np.concatenate([getattr(step, side) for step in steps]) for side in ("first", "second"))
    assert {(each, each + 1) for each in range(19_999)} <= set(zip(first.tolist(), second.tolist(), strict=True))
    assert not components(20_000, first, second).any()


@pytest.mark.parametrize("order", ["upwards", "downwards", "random"])
def test_a_path_of_20000_is_one_component(order: str) -> None:
    rng = Random(20)
    nodes = list(range(3, 20_003))  # three are left alone
    if order == "downwards":
        nodes.reverse()
    if order == "random":
        rng.shuffle(nodes)
    path = list(pairwise(nodes))
    for pairs in (path, path[::-1], shuffled(rng, path)):
        assert components_of(20_004, pairs) == [0, 1, 2, *[3] * 20_000, 20_003]


def test_leaves_of_a_centre_that_is_higher_than_all_are_one_component() -> None:
    one = [(leaf, 500) for leaf in range(500)]
    assert components_of(501, one) == [0] * 501
    # Ten of them, their leaves mixed; then one more that joins their centres.
    ten = [(leaf, 500 + leaf % 10) for leaf in range(500)]
    assert components_of(510, ten) == [*(leaf % 10 for leaf in range(500)), *range(10)]
    joined = [*ten, *((500 + number, 510) for number in range(10))]
    assert components_of(511, joined) == [0] * 511


def test_without_a_pair_each_is_alone() -> None:
    for size in (0, 1, 2, 100):
        assert components_of(size, []) == list(range(size))
        assert stars_of(range(size), []) == list(range(size))
        assert nearest(size, *columns([]), as_array(range(size))).tolist() == [64] * size


# Stars


@settings(max_examples=200, deadline=None)
@given(graphs(), st.sampled_from(KINDS), st.data())
def test_stars_are_those_of_a_plain_greedy(
    graph: tuple[int, Pairs], kind: type[np.integer], data: st.DataObject
) -> None:
    size, pairs = graph
    rank = data.draw(st.permutations(range(size)))
    assert stars(np.array(rank, np.int64), *columns(pairs, kind)).tolist() == greedy_stars(rank, pairs)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.data())
def test_each_member_makes_a_pair_with_its_centre_and_no_two_centres_do(
    graph: tuple[int, Pairs], data: st.DataObject
) -> None:
    size, pairs = graph
    rank = data.draw(st.permutations(range(size)))
    near = neighbours(size, pairs)
    centres = stars_of(rank, pairs)
    for each, centre in enumerate(centres):
        assert each == centre or each in near[centre]
        assert centres[centre] == centre
        assert rank[centre] <= rank[each]
        assert not near[centre] & set(centres)


@pytest.mark.parametrize("pairs_at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("count", [100, 600, 5_000, 50_000])
def test_stars_don_t_depend_on_the_order_of_the_pairs(
    count: int, pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.clusters._PAIRS", pairs_at_once if count < 50_000 else 7_000)
    pairs = random_graph(count, 1_000, count)
    rng = Random(count)
    rank = rng.sample(range(1_000), 1_000)
    expected = greedy_stars(rank, pairs)
    assert stars_of(rank, pairs) == expected
    assert stars_of(rank, sorted(pairs)) == expected
    assert stars_of(rank, shuffled(rng, pairs)) == expected


def test_a_long_chain_is_one_component_and_many_stars() -> None:
    """50 fingerprints, each 3 bits from the next: whoever comes first takes the two beside it."""
    rng = Random(50)
    values = [rng.getrandbits(63)]
    while len(values) < 50:
        values.append(values[-1] ^ sum(1 << bit for bit in rng.sample(range(63), 3)))
    assert [differing_bits(signed(a), signed(b)) for a, b in pairwise(values)] == [3] * 49
    pairs = pairs_within(as_array(values), 3)
    assert pairs == list(pairwise(range(50)))
    assert components_of(50, pairs) == [0] * 50
    assert stars_of(range(50), pairs) == [each - each % 2 for each in range(50)]
    # From the other end, and every third first.
    assert stars_of(range(49, -1, -1), pairs) == [each + 1 - each % 2 for each in range(50)]
    thirds = [*range(1, 50, 3), *range(0, 50, 3), *range(2, 50, 3)]
    rank = [thirds.index(each) for each in range(50)]
    assert stars_of(rank, pairs) == [each - each % 3 + 1 for each in range(50)]


def test_the_chain_of_four() -> None:
    fingerprints = as_array(CHAIN_OF_FOUR)
    apart = [[differing_bits(a, b) for b in CHAIN_OF_FOUR] for a in CHAIN_OF_FOUR]
    assert apart == [[0, 3, 6, 9], [3, 0, 3, 6], [6, 3, 0, 3], [9, 6, 3, 0]]
    pairs = pairs_within(fingerprints, 3)
    assert pairs == [(0, 1), (1, 2), (2, 3)]
    assert components_of(4, pairs) == [0] * 4
    widest = diameters(fingerprints, np.array([0]))
    assert (widest.bits.tolist(), widest.exact.tolist()) == ([9], [True])
    assert nearest(4, *columns(pairs), fingerprints).tolist() == [3] * 4
    assert stars_of(range(4), pairs) == [0, 0, 2, 2]
    for rank in permutations(range(4)):
        assert all(apart[each][centre] <= 3 for each, centre in enumerate(stars_of(rank, pairs)))


@pytest.mark.parametrize("threshold", [1, 3, 7, 12])
@pytest.mark.parametrize("source", ["real_one_site", "real_mixed"])
def test_clusters_of_real_documents(source: str, threshold: int) -> None:
    """Components and stars of them, whose members are near, and how wide both are."""
    fingerprints = as_array(real_documents(source)[:1_000])
    apart = distances(fingerprints)
    pairs = pairs_within(fingerprints, threshold)
    rank = Random(threshold).sample(range(1_000), 1_000)
    together, star = components_of(1_000, pairs), stars_of(rank, pairs)
    assert together == lowest_by_networkx(1_000, pairs)
    assert star == greedy_stars(rank, pairs)
    assert apart[np.arange(1_000), star].max() <= threshold
    assert [together[centre] for centre in star] == together
    for labels in (together, star):
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(np.array(labels)[order], prepend=-1))
        widest = diameters(fingerprints[order], starts)
        assert widest.bits.tolist() == widths(apart[np.ix_(order, order)], starts.tolist())
        assert widest.exact.all()
    assert widest.bits.max() <= 2 * threshold  # of stars


# How near, and how wide


def widths(apart: NDArray[np.uint8], starts: Sequence[int]) -> list[int]:
    return [int(apart[start:end, start:end].max()) for start, end in pairwise([*starts, len(apart)])]


@settings(max_examples=200, deadline=None)
@given(graphs(), st.sampled_from(KINDS), st.data())
def test_the_nearest_is_that_of_brute_force(
    graph: tuple[int, Pairs], kind: type[np.integer], data: st.DataObject
) -> None:
    size, pairs = graph
    # Nearby ones, equal ones, and ones that differ anywhere.
    value = st.integers(0, 7) | st.integers(0, 2**64 - 1)
    values = data.draw(st.lists(value, min_size=size, max_size=size))
    expected = [
        min((differing_bits(signed(values[each]), signed(values[other])) for other in near), default=64)
        for each, near in enumerate(neighbours(size, pairs))
    ]
    assert nearest(size, *columns(pairs, kind), as_array(values)).tolist() == expected


@pytest.mark.parametrize("pairs_at_once", [1, 100, 1 << 20])
def test_the_nearest_doesn_t_depend_on_how_many_pairs_are_looked_at_together(
    pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.clusters._PAIRS", pairs_at_once)
    fingerprints = as_array(real_documents("real_one_site")[:300])
    apart = distances(fingerprints)
    pairs = pairs_within(fingerprints, 9)
    np.fill_diagonal(apart, 64)
    expected = np.where(apart <= 9, apart, 64).min(axis=1).tolist()
    assert {64, 1, 2} < set(expected)
    assert nearest(300, *columns(shuffled(Random(9), pairs)), fingerprints).tolist() == expected


def clusters_of(rng: Random, sizes: Iterable[int]) -> tuple[Fingerprints, NDArray[np.int64]]:
    """Clusters one behind the other, each of fingerprints at most so many bits from its middle: from none to 64."""
    values: list[int] = []
    starts: list[int] = []
    for size in sizes:
        starts.append(len(values))
        middle, most = rng.getrandbits(64), rng.choice((0, 1, 2, 3, 8, 64))
        flips = [rng.sample(range(64), rng.randint(0, most)) for _ in range(size)]
        values += [middle ^ sum(1 << bit for bit in bits) for bits in flips]
    return as_array(values), np.array(starts, np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_diameters_of_all_sizes_are_those_of_brute_force(seed: int) -> None:
    rng = Random(seed)
    sizes = [*range(1, 41), *range(1, 41), *[1, 2, 3] * 10, 200]
    rng.shuffle(sizes)
    fingerprints, starts = clusters_of(rng, sizes)
    widest = diameters(fingerprints, starts)
    assert widest.bits.tolist() == widths(distances(fingerprints), starts.tolist())
    assert widest.exact.tolist() == [True] * len(sizes)


def test_the_two_that_are_farthest_apart_may_stand_anywhere() -> None:
    for size in (2, 3, 16, 17, 20):
        for first in range(size):
            for second in range(first):
                values = [0b111] * size
                values[first], values[second] = 0b111 | 1 << 63, 0b100
                widest = diameters(as_array(values), np.array([0]))
                assert (widest.bits.tolist(), widest.exact.tolist()) == ([3], [True])


def test_no_cluster_has_no_diameter() -> None:
    widest = diameters(as_array([]), np.empty(0, np.int64))
    assert len(widest.bits) == len(widest.exact) == 0


def outermost(fingerprints: Fingerprints) -> int:
    """In how many places two of them differ, whichever they are."""
    digits = np.array([list(format(value, "064b")) for value in fingerprints.tolist()])
    return sum(len(set(column)) > 1 for column in digits.T.tolist())


@pytest.mark.parametrize("seed", range(10))
def test_beyond_the_limits_a_diameter_is_a_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.clusters._EXACT_MEMBERS", 20)
    rng = Random(seed)
    sizes = rng.sample(range(1, 61), 60)
    fingerprints, starts = clusters_of(rng, sizes)
    widest = diameters(fingerprints, starts)
    true = widths(distances(fingerprints), starts.tolist())
    for size, start, bits, exact, width in zip(
        sizes, starts.tolist(), widest.bits.tolist(), widest.exact.tolist(), true, strict=True
    ):
        assert width <= bits <= min(2 * width, outermost(fingerprints[start : start + size]))
        if exact:
            assert bits == width
        assert exact or size > 20
    # Some meet, where all are equal for one; some don't.
    beyond = [exact for size, exact in zip(sizes, widest.exact.tolist(), strict=True) if size > 20]
    assert set(beyond) == {True, False}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.integers(0, 63), max_size=6), min_size=17, max_size=30), st.integers(0, 2**64 - 1))
def test_no_two_are_farther_apart_than_the_bound(members: list[set[int]], middle: int) -> None:
    fingerprints = as_array([middle ^ sum(1 << bit for bit in flips) for flips in members])
    width = int(distances(fingerprints).max())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.core.clusters._EXACT_MEMBERS", 0)
        widest = diameters(fingerprints, np.array([0]))
    assert width <= widest.bits[0] <= min(2 * width, outermost(fingerprints))
    assert not widest.exact[0] or widest.bits[0] == width


def test_bounds_that_meet_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.clusters._EXACT_MEMBERS", 0)
    equal = [5] * 20
    # All eight values of three bits: two of them differ in all places where any do.
    cube = [*range(8)] * 3
    # Each one bit from the first: two of them two bits from one another.
    spokes = [0, *(1 << bit for bit in range(20))]
    # One bit in common, any two of them apart in four others: neither bound says so.
    code = [0b1000000, 0b1001111, 0b1110011, 0b1111100] * 5
    fingerprints = as_array([*equal, *cube, *spokes, *code])
    widest = diameters(fingerprints, np.array([0, 20, 44, 65]))
    assert widest.bits.tolist() == [0, 3, 2, 6]
    assert widest.exact.tolist() == [True, True, True, False]


def test_small_clusters_are_exact_before_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for the pairs of 17, 17 and 18 fingerprints, and none for those of 19, wherever they stand."""
    monkeypatch.setattr("app.core.clusters._EXACT_PAIRS", 500)
    code = [0b000000, 0b001111, 0b110011, 0b111100]
    for seed in range(5):
        sizes = [*range(1, 31), 17]
        Random(seed).shuffle(sizes)
        starts = np.cumsum([0, *sizes[:-1]])
        fingerprints = as_array([code[number % 4] for size in sizes for number in range(size)])
        widest = diameters(fingerprints, starts)
        assert widest.exact.tolist() == [size <= 18 for size in sizes]
        assert widest.bits.tolist() == [0 if size == 1 else 4 if size <= 18 else 6 for size in sizes]


# What takes long can be broken off


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1])
def test_clusters_are_no_more_made_when_nobody_wants_them(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.clusters._PAIRS", 10)
    monkeypatch.setattr("app.core.clusters._CENTRES", 10)
    asked = 0

    def go_on() -> None:
        nonlocal asked
        asked += 1
        if asked > after:
            raise StoppedError

    numbers = np.arange(100)
    with pytest.raises(StoppedError):
        components(100, numbers[:-1], numbers[1:], go_on)
    assert asked == after + 1
    with pytest.raises(StoppedError):
        stars(numbers, numbers[:-1], numbers[1:], go_on)
