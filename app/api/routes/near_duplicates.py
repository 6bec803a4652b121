"""Near-duplicates of a text, a fingerprint or a stored document."""

from fastapi import APIRouter, Request

from app.api.problems import Problem
from app.api.routing import (
    NO_PARAMETERS,
    JsonRoute,
    ServicesOfProcess,
    described_query,
    from_query,
    problems,
    services_of,
)
from app.api.schemas import CollectionName, LookupAnswer, LookupParameters, LookupRequest
from app.core.errors import NotSupportedError
from app.runtime import Services
from app.service.near_duplicates import Options

router = APIRouter(
    prefix="/v1/collections/{collection}/near-duplicates", tags=["near-duplicates"], route_class=JsonRoute
)

across_collections = APIRouter(prefix="/v1/near-duplicates", route_class=JsonRoute)


async def _find(services: Services, collection: str, asked: LookupParameters | LookupRequest) -> LookupAnswer:
    options = Options(asked.threshold, asked.limit)
    found = await services.near_duplicates.find(collection, asked.query(), options, explain=asked.explain)
    return LookupAnswer.of(found, explain=asked.explain)


@router.get(
    "",
    responses=problems(404, 414),
    response_model_exclude_unset=True,
    openapi_extra=described_query(LookupParameters),
)
async def find_near_duplicates(request: Request, collection: CollectionName) -> LookupAnswer:
    """Near-duplicates, nearest first. For long texts use POST: a URL holds 65,535 bytes at most."""
    asked = from_query(request, LookupParameters)
    return await _find(await services_of(request), collection, asked)


@router.post(
    "",
    responses=problems(400, 404, 413, 415),
    response_model_exclude_unset=True,
    dependencies=[NO_PARAMETERS],
)
async def post_near_duplicates(
    services: ServicesOfProcess, collection: CollectionName, asked: LookupRequest
) -> LookupAnswer:
    """Near-duplicates, nearest first. Nothing is stored."""
    return await _find(services, collection, asked)


@router.post("/batch", include_in_schema=False)
async def post_lookups() -> Problem:
    raise NotSupportedError("batches are not supported yet: send lookups one by one", pointer="")


@across_collections.post("", include_in_schema=False)
@across_collections.post("/batch", include_in_schema=False)
async def post_across_collections() -> Problem:
    raise NotSupportedError("lookups over several collections are not supported yet: ask each by itself", pointer="")
