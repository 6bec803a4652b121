"""What is no service: it gives the answers that it is told to, whatever is asked."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, str, bytes]
"""Status, content type, body; status 0 closes the connection without a word."""


@dataclass(frozen=True)
class Asked:
    """`headers` by their names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Pretended:
    url: str
    asked: list[Asked]


@contextmanager
def pretending(answers: Iterator[Answer]) -> Generator[str]:
    """The URL of something that answers HTTP, whatever is asked."""
    with listening(answers) as pretended:
        yield pretended.url


@contextmanager
def listening(answers: Iterator[Answer]) -> Generator[Pretended]:
    """The same, with what it was asked."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.append(Asked(self.command, self.path, headers, self.body()))
            status, content_type, body = next(answers)
            if status:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            parts: list[bytes] = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815  http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as above
            """Nothing: the standard error is the tests' own."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Pretended(f"http://127.0.0.1:{server.server_port}", asked)
        finally:
            server.shutdown()
            thread.join()
