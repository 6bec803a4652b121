import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import BANDS, LARGEST, SMALLEST, band_values, live_positions

from app.core.layout import Band, Layout, cut


@pytest.mark.parametrize("bands", BANDS)
def test_a_cut_is_as_equal_as_64_bits_allow_and_the_wider_bands_are_highest(bands: int) -> None:
    widths = cut(bands).widths
    assert len(widths) == bands
    assert sum(widths) == 64
    assert max(widths) - min(widths) <= 1
    assert list(widths) == sorted(widths, reverse=True)


@pytest.mark.parametrize("layout", [*map(cut, BANDS), Layout((64,)), Layout((1,) * 64), Layout((40, 9, 5, 4, 3, 3))])
def test_each_bit_is_in_exactly_one_band(layout: Layout) -> None:
    """Bits left out, or bands of the wrong width, would miss near values."""
    masks = [band.mask << band.shift for band in layout.bands]
    assert sum(masks) == 2**64 - 1
    assert sum(mask.bit_count() for mask in masks) == 64
    for bit in range(64):
        assert [band.value(1 << bit if bit < 63 else SMALLEST) for band in layout.bands].count(0) == len(masks) - 1


@pytest.mark.parametrize("bands", BANDS)
def test_bands_are_numbered_from_the_highest(bands: int) -> None:
    shifts = [band.shift for band in cut(bands).bands]
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[-1] == 0
    assert [band.index for band in cut(bands).bands] == list(range(bands))
    assert [band.column for band in cut(bands).bands] == [f"b{index}" for index in range(bands)]


@settings(deadline=None)
@given(st.integers(0, LARGEST))
def test_four_bands_are_the_article_s_columns(simhash: int) -> None:
    assert [band.value(simhash) for band in cut(4).bands] == [
        (simhash >> 48) & 32767,
        (simhash >> 32) & 65535,
        (simhash >> 16) & 65535,
        simhash & 65535,
    ]


@settings(deadline=None)
@given(st.sampled_from([*map(cut, BANDS), Layout((40, 9, 5, 4, 3, 3))]), st.integers(SMALLEST, LARGEST))
def test_a_band_s_value_is_its_piece_of_the_binary_digits(layout: Layout, simhash: int) -> None:
    assert [band.value(simhash) for band in layout.bands] == band_values(simhash, layout.widths)


@pytest.mark.parametrize(
    ("simhash", "values"),
    [
        (0, [0, 0, 0, 0]),
        (LARGEST, [0x7FFF, 0xFFFF, 0xFFFF, 0xFFFF]),
        (1 << 62, [0x4000, 0, 0, 0]),
        (SMALLEST, [0x8000, 0, 0, 0]),
        (-1, [0xFFFF] * 4),
        (-2, [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFE]),
        (-0x10000, [0xFFFF, 0xFFFF, 0xFFFF, 0]),
    ],
)
def test_values_are_never_negative_not_even_of_negative_numbers(simhash: int, values: list[int]) -> None:
    assert [band.value(simhash) for band in cut(4).bands] == values


@pytest.mark.parametrize("layout", [*map(cut, BANDS), Layout((40, 9, 5, 4, 3, 3))])
def test_live_bits_are_those_that_a_fingerprint_can_set(layout: Layout) -> None:
    for bits in range(1, 65):
        live = live_positions(layout.widths, bits)
        assert [band.live_width(bits) for band in layout.bands] == list(map(len, live))


def test_63_bits_on_three_and_on_four_bands() -> None:
    assert [band.live_width(63) for band in cut(3).bands] == [21, 21, 21]
    assert [band.live_width(63) for band in cut(4).bands] == [15, 16, 16, 16]


@pytest.mark.parametrize(
    "widths", [(), (63,), (65,), (32, 31), (16, 16, 16, 17), (64, 0), (0, 64), (65, -1), (32, 0, 32)], ids=str
)
def test_widths_that_do_not_make_64_bits_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="64"):
        Layout(widths)


def test_equal_layouts_are_one_key() -> None:
    """Plans and statements are kept by layout."""
    assert cut(4) == Layout((16, 16, 16, 16))
    assert hash(cut(4)) == hash(Layout((16, 16, 16, 16)))
    assert cut(4).bands[0] == Band(index=0, shift=48, width=16)
