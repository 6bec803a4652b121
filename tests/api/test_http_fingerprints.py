"""Fingerprints and distances over HTTP, and the two spellings of a fingerprint."""

import json
from collections.abc import Iterator
from typing import Any

from httpx2 import AsyncClient

from app.core.fingerprint import to_hex
from tests.api.support import assert_problem, find, hex_of, keys_of, ok, put, rows, send, text_of
from tests.conftest import DATA

FINGERPRINTS = "/v1/fingerprints"


def golden() -> Iterator[dict[str, Any]]:
    """What the article's PHP class printed."""
    for name in ("article_php.jsonl", "article_php_params.jsonl"):
        for line in (DATA / name).read_text("utf-8").splitlines():
            yield json.loads(line)


async def test_the_fingerprints_are_those_of_the_articles_php_class(client: AsyncClient) -> None:
    compared = 0
    for vector in golden():
        if "\0" in vector["text"] or vector["shingle_size"] > 10:  # PHP takes both, this interface neither
            continue
        scheme = {"shingle_size": vector["shingle_size"], "bits": vector["bits"], "min_words": 1}
        answer = await ok(client, "POST", FINGERPRINTS, {"text": vector["text"], "scheme": scheme})
        if vector["fingerprint"] is None:  # too few words for one shingle
            assert (answer["fingerprint"], answer["simhash"]) == (None, None), vector["name"]
            assert (answer["shingles"], answer["status"]) == (0, "too_short"), vector["name"]
            continue
        assert answer["simhash"] == str(vector["fingerprint"]), vector["name"]
        assert answer["fingerprint"] == to_hex(vector["fingerprint"]), vector["name"]
        compared += 1
    assert compared > 150


async def test_an_answer_counts_words_and_shingles(client: AsyncClient, database: str) -> None:
    before = rows(database)
    answer = await ok(client, "POST", FINGERPRINTS, {"text": "le chat mange", "scheme": {"min_words": 1}})
    assert answer == {
        "fingerprint": "5103e0855a3e3f03",
        "simhash": "5837756405351595779",
        "words": 3,
        "shingles": 1,
        "status": "short",
    }
    assert await ok(client, "POST", FINGERPRINTS, {"text": "le chat mange"}) == {
        "fingerprint": None,
        "simhash": None,
        "words": 3,
        "shingles": 1,
        "status": "too_short",
    }
    assert rows(database) == before


async def test_the_named_scheme_its_parts_and_no_scheme_are_the_same(client: AsyncClient) -> None:
    text = text_of(300)
    default = await ok(client, "POST", FINGERPRINTS, {"text": text})
    assert default["status"] == "ok"
    parts = {"tokenizer": "article", "shingle_size": 3, "bits": 63, "min_words": 20}
    for scheme in ("article", {"bits": 63}, parts):
        assert await ok(client, "POST", FINGERPRINTS, {"text": text, "scheme": scheme}) == default


async def test_a_fingerprint_has_as_many_bits_as_its_scheme(client: AsyncClient) -> None:
    wide = await ok(client, "POST", FINGERPRINTS, {"text": text_of(301, seed=3), "scheme": {"bits": 64}})
    for bits in (1, 32, 63, 64):
        answer = await ok(client, "POST", FINGERPRINTS, {"text": text_of(301, seed=3), "scheme": {"bits": bits}})
        assert answer["fingerprint"] == hex_of(int(wide["fingerprint"], 16) & ((1 << bits) - 1))


DISTANCES = [
    (0, 0, 0),
    (0, 1, 1),
    (0, 2**63 - 1, 63),
    (0, 2**64 - 1, 64),
    (2**63, 2**63 - 1, 64),
    (0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 64),
    (0x5555555555555555, 6148914691236517000, 7),  # what a double makes of it
]


async def test_the_distance_counts_the_bits_that_differ(client: AsyncClient) -> None:
    for a, b, distance in DISTANCES:
        for first, second in ((a, b), (b, a)):
            url = f"/v1/distance?a={hex_of(first)}&b={hex_of(second).upper()}"
            assert await ok(client, "GET", url) == {"distance": distance}


async def test_a_fingerprint_survives_a_client_that_holds_numbers_as_doubles(client: AsyncClient) -> None:
    await put(client, "a", fingerprint=hex_of(0x5555555555555555))
    found = await find(client, key="a")
    assert isinstance(found["fingerprint"], str)
    assert isinstance(found["simhash"], str)
    for asked in ({"fingerprint": found["fingerprint"]}, {"simhash": found["simhash"]}):
        [match] = (await find(client, threshold=0, **asked))["matches"]
        assert (match["key"], match["distance"]) == ("a", 0)


IN_63_BITS = [0, 1, 2**63 - 1]
BEYOND_63_BITS = [2**63, 2**64 - 1]
BEYOND_64_BITS = [2**64, -(2**63) - 1, 99999999999999999999]


