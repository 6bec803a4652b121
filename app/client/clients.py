"""The two clients: the same calls, sent by httpx2, in threads or in an event loop."""

import json
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2
from anyio import sleep
from pydantic import TypeAdapter, ValidationError

from app.api.answers import ImportAnswer
from app.client import calls
from app.client.calls import Call, Change, Format, OnError, Result
from app.client.errors import ServiceError, UnavailableServiceError

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0  # seconds, without a byte

# A service that starts or is busy, or a proxy before one that is away.
_UNAVAILABLE = (502, 503, 504)
_PAUSE = 0.5  # seconds between two attempts
_SLICE = 1 << 16  # bytes of an import sent at once

# Nobody listens at the address.
_NOBODY = (httpx2.ConnectError, httpx2.ConnectTimeout)

_Problem = TypeAdapter(dict[str, Any])


def _sync(build: Callable[P, Call[T]]) -> "Callable[Concatenate[Tiroir, P], T]":
    @wraps(build)
    def method(self: "Tiroir", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return method


def _async(build: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncTiroir, P], Awaitable[T]]":
    @wraps(build)
    async def method(self: "AsyncTiroir", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


class _Patient:
    """What both clients know of the service that they ask."""

    def __init__(self, url: str, patience: float) -> None:
        self._url = url
        self._patience = patience
        self._reached = False

    @contextmanager
    def _answering(self) -> Generator[None]:
        """Errors of HTTP as ours."""
        try:
            yield
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
            url = shown(self._url)
            raise ServiceError(f"{url} is no URL of a service: it begins with http:// or https://") from None
        except httpx2.HTTPError as error:
            self._reached = self._reached or not isinstance(error, _NOBODY)
            reason = str(error).rstrip(".") or type(error).__name__
            raise UnavailableServiceError(f"no answer from {shown(self._url)}: {reason}. Is it running?") from None
        self._reached = True

    def _until(self) -> float:
        return time.monotonic() + self._patience

    def _gives_up(self, until: float) -> bool:
        """A service that has never answered isn't away."""
        return time.monotonic() > until or not self._reached


class Tiroir(_Patient):
    """Close it, or use it in a `with` statement. Every method raises ServiceError."""

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = TIMEOUT, patience: float = 0.0
    ) -> None:
        """`patience`: for so many seconds a call is repeated while the service is away or can't answer.

        A service that has never answered isn't away. `api_key` goes along as a bearer token.
        """
        with _readable(url):
            self._client = httpx2.Client(base_url=url, headers=_headers(api_key), timeout=timeout)
        super().__init__(str(self._client.base_url), patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call[T]) -> T:
        """The result of a call. UnavailableServiceError when patience is at its end."""
        return self._patiently(lambda: _result(call, self._request(call, call.body, _JSON)))

    def _patiently(self, attempt: Callable[[], T]) -> T:
        until = self._until()
        while True:
            try:
                return attempt()
            except UnavailableServiceError:
                if self._gives_up(until):
                    raise
                time.sleep(_PAUSE)

    def _request(self, call: Call[Any], body: bytes | Iterable[bytes] | None, kind: str) -> httpx2.Response:
        with self._answering():
            return self._client.request(call.method, call.target, content=body, headers=_kinds(call, body, kind))

    index = _sync(calls.index)
    index_many = _sync(calls.index_many)
    near = _sync(calls.near)
    near_many = _sync(calls.near_many)
    near_across = _sync(calls.near_across)
    near_many_across = _sync(calls.near_many_across)
    document = _sync(calls.document)
    documents = _sync(calls.documents)
    delete = _sync(calls.delete)
    delete_many = _sync(calls.delete_many)
    fingerprint = _sync(calls.fingerprint)
    distance = _sync(calls.distance)
    create_collection = _sync(calls.create_collection)
    collection = _sync(calls.collection)
    collections = _sync(calls.collections)
    set_ttl = _sync(calls.set_ttl)
    delete_collection = _sync(calls.delete_collection)
    begin_rebuild = _sync(calls.begin_rebuild)
    rebuild = _sync(calls.rebuild)
    begin_audit = _sync(calls.begin_audit)
    audit = _sync(calls.audit)
    layout = _sync(calls.layout)
    begin_analysis = _sync(calls.begin_analysis)
    analysis = _sync(calls.analysis)
    analyses = _sync(calls.analyses)
    cancel_analysis = _sync(calls.cancel_analysis)
    delete_analysis = _sync(calls.delete_analysis)
    clusters = _sync(calls.clusters)
    cluster = _sync(calls.cluster)
    pairs = _sync(calls.pairs)
    flagged = _sync(calls.flagged)
    differences = _sync(calls.differences)
    exact_duplicates = _sync(calls.exact_duplicates)
    keys_of_content = _sync(calls.keys_of_content)

    def import_documents(
        self,
        collection: str,
        documents: Iterable[Mapping[str, Any] | bytes],
        *,
        on_error: OnError = "continue",
    ) -> ImportAnswer:
        """Index any number of documents, in one request: objects, or lines of JSON.

        A sequence is sent again while patience lasts; anything else that can be gone through only once is not.
        """
        call = calls.import_lines(collection, on_error=on_error)

        def attempt() -> ImportAnswer:
            return _result(call, self._request(call, _sliced(map(_line, documents)), calls.LINES))

        return self._patiently(attempt) if isinstance(documents, Sequence) else attempt()

    def export(self, collection: str, *, text: bool = False) -> Iterator[bytes]:
        """All documents, a line of JSON each, that `import_documents` takes back."""
        rest = b""
        with self._streaming(calls.export_lines(collection, text=text)) as parts:
            for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                yield from lines

    def stream(
        self,
        collection: str,
        analysis_id: int,
        result: Result,
        *,
        form: Format = "ndjson",
        status: Change | None = None,
    ) -> Iterator[bytes]:
        """A whole result of an analysis, in parts to be written to a file as they come, with no regard to lines.

        `status`: of differences those alone. UnavailableServiceError where it is cut off, after what came before that.
        """
        call = calls.result_stream(collection, analysis_id, result, form=form, status=status)
        with self._streaming(call) as parts:
            yield from parts

    @contextmanager
    def _streaming(self, call: Call[bytes]) -> Generator[Iterator[bytes]]:
        """The parts of an answer, as they come."""
        with self._answering(), self._client.stream(call.method, call.target, headers=_kinds(call)) as answer:
            if not _is_stream(call, answer):
                answer.read()
                raise _refusal(answer)
            yield answer.iter_bytes()


