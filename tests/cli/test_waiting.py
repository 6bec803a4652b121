"""Waiting for an operation: what is shown meanwhile, and when it is given up."""

import io
import json
from collections.abc import Iterator
from itertools import chain, count, repeat
from types import SimpleNamespace

import pytest
from rich.console import Console

from app.api.admin_answers import OperationAnswer
from app.cli.status import OperationEndedError
from app.cli.waiting import finished
from app.client import ServiceError, Tiroir, UnavailableServiceError, calls
from tests.acceptance.pretended import Answer, listening, pretending

AWAY: Answer = (503, "application/problem+json", b'{"code": "overloaded", "detail": "all are taken"}')


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two questions."""
    monkeypatch.setattr("app.cli.waiting._POLL_SECONDS", 0.0)


def operation(status: str, phase: str | None = None, done: int = 0) -> Answer:
    body = {
        "id": 12,
        "kind": "audit",
        "status": status,
        "parameters": {},
        "progress": {"phase": phase, "done": done, "total": 10},
        "created_at": "2026-12-01T12:00:00Z",
        "started_at": None,
        "finished_at": None if status in {"queued", "running"} else "2026-12-01T12:00:09Z",
        "result": {"misses": 0} if status == "succeeded" else None,
        "error": "the disk is full" if status == "failed" else None,
    }
    return 200, "application/json", json.dumps(body).encode()


def waited(answers: Iterator[Answer], *, terminal: bool = False, quiet: bool = False) -> tuple[OperationAnswer, str]:
    """How it ended, and what was shown."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, quiet=quiet, width=100)
    with pretending(answers) as url, Tiroir(url) as tiroir:
        return finished(tiroir, tiroir.audit(12), calls.audit(12), console), shown.getvalue()


def test_each_phase_is_named_once_where_nobody_looks_on() -> None:
    running = [operation("running", "reading", done) for done in range(3)] + [operation("running", "writing")]
    ended, shown = waited(chain([operation("queued"), *running], repeat(operation("succeeded"))))
    assert (ended.status, ended.result) == ("succeeded", {"misses": 0})
    assert shown == "reading\nwriting\n"


def test_a_bar_moves_where_somebody_looks_on() -> None:
    running = [operation("running", "reading", done) for done in (0, 7)]
    _, shown = waited(chain(running, repeat(operation("succeeded"))), terminal=True)
    assert "reading" in shown
    assert "7/10" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_shown_to_programs(terminal: bool) -> None:
    running = [operation("running", "reading", 7)] * 2
    ended, shown = waited(chain(running, repeat(operation("succeeded"))), terminal=terminal, quiet=True)
    assert (ended.status, shown) == ("succeeded", "")


@pytest.mark.parametrize(
    ("status", "reason"),
    [("failed", "audit 12 has failed: the disk is full"), ("canceled", "audit 12 was canceled")],
)
def test_what_does_not_succeed_is_an_error(status: str, reason: str) -> None:
    with pytest.raises(OperationEndedError) as ended:
        waited(chain([operation("running", "reading")], repeat(operation(status))))
    assert str(ended.value) == reason


def test_patience_begins_anew_with_each_answer_and_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0.0, 40.0)  # seconds: each look at it is 40 later
    monkeypatch.setattr("app.cli.waiting.time", SimpleNamespace(monotonic=clock.__next__, sleep=float))  # takes no time
    answers = [operation("running", "reading"), AWAY, operation("running", "reading"), AWAY, AWAY]
    with listening(chain(answers, repeat(operation("succeeded")))) as other, Tiroir(other.url) as tiroir:
        begun = tiroir.audit(12)
        with pytest.raises(UnavailableServiceError, match="all are taken"):
            finished(tiroir, begun, calls.audit(12), Console(file=io.StringIO()))
    assert len(other.asked) == len(answers)


def test_there_is_no_patience_with_a_refusal() -> None:
    gone: Answer = (404, "application/problem+json", b'{"code": "operation_not_found", "detail": "no audit 12"}')
    with pytest.raises(ServiceError, match="no audit 12"):
        waited(chain([operation("running")], repeat(gone)))
