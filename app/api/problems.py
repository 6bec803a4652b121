"""Every error as application/problem+json (RFC 9457), the framework's own included."""

import logging
from collections.abc import Mapping
from typing import Any, cast

from asgi_correlation_id import correlation_id
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from app.core import errors

_log = logging.getLogger(__name__)

# Each code of the interface: its status and its title.
PROBLEMS: Mapping[str, tuple[int, str]] = {
    "invalid_json": (400, "The body is not JSON"),
    "bad_request": (400, "The request can't be read"),
    "not_found": (404, "There is no such resource"),
    "collection_not_found": (404, "There is no such collection"),
    "document_not_found": (404, "There is no such document"),
    "operation_not_found": (404, "There is no such operation"),
    "analysis_not_found": (404, "There is no such analysis"),
    "method_not_allowed": (405, "The resource doesn't take this method"),
    "collection_exists": (409, "The collection exists, with other settings"),
    "rebuild_running": (409, "A rebuild is running"),
    "analysis_unfinished": (409, "The analysis has no results"),
    "not_cancelable": (409, "The operation can't be canceled any more"),
    "body_too_large": (413, "The body is too large"),
    "url_too_long": (414, "The URL is too long"),
    "unsupported_media_type": (415, "The body has another type than is taken here"),
    "invalid_input": (422, "The request is not valid"),
    "invalid_fingerprint": (422, "The fingerprint is not valid"),
    "analysis_too_large": (422, "The analysis would take too much memory"),
    "schemes_differ": (422, "The collections have different schemes"),
    "idempotency_key_reused": (422, "The Idempotency-Key stands for another request"),
    "not_supported": (422, "This version can't do that"),
    "internal_error": (500, "The service has a defect"),
    "database_unavailable": (503, "The database is not available"),
    "overloaded": (503, "The service is busy"),
    "query_timeout": (503, "The database took too long"),
}
_CODES_OF_FRAMEWORK = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}
# Where the framework's own words help nobody.
_DETAILS = {
    "not_found": "there is nothing at this path: /docs lists what there is",
    "body_too_large": "the body has more bytes than TIROIR_MAX_BODY_BYTES allows",
}
RETRY_AFTER = 1  # seconds
_MOST_ERRORS = 100

MEDIA_TYPE = "application/problem+json"
SCHEMA_REFERENCE = "#/components/schemas/Problem"  # in the OpenAPI document


def codes_of(status: int) -> list[str]:
    return [code for code, (its_status, _) in PROBLEMS.items() if its_status == status]


class InvalidMember(BaseModel):
    """One thing that is wrong with the input."""

    pointer: str = Field(description="JSON pointer into the body, or / and the name of a parameter.")
    detail: str


class Problem(BaseModel):
    """What went wrong."""

    type: str = Field(examples=["urn:tiroir:problem:invalid_input"])
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable, for programs.", examples=list(PROBLEMS))
    request_id: str | None = Field(description="Also in the header X-Request-ID and in the log.")
    errors: list[InvalidMember] = Field(default=[], description="Only where members of the request are meant.")
    operation_id: int | None = Field(default=None, description="Only where an operation is in the way: its id.")


def schemas() -> dict[str, Any]:
    """A problem, and what it is made of, for the components of the OpenAPI document."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return problem.pop("$defs") | {"Problem": problem}


def problem_response(
    code: str,
    detail: str,
    *,
    invalid: list[InvalidMember] | None = None,
    headers: Mapping[str, str] | None = None,
    operation_id: int | None = None,
) -> JSONResponse:
    status, title = PROBLEMS[code]
    problem = Problem(
        type=f"urn:tiroir:problem:{code}",
        title=title,
        status=status,
        detail=_printable(detail),
        code=code,
        request_id=correlation_id.get(),
        errors=invalid or [],
        operation_id=operation_id,
    )
    given = dict(headers or {}) | ({"Retry-After": str(RETRY_AFTER)} if status == 503 else {})
    return JSONResponse(problem.model_dump(exclude_defaults=True), status, given, media_type=MEDIA_TYPE)


def _printable(text: str) -> str:
    """Without lone surrogates, which no UTF-8 body can hold. A message may name a member of the request."""
    return text.encode("utf-8", "replace").decode()


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.TiroirError, _tiroir_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(StarletteHTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _defect)


def _tiroir_error(_: Request, error: Exception) -> JSONResponse:
    known = cast("errors.TiroirError", error)
    if isinstance(known, errors.UnavailableError):
        _log.warning("%s: %s", known.code, type(known.__cause__).__name__)
    invalid = None
    if isinstance(known, errors.InvalidInputError | errors.NotFoundError) and known.pointer is not None:
        invalid = [InvalidMember(pointer=known.pointer, detail=str(known))]
    in_the_way = known.operation_id if isinstance(known, errors.RebuildRunningError) else None
    return problem_response(known.code, str(known), invalid=invalid, operation_id=in_the_way)


def _validation_error(_: Request, error: Exception) -> JSONResponse:
    """Never with the value that was refused: it may be private, and it may not be encodable."""
    found = cast("RequestValidationError", error).errors()
    first = found[0]
    if first["type"] == "json_invalid":
        return problem_response("invalid_json", f"not JSON, at character {first['loc'][-1]}: {first['ctx']['error']}")
    if first["type"] == "missing" and tuple(first["loc"]) == ("body",):
        return problem_response("invalid_json", "the body is empty")
    # The first part of a location says where the member was: body, query or path.
    invalid = [
        InvalidMember(pointer=pointer(*each["loc"][1:]), detail=_printable(str(each["msg"])))
        for each in found[:_MOST_ERRORS]
    ]
    code = first["type"] if first["type"] in PROBLEMS else "invalid_input"
    place = invalid[0].pointer or f"the {first['loc'][0]}"
    return problem_response(code, f"{place}: {invalid[0].detail}", invalid=invalid)


def pointer(*location: str | int) -> str:
    """JSON pointer (RFC 6901)."""
    parts = (_printable(str(part)).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part}" for part in parts)


def _http_exception(request: Request, error: Exception) -> JSONResponse:
    known = cast("HTTPException", error)
    code = _CODES_OF_FRAMEWORK.get(known.status_code, "internal_error")
    detail = _DETAILS.get(code) or str(known.detail)
    headers = {"Allow": ", ".join(_allowed(request))} if code == "method_not_allowed" else known.headers
    return problem_response(code, detail, headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods that the resource takes. The framework names those of the first route that has the path."""
    app: FastAPI = request.app
    return [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]


def _client_gone(_: Request, __: Exception) -> Response:
    """Nobody reads it; the status, which others use for this too, stands in the log."""
    return Response(status_code=499)


def _defect(_: Request, error: Exception) -> JSONResponse:
    """Answered outside of all middleware, so the header that carries the request's id is set here."""
    _log.error("a defect: %s", type(error).__name__)
    return problem_response(
        "internal_error",
        "something that should not happen; the log has more under the request_id",
        headers={"X-Request-ID": correlation_id.get() or "", "Connection": "close"},  # the server closes it
    )
