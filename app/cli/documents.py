"""The commands that index, look up, export and delete documents of a running service."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.api.answers import CollectionAnswer, LookupAnswer
from app.cli.output import written
from app.cli.sources import DAMAGED, HTML, Record, Sources, batches, printable, read_text
from app.cli.status import IncompleteError, UsageError
from app.client import Tiroir
from app.client.calls import OnError

# A request of an import: some seconds of work, and some megabytes here and there.
_RECORDS = 10_000
_BYTES = 16 * 1024 * 1024
_KEYS = 1000  # of a request that deletes

_COUNTS = ("created", "replaced", "unchanged", "short", "too_short", "failed")


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of a batch."""

    counts: Counter[str]
    complaints: list[str]
    complete: bool


class Commands:
    """`as_json`: for programs. Results go to standard output, all else to standard error."""

    def __init__(self, tiroir: Tiroir, *, as_json: bool) -> None:
        self._tiroir = tiroir
        self._as_json = as_json
        self._messages = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)

    def index(self, collection: str, sources: Sources, *, on_error: OnError) -> None:
        """IncompleteError where a document couldn't be read or stored; ServiceError where nothing can be done."""
        counts = Counter[str]()
        try:
            with self._progress(total=sources.size or None) as advance:
                for done in self._imported(collection, sources, on_error):
                    for complaint in done.complaints:
                        self._complain(complaint)
                    counts += done.counts
                    advance(sources.position, _documents(counts))
                    if not done.complete:
                        break
        except KeyboardInterrupt:
            self._complain(f"interrupted: {_documents(counts):,} documents were done, more may be; run it again")
            raise
        self._print({name: counts[name] for name in _COUNTS}, ", ".join(f"{counts[name]:,} {name}" for name in _COUNTS))
        if failed := counts["failed"]:
            rest = "; nothing of the rest is indexed" if on_error == "abort" else "; the others are indexed"
            others = "" if failed == _documents(counts) and on_error == "continue" else rest
            raise IncompleteError(f"{failed:,} of {_documents(counts):,} failed{others}")

    def _imported(self, collection: str, sources: Sources, on_error: OnError) -> Iterator[_Done]:
        """While the service works on one batch the next is read."""
        sending = ThreadPoolExecutor(1)
        under_way: Future[_Done] | None = None
        try:
            for batch in batches(sources.records(), most_records=_RECORDS, most_bytes=_BYTES):
                if under_way is not None:
                    yield under_way.result()
                under_way = sending.submit(self._import, collection, batch, on_error)
            if under_way is not None:
                yield under_way.result()
        finally:
            sending.shutdown(wait=False)  # who interrupts it doesn't want to wait

    def _import(self, collection: str, batch: Sequence[Record], on_error: OnError) -> _Done:
        """What can't be read goes as an empty line, so that lines keep their numbers."""
        refused = {number: record.refusal for number, record in enumerate(batch, 1) if record.line is None}
        lines = [record.line or b"" for record in batch]
        if refused and on_error == "abort":
            first = min(refused)
            refused, lines = {first: refused[first]}, lines[: first - 1]
        answer = self._tiroir.import_documents(collection, lines, on_error=on_error)
        if not answer.complete:
            refused = {}  # it has stopped before
        counts = Counter({name: getattr(answer, name) for name in _COUNTS})
        counts["failed"] += len(refused)
        told = {error.line: f"{error.code}: {printable(error.detail)}" for error in answer.errors} | refused
        complaints = [f"{batch[number - 1].place}: {told[number]}" for number in sorted(told)]
        if (untold := counts["failed"] - len(told)) > 0:
            complaints.append(f"and {untold:,} more up to {batch[-1].place}")
        return _Done(
            counts,
            complaints,
            complete=answer.complete and not (refused and on_error == "abort"),
        )

    def near(self, collection: str, query: dict[str, Any]) -> None:
        """One of text, fingerprint and key, with threshold and limit."""
        found = self._tiroir.near(collection, **query)
        self._print(found, _spelled(found))
        if found.status == "too_short":
            self._complain("the text is too short for a fingerprint: only exact duplicates can be found")
        elif found.status == "short" and not found.matches:
            self._complain("the text is short: a near-duplicate is often further away than the threshold")
        if found.truncated:
            self._complain("there are more: --limit")

    def fingerprint(self, texts: Iterable[tuple[str, str]]) -> None:
        """Of texts, each with its name."""
        for name, text in texts:
            made = self._tiroir.fingerprint(text)
            fingerprint = made.fingerprint or "too_short"
            self._print({"name": name, **made.model_dump(mode="json")}, f"{fingerprint}  {printable(name)}")

    def export(self, collection: str, output: Path, *, text: bool) -> None:
        """A file appears when it is complete."""
        # To count them takes the service seconds a ten million: only for who looks at it.
        total = self._tiroir.collection(collection).counts.documents if self._messages.is_terminal else None
        with self._progress(total=total) as advance, written(output) as write:
            for number, line in enumerate(self._tiroir.export(collection, text=text), 1):
                write(line + b"\n")
                if number % 1000 == 0:
                    advance(number, number)

    def collections(self, name: str | None) -> None:
        """One with what it holds, or all."""
        if name is not None:
            detail = self._tiroir.collection(name)
            counts = ", ".join(f"{count:,} {what}" for what, count in detail.counts.model_dump().items())
            self._print(detail, f"{_described(detail)}: {counts}")
            return
        cursor = None
        while True:
            page = self._tiroir.collections(limit=1000, cursor=cursor)
            for each in page.items:
                self._print(each, _described(each))
            cursor = page.next_cursor
            if cursor is None:
                return

    def delete(self, collection: str, keys: Iterable[str]) -> None:
        rest = iter(keys)
        deleted = 0
        while batch := list(islice(rest, _KEYS)):
            deleted += self._tiroir.delete_many(collection, batch)
        self._print({"deleted": deleted}, f"{deleted:,} deleted")

    def delete_collection(self, collection: str) -> None:
        self._tiroir.delete_collection(collection)
        self._print({"deleted": collection}, f"{collection} is deleted")

    def _print(self, result: BaseModel | dict[str, Any], text: str) -> None:
        """A line of JSON, or text for a person."""
        if not self._as_json:
            lines = text
        elif isinstance(result, BaseModel):
            lines = result.model_dump_json(exclude_unset=True)
        else:
            lines = json.dumps(result)
        if lines:
            sys.stdout.write(f"{lines}\n")

    def _complain(self, message: str) -> None:
        self._messages.print(message, markup=False)

    @contextmanager
    def _progress(self, *, total: int | None) -> Generator[Callable[[int, int], None]]:
        """A function that takes how far it is, in the units of `total`, and how many documents that is."""
        columns = (
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[count]:,} documents, {task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._messages, disable=not self._messages.is_terminal) as bars:
            bar = bars.add_task("", total=total, count=0, rate=0.0)

            def advance(position: int, count: int) -> None:
                elapsed = bars.tasks[0].elapsed or 0.0
                bars.update(bar, completed=position, count=count, rate=count / elapsed if elapsed else 0.0)

            yield advance


