"""Whole collections, as streams of lines: import and export."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import StreamingResponse

from app.api import import_lines, ndjson
from app.api.answers import ImportAnswer
from app.api.import_lines import ImportLine
from app.api.routing import JsonRoute, ServicesOfProcess, is_utf8_of, problems
from app.api.schemas import CollectionName, ExportParameters, ImportParameters
from app.api.streaming import WholeOrCut
from app.core.model import Exported

router = APIRouter(prefix="/v1/collections/{collection}", tags=["many at once"], route_class=JsonRoute)

_LINES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A document a line. `Content-Encoding: gzip` or `zstd` is decoded.",
        "content": {ndjson.MEDIA_TYPE: {"schema": ImportLine.model_json_schema()}},
    }
}


@router.post("/import", responses=problems(413, 415), openapi_extra=_LINES)
async def import_documents(
    request: Request,
    services: ServicesOfProcess,
    collection: CollectionName,
    parameters: Annotated[ImportParameters, Query()],
) -> ImportAnswer:
    """Index the documents of a body of any length, a line each. Lines that can't be are told, the others stay.

    It is read as a stream, and written in chunks of at most 4,000 lines. Sent again, it changes nothing. Where an
    import breaks off, whole chunks stay: send all of it again.
    """
    if not is_utf8_of(ndjson.MEDIA_TYPE, request.headers.get("content-type", "")):
        raise HTTPException(415, f"send lines of JSON, with the header Content-Type: {ndjson.MEDIA_TYPE}")
    chunks = ndjson.chunks(_body(request), most_line_bytes=services.imports.most_line_bytes)
    imported = await services.imports.run(
        collection, chunks, import_lines.read, stop_at_error=parameters.on_error == "abort"
    )
    return ImportAnswer.model_validate(imported, from_attributes=True)


def _body(request: Request) -> AsyncIterator[bytes]:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        return request.stream()
    make = ndjson.DECOMPRESSORS.get(coding)
    if make is None:
        raise HTTPException(415, f"the encoding of a body is {' or '.join(ndjson.DECOMPRESSORS)}, or there is none")
    return ndjson.decoded(request.stream(), make)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses=problems(404) | {200: {"content": {ndjson.MEDIA_TYPE: {}}, "description": "A document a line."}},
)
async def export_documents(
    services: ServicesOfProcess, collection: CollectionName, parameters: Annotated[ExportParameters, Query()]
) -> StreamingResponse:
    """All documents in the order of their keys, as lines that an import takes back."""
    parts = services.documents.export(collection, with_text=parameters.text)
    first = await anext(parts, list[Exported]())
    return WholeOrCut(_lines(first, parts), media_type=ndjson.MEDIA_TYPE)


async def _lines(first: list[Exported], parts: AsyncGenerator[list[Exported]]) -> AsyncGenerator[bytes]:
    yield b"".join(map(import_lines.spell, first))
    async for part in parts:
        yield b"".join(map(import_lines.spell, part))
