"""Near-duplicates over HTTP: of a text, a fingerprint, a simhash or a stored document."""

import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from anyio import create_task_group
from httpx2 import AsyncClient

from tests.api.support import (
    LOOKUP_MEMBERS,
    MATCH_MEMBERS,
    assert_problem,
    find,
    hex_of,
    keys_of,
    ok,
    put,
    text_of,
)

SHOP = "/v1/collections/shop"
LOOKUP = f"{SHOP}/near-duplicates"


async def store(client: AsyncClient, fingerprints: Mapping[str, int], *, collection: str = "shop") -> None:
    for key, fingerprint in fingerprints.items():
        await put(client, key, collection=collection, fingerprint=hex_of(fingerprint))


def distances(found: Mapping[str, Any]) -> list[int]:
    return [match["distance"] for match in found["matches"]]


async def test_every_form_of_a_lookup_has_one_answer_of_one_shape(client: AsyncClient) -> None:
    text = text_of(300)
    stored = (await put(client, "a", text=text, metadata={"n": 1}))["document"]
    await put(client, "b", text=text)
    forms = {
        "text": {"text": text},
        "fingerprint": {"fingerprint": stored["fingerprint"].upper()},
        "simhash": {"simhash": stored["simhash"]},
        "key": {"key": "a"},
    }
    for form, asked in forms.items():
        got = await ok(client, "GET", f"{LOOKUP}?{urlencode(asked)}")
        posted = await find(client, **asked)
        for found in (got, posted):
            assert set(found) == LOOKUP_MEMBERS
            assert (found["fingerprint"], found["simhash"]) == (stored["fingerprint"], stored["simhash"])
            assert (found["threshold"], found["truncated"]) == (3, False)
            assert isinstance(found.pop("took_ms"), float)
            assert all(set(match) == MATCH_MEMBERS for match in found["matches"])
        assert got == posted
        unknown = form in {"fingerprint", "simhash"}
        assert (got["status"], got["words"]) == (("given", None) if unknown else ("ok", 300))
        assert keys_of(got) == (["b"] if form == "key" else ["a", "b"])
        assert {match["match"] for match in got["matches"]} == {"near" if unknown else "exact"}
        assert all(match["metadata"] == ({"n": 1} if match["key"] == "a" else {}) for match in got["matches"])


async def test_a_document_is_no_match_of_its_own_key_but_of_its_own_text(client: AsyncClient) -> None:
    await put(client, "x", text=text_of(300))
    assert keys_of(await find(client, key="x", threshold=63)) == []
    [match] = (await find(client, text=text_of(300)))["matches"]
    assert (match["key"], match["distance"], match["match"]) == ("x", 0, "exact")


async def test_distances_count_every_bit_of_the_fingerprint(client: AsyncClient) -> None:
    await store(client, {str(number): number for number in (5, 1, 4, 7, 0, 8, 1_000_000)})
    found = await find(client, simhash="5", threshold=3)
    assert [(match["key"], match["distance"]) for match in found["matches"]] == [
        ("5", 0),
        ("1", 1),
        ("4", 1),
        ("7", 1),
        ("0", 2),
        ("8", 3),
    ]


async def test_the_threshold_is_inclusive_and_reaches_from_one_end_to_the_other(client: AsyncClient) -> None:
    await store(client, {f"{bits:02}": (1 << bits) - 1 for bits in range(64)})
    for threshold in range(64):
        found = await find(client, fingerprint=hex_of(0), threshold=threshold, limit=100)
        assert found["threshold"] == threshold
        assert distances(found) == list(range(threshold + 1))
    assert distances(await find(client, fingerprint=hex_of(0))) == [0, 1, 2, 3]
    [opposite] = (await find(client, fingerprint=hex_of(2**63 - 1), threshold=0))["matches"]
    assert opposite["key"] == "63"


async def test_matches_come_by_distance_then_unsigned_fingerprint_then_bytewise_key(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"bits": 64}})
    await store(client, {"b": 1 << 63, "a": 1 << 63, "Z": 1, "aa": 1, "é": 1, "z": 1, "zero": 0, "two": 3 << 62})
    found = await find(client, fingerprint=hex_of(0), threshold=2)
    assert [(match["distance"], match["fingerprint"], match["key"]) for match in found["matches"]] == [
        (0, hex_of(0), "zero"),
        (1, hex_of(1), "Z"),
        (1, hex_of(1), "aa"),
        (1, hex_of(1), "z"),
        (1, hex_of(1), "é"),
        (1, hex_of(1 << 63), "a"),
        (1, hex_of(1 << 63), "b"),
        (2, hex_of(3 << 62), "two"),
    ]


