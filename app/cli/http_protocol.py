"""HTTP as uvicorn speaks it, but for requests that can't be read: those are answered as problems too."""

import asyncio
import json
import logging
from uuid import uuid4

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.problems import MEDIA_TYPE, PROBLEMS

_log = logging.getLogger(__name__)

MAX_URL_BYTES = 65_535  # what httptools can parse

# A connection that is closed while the client still sends is reset, and the client may never read the answer.
_LINGER = 2.0  # seconds


class UrlTooLongError(Exception):
    """Ends the parsing of a request; httptools passes it on as an error of its callback."""


class HttpProtocol(HttpToolsProtocol):
    _refused = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("the request is not HTTP")

    def _ignore_upgrade(self, body: bytes) -> None:
        """Reads the request again without the wish for another protocol, which clients of HTTP/2 send along.

        The parser takes such a request to have no body: what follows would be lost, or read as the next request.
        """
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        head += [name + b": " + value for name, value in self.headers if name not in {b"upgrade", b"connection"}]
        self.parser = HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + body)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise UrlTooLongError

    def send_400_response(self, msg: str) -> None:
        if len(self.url) > MAX_URL_BYTES:
            self._refuse("url_too_long", f"a URL has at most {MAX_URL_BYTES} bytes: send long texts by POST")
        else:
            self._refuse("bad_request", msg)

    def _refuse(self, code: str, detail: str) -> None:
        """Before any middleware: the request gets its id here."""
        status, title = PROBLEMS[code]
        request_id = uuid4().hex
        _log.info("request %s refused: %s", request_id, code)
        problem = {
            "type": f"urn:tiroir:problem:{code}",
            "title": title,
            "status": status,
            "detail": detail,
            "code": code,
            "request_id": request_id,
        }
        body = json.dumps(problem).encode()
        self.transport.write(
            f"HTTP/1.1 {status} \r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        self._refused = True
        asyncio.get_running_loop().call_later(_LINGER, self.transport.close)
