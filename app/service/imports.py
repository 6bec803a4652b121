"""Imports: documents without end, in order, a chunk at a time. While one is written the next is fingerprinted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread

from app.core.errors import InvalidEncodingError, InvalidInputError, UnavailableError
from app.core.model import Outcome
from app.core.scheme import Digest, Scheme, Status
from app.service.documents import Documents, NewDocument
from app.service.fingerprinting import Text, digest_of
from app.store.documents import Write

_log = logging.getLogger(__name__)

MOST_ERRORS = 1000  # that are told one by one

_LARGE_LOAD = 10_000  # documents

# Each keeps a processor busy, and a chunk in memory.
_CHUNKS_AT_ONCE = CapacityLimiter(2)


@dataclass(frozen=True, slots=True)
class Line:
    """`number`: from 1."""

    number: int
    content: bytes | InvalidInputError  # an error: why there is nothing to read


Read = Callable[[bytes], NewDocument]


@dataclass(frozen=True, slots=True)
class LineError:
    line: int
    code: str
    detail: str


@dataclass(slots=True)
class Imported:
    """What became of the lines. `complete`: False where the import has stopped before their end."""

    lines: int = 0
    created: int = 0
    replaced: int = 0
    unchanged: int = 0
    short: int = 0
    too_short: int = 0
    failed: int = 0
    errors: list[LineError] = field(default_factory=list[LineError])  # the first ones
    complete: bool = True

    def note_error(self, error: LineError) -> None:
        self.lines += 1
        self.failed += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(error)

    def note_document(self, outcome: Outcome, status: Status) -> None:
        self.lines += 1
        self.created += outcome is Outcome.CREATED
        self.replaced += outcome is Outcome.REPLACED
        self.unchanged += outcome is Outcome.UNCHANGED
        self.short += status is Status.SHORT
        self.too_short += status is Status.TOO_SHORT


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A chunk, read and fingerprinted by a scheme."""

    lines: Sequence[Line]
    scheme: Scheme
    writes: list[Write]
    errors: list[LineError]


class _StoppedError(Exception):
    """A line that can't be stored ends the import."""


class _Writing:
    """What is written while the next chunk is prepared."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, write: Coroutine[None, None, None]) -> None:
        """After the one before has ended."""
        self._task = asyncio.create_task(write)

    async def end(self) -> None:
        """Raises what it has raised."""
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def settle(self) -> None:
        """For an import that is broken off: what is under way is written as a whole, or not at all."""
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()


class Imports:
    def __init__(self, documents: Documents, *, most_line_bytes: int) -> None:
        self._documents = documents
        self.most_line_bytes = most_line_bytes

    async def run(
        self, name: str, chunks: AsyncIterator[Sequence[Line]], read: Read, *, stop_at_error: bool
    ) -> Imported:
        """Writes the documents of all lines, each chunk in one transaction, and tells what became of them.

        Of several lines with one key the last one wins. A line that can't be read or stored is noted and passed over;
        with `stop_at_error` it ends the import, and nothing of its chunk is written. A collection that doesn't exist is
        made for the first document.
        """
        imported = Imported()
        writing = _Writing()
        try:
            async for lines in chunks:
                prepared = await self._prepare(name, lines, read)
                await writing.end()
                if stop_at_error:
                    _require_none(prepared.errors, imported)
                writing.begin(self._write(name, prepared, read, imported, stop_at_error=stop_at_error))
            await writing.end()
            if imported.created + imported.replaced >= _LARGE_LOAD:
                await self._analyze()
        except _StoppedError:
            return imported
        except BaseException as error:
            await writing.settle()
            if isinstance(error, UnavailableError):
                done = f"{imported.lines} lines were done before: send all of it again"
                raise type(error)(f"{error}. {done}") from error
            raise
        return imported

    async def _analyze(self) -> None:
        try:
            await self._documents.analyze()
        except UnavailableError as error:
            _log.warning("the planner isn't told of an import: %s", error.code)  # Housekeeping will do it

    async def _prepare(self, name: str, lines: Sequence[Line], read: Read) -> _Prepared:
        news, errors = await to_thread.run_sync(_read, lines, read, limiter=_CHUNKS_AT_ONCE)
        keys = [new.key for _, new in news if isinstance(new.content, Text)]
        while True:
            scheme, known = await self._documents.known(name, keys)
            writes, refused = await to_thread.run_sync(_digest, news, scheme, known, limiter=_CHUNKS_AT_ONCE)
            if not refused or await self._documents.has_scheme(name, scheme):
                break
        return _Prepared(lines, scheme, writes, sorted(errors + refused, key=lambda error: error.line))

    async def _write(
        self, name: str, prepared: _Prepared, read: Read, imported: Imported, *, stop_at_error: bool
    ) -> None:
        while (outcomes := await self._documents.write_by_scheme(name, prepared.scheme, prepared.writes)) is None:
            prepared = await self._prepare(name, prepared.lines, read)  # the collection was made anew meanwhile
            if stop_at_error:
                _require_none(prepared.errors, imported)
        for error in prepared.errors:
            imported.note_error(error)
            imported.complete = error.code != InvalidEncodingError.code
        for write, outcome in zip(prepared.writes, outcomes, strict=True):
            imported.note_document(outcome, write.digest.status)


def _require_none(errors: Sequence[LineError], imported: Imported) -> None:
    if errors:
        imported.note_error(errors[0])
        imported.complete = False
        raise _StoppedError


def _read(lines: Sequence[Line], read: Read) -> tuple[list[tuple[int, NewDocument]], list[LineError]]:
    """The documents by their lines, and the lines that are none."""
    news: list[tuple[int, NewDocument]] = []
    errors: list[LineError] = []
    for line in lines:
        try:
            if isinstance(line.content, InvalidInputError):
                raise line.content
            news.append((line.number, read(line.content)))
        except InvalidInputError as error:
            errors.append(_line_error(line.number, error))
    return news, errors


def _digest(
    news: Sequence[tuple[int, NewDocument]], scheme: Scheme, known: Mapping[str, Digest]
) -> tuple[list[Write], list[LineError]]:
    """What to write, and the lines whose fingerprints the scheme hasn't."""
    writes: list[Write] = []
    errors: list[LineError] = []
    for number, new in news:
        try:
            writes.append(new.write(digest_of(new.content, scheme, known.get(new.key))))
        except InvalidInputError as error:
            errors.append(_line_error(number, error))
    return writes, errors


def _line_error(number: int, error: InvalidInputError) -> LineError:
    place = f"{error.pointer}: " if error.pointer else ""
    return LineError(number, error.code, f"{place}{error}")
