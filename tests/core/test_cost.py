from fractions import Fraction
from itertools import product

import pytest
from oracles import BANDS, THRESHOLDS, WIDTHS, live_positions

from app.core.cost import ALWAYS_PROBE_BELOW, CANDIDATE_COST, PROBE_COST, SCAN_ROW_COST, scan_is_cheaper
from app.core.layout import cut
from app.core.probes import ProbePlan, plan_probes

SIZES = (0, 1, 10, 100, 1_000, 10_000, 100_000, 10**6, 10**7, 10**8, 10**9)


def probes(threshold: int, *, bands: int = 4, bits: int = 63) -> ProbePlan:
    return plan_probes(cut(bands), bits, threshold)


def share_read(plan: ProbePlan) -> Fraction:
    """How much of a uniform collection the probes read: a row once for each band that finds it."""
    live = live_positions(plan.layout.widths, plan.bits)
    parts = zip(plan.probes_by_band, live, strict=True)
    return sum((Fraction(count, 2 ** len(positions)) for count, positions in parts), Fraction(0))


@pytest.mark.parametrize("bands", BANDS)
def test_every_plan_gets_an_answer_at_every_size(bands: int) -> None:
    """Total and fast: 2^33 probes are counted, neither listed nor too large to multiply."""
    for bits, threshold, size in product(range(1, 65), THRESHOLDS, (0, 2**63)):
        assert scan_is_cheaper(probes(threshold, bands=bands, bits=bits), size) in {True, False}


@pytest.mark.parametrize("threshold", range(4))
def test_the_article_s_threshold_never_scans(threshold: int) -> None:
    assert not any(scan_is_cheaper(probes(threshold), size) for size in SIZES)


@pytest.mark.parametrize(
    ("size", "threshold"), [(10**6, k) for k in (3, 5, 7, 10, 12, 15)] + [(10**7, k) for k in (3, 5, 7, 9, 10)]
)
def test_probing_is_taken_where_it_was_measured_to_win(size: int, threshold: int) -> None:
    """On four bands: 8.7 ms against 43 at a million and threshold 15, 9.6 ms against 636 at ten million and 10."""
    assert not scan_is_cheaper(probes(threshold), size)


@pytest.mark.parametrize("threshold", [32, 40, 50, 63])
@pytest.mark.parametrize("bands", range(2, 9))
def test_a_threshold_that_half_of_everything_meets_scans(bands: int, threshold: int) -> None:
    assert all(scan_is_cheaper(probes(threshold, bands=bands), size) for size in SIZES)


@pytest.mark.parametrize("bands", BANDS)
def test_the_largest_threshold_scans_any_collection_worth_the_question(bands: int) -> None:
    for bits, size in product(WIDTHS, (10**5, 10**6, 10**9)):
        assert scan_is_cheaper(probes(63, bands=bands, bits=bits), size), (bits, size)


@pytest.mark.parametrize("threshold", [12, 15, 20, 31])
def test_a_small_collection_scans_where_the_probes_outnumber_it(threshold: int) -> None:
    assert probes(threshold).probes > 700
    assert scan_is_cheaper(probes(threshold), 100)


@pytest.mark.parametrize("size", [0, 1, 100, 10_000])
@pytest.mark.parametrize("threshold", [3, 5, 7])
def test_a_few_probes_are_never_given_up_for_an_estimate_of_a_small_size(threshold: int, size: int) -> None:
    """Right after a bulk load the size is unknown or far too low: 10,000 may be a million."""
    assert not scan_is_cheaper(probes(threshold), size)


@pytest.mark.parametrize("bands", BANDS)
def test_a_higher_threshold_never_turns_a_scan_into_probes(bands: int) -> None:
    for bits, size in product(WIDTHS, SIZES):
        scans = [scan_is_cheaper(probes(threshold, bands=bands, bits=bits), size) for threshold in THRESHOLDS]
        assert scans == sorted(scans), (bits, size)


@pytest.mark.parametrize("bands", BANDS)
def test_a_growing_collection_is_judged_by_the_share_that_the_probes_read(bands: int) -> None:
    """The probes themselves cost the same at any size: in the end only rows count, probed or scanned."""
    limit = Fraction(SCAN_ROW_COST) / Fraction(CANDIDATE_COST)
    for bits, threshold in product(WIDTHS, THRESHOLDS):
        plan = probes(threshold, bands=bands, bits=bits)
        assert scan_is_cheaper(plan, 10**16) is (share_read(plan) > limit), plan


@pytest.mark.parametrize("bands", BANDS)
def test_no_lookup_lists_more_values_than_its_collection_is_worth(bands: int) -> None:
    """What bounds the memory and the array parameters of a lookup: 625 values, or one for each 20 rows."""
    for size, threshold in product(SIZES, THRESHOLDS):
        most = max(ALWAYS_PROBE_BELOW, size * SCAN_ROW_COST) / PROBE_COST
        plan = probes(threshold, bands=bands)
        assert plan.probes <= most or scan_is_cheaper(plan, size), plan
