"""What comes in under /v1/admin, and how a report becomes an answer."""

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from app.api.admin_answers import BucketAnswer, CostAnswer, LayoutAnswer, LiveLayoutAnswer
from app.api.answers import ExpectedAnswer
from app.api.schemas import QueryParameters, Request, Threshold, whole_number
from app.core.cost import MAX_BANDS, MIN_BANDS
from app.service.layout_report import LayoutReport

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


def layout_answer(report: LayoutReport) -> LayoutAnswer:
    return LayoutAnswer(
        bands=len(report.active.layout.bands),
        widths=list(report.active.layout.widths),
        threshold=report.active.threshold,
        table=report.active.table,
        rows=report.rows,
        bytes=report.bytes,
        fullest_buckets=[
            BucketAnswer(
                collection=bucket.collection, band=bucket.band, value=bucket.value, fingerprints=bucket.fingerprints
            )
            for bucket in report.fullest_buckets
        ],
        costs=[
            CostAnswer(
                threshold=cost.threshold,
                probes=cost.probes,
                expected=ExpectedAnswer.of(cost.cost),
                scan=cost.cost.scan_is_cheaper,
                cheapest_bands=cost.cheapest_bands,
            )
            for cost in report.costs
        ],
        layouts=[
            LiveLayoutAnswer(bands=len(stored.layout.bands), table=stored.table, state=stored.state)
            for stored in report.live
        ],
    )
