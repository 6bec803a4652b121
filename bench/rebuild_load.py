"""Clients that write, replace, delete and look up at once, and the oracle that judges each answer they get.

Both the tests and the bench of a rebuild drive it; how many documents there are is theirs to say.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import psycopg
from httpx2 import Client, Response
from numpy.typing import NDArray

from app.core.fingerprint import to_hex
from app.core.scheme import ARTICLE

COLLECTION = "load"

_FAMILY = 8  # documents that are near one another
_MOST_FLIPPED = 6
_OWN = 40  # stored documents that a client changes, and as many keys that are new
_RECENT = 8
_LIMIT = 1000  # more than any lookup here finds, so that answers are complete
_THRESHOLDS = (0, 3, 3, 5, 7, 10, None)
_PATIENCE = 60.0  # seconds


def documents(size: int) -> dict[str, int]:
    """Keys and fingerprints, in families so that lookups have something to find; some documents share one."""
    generator = random.Random(4)
    found: dict[str, int] = {}
    middle = 0
    for number in range(size):
        if number % _FAMILY == 0:
            middle = generator.getrandbits(ARTICLE.bits)
        found[f"page-{number}"] = _near(middle, generator)
    return found


def fill(conninfo: str, stored: Mapping[str, int]) -> None:
    """A new collection, written by COPY as the service would have written it into the first layout."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text)"
            " VALUES (%s, %s, %s, %s, %s, true) RETURNING id",
            (COLLECTION, ARTICLE.tokenizer, ARTICLE.shingle_size, ARTICLE.bits, ARTICLE.min_words),
        ).fetchone()
        assert row is not None  # noqa: S101  RETURNING
        lines = (f"{row[0]}\t{key}\t{simhash}\t{{}}\n" for key, simhash in stored.items())
        _copy(connection, b"COPY document (collection_id, key, simhash, metadata) FROM STDIN", lines)
        lines = (f"{row[0]}\t{simhash}\n" for simhash in set(stored.values()))
        _copy(connection, b"COPY fingerprint (collection_id, simhash) FROM STDIN", lines)
        connection.execute("VACUUM (ANALYZE)")


def _copy(connection: psycopg.Connection, statement: bytes, lines: Iterable[str]) -> None:
    with connection.cursor().copy(statement) as copy:
        for line in lines:
            copy.write(line)


def _near(simhash: int, generator: random.Random) -> int:
    """With a few bits flipped, some of them back again."""
    for _ in range(int(generator.random() * (_MOST_FLIPPED + 1))):
        simhash ^= 1 << int(generator.random() * ARTICLE.bits)
    return simhash


@dataclass(slots=True)
class _State:
    """What stands under a key from some moment between the request and its answer on."""

    simhash: int | None  # None: nothing
    answered: int | None  # the event of the answer; None: not yet


