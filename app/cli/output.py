"""Where the results of commands go: standard output and files."""

import gzip
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn, cast

from rich.console import Console

from app.cli.sources import STANDARD, printable
from app.cli.status import Exit, OutputError

# Of what no person looks at: wider than any key, so that nothing is folded.
_NO_TERMINAL = 100_000


class ResultConsole(Console):
    """Standard output for tables and sentences."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _NO_TERMINAL
        super().__init__(highlight=False, emoji=False, soft_wrap=True, width=width)

    def on_broken_pipe(self) -> NoReturn:
        """Its own way is to end with status 1."""
        raise BrokenPipeError


@contextmanager
def written(output: Path) -> Generator[Callable[[bytes], object]]:
    """Standard output, or a file that is there as a whole or not at all. OutputError where it can't be written."""
    if output == STANDARD:
        yield sys.stdout.buffer.write
        return
    if output.exists() and not output.is_file():  # a pipe, a device: there is nothing to put in its place
        with _writable(output) as file:
            yield file.write
        return
    part = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        with _writable(output, part) as file:
            yield file.write
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _writable(output: Path, part: Path | None = None) -> Generator[IO[bytes]]:
    """`output`, or a part of it, open; compressed if its name says so. OutputError where it can't be written."""
    path = part or output
    try:
        with gzip.open(path, "wb") if output.suffix == ".gz" else path.open("wb") as file:
            yield cast("IO[bytes]", file)
    except OSError as error:
        raise OutputError(f"{printable(str(output))}: {error.strerror or error}") from None


@contextmanager
def results() -> Generator[None]:
    """Of a command, on standard output. OutputError where that can't be written.

    Who reads it may have seen enough: then the command ends without a word, as if the signal had ended it.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is still in the buffer would fail again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(Exit.PIPE) from None
        raise OutputError(f"standard output: {error.strerror or error}") from None