class AsyncTiroir(_Patient):
    """The same, to await."""

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = TIMEOUT, patience: float = 0.0
    ) -> None:
        """As for `Tiroir`."""
        with _readable(url):
            self._client = httpx2.AsyncClient(base_url=url, headers=_headers(api_key), timeout=timeout)
        super().__init__(str(self._client.base_url), patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, call: Call[T]) -> T:
        """The result of a call. UnavailableServiceError when patience is at its end."""
        until = self._until()
        while True:
            try:
                return _result(call, await self._request(call, call.body, _JSON))
            except UnavailableServiceError:
                if self._gives_up(until):
                    raise
                await sleep(_PAUSE)

    async def _request(self, call: Call[Any], body: bytes | AsyncIterable[bytes] | None, kind: str) -> httpx2.Response:
        with self._answering():
            return await self._client.request(call.method, call.target, content=body, headers=_kinds(call, body, kind))

    index = _async(calls.index)
    index_many = _async(calls.index_many)
    near = _async(calls.near)
    near_many = _async(calls.near_many)
    near_across = _async(calls.near_across)
    near_many_across = _async(calls.near_many_across)
    document = _async(calls.document)
    documents = _async(calls.documents)
    delete = _async(calls.delete)
    delete_many = _async(calls.delete_many)
    fingerprint = _async(calls.fingerprint)
    distance = _async(calls.distance)
    create_collection = _async(calls.create_collection)
    collection = _async(calls.collection)
    collections = _async(calls.collections)
    set_ttl = _async(calls.set_ttl)
    delete_collection = _async(calls.delete_collection)
    begin_rebuild = _async(calls.begin_rebuild)
    rebuild = _async(calls.rebuild)
    begin_audit = _async(calls.begin_audit)
    audit = _async(calls.audit)
    layout = _async(calls.layout)
    begin_analysis = _async(calls.begin_analysis)
    analysis = _async(calls.analysis)
    analyses = _async(calls.analyses)
    cancel_analysis = _async(calls.cancel_analysis)
    delete_analysis = _async(calls.delete_analysis)
    clusters = _async(calls.clusters)
    cluster = _async(calls.cluster)
    pairs = _async(calls.pairs)
    flagged = _async(calls.flagged)
    differences = _async(calls.differences)
    exact_duplicates = _async(calls.exact_duplicates)
    keys_of_content = _async(calls.keys_of_content)

    async def import_documents(
        self,
        collection: str,
        documents: Iterable[Mapping[str, Any] | bytes] | AsyncIterable[Mapping[str, Any] | bytes],
        *,
        on_error: OnError = "continue",
    ) -> ImportAnswer:
        """Index any number of documents, in one request: objects, or lines of JSON. Not repeated by itself."""
        call = calls.import_lines(collection, on_error=on_error)
        return _result(call, await self._request(call, _lines(documents), calls.LINES))

    async def export(self, collection: str, *, text: bool = False) -> AsyncIterator[bytes]:
        """All documents, a line of JSON each, that `import_documents` takes back."""
        rest = b""
        async with self._streaming(calls.export_lines(collection, text=text)) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line

    async def stream(
        self,
        collection: str,
        analysis_id: int,
        result: Result,
        *,
        form: Format = "ndjson",
        status: Change | None = None,
    ) -> AsyncIterator[bytes]:
        """A whole result of an analysis, in parts to be written to a file as they come, with no regard to lines.

        `status`: of differences those alone. UnavailableServiceError where it is cut off, after what came before that.
        """
        call = calls.result_stream(collection, analysis_id, result, form=form, status=status)
        async with self._streaming(call) as parts:
            async for part in parts:
                yield part

    @asynccontextmanager
    async def _streaming(self, call: Call[bytes]) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The parts of an answer, as they come."""
        with self._answering():
            async with self._client.stream(call.method, call.target, headers=_kinds(call)) as answer:
                if not _is_stream(call, answer):
                    await answer.aread()
                    raise _refusal(answer)
                yield answer.aiter_bytes()


_JSON = "application/json"


def _headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _kinds(call: Call[Any], body: object = None, kind: str = _JSON) -> dict[str, str]:
    """The headers of what is sent, and of what is wanted."""
    sent = {} if body is None else {"Content-Type": kind}
    return sent if call.accept is None else sent | {"Accept": call.accept}


def _line(document: Mapping[str, Any] | bytes) -> bytes:
    return (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n"


def _sliced(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Many lines at once: each part of a body is a call of the operating system."""
    begun: list[bytes] = []
    size = 0
    for line in lines:
        begun.append(line)
        size += len(line)
        if size >= _SLICE:
            yield b"".join(begun)
            begun, size = [], 0
    yield b"".join(begun)