def _documents(counts: Counter[str]) -> int:
    return sum(counts[name] for name in ("created", "replaced", "unchanged", "failed"))


def query_of(file: Path | None, text: str | None, fingerprint: str | None, key: str | None) -> dict[str, str]:
    """UsageError unless exactly one of them is given."""
    given: dict[str, str | Path | None] = {"file": file, "text": text, "fingerprint": fingerprint, "key": key}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise UsageError("give one of FILE, --text, --fingerprint and --key")
    return {"text": text_of(file)} if file is not None else {names[0]: str(given[names[0]])}


def text_of(file: Path) -> str:
    """IncompleteError where it can't be read, UsageError where it is no text."""
    if file.suffix.lower() in HTML:
        raise UsageError(f"{printable(str(file))}: html is not supported yet: extract its text")
    try:
        return read_text(file)
    except UnicodeDecodeError as error:
        raise IncompleteError(f"{printable(str(file))}: not UTF-8, at byte {error.start + 1}") from None
    except DAMAGED:
        raise IncompleteError(f"{printable(str(file))}: the gzip data is damaged, or ends too early") from None
    except OSError as error:
        raise IncompleteError(f"{printable(str(file))}: {error.strerror or error}") from None


def keys_of(file: Path) -> Iterator[str]:
    """One a line."""
    return filter(None, (line.removesuffix("\r") for line in text_of(file).split("\n")))


def _spelled(found: LookupAnswer) -> str:
    return "\n".join(f"{match.distance}\t{match.match}\t{printable(match.key)}" for match in found.matches)


def _described(collection: CollectionAnswer) -> str:
    scheme = collection.scheme
    parts = [f"{scheme.bits} bits", f"{scheme.shingle_size} words a shingle", f"{scheme.min_words} words at least"]
    if not collection.store_text:
        parts.append("without texts")
    if collection.ttl is not None:
        parts.append(f"ttl {collection.ttl:,} s")
    return f"{collection.name} ({', '.join(parts)})"