async def test_truncated_says_that_more_match_than_the_limit_allows(client: AsyncClient) -> None:
    await store(client, {f"{number:02}": number % 4 for number in range(21)})

    async def answered(**asked: int) -> tuple[int, bool]:
        found = await ok(client, "POST", LOOKUP, {"fingerprint": hex_of(0), **asked})
        return len(found["matches"]), found["truncated"]

    assert await answered() == (20, True)
    assert await answered(limit=21) == (21, False)
    assert await answered(limit=20) == (20, True)
    assert await answered(limit=1) == (1, True)
    assert await answered(limit=1000) == (21, False)
    assert await answered(threshold=0, limit=6) == (6, False)
    assert await answered(threshold=0, limit=5) == (5, True)


async def test_a_limit_cuts_the_farthest(client: AsyncClient) -> None:
    await store(client, {"far": 7, "near": 1, "middle": 3})
    assert keys_of(await find(client, fingerprint=hex_of(0), limit=2)) == ["near", "middle"]


async def test_the_plan_comes_only_with_explain(client: AsyncClient) -> None:
    await store(client, {"a": 0, "b": 1})
    assert "plan" not in await find(client, fingerprint=hex_of(0), explain=False)
    for found in (
        await find(client, fingerprint=hex_of(0), explain=True),
        await ok(client, "GET", f"{LOOKUP}?fingerprint={hex_of(0)}&explain=true"),
    ):
        assert set(found["plan"].pop("expected")) == {"candidates", "probing_us", "scan_us"}
        # Both share the three bands that are zero; "a" has the fourth as well.
        assert found["plan"] == {"bands": 4, "radii": [0, 0, 0, 0], "probes": 4, "candidates": 7, "scan": False}
        assert keys_of(found) == ["a", "b"]
    scanned = await find(client, fingerprint=hex_of(0), threshold=63, explain=True)
    assert scanned["plan"]["scan"] is True
    assert (scanned["plan"]["probes"], scanned["plan"]["candidates"]) == (0, 2)
    assert (await find(client, text="oak", explain=True))["plan"] is None


async def test_an_edit_of_a_short_sentence_may_be_missed_and_the_answer_says_why(client: AsyncClient) -> None:
    await ok(client, "POST", "/v1/collections", {"name": "shop", "scheme": {"min_words": 1}})
    sentence = "The small ferry leaves the quiet island harbour every morning at seven"
    await put(client, "ferry", text=sentence)
    found = await find(client, text=sentence[:-1])
    assert keys_of(found) == []
    assert (found["status"], found["words"], found["threshold"]) == ("short", 12, 3)


async def test_parameters_after_a_long_text_are_heeded(client: AsyncClient) -> None:
    text = text_of(12_000)[:60_000]
    await put(client, "long", text=text)
    found = await ok(client, "GET", f"{LOOKUP}?{urlencode({'text': text, 'threshold': 5, 'explain': 'true'})}")
    assert (found["words"], found["threshold"], keys_of(found)) == (len(text.split()), 5, ["long"])
    assert "plan" in found


async def test_what_is_not_there_is_404(client: AsyncClient) -> None:
    for asked in ("text=a", f"fingerprint={hex_of(0)}", "simhash=0", "key=a"):
        assert_problem(await client.get(f"{LOOKUP}?{asked}"), 404, "collection_not_found")
    await ok(client, "POST", "/v1/collections", {"name": "shop"})
    assert_problem(await client.get(f"{LOOKUP}?key=a"), 404, "document_not_found")
    assert (await find(client, text=text_of(300)))["matches"] == []


async def test_collections_never_see_one_another(client: AsyncClient) -> None:
    await store(client, {"a": 5}, collection="one")
    await store(client, {"b": 5}, collection="two")
    assert keys_of(await find(client, collection="one", fingerprint=hex_of(5))) == ["a"]
    assert keys_of(await find(client, collection="two", fingerprint=hex_of(5))) == ["b"]


async def test_each_answer_depends_on_its_own_parameters_alone(client: AsyncClient) -> None:
    """One after another and all at once, each against the list that a loop over all fingerprints makes."""
    chance = random.Random(7)
    stored = {
        f"{number:02}": sum(1 << bit for bit in chance.sample(range(63), chance.randint(0, 8))) for number in range(60)
    }
    await store(client, stored)
    nearest = sorted((value.bit_count(), value, key) for key, value in stored.items())

    async def check(threshold: int, limit: int) -> None:
        found = await find(client, fingerprint=hex_of(0), threshold=threshold, limit=limit)
        within = [(distance, key) for distance, _, key in nearest if distance <= threshold]
        assert [(match["distance"], match["key"]) for match in found["matches"]] == within[:limit]
        assert (found["threshold"], found["truncated"]) == (threshold, len(within) > limit)

    for threshold in (0, 3, 1, 3):
        await check(threshold, 20)
    async with create_task_group() as tasks:
        for _ in range(300):
            tasks.start_soon(check, chance.choice([0, 1, 3, 5, 8, 63]), chance.choice([1, 2, 5, 20, 1000]))
