"""Reports of whole collections: analyses, and documents of the same content."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api import cursor, streaming
from app.api.admin_schemas import MAX_ID, OperationId, OperationPageParameters
from app.api.analysis_answers import (
    AnalysisAnswer,
    AnalysisPage,
    ClusterAnswer,
    ClusterMemberAnswer,
    ClusterMemberPage,
    ClusterPage,
    DifferenceAnswer,
    DifferencePage,
    ExactGroupAnswer,
    ExactGroupPage,
    FlaggedAnswer,
    FlaggedPage,
    KeyPage,
    PairAnswer,
    PairPage,
)
from app.api.analysis_schemas import ClusterNumber, ContentHash, DifferenceParameters, NewAnalysisRequest
from app.api.routing import NO_PARAMETERS, IdempotencyKey, JsonRoute, ServicesOfProcess, problems
from app.api.schemas import CollectionName, PageParameters
from app.api.streaming import PAGE, stream_wanted, streamed
from app.core.model import Flagged, Member
from app.service.analyses import WITHOUT_FINGERPRINT

router = APIRouter(prefix="/v1/collections/{collection}", tags=["reports"], route_class=JsonRoute)

_GROUPS = "exact-duplicates"
_MOST = 2**63 - 1
_MOST_PAIRS = 2**44 - 1  # 8,192 in each block, and the blocks are numbered by an integer


@router.post("/analyses", status_code=202, responses=problems(400, 404, 413, 415), dependencies=[NO_PARAMETERS])
async def begin_analysis(
    services: ServicesOfProcess,
    collection: CollectionName,
    body: NewAnalysisRequest,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> AnalysisAnswer:
    """Find all near-duplicates of a collection and their clusters, or compare it with an earlier collection.

    Its results stay until the next analysis with the same settings has succeeded, or until they are deleted.
    """
    operation = await services.analyses.begin(collection, body.new(), idempotency_key=idempotency_key)
    response.headers["Location"] = f"/v1/collections/{collection}/analyses/{operation.id}"
    return AnalysisAnswer.of(operation)


@router.get("/analyses", responses=problems(404))
async def list_analyses(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[OperationPageParameters, Query()]
) -> AnalysisPage:
    """Analyses, the youngest first."""
    before = cursor.decode_number(parameters.cursor, MAX_ID)
    found = await services.analyses.page(collection, before=before, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda operation: str(operation.id))
    return AnalysisPage(items=[AnalysisAnswer.of(operation) for operation in page], next_cursor=following)


@router.get("/analyses/{id}", responses=problems(404), dependencies=[NO_PARAMETERS])
async def get_analysis(
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  the interface's
) -> AnalysisAnswer:
    """How far an analysis is, or what it has counted."""
    return AnalysisAnswer.of(await services.analyses.get(collection, id))


@router.post("/analyses/{id}/cancel", responses=problems(404, 409), dependencies=[NO_PARAMETERS])
async def cancel_analysis(
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
) -> AnalysisAnswer:
    """Cancel an analysis: it ends within seconds, and leaves nothing behind."""
    return AnalysisAnswer.of(await services.analyses.cancel(collection, id))


@router.delete("/analyses/{id}", status_code=204, responses=problems(404, 409), dependencies=[NO_PARAMETERS])
async def delete_analysis(
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
) -> None:
    """Delete an analysis that is finished, with its results."""
    await services.analyses.delete(collection, id)


@router.get(
    "/analyses/{id}/clusters",
    response_model=ClusterPage,
    responses=problems(404, 409) | streaming.described(ClusterMemberAnswer),
)
async def list_clusters(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
    parameters: Annotated[PageParameters, Query()],
) -> ClusterPage | Response:
    """Clusters, the largest first. A stream has a line a document, cluster by cluster."""
    if media_type := stream_wanted(request, parameters):
        return await streamed(
            media_type,
            ClusterMemberAnswer,
            lambda last: services.analyses.documents_in_clusters(collection, id, after=_place(last), limit=PAGE),
            ClusterMemberAnswer.of,
        )
    list_of = f"{id}/clusters"
    after, _ = cursor.decode_place(parameters.cursor, list_of, MAX_ID)
    found = await services.analyses.clusters(collection, id, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda cluster: cursor.place(list_of, cluster.number))
    return ClusterPage(items=list(map(ClusterAnswer.of, page)), next_cursor=following)


def _place(last: Flagged | None) -> tuple[int, str]:
    """Where the documents behind one begin."""
    if last is None:
        return 0, ""
    return last.number if isinstance(last, Member) else WITHOUT_FINGERPRINT, last.key


def _cursor_of(list_of: str) -> Callable[[Flagged], str]:
    return lambda document: cursor.place(list_of, *_place(document))


@router.get(
    "/analyses/{id}/clusters/{cluster}",
    response_model=ClusterMemberPage,
    responses=problems(404, 409) | streaming.described(ClusterMemberAnswer),
)
async def list_members(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
    cluster: ClusterNumber,
    parameters: Annotated[PageParameters, Query()],
) -> ClusterMemberPage | Response:
    """The documents of a cluster, the nearest to its representative first."""
    members = services.analyses.members
    if media_type := stream_wanted(request, parameters):
        return await streamed(
            media_type,
            ClusterMemberAnswer,
            lambda last: members(collection, id, cluster, after=_place(last), limit=PAGE),
            ClusterMemberAnswer.of,
        )
    list_of = f"{id}/clusters/{cluster}"
    after = cursor.decode_place(parameters.cursor, list_of, MAX_ID)
    found = await members(collection, id, cluster, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, _cursor_of(list_of))
    return ClusterMemberPage(items=list(map(ClusterMemberAnswer.of, page)), next_cursor=following)


@router.get(
    "/analyses/{id}/pairs",
    response_model=PairPage,
    responses=problems(404, 409) | streaming.described(PairAnswer),
)
async def list_pairs(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
    parameters: Annotated[PageParameters, Query()],
) -> PairPage | Response:
    """Pairs of fingerprints within the threshold, cluster by cluster; once each that several documents share."""
    if media_type := stream_wanted(request, parameters):
        pairs = services.analyses.pairs
        return await streamed(
            media_type,
            PairAnswer,
            lambda last: pairs(collection, id, start=0 if last is None else last.number + 1, limit=PAGE),
            PairAnswer.of,
        )
    list_of = f"{id}/pairs"
    start, _ = cursor.decode_place(parameters.cursor, list_of, _MOST_PAIRS)
    found = await services.analyses.pairs(collection, id, start=start, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda pair: cursor.place(list_of, pair.number + 1))
    return PairPage(items=list(map(PairAnswer.of, page)), next_cursor=following)


@router.get(
    "/analyses/{id}/documents",
    response_model=FlaggedPage,
    responses=problems(404, 409) | streaming.described(FlaggedAnswer),
)
async def list_flagged(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
    parameters: Annotated[PageParameters, Query()],
) -> FlaggedPage | Response:
    """The documents that have a duplicate, near or exact, cluster by cluster; those without a fingerprint last."""
    documents = services.analyses.documents
    if media_type := stream_wanted(request, parameters):
        return await streamed(
            media_type,
            FlaggedAnswer,
            lambda last: documents(collection, id, after=_place(last), limit=PAGE),
            FlaggedAnswer.of,
        )
    list_of = f"{id}/documents"
    after = cursor.decode_place(parameters.cursor, list_of, MAX_ID)
    found = await documents(collection, id, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, _cursor_of(list_of))
    return FlaggedPage(items=list(map(FlaggedAnswer.of, page)), next_cursor=following)


@router.get(
    "/analyses/{id}/differences",
    response_model=DifferencePage,
    responses=problems(404, 409) | streaming.described(DifferenceAnswer),
)
async def list_differences(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    id: OperationId,  # noqa: A002  as above
    parameters: Annotated[DifferenceParameters, Query()],
) -> DifferencePage | Response:
    """What became of the documents of two collections, in the order of their keys (bytewise)."""
    differences, status = services.analyses.differences, parameters.status
    if media_type := stream_wanted(request, parameters):
        return await streamed(
            media_type,
            DifferenceAnswer,
            lambda last: differences(collection, id, change=status, after="" if last is None else last.key, limit=PAGE),
            DifferenceAnswer.of,
        )
    after = cursor.decode(parameters.cursor)
    found = await differences(collection, id, change=status, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda difference: difference.key)
    return DifferencePage(items=list(map(DifferenceAnswer.of, page)), next_cursor=following)


@router.get("/exact-duplicates", responses=problems(404))
async def list_exact_duplicates(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[PageParameters, Query()]
) -> ExactGroupPage:
    """Documents of the same content, as they are now: groups, the largest first."""
    rank, content_hash = cursor.decode_place(parameters.cursor, _GROUPS, _MOST)
    after = (_MOST - rank, cursor.decode_hex(content_hash))
    found = await services.documents.exact_groups(collection, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(
        found, parameters.limit, lambda group: cursor.place(_GROUPS, _MOST - group.documents, group.content_hash.hex())
    )
    return ExactGroupPage(items=list(map(ExactGroupAnswer.of, page)), next_cursor=following)


@router.get("/exact-duplicates/{content_hash}", responses=problems(404))
async def list_keys_of_content(
    services: ServicesOfProcess,
    collection: CollectionName,
    content_hash: ContentHash,
    parameters: Annotated[PageParameters, Query()],
) -> KeyPage:
    """The keys of all documents of one content."""
    after = cursor.decode(parameters.cursor)
    found = await services.documents.keys_of_content(
        collection, bytes.fromhex(content_hash), after=after, limit=parameters.limit + 1
    )
    page, following = cursor.cut(found, parameters.limit, str)
    return KeyPage(items=page, next_cursor=following)
