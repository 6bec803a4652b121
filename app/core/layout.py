"""How the 64 bits of a fingerprint are cut into bands (the article: "le principe des tiroirs")."""

from dataclasses import dataclass
from functools import lru_cache

from app.core.fingerprint import MAX_BITS


@dataclass(frozen=True, slots=True)
class Band:
    """A block of consecutive bits: (simhash >> shift) & (2^width - 1)."""

    index: int  # 0 is the highest
    shift: int
    width: int

    @property
    def column(self) -> str:
        return f"b{self.index}"

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    def value(self, simhash: int) -> int:
        return (simhash >> self.shift) & self.mask

    def live_width(self, bits: int) -> int:
        """How many bits of the band a fingerprint of `bits` bits can set; the others are always 0."""
        return min(max(bits - self.shift, 0), self.width)


@dataclass(frozen=True, slots=True)
class Layout:
    """The widths of the bands, highest first, 64 together: each bit of a bigint is in exactly one band."""

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if sum(self.widths) != MAX_BITS or min(self.widths) < 1:
            raise ValueError(f"bands of {self.widths} bits don't make {MAX_BITS}")

    @property
    def bands(self) -> tuple[Band, ...]:
        return _bands(self.widths)


@lru_cache(maxsize=64)
def _bands(widths: tuple[int, ...]) -> tuple[Band, ...]:
    shifts = [MAX_BITS - sum(widths[: index + 1]) for index in range(len(widths))]
    return tuple(Band(*band) for band in zip(range(len(shifts)), shifts, widths, strict=True))


def cut(bands: int) -> Layout:
    """The layout of `bands` bands as equal as they can be, the wider ones highest.

    The top bit is 0 in 63-bit fingerprints, so the widest band is effectively one bit narrower: 4 bands are the
    article's 15, 16, 16, 16 bits and 3 bands are 21 each.
    """
    width, wider = divmod(MAX_BITS, bands)
    return Layout((width + 1,) * wider + (width,) * (bands - wider))