class Oracle:
    """Which answers are right while documents change: it knows when each change was asked for, and when answered.

    At a lookup's moment a key has the state of the last change that was answered before the lookup was sent, or that
    of a change asked for since, before the lookup's answer came. All else is a miss, an invention, or stale.
    """

    def __init__(self, stored: Mapping[str, int]) -> None:
        self._lock = threading.Lock()
        self._events = 0
        self._keys = list(stored)
        self._simhashes: NDArray[np.int64] = np.array(list(stored.values()), dtype=np.int64)
        self._stored = stored
        self._changed: dict[str, list[_State]] = {}

    @contextmanager
    def changing(self, key: str, simhash: int | None) -> Generator[None]:
        """The body sends the change, and ends without an error when it was answered. One at a time for each key."""
        state = _State(simhash, answered=None)
        with self._lock:
            self._changed.setdefault(key, [_State(self._stored.get(key), answered=0)]).append(state)
        yield
        with self._lock:
            state.answered = self._next_event()

    def asks(self) -> int:
        """To be called before a lookup is sent, and its result to be handed to `judge` once the answer is there."""
        with self._lock:
            return self._next_event()

    def judge(
        self, asked: int, simhash: int, threshold: int, matches: Sequence[Mapping[str, Any]], except_key: str | None
    ) -> None:
        """AssertionError with what is wrong, if anything is, with the matches of a complete answer."""
        with self._lock:
            right = self._right(asked, simhash, threshold)
        if except_key is not None:
            right.pop(except_key, None)
        found = {match["key"]: int(match["fingerprint"], 16) for match in matches}
        wrong = [
            f"{key} was {found.get(key)}, not one of {possible}"
            for key, possible in right.items()
            if found.get(key) not in possible
        ]
        wrong += [f"{key} was invented" for key in found.keys() - right.keys()]
        ranked = [
            ((found[match["key"]] ^ simhash).bit_count(), match["fingerprint"], match["key"]) for match in matches
        ]
        if [match["distance"] for match in matches] != [distance for distance, _, _ in ranked]:
            wrong.append("distances are wrong")
        if ranked != sorted(set(ranked)):
            wrong.append("matches come twice or in disorder")
        if wrong:
            raise AssertionError(f"lookup of {to_hex(simhash)} at threshold {threshold}: {'; '.join(wrong)}")

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _right(self, asked: int, simhash: int, threshold: int) -> dict[str, set[int | None]]:
        """For each key that may be in the answer: the fingerprints that may stand there; None: it may be missing."""
        distances = np.bitwise_count(self._simhashes ^ np.int64(simhash))
        near = (self._keys[index] for index in np.flatnonzero(distances <= threshold))
        right: dict[str, set[int | None]] = {key: {self._stored[key]} for key in near if key not in self._changed}
        for key, states in self._changed.items():
            possible = {_within(state, simhash, threshold) for state in _possible(states, asked)}
            if possible != {None}:
                right[key] = possible
        return right


def _possible(states: Sequence[_State], asked: int) -> Generator[_State]:
    """Those that a key may have had when a lookup was answered that was sent at `asked`."""
    for state in reversed(states):
        yield state
        if state.answered is not None and state.answered < asked:
            return


def _within(state: _State, simhash: int, threshold: int) -> int | None:
    near = state.simhash is not None and (state.simhash ^ simhash).bit_count() <= threshold
    return state.simhash if near else None


