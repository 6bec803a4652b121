"""The command line as real processes, their output piped or at a terminal."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from service import PATIENCE, ROOT, Service

from app.cli.status import Exit

TIROIR = (sys.executable, "-m", "app.cli")


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def plain(text: str) -> bool:
    """Without control characters, which a file or another program has no use for."""
    return all(character.isprintable() or character in "\n\t" for character in text)


def popen(
    arguments: Sequence[str | bytes | Path],
    settings: Mapping[str, str | int],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    folder: Path = ROOT,
) -> subprocess.Popen[str]:
    """`tiroir` with these arguments. The port is what it finds its service by."""
    return subprocess.Popen(
        (*TIROIR, *arguments),
        cwd=folder,
        env=Service((), **settings).environment | {"PYTHONPATH": str(ROOT)},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(*arguments: str, **settings: str | int) -> subprocess.Popen[str]:
    """Its output is piped."""
    return popen(arguments, settings)


def end(process: subprocess.Popen[str]) -> Ended:
    output, errors = process.communicate(timeout=PATIENCE)
    output = output or ""
    assert plain(output + errors), output + errors
    assert "Traceback" not in errors, errors
    return Ended(process.returncode, output, errors)


def command(*arguments: str, **settings: str | int) -> Ended:
    return end(start(*arguments, **settings))


def commands(*several: tuple[str, ...], **settings: str | int) -> list[Ended]:
    """Those that don't disturb one another, at once."""
    return [end(process) for process in [start(*arguments, **settings) for arguments in several]]


def hand_over(process: subprocess.Popen[str], content: bytes) -> None:
    """To its standard input, which stays open."""
    assert process.stdin is not None
    with os.fdopen(os.dup(process.stdin.fileno()), "wb") as pipe:
        pipe.write(content)


def close_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None  # communicate() would flush it


def assert_refused(ended: Ended, status: Exit = Exit.FAILED) -> str:
    """Nothing but one line, which is returned without its beginning."""
    assert ended.output == "", ended
    return failure(ended, status)


def failure(ended: Ended, status: Exit = Exit.FAILED) -> str:
    assert ended.status == status, ended
    assert ended.errors.startswith("tiroir: "), ended
    assert ended.errors.count("\n") == 1, ended
    return ended.errors.removeprefix("tiroir: ").strip()


def on_a_terminal(*arguments: str | Path, typed: bytes = b"", **settings: int) -> tuple[int, str]:
    """The exit status, and all that was written to the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        (*TIROIR, *arguments),
        cwd=ROOT,
        env=Service((), **settings).environment | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, typed)
    written = b""
    with suppress(OSError):  # that is how a terminal ends on Linux, when the last program has closed it
        while piece := os.read(ours, 65_536):
            written += piece
    os.close(ours)
    return process.wait(PATIENCE), written.decode()
