"""Near-duplicates of a text, a fingerprint or a stored document."""

from fastapi import APIRouter, Request, Response

from app.api.answers import LookupAnswer, LookupBatchAnswer
from app.api.routing import (
    NO_PARAMETERS,
    JsonRoute,
    ServicesOfProcess,
    described_query,
    from_query,
    problems,
    services_of,
)
from app.api.schemas import (
    CollectionName,
    LookupAcross,
    LookupBatch,
    LookupBatchAcross,
    LookupParameters,
    LookupRequest,
)
from app.core.model import Found
from app.runtime import Services
from app.service.near_duplicates import Options

router = APIRouter(
    prefix="/v1/collections/{collection}/near-duplicates", tags=["near-duplicates"], route_class=JsonRoute
)

across_collections = APIRouter(prefix="/v1/near-duplicates", tags=["near-duplicates"], route_class=JsonRoute)


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


@router.post(
    "/batch",
    response_model=LookupBatchAnswer,
    responses=problems(400, 404, 413, 415),
    dependencies=[NO_PARAMETERS],
)
async def post_lookups(services: ServicesOfProcess, collection: CollectionName, asked: LookupBatch) -> Response:
    """Near-duplicates of up to 1,000 queries, by one statement. Nothing is stored."""
    options = Options(asked.threshold, asked.limit)
    return _answer_many(await services.near_duplicates.find_many(collection, asked.asked(), options))


@across_collections.post(
    "",
    responses=problems(400, 404, 413, 415),
    response_model_exclude_unset=True,
    dependencies=[NO_PARAMETERS],
)
async def find_across_collections(services: ServicesOfProcess, asked: LookupAcross) -> LookupAnswer:
    """Near-duplicates in several collections, which all have one scheme; each match names its own.

    A key is looked for in the collections in their order.
    """
    options = Options(asked.threshold, asked.limit)
    [found] = await services.near_duplicates.find_across(asked.collections, [asked.query()], options)
    return LookupAnswer.of(found)


@across_collections.post(
    "/batch",
    response_model=LookupBatchAnswer,
    responses=problems(400, 404, 413, 415),
    dependencies=[NO_PARAMETERS],
)
async def post_lookups_across_collections(services: ServicesOfProcess, asked: LookupBatchAcross) -> Response:
    """The same for up to 1,000 queries."""
    options = Options(asked.threshold, asked.limit)
    return _answer_many(await services.near_duplicates.find_across(asked.collections, asked.asked(), options))


def _answer_many(found: list[Found]) -> Response:
    """As JSON at once: the framework would look through thousands of matches once more."""
    answer = LookupBatchAnswer(results=[LookupAnswer.of(each) for each in found])
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")
