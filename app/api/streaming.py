"""Answers of any length: the lines of a stream, in JSON or CSV, a page at a time."""

import csv
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from email.message import Message
from io import StringIO
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

from app.api import ndjson
from app.api.analysis_answers import Row
from app.core.errors import InvalidInputError, TiroirError

_log = logging.getLogger(__name__)

T = TypeVar("T")

CSV = "text/csv"
_JSON = ("application/json", "application/*", "*/*")

# Items that are read for a stream at once.
PAGE = 1000


class WholeOrCut(StreamingResponse):
    """An error ends the connection without the end of the body: the client can't take a part for the whole."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except TiroirError as error:
            _log.warning("an answer is cut off: %s", error.code)


def described(row: type[Row]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the streams of a route; its pages have described the rows."""
    return {
        200: {
            "content": {
                ndjson.MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{row.__name__}"}},
                CSV: {"schema": {"type": "string"}},
            },
            "description": "A page; with `Accept: application/x-ndjson` or `text/csv` all of them, a line each.",
        }
    }


def stream_wanted(request: Request, parameters: BaseModel) -> str | None:
    """The media type of the stream that is asked for; None: a page of JSON is. A stream has no pages."""
    wanted = _preferred(request.headers.get("accept", "*/*"))
    if wanted in _JSON:
        return None
    if given := parameters.model_fields_set & {"limit", "cursor"}:
        name = min(given)
        raise InvalidInputError(f"a stream holds all there is: leave out {name}", pointer=f"/{name}")
    return wanted


def _preferred(accept: str) -> str:
    """Of what we have the media type that an Accept header likes best; JSON where it names nothing that we have."""
    best, most = "*/*", 0.0
    for part in accept.split(","):
        message = Message()
        message["content-type"] = part.strip()
        media_type = message.get_content_type() if "*" not in part else part.split(";")[0].strip()
        try:
            liked = float(str(message.get_param("q", "1")))
        except ValueError:
            liked = 1.0
        if media_type in (*_JSON, ndjson.MEDIA_TYPE, CSV) and liked > most:
            best, most = media_type, liked
    return best


async def streamed(
    media_type: str, row: type[Row], page: Callable[[T | None], Awaitable[Sequence[T]]], spell: Callable[[T], Row]
) -> StreamingResponse:
    """All items, a page after the other; `page` gives what comes after its argument. A first page comes before."""
    first = await page(None)
    return WholeOrCut(_lines(media_type, row, first, page, spell), media_type=media_type)


async def _lines(
    media_type: str,
    row: type[Row],
    items: Sequence[T],
    page: Callable[[T | None], Awaitable[Sequence[T]]],
    spell: Callable[[T], Row],
) -> AsyncGenerator[bytes]:
    if media_type == CSV:
        yield _csv([row.columns()])
    while items:
        rows = list(map(spell, items))
        if media_type == CSV:
            yield _csv(each.cells() for each in rows)
        else:
            yield b"".join(each.model_dump_json().encode() + b"\n" for each in rows)
        items = await page(items[-1])


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = StringIO()
    csv.writer(text).writerows([_cell(value) for value in cells] for cells in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
