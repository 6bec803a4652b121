"""What each request passes on its way in and out: refusals that need no route, and one line in the log."""

import logging
import re
import time
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import InvalidMember, pointer, problem_response

_log = logging.getLogger("app.access")

# Its body is read as a stream, and may be of any length.
_IMPORT = re.compile(r"/v1/collections/[^/]+/import")


def _is_stream(scope: Scope) -> bool:
    return _IMPORT.fullmatch(scope["path"]) is not None


class BodyLimit:
    """413 for a body that turns out to be larger than it may be, whatever its header says."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._limited = RequestBodyLimitMiddleware(app, max_body_size=max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if scope["type"] == "http" and _is_stream(scope) else self._limited
        await app(scope, receive, send)


class Gate:
    """Innermost but for the framework's own, so that its problems carry the request's id."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            app = self._refusal(scope) or self._app
            await app(scope, receive, observe)
        finally:
            # The route's template, never the path or the query: they hold keys and texts.
            route = getattr(scope.get("route"), "path_format", "-")
            _log.info("%s %s %d %.1f ms", scope["method"], route, status, 1000 * (time.perf_counter() - start))

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        length = Headers(scope=scope).get("content-length", "0").strip()
        if not length.isdecimal() or (int(length) > self._max_body_bytes and not _is_stream(scope)):
            return problem_response(
                "body_too_large", f"a body has at most {self._max_body_bytes} bytes (TIROIR_MAX_BODY_BYTES)"
            )
        query: bytes = scope["query_string"]
        if not (_is_utf8(scope["raw_path"]) and _is_utf8(query)):
            return _invalid("the URL is not percent-encoded UTF-8")
        if repeated := _repeated(query):
            return _invalid(f"the parameter {repeated} stands more than once", repeated)
        return None


def _invalid(detail: str, *location: str) -> JSONResponse:
    return problem_response("invalid_input", detail, invalid=[InvalidMember(pointer=pointer(*location), detail=detail)])


def _is_utf8(encoded: bytes) -> bool:
    """Servers replace what they can't decode, and a replaced key is another key."""
    if b"%" not in encoded and encoded.isascii():
        return True
    try:
        unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return False
    return True


def _repeated(query: bytes) -> str | None:
    """A parameter that stands twice: taking either would ignore the other without a word."""
    if b"&" not in query:
        return None
    seen: set[bytes] = set()
    for part in filter(None, query.split(b"&")):
        name = unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" "))
        if name in seen:
            return name.decode()
        seen.add(name)
    return None
