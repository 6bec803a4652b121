"""Collections: create, describe, list, delete."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api import cursor
from app.api.answers import CollectionAnswer, CollectionCountsAnswer, CollectionDetail, CollectionPage
from app.api.routing import NO_PARAMETERS, JsonRoute, ServicesOfProcess, problems
from app.api.schemas import CollectionChange, CollectionName, NewCollection, PageParameters

router = APIRouter(prefix="/v1/collections", tags=["collections"], route_class=JsonRoute)

_EXISTS = {200: {"model": CollectionAnswer, "description": "The collection exists, with the same settings."}}


@router.post("", status_code=201, responses=_EXISTS | problems(400, 409, 413, 415), dependencies=[NO_PARAMETERS])
async def create_collection(services: ServicesOfProcess, body: NewCollection, response: Response) -> CollectionAnswer:
    """Create a collection; 200 where it exists with the same settings."""
    created = await services.collections.create(
        body.name, body.scheme.scheme(), store_text=body.store_text, ttl=body.ttl
    )
    if not created.is_new:
        response.status_code = 200
    return CollectionAnswer(**CollectionAnswer.members(created.collection))


@router.get("", responses=problems())
async def list_collections(
    services: ServicesOfProcess, parameters: Annotated[PageParameters, Query()]
) -> CollectionPage:
    """Collections in the order of their names."""
    after = cursor.decode(parameters.cursor)
    found = await services.collections.page(after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda collection: collection.name)
    return CollectionPage(
        items=[CollectionAnswer(**CollectionAnswer.members(collection)) for collection in page],
        next_cursor=following,
    )


@router.get("/{collection}", responses=problems(404), dependencies=[NO_PARAMETERS])
async def describe_collection(services: ServicesOfProcess, collection: CollectionName) -> CollectionDetail:
    """Its settings and what it holds."""
    described, counts = await services.collections.describe(collection)
    return CollectionDetail(
        **CollectionAnswer.members(described),
        counts=CollectionCountsAnswer(
            documents=counts.documents,
            fingerprints=counts.fingerprints,
            too_short=counts.too_short,
            exact_duplicates=counts.exact_duplicates,
        ),
    )


@router.patch("/{collection}", responses=problems(400, 404, 413, 415), dependencies=[NO_PARAMETERS])
async def change_collection(
    services: ServicesOfProcess, collection: CollectionName, body: CollectionChange
) -> CollectionAnswer:
    """Set how long documents stay that aren't indexed again. From now on: none goes before that time has passed."""
    changed = await services.collections.set_ttl(collection, body.ttl)
    return CollectionAnswer(**CollectionAnswer.members(changed))


@router.delete("/{collection}", status_code=204, responses=problems(404), dependencies=[NO_PARAMETERS])
async def delete_collection(services: ServicesOfProcess, collection: CollectionName) -> None:
    """Delete a collection with all that it holds: nobody finds it any more; its space is freed in the background."""
    await services.collections.delete(collection)
