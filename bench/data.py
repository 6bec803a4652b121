"""The collection that is measured on, and the article's table of the same pages beside it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import psycopg
from numpy.typing import NDArray

from app.core.scheme import ARTICLE

COLLECTION = "bench"

# The article's table: the same documents, each of which holds its generated blocks, with an index of one column each.
_ARTICLE_TABLE = (
    b"""CREATE TABLE article_page (
        LIKE document,
        b0 integer GENERATED ALWAYS AS ((simhash >> 48) & 32767) STORED,
        b1 integer GENERATED ALWAYS AS ((simhash >> 32) & 65535) STORED,
        b2 integer GENERATED ALWAYS AS ((simhash >> 16) & 65535) STORED,
        b3 integer GENERATED ALWAYS AS (simhash & 65535) STORED)""",
    b"INSERT INTO article_page SELECT * FROM document",
    b"CREATE INDEX ON article_page (b0)",
    b"CREATE INDEX ON article_page (b1)",
    b"CREATE INDEX ON article_page (b2)",
    b"CREATE INDEX ON article_page (b3)",
)


@dataclass(frozen=True, slots=True)
class Filled:
    """`queries` are stored fingerprints with up to three bits flipped: each finds at least one document."""

    size: int
    queries: list[int]


def uniform(size: int, seed: int) -> NDArray[np.int64]:
    """Distinct random fingerprints of 63 bits, in random order."""
    generator = np.random.default_rng(seed)
    drawn = np.unique(generator.integers(0, 2**63 - 1, size + size // 100))
    return generator.permutation(drawn)[:size]


def fill(conninfo: str, size: int, queries: int) -> Filled:
    """Writes `size` documents as the service would have written them, and the article's table."""
    simhashes = uniform(size, seed=1).tolist()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        load(connection, simhashes)
        for statement in (*_ARTICLE_TABLE, b"VACUUM (ANALYZE)"):
            connection.execute(statement)
    return Filled(size, [near(simhash) for simhash in random.Random(2).sample(simhashes, min(size, queries))])


def load(connection: psycopg.Connection, simhashes: list[int], collection: str = COLLECTION) -> None:
    """A collection with a document for each fingerprint, written by COPY; vacuumed."""
    collection_id = _create_collection(connection, collection)
    _copy(
        connection,
        b"COPY fingerprint (collection_id, simhash) FROM STDIN",
        (f"{collection_id}\t{simhash}\n" for simhash in dict.fromkeys(simhashes)),
    )
    _copy(
        connection,
        b"COPY document (collection_id, key, content_hash, simhash, words, metadata) FROM STDIN",
        (
            f"{collection_id}\thttps://example.org/page/{number}\t\\\\x{number:032x}\t{simhash}\t300\t{{}}\n"
            for number, simhash in enumerate(simhashes)
        ),
    )
    connection.execute(b"VACUUM (ANALYZE)")


def _create_collection(connection: psycopg.Connection, name: str) -> int:
    row = connection.execute(
        """
        INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)
        VALUES (%s, %s, %s, %s, %s, true) RETURNING id
        """,
        (name, ARTICLE.tokenizer, ARTICLE.shingle_size, ARTICLE.bits, ARTICLE.min_words),
    ).fetchone()
    assert row is not None  # noqa: S101  RETURNING
    return int(row[0])


def _copy(connection: psycopg.Connection, statement: bytes, lines: Iterable[str]) -> None:
    with connection.cursor().copy(statement) as copy:
        for line in lines:
            copy.write(line)


def near(simhash: int) -> int:
    flips = random.Random(simhash)
    for bit in flips.sample(range(ARTICLE.bits), flips.randint(0, 3)):
        simhash ^= 1 << bit
    return simhash
