"""Waiting for an operation of the service, with a progress bar where a person looks on."""

import time
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.api.admin_answers import OperationAnswer
from app.cli.status import OperationEndedError
from app.client import Call, Tiroir, UnavailableServiceError

Operation = TypeVar("Operation", bound=OperationAnswer)

_POLL_SECONDS = 0.5
# A service that restarts is away for a moment; an operation goes on all the same.
_PATIENCE_SECONDS = 60.0


def finished(tiroir: Tiroir, operation: Operation, again: Call[Operation], console: Console) -> Operation:
    """As it is when it has succeeded; `again` asks how far it is. A console that is quiet shows nothing.

    OperationEndedError where it doesn't succeed, UnavailableServiceError where the service stays away.
    """
    operation = _wait(tiroir, operation, again, console)
    if operation.status in ("failed", "canceled"):
        how = "was canceled" if operation.status == "canceled" else f"has failed: {operation.error}"
        raise OperationEndedError(f"{operation.kind} {operation.id} {how}")
    return operation


def _wait(tiroir: Tiroir, operation: Operation, again: Call[Operation], console: Console) -> Operation:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=console.quiet or not console.is_terminal) as bars:
        bar, phase = None, None
        heard = time.monotonic()
        while operation.finished_at is None:
            progress = operation.progress
            if progress.phase is not None and progress.phase != phase:
                if bar is not None:
                    bars.update(bar, total=bars.tasks[-1].total or 1, completed=bars.tasks[-1].total or 1)
                phase = progress.phase
                bar = bars.add_task(phase)
                if not console.is_terminal:
                    console.print(phase)
            if bar is not None:
                bars.update(bar, total=progress.total, completed=progress.done)
            time.sleep(_POLL_SECONDS)
            try:
                operation = tiroir.send(again)
                heard = time.monotonic()
            except UnavailableServiceError:
                if time.monotonic() - heard > _PATIENCE_SECONDS:
                    raise
    return operation
