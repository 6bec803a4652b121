"""Documents: index, read, list, delete.

A key stands in the path, or, for keys that a proxy would mangle there (URLs with //), in the query of /document.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.convertors import PathConvertor, register_url_convertor

from app.api import cursor
from app.api.answers import (
    DeletedAnswer,
    DocumentAnswer,
    DocumentBatchAnswer,
    DocumentPage,
    IndexAnswer,
    MatchAnswer,
)
from app.api.routing import NO_PARAMETERS, JsonRoute, ServicesOfProcess, problems
from app.api.schemas import (
    CollectionName,
    DocumentBatch,
    DocumentContents,
    DocumentKey,
    DocumentPageParameters,
    KeyBatch,
    KeyedWriteParameters,
    KeyParameters,
    PostDocument,
    PutDocument,
    WriteParameters,
)
from app.core.model import Outcome
from app.runtime import Services
from app.service.documents import NewDocument
from app.service.near_duplicates import Options


class _KeyConvertor(PathConvertor):
    """All that is left of a path. The framework's own drops a line feed at the end, and knows no path with another."""

    regex = r"[\s\S]*"


register_url_convertor("key", _KeyConvertor())

router = APIRouter(prefix="/v1/collections/{collection}", tags=["documents"], route_class=JsonRoute)

_CREATED = {201: {"model": IndexAnswer, "description": "The document is new."}}


async def _index(
    services: Services,
    collection: str,
    key: str,
    body: DocumentContents,
    parameters: WriteParameters,
    response: Response,
) -> IndexAnswer:
    indexed = await services.documents.index(
        collection,
        NewDocument(key, body.content(), body.metadata),
        Options(parameters.threshold, parameters.limit) if parameters.near_duplicates else None,
    )
    if indexed.outcome is Outcome.CREATED:
        response.status_code = 201
    matches = indexed.matches
    return IndexAnswer(
        document=DocumentAnswer.of(collection, indexed.document),
        result=indexed.outcome,
        threshold=None if matches is None else matches.threshold,
        near_duplicates=None if matches is None else [MatchAnswer.of(match) for match in matches.items],
        truncated=matches is not None and matches.truncated,
    )


@router.post("/documents", responses=_CREATED | problems(400, 413, 415), response_model_exclude_unset=True)
async def post_document(
    services: ServicesOfProcess,
    collection: CollectionName,
    body: PostDocument,
    parameters: Annotated[WriteParameters, Query()],
    response: Response,
) -> IndexAnswer:
    """Index a document, and say what it resembles. A collection that doesn't exist is made."""
    return await _index(services, collection, body.key, body, parameters, response)


@router.post("/documents/batch", responses=problems(400, 413, 415), dependencies=[NO_PARAMETERS])
async def post_documents(
    services: ServicesOfProcess, collection: CollectionName, body: DocumentBatch
) -> DocumentBatchAnswer:
    """Index up to 1,000 documents, all of them or none. A collection that doesn't exist is made."""
    written = await services.documents.index_many(collection, body.news())
    return DocumentBatchAnswer.of((document.key, *its) for document, its in zip(body.documents, written, strict=True))


@router.post("/documents/delete", responses=problems(400, 404, 413, 415), dependencies=[NO_PARAMETERS])
async def delete_documents(services: ServicesOfProcess, collection: CollectionName, body: KeyBatch) -> DeletedAnswer:
    """Delete up to 1,000 documents; those that there aren't are passed over."""
    return DeletedAnswer(deleted=await services.documents.delete_many(collection, body.keys))


@router.get("/documents", responses=problems(404))
async def list_documents(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[DocumentPageParameters, Query()]
) -> DocumentPage:
    """Documents in the order of their keys (bytewise).

    With `near_duplicated` a page may hold fewer than `limit`, or none, while `next_cursor` leads on.
    """
    after = cursor.decode(parameters.cursor)
    if parameters.near_duplicated is not None:
        page, last = await services.analyses.flagged(
            collection,
            parameters.analysis,
            is_flagged=parameters.near_duplicated,
            after=after,
            limit=parameters.limit,
        )
        following = None if last is None else cursor.encode(last)
        return DocumentPage(items=[DocumentAnswer.of(collection, document) for document in page], next_cursor=following)
    found = await services.documents.page(collection, after=after, limit=parameters.limit + 1)
    page, following = cursor.cut(found, parameters.limit, lambda document: document.key)
    return DocumentPage(items=[DocumentAnswer.of(collection, document) for document in page], next_cursor=following)


@router.put("/documents/{key:key}", responses=_CREATED | problems(400, 413, 415), response_model_exclude_unset=True)
async def put_document(
    services: ServicesOfProcess,
    collection: CollectionName,
    key: DocumentKey,
    body: PutDocument,
    parameters: Annotated[WriteParameters, Query()],
    response: Response,
) -> IndexAnswer:
    """Index a document under this key, and say what it resembles."""
    return await _index(services, collection, key, body, parameters, response)


@router.put("/document", responses=_CREATED | problems(400, 413, 415), response_model_exclude_unset=True)
async def put_document_by_query(
    services: ServicesOfProcess,
    collection: CollectionName,
    body: PutDocument,
    parameters: Annotated[KeyedWriteParameters, Query()],
    response: Response,
) -> IndexAnswer:
    """The same, for a key that a path would mangle."""
    return await _index(services, collection, parameters.key, body, parameters, response)


@router.get("/documents/{key:key}", responses=problems(404), dependencies=[NO_PARAMETERS])
async def get_document(services: ServicesOfProcess, collection: CollectionName, key: DocumentKey) -> DocumentAnswer:
    """Read a document."""
    return DocumentAnswer.of(collection, await services.documents.get(collection, key))


@router.get("/document", responses=problems(404))
async def get_document_by_query(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[KeyParameters, Query()]
) -> DocumentAnswer:
    """The same, for a key that a path would mangle."""
    return await get_document(services, collection, parameters.key)


@router.delete("/documents/{key:key}", status_code=204, responses=problems(404), dependencies=[NO_PARAMETERS])
async def delete_document(services: ServicesOfProcess, collection: CollectionName, key: DocumentKey) -> None:
    """Delete a document: it is found no more."""
    await services.documents.delete(collection, key)


@router.delete("/document", status_code=204, responses=problems(404))
async def delete_document_by_query(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[KeyParameters, Query()]
) -> None:
    """The same, for a key that a path would mangle."""
    await services.documents.delete(collection, parameters.key)