async def _lines(
    documents: Iterable[Mapping[str, Any] | bytes] | AsyncIterable[Mapping[str, Any] | bytes],
) -> AsyncIterator[bytes]:
    if isinstance(documents, AsyncIterable):
        async for document in documents:
            yield _line(document)
    else:
        for part in _sliced(map(_line, documents)):
            yield part


@contextmanager
def _readable(url: str) -> Generator[None]:
    try:
        yield
    except httpx2.InvalidURL:
        raise ServiceError(f"{shown(url)} is no URL of a service") from None


def _is_stream(call: Call[bytes], answer: httpx2.Response) -> bool:
    """Whether it is what was asked for, and no page of something else."""
    return answer.is_success and answer.headers.get("Content-Type", "").partition(";")[0] == call.accept


def _result(call: Call[T], answer: httpx2.Response) -> T:
    """UnavailableServiceError where the service can't answer now; ServiceError for all else that is no success."""
    if answer.is_success:
        with suppress(ValidationError):
            return call.read(answer.content)
    raise _refusal(answer)


def _refusal(answer: httpx2.Response) -> ServiceError:
    """Why there is no result, of an answer that was read to its end."""
    kind = UnavailableServiceError if answer.status_code in _UNAVAILABLE else ServiceError
    problem: dict[str, Any] = {}
    if not answer.is_success:
        with suppress(ValidationError):
            problem = _Problem.validate_json(answer.content)
    if "detail" not in problem:
        return kind(
            f"status {answer.status_code} from {shown(str(answer.url))}: is it a Tiroir service?",
            status=answer.status_code,
        )
    return kind(str(problem["detail"]), status=answer.status_code, code=problem.get("code"))


def shown(url: str) -> str:
    """Without the user and the password that it may hold."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
