"""numpy's arrays as parameters: a list of a million Python numbers would take twenty times the memory."""

import numpy as np
from numpy.typing import NDArray
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_BIGINT, _BIGINTS = 20, 1016  # PostgreSQL's numbers of the types
_ITEM = np.dtype([("length", ">i4"), ("value", ">i8")])


class BigintsDumper(Dumper):
    """An array of integers of one dimension as bigint[], in the binary format; write the placeholder as %b."""

    format = Format.BINARY
    oid = _BIGINTS

    def dump(self, obj: NDArray[np.integer]) -> Buffer:
        items = np.empty(len(obj), _ITEM)
        items["length"] = _ITEM["value"].itemsize
        items["value"] = obj
        dimensions = (1, 0, _BIGINT, len(obj), 1) if len(obj) else (0, 0, _BIGINT)  # 0: no nulls; 1: the first index
        return np.array(dimensions, ">i4").tobytes() + items.tobytes()
