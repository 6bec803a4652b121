"""What the tests of the HTTP interface share: texts, requests, rows and the shape of a problem."""

import json
import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from anyio import fail_after, sleep
from httpx2 import AsyncClient, Response
from psycopg import sql

from app.api.problems import MEDIA_TYPE, PROBLEMS
from app.runtime import process
from app.service.housekeeping import Housekeeping
from app.settings import Settings

JSON = {"content-type": "application/json"}

DOCUMENT_MEMBERS = {
    "collection",
    "key",
    "fingerprint",
    "simhash",
    "words",
    "status",
    "content_hash",
    "metadata",
    "created_at",
    "updated_at",
}
MATCH_MEMBERS = {"key", "fingerprint", "distance", "match", "similarity", "metadata"}
LOOKUP_MEMBERS = {"fingerprint", "simhash", "status", "words", "threshold", "matches", "truncated", "took_ms"}

_VOCABULARY = [f"{start}{end}" for start in ("mar", "vol", "ter", "lun", "cha") for end in ("in", "eau", "ier", "ette")]


def text_of(words: int, *, seed: int = 0) -> str:
    """Words without a pattern, the same for the same seed."""
    return " ".join(random.Random(seed).choices(_VOCABULARY, k=words))


def hex_of(value: int) -> str:
    return f"{value:016x}"


async def send(
    client: AsyncClient, method: str, url: str, body: object, *, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as ASCII JSON, so that a lone surrogate travels as the escape that a real client would send."""
    return await client.request(method, url, content=json.dumps(body).encode(), headers={**JSON, **(headers or {})})


async def ok(client: AsyncClient, method: str, url: str, body: object = None) -> Any:
    """The JSON of an answer that must be a success."""
    answer = await (client.request(method, url) if body is None else send(client, method, url, body))
    assert answer.is_success, (method, url, answer.status_code, answer.text)
    return answer.json() if answer.content else None


async def put(client: AsyncClient, key: str, *, collection: str = "shop", **body: object) -> Any:
    return await ok(client, "PUT", f"/v1/collections/{collection}/document?key={key}", body)


async def find(client: AsyncClient, *, collection: str = "shop", **asked: object) -> Any:
    return await ok(client, "POST", f"/v1/collections/{collection}/near-duplicates", asked)


def keys_of(found: Mapping[str, Any]) -> list[str]:
    return [match["key"] for match in found["matches"]]


def assert_problem(answer: Response, status: int, code: str, *pointers: str) -> dict[str, Any]:
    """`pointers`: those of the invalid members, in their order; a problem that has none has no `errors` either."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    members = {"type", "title", "status", "detail", "code", "request_id"}
    assert set(problem) == (members | {"errors"} if pointers else members), answer.text
    assert (status, problem["title"]) == PROBLEMS[code]
    assert problem["status"] == status
    assert problem["type"] == f"urn:tiroir:problem:{code}"
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) == (status == 503)
    if pointers:
        assert [error["pointer"] for error in problem["errors"]] == list(pointers), answer.text
        assert all(set(error) == {"pointer", "detail"} and error["detail"] for error in problem["errors"])
    return problem


TABLES = ("collection", "deleted_collection", "document", "fingerprint", "band_layout", "operation")


def rows(database: str) -> dict[str, int]:
    """How many rows each table has."""
    with psycopg.connect(database) as connection:
        return {
            table: row[0]
            for table in TABLES
            if (row := connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone())
        }


async def keep_house(settings: Settings) -> None:
    """What a process that works in the background does every few seconds."""
    async with process(settings) as opened:
        await Housekeeping(opened.database).do_what_is_due()


def execute(database: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement outside of the service; its rows, if it has any."""
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def locked(database: str, *tables: str) -> Generator[None]:
    """Holds the tables, so that requests which touch them wait, until the block ends."""
    names = sql.SQL(", ").join(map(sql.Identifier, tables))
    with psycopg.connect(database) as connection:
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))
        yield


async def until_waiting(database: str, requests: int) -> None:
    """Returns when so many connections wait for a lock."""
    waiting = b"""
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    with psycopg.connect(database, autocommit=True) as connection, fail_after(10):
        while connection.execute(waiting).fetchone() != (requests,):  # noqa: ASYNC110  PostgreSQL tells nobody
            await sleep(0.01)


def disconnect_waiting(database: str) -> None:
    """Ends the connections that wait for a lock, as an administrator does."""
    execute(
        database,
        """
        SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
        """,
    )
