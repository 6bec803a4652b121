"""How a command ends. docs/commands.md lists the same."""

from enum import IntEnum

from app.client import ServiceError, UnavailableServiceError
from app.core.errors import TiroirError


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2  # click's own
    UNAVAILABLE = 3
    INCOMPLETE = 4
    BUSY = 5
    OUTPUT = 6
    MISSED = 7
    INTERRUPTED = 130
    PIPE = 141  # as if the signal had ended it


class UsageError(TiroirError):
    """The command line asks for something that makes no sense."""


class OperationEndedError(TiroirError):
    """The operation that was waited for didn't succeed."""


class NoAnalysisError(TiroirError):
    """There is no finished analysis to be shown."""


class MissedError(TiroirError):
    """An audit has found what must not be."""


class IncompleteError(TiroirError):
    """Some of the documents couldn't be indexed, or read."""


class OutputError(TiroirError):
    """The result can't be written to where it should go."""


def exit_of(error: TiroirError) -> Exit:
    """The status that tells a script what went wrong."""
    if isinstance(error, UnavailableServiceError):
        return Exit.UNAVAILABLE
    if isinstance(error, ServiceError):
        return Exit.BUSY if error.status == 409 else Exit.FAILED
    return _BY_ERROR.get(type(error), Exit.FAILED)


_BY_ERROR: dict[type[TiroirError], Exit] = {
    UsageError: Exit.USAGE,
    IncompleteError: Exit.INCOMPLETE,
    OutputError: Exit.OUTPUT,
    MissedError: Exit.MISSED,
}