def spellings(unsigned: int) -> list[dict[str, str]]:
    return [
        {"fingerprint": hex_of(unsigned)},
        {"simhash": str(unsigned - 2**64 if unsigned >= 2**63 else unsigned)},
    ]


async def test_63_bits_take_no_64th_and_wrap_nothing(client: AsyncClient, database: str) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop"})
    for value in IN_63_BITS:
        for content in spellings(value):
            document = (await put(client, f"{value}", **content))["document"]
            assert (document["fingerprint"], document["simhash"]) == (hex_of(value), str(value))
    before = rows(database)
    for value in BEYOND_63_BITS:
        for content in spellings(value):
            [pointer] = content
            for method, url, body in [
                ("PUT", "/v1/collections/shop/documents/x", content),
                ("POST", "/v1/collections/shop/near-duplicates", content),
                ("PUT", "/v1/collections/unborn/documents/x", content),
            ]:
                answer = await send(client, method, url, body)
                problem = assert_problem(answer, 422, "invalid_fingerprint", f"/{pointer}")
                assert "63 bits" in problem["detail"]
    assert rows(database) == before
    assert keys_of(await find(client, fingerprint=hex_of(0), threshold=62)) == ["0", "1"]
    assert [match["distance"] for match in (await find(client, simhash="0", threshold=63))["matches"]] == [0, 1, 63]


async def test_64_bits_take_every_value(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": 64}})
    for value in [*IN_63_BITS, *BEYOND_63_BITS]:
        by_hex, by_decimal = spellings(value)
        document = (await put(client, f"{value}", **by_hex))["document"]
        assert {"fingerprint": document["fingerprint"], "simhash": document["simhash"]} == by_hex | by_decimal
        assert (await put(client, f"{value}", **by_decimal))["result"] == "unchanged"
        assert (await find(client, threshold=0, **by_decimal))["matches"][0]["key"] == f"{value}"
    for value in BEYOND_64_BITS:
        answer = await send(client, "PUT", "/v1/collections/shop/documents/x", {"simhash": str(value)})
        problem = assert_problem(answer, 422, "invalid_fingerprint", "/simhash")
        assert "9223372036854775807" in problem["detail"]


NOT_HEX = [
    "",
    "xyz",
    "7f",
    "0x7",
    "0" * 15,
    "0" * 17,
    " 5",
    "0" * 15 + " ",
    "0" * 16 + "\n",
    "+" + "0" * 15,
    "-" + "0" * 15,
    "5.0",
    "1e3",
    "0_" * 8,
    "0x" + "0" * 14,
    "\uff15" * 16,  # full-width digits
    "\u0665" * 16,  # Arabic digits
]
NOT_DECIMAL = [
    "",
    "xyz",
    " 5",
    "5 ",
    "5\n",
    "+5",
    "5.0",
    "1_000",
    "1e3",
    "0x7",
    "007",
    "00",
    "-0",
    "-",
    "--5",
    "\uff15",
    "\u0665",
    "\u00b2",
    "9223372036854775808",
    "-9223372036854775809",
    "9" * 5000,
]
NO_STRINGS: list[object] = [5, 5.0, True, False, [], {}, ["0" * 16], {"fingerprint": "0" * 16}]
SPELLINGS = [
    *(("fingerprint", value) for value in [*NOT_HEX, "\ud83d", *NO_STRINGS]),
    *(("simhash", value) for value in [*NOT_DECIMAL, "\ud83d", *NO_STRINGS]),
]


async def test_one_grammar_holds_wherever_a_fingerprint_is_taken(client: AsyncClient, database: str) -> None:
    await put(client, "good", fingerprint=hex_of(5))
    before = rows(database)
    for member, value in SPELLINGS:
        asked = {member: value}
        for method, url, body in [
            ("POST", "/v1/collections/shop/documents", {"key": "x", **asked}),
            ("PUT", "/v1/collections/shop/documents/x", asked),
            ("PUT", "/v1/collections/shop/document?key=x", asked),
            ("POST", "/v1/collections/shop/near-duplicates", asked),
        ]:
            answer = await send(client, method, url, body)
            assert_problem(answer, 422, "invalid_fingerprint", f"/{member}")
    for text in NOT_HEX:
        answer = await client.get("/v1/distance", params={"a": "0" * 16, "b": text})
        assert_problem(answer, 422, "invalid_fingerprint", "/b")
        answer = await client.get("/v1/collections/shop/near-duplicates", params={"fingerprint": text})
        assert_problem(answer, 422, "invalid_fingerprint", "/fingerprint")
    for text in NOT_DECIMAL:
        answer = await client.get("/v1/collections/shop/near-duplicates", params={"simhash": text})
        assert_problem(answer, 422, "invalid_fingerprint", "/simhash")
    assert rows(database) == before
    assert keys_of(await find(client, fingerprint=hex_of(5))) == ["good"]
