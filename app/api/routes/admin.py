"""Administration: the bands, their rebuilds, and audits."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api import cursor
from app.api.admin_answers import LayoutAnswer, OperationAnswer, OperationPage
from app.api.admin_schemas import (
    MAX_ID,
    NewAudit,
    NewRebuild,
    OperationId,
    OperationPageParameters,
    layout_answer,
)
from app.api.routing import NO_PARAMETERS, IdempotencyKey, JsonRoute, ServicesOfProcess, problems
from app.core.model import Json, OperationKind
from app.runtime import Services

router = APIRouter(prefix="/v1/admin", tags=["administration"], route_class=JsonRoute)


async def _begin(
    services: Services,
    kind: OperationKind,
    parameters: dict[str, Json],
    idempotency_key: str | None,
    response: Response,
) -> OperationAnswer:
    operation = await services.operations.begin(kind, parameters, idempotency_key=idempotency_key)
    response.headers["Location"] = f"{router.prefix}/{kind}s/{operation.id}"
    return OperationAnswer.of(operation)


async def _page(services: Services, kind: OperationKind, parameters: OperationPageParameters) -> OperationPage:
    before = cursor.decode_number(parameters.cursor, MAX_ID)
    found = await services.operations.page(kind, before=before, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda operation: str(operation.id))
    return OperationPage(items=[OperationAnswer.of(operation) for operation in page], next_cursor=following)


@router.get("/layout", responses=problems(), dependencies=[NO_PARAMETERS])
async def get_layout(services: ServicesOfProcess) -> LayoutAnswer:
    """The bands in use, their fullest buckets, what lookups are expected to cost. Reads the indexes of all bands."""
    return layout_answer(await services.layout_reports.report())


@router.post("/rebuilds", status_code=202, responses=problems(400, 409, 413, 415), dependencies=[NO_PARAMETERS])
async def begin_rebuild(
    services: ServicesOfProcess, body: NewRebuild, response: Response, idempotency_key: IdempotencyKey = None
) -> OperationAnswer:
    """Rebuild the bands for another default threshold, while lookups and writes go on. One at a time.

    Where threshold and bands are already what is asked for, nothing is done (`result.changed` is false).
    """
    return await _begin(services, OperationKind.REBUILD, body.model_dump(), idempotency_key, response)


@router.get("/rebuilds", responses=problems())
async def list_rebuilds(
    services: ServicesOfProcess, parameters: Annotated[OperationPageParameters, Query()]
) -> OperationPage:
    """Rebuilds, the youngest first."""
    return await _page(services, OperationKind.REBUILD, parameters)


@router.get("/rebuilds/{id}", responses=problems(404), dependencies=[NO_PARAMETERS])
async def get_rebuild(services: ServicesOfProcess, id: OperationId) -> OperationAnswer:  # noqa: A002  the interface's
    """How far a rebuild is, or how it ended."""
    return OperationAnswer.of(await services.operations.get(OperationKind.REBUILD, id))


@router.post("/rebuilds/{id}/cancel", responses=problems(404, 409), dependencies=[NO_PARAMETERS])
async def cancel_rebuild(services: ServicesOfProcess, id: OperationId) -> OperationAnswer:  # noqa: A002  as above
    """Cancel a rebuild that hasn't switched yet: it ends soon, and what it made is removed."""
    return OperationAnswer.of(await services.operations.cancel(OperationKind.REBUILD, id))


@router.post("/audits", status_code=202, responses=problems(400, 413, 415), dependencies=[NO_PARAMETERS])
async def begin_audit(
    services: ServicesOfProcess, body: NewAudit, response: Response, idempotency_key: IdempotencyKey = None
) -> OperationAnswer:
    """Compare lookups near stored fingerprints with a full scan: `result.misses` must be 0."""
    return await _begin(services, OperationKind.AUDIT, body.model_dump(), idempotency_key, response)


@router.get("/audits", responses=problems())
async def list_audits(
    services: ServicesOfProcess, parameters: Annotated[OperationPageParameters, Query()]
) -> OperationPage:
    """Audits, the youngest first."""
    return await _page(services, OperationKind.AUDIT, parameters)


@router.get("/audits/{id}", responses=problems(404), dependencies=[NO_PARAMETERS])
async def get_audit(services: ServicesOfProcess, id: OperationId) -> OperationAnswer:  # noqa: A002  as above
    """How far an audit is, or what it found."""
    return OperationAnswer.of(await services.operations.get(OperationKind.AUDIT, id))


@router.post("/audits/{id}/cancel", responses=problems(404, 409), dependencies=[NO_PARAMETERS])
async def cancel_audit(services: ServicesOfProcess, id: OperationId) -> OperationAnswer:  # noqa: A002  as above
    """Cancel an audit."""
    return OperationAnswer.of(await services.operations.cancel(OperationKind.AUDIT, id))
