"""What goes out under /v1/admin, and comes in at the client."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field

from app.api.answers import Answer, ExpectedAnswer
from app.core import model


class ProgressAnswer(Answer):
    phase: str | None = Field(description="null: it hasn't begun.")
    done: int
    total: int | None = Field(description="null: not known.")


class OperationAnswer(Answer):
    id: int
    kind: model.OperationKind
    status: model.OperationStatus
    parameters: dict[str, Any]
    progress: ProgressAnswer
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: dict[str, Any] | None
    error: str | None = Field(description="Why it failed.")

    @classmethod
    def of(cls, operation: model.Operation) -> Self:
        return cls(**cls.members(operation))

    @staticmethod
    def members(operation: model.Operation) -> dict[str, Any]:
        return {
            "id": operation.id,
            "kind": operation.kind,
            "status": operation.status,
            "parameters": operation.parameters,
            "progress": ProgressAnswer(phase=operation.phase, done=operation.done, total=operation.total),
            "created_at": operation.created_at,
            "started_at": operation.started_at,
            "finished_at": operation.finished_at,
            "result": operation.result,
            "error": operation.error,
        }


class OperationPage(Answer):
    items: list[OperationAnswer]
    next_cursor: str | None


class BucketAnswer(Answer):
    """Fingerprints of a collection that are equal in one band."""

    collection: str
    band: int = Field(description="0 is the highest.")
    value: int
    fingerprints: int


class CostAnswer(Answer):
    """What the cost model thinks of lookups at one threshold, over the largest collections."""

    threshold: int
    probes: int
    expected: ExpectedAnswer
    scan: bool
    cheapest_bands: int = Field(description="What a rebuild for this threshold would choose.")


class LiveLayoutAnswer(Answer):
    bands: int
    table: str
    state: str = Field(description="building, active or retired: writes go to all of them.")


class LayoutAnswer(Answer):
    bands: int
    widths: list[int] = Field(description="Bits, the highest band first; 64 together.")
    threshold: int = Field(description="The default of lookups that name none.")
    table: str
    rows: int = Field(description="Distinct fingerprints of all collections.")
    bytes: int = Field(description="Of the table and its indexes.")
    fullest_buckets: list[BucketAnswer]
    costs: list[CostAnswer]
    layouts: list[LiveLayoutAnswer] = Field(description="All that have a table: more than one while a rebuild runs.")
