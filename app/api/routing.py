"""The routers' shared parts: JSON bodies only, and the use-cases of the process."""

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from app.api.problems import MEDIA_TYPE, SCHEMA_REFERENCE, codes_of
from app.api.schemas import QueryParameters
from app.runtime import Services

Model = TypeVar("Model", bound=BaseModel)


class JsonRoute(APIRoute):
    """A route that refuses bodies of another type than JSON with 415; the framework would call them invalid JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def checked(request: Request) -> Response:
            if _has_body(request) and not _is_json(request.headers.get("content-type", "")):
                raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
            return await handle(request)

        return checked


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or is_utf8_of("application/json", content_type)


def is_utf8_of(media_type: str, content_type: str) -> bool:
    """Whether a Content-Type header means this media type in UTF-8."""
    message = Message()
    message["content-type"] = content_type
    return message.get_content_type() == media_type and message.get_content_charset("utf-8") == "utf-8"


async def services_of(request: Request) -> Services:
    """Asynchronous though it awaits nothing: FastAPI hands plain functions to a thread, half the time of a lookup."""
    services: Services = request.state.services
    return services


ServicesOfProcess = Annotated[Services, Depends(services_of)]


def from_query(request: Request, model: type[Model]) -> Model:
    """The query as `model`, in one go: FastAPI's way, field by field, is a tenth of the time of a lookup.

    A route that uses it describes the model by `described_query`.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("query", *each["loc"])} for each in found]) from None


def described_query(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI's description of the parameters that `from_query` reads: what FastAPI would have written."""
    schema = model.model_json_schema()
    required = schema.get("required", [])
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": described}
            | ({"description": described["description"]} if "description" in described else {})
            for name, described in schema["properties"].items()
        ]
    }


async def _no_parameters(_: Annotated[QueryParameters, Query()]) -> None:
    """Asynchronous for the same reason."""


NO_PARAMETERS = Depends(_no_parameters)

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="A request that comes again with the same key finds the operation of the first.",
    ),
]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the problems that a route can answer; 422, 500 and 503 are any route's.

    By reference: the framework would describe a `model` as application/json.
    """
    content = {MEDIA_TYPE: {"schema": {"$ref": SCHEMA_REFERENCE}}}
    return {
        status: {"content": content, "description": " or ".join(f"`{code}`" for code in codes_of(status))}
        for status in sorted({*statuses, 422, 500, 503})
    }