class Kind(StrEnum):
    LOOKUP = "lookup"
    WRITE = "write"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that got the answer it should. Times are those of time.monotonic()."""

    kind: Kind
    sent: float
    answered: float

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


class LoadClient:
    """One of `clients` clients. Its keys are its own, so it knows which status each request must have.

    Whatever else comes is an AssertionError, as is an answer that the oracle doesn't agree with.
    """

    def __init__(
        self, urls: Sequence[str], oracle: Oracle, stored: Mapping[str, int], *, number: int = 0, clients: int = 1
    ) -> None:
        self.answered: list[Answered] = []
        self._random = random.Random(number)
        self._oracle = oracle
        self._http = [Client(base_url=f"{url}/v1/collections/{COLLECTION}", timeout=_PATIENCE) for url in urls]
        own = list(stored)[number::clients]
        own = own[:: max(1, len(own) // _OWN)]
        self._present = {key: stored[key] for key in own}
        self._absent = {f"new-{number}-{each}" for each in range(_OWN)}
        self._somewhere = list(stored.values())
        self.recent = deque(self._random.sample(self._somewhere, _RECENT), _RECENT)

    def close(self) -> None:
        for http in self._http:
            http.close()

    def step(self) -> None:
        """One request, of any kind: as many lookups as changes."""
        self._random.choices(
            [self.look_up, self.create, self.replace, self.delete],
            [5, 2 if self._absent else 0, 2 if self._present else 0, 1 if self._present else 0],
        )[0]()

    def look_up(self, near: Sequence[int] = ()) -> None:
        """Near one of these fingerprints; without them, near what this client has changed lately."""
        simhash = _near(self._random.choice(near or self.recent), self._random)
        threshold = self._random.choice(_THRESHOLDS)
        asked = self._oracle.asks()
        answer = self._send(
            Kind.LOOKUP, {200}, "GET", "near-duplicates", {"fingerprint": to_hex(simhash)} | _options(threshold)
        ).json()
        self._judge(asked, simhash, threshold, answer, "matches")

    def create(self, simhash: int | None = None) -> None:
        """With this fingerprint, or with one that the client chooses."""
        key = self._random.choice(sorted(self._absent))
        self._write(key, 201, simhash)
        self._absent.remove(key)

    def replace(self) -> None:
        self._write(self._random.choice(list(self._present)), 200)

    def delete(self) -> None:
        key = self._random.choice(list(self._present))
        with self._oracle.changing(key, None):
            self._send(Kind.DELETE, {204}, "DELETE", f"documents/{key}")
        self.recent.append(self._present.pop(key))
        self._absent.add(key)

    def _write(self, key: str, status: int, simhash: int | None = None) -> None:
        """Half of the writes look up at once, in the transaction of the write."""
        if simhash is None:
            simhash = _near(self._random.choice(self._random.choice([self._somewhere, self.recent])), self._random)
        looks_up = self._random.random() < 0.5
        threshold = self._random.choice(_THRESHOLDS)
        parameters = _options(threshold) if looks_up else {"near_duplicates": "false"}
        asked = self._oracle.asks()
        with self._oracle.changing(key, simhash):
            body = {"fingerprint": to_hex(simhash)}
            answer = self._send(Kind.WRITE, {status}, "PUT", f"documents/{key}", parameters, body).json()
        self._present[key] = simhash
        self.recent.append(simhash)
        if looks_up:
            self._judge(asked, simhash, threshold, answer, "near_duplicates", except_key=key)

    def _judge(
        self,
        asked: int,
        simhash: int,
        threshold: int | None,
        answer: Mapping[str, Any],
        member: str,
        *,
        except_key: str | None = None,
    ) -> None:
        if answer["truncated"] or threshold not in {None, answer["threshold"]}:
            raise AssertionError(f"not what was asked for: {answer}")
        self._oracle.judge(asked, simhash, answer["threshold"], answer[member], except_key)

    def _send(
        self,
        kind: Kind,
        statuses: set[int],
        method: str,
        path: str,
        parameters: dict[str, str] | None = None,
        body: dict[str, str] | None = None,
    ) -> Response:
        http = self._random.choice(self._http)
        sent = time.monotonic()
        answer = http.request(method, path, params=parameters, json=body)
        if answer.status_code not in statuses:
            raise AssertionError(f"{method} {path} was answered with {answer.status_code}: {answer.text}")
        self.answered.append(Answered(kind, sent, time.monotonic()))
        return answer


def _options(threshold: int | None) -> dict[str, str]:
    limit = {"limit": str(_LIMIT)}
    return limit if threshold is None else limit | {"threshold": str(threshold)}


@dataclass(frozen=True, slots=True)
class Load:
    """Clients under way."""

    clients: Sequence[LoadClient]
    _running: Sequence[Future[None]]

    def require_no_failure(self) -> None:
        """Raises what a client has failed with already."""
        for each in self._running:
            if each.done():
                each.result()

    def answered(self, start: float, end: float) -> list[list[Answered]]:
        """For each client, what it both asked and was answered in this time; of time.monotonic(), too."""
        return [
            [each for each in client.answered if start <= each.sent and each.answered <= end] for client in self.clients
        ]


@contextmanager
def under_load(
    urls: Sequence[str], oracle: Oracle, stored: Mapping[str, int], *, clients: int = 8, pause: float = 0.0
) -> Generator[Load]:
    """Requests one after another by each client, with pauses between, to any of the services, until the block ends.

    The first failure of a client is raised then, whatever the block itself raised.
    """
    started = [LoadClient(urls, oracle, stored, number=number, clients=clients) for number in range(clients)]
    over = threading.Event()

    def run(client: LoadClient) -> None:
        while not over.wait(pause):
            client.step()

    with ThreadPoolExecutor(clients) as threads:
        running = [threads.submit(run, client) for client in started]
        load = Load(started, running)
        try:
            yield load
        finally:
            over.set()
            wait(running)
            for client in started:
                client.close()
            load.require_no_failure()
