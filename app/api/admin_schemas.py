"""What goes in and out under /v1/admin."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field

from app.api.answers import Answer, ExpectedAnswer
from app.api.schemas import QueryParameters, Request, Threshold, whole_number
from app.core import model
from app.core.cost import MAX_BANDS, MIN_BANDS
from app.service.layout_report import LayoutReport, ThresholdCost
from app.store.layouts import Bucket

MAX_SAMPLE = 100_000
MAX_ID = 2**31 - 1
DEFAULT_OPERATIONS = 20

OperationId = Annotated[int, Field(ge=1, le=MAX_ID, examples=[1]), BeforeValidator(whole_number)]


class NewRebuild(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"threshold": 7}]})

    threshold: Annotated[Threshold, Field(description="0 to 63: the new default of lookups that name none.")]
    bands: int | None = Field(
        default=None,
        ge=MIN_BANDS,
        le=MAX_BANDS,
        description="Left out: as many as make lookups at this threshold cheapest, for what is stored now.",
    )
    force: bool = Field(
        default=False, description="Build the bands anew even if they stay as they are: drops rows no document uses."
    )


class NewAudit(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"sample": 1000, "threshold": 3}]})

    sample: int = Field(default=1000, ge=1, le=MAX_SAMPLE, description="Lookups to compare with a full scan.")
    threshold: Threshold | None = None


class OperationPageParameters(QueryParameters):
    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole_number)] = DEFAULT_OPERATIONS
    cursor: str | None = Field(default=None, description="`next_cursor` of the page before.")


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
        return cls(
            id=operation.id,
            kind=operation.kind,
            status=operation.status,
            parameters=operation.parameters,
            progress=ProgressAnswer(phase=operation.phase, done=operation.done, total=operation.total),
            created_at=operation.created_at,
            started_at=operation.started_at,
            finished_at=operation.finished_at,
            result=operation.result,
            error=operation.error,
        )


class OperationPage(Answer):
    items: list[OperationAnswer]
    next_cursor: str | None


class BucketAnswer(Answer):
    """Fingerprints of a collection that are equal in one band."""

    collection: str
    band: int = Field(description="0 is the highest.")
    value: int
    fingerprints: int

    @classmethod
    def of(cls, bucket: Bucket) -> Self:
        return cls(collection=bucket.collection, band=bucket.band, value=bucket.value, fingerprints=bucket.fingerprints)


class CostAnswer(Answer):
    """What the cost model thinks of lookups at one threshold, over the largest collections."""

    threshold: int
    probes: int
    expected: ExpectedAnswer
    scan: bool
    cheapest_bands: int = Field(description="What a rebuild for this threshold would choose.")

    @classmethod
    def of(cls, cost: ThresholdCost) -> Self:
        return cls(
            threshold=cost.threshold,
            probes=cost.probes,
            expected=ExpectedAnswer.of(cost.cost),
            scan=cost.cost.scan_is_cheaper,
            cheapest_bands=cost.cheapest_bands,
        )


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

    @classmethod
    def of(cls, report: LayoutReport) -> Self:
        return cls(
            bands=len(report.active.layout.bands),
            widths=list(report.active.layout.widths),
            threshold=report.active.threshold,
            table=report.active.table,
            rows=report.rows,
            bytes=report.bytes,
            fullest_buckets=[BucketAnswer.of(bucket) for bucket in report.fullest_buckets],
            costs=[CostAnswer.of(cost) for cost in report.costs],
            layouts=[
                LiveLayoutAnswer(bands=len(stored.layout.bands), table=stored.table, state=stored.state)
                for stored in report.live
            ],
        )
