"""The commands that administrate a running service, over HTTP, with a progress bar where a person waits."""

import time
from collections.abc import Mapping
from typing import Any

from httpx2 import Client, HTTPError, InvalidURL, Response
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.core.errors import TiroirError
from app.settings import Settings

_POLL_SECONDS = 0.5
_TIMEOUT_SECONDS = 60.0
# A service that restarts is away for a moment; an operation goes on all the same.
_PATIENCE_SECONDS = 60.0

_Object = TypeAdapter(dict[str, Any])

_UNFINISHED = ("queued", "running")
_OPERATION = frozenset({"id", "kind", "status", "progress", "result", "error"})
_LAYOUT = frozenset({"bands", "widths", "threshold", "table", "rows", "bytes", "fullest_buckets", "costs", "layouts"})
# A service that starts or is busy, or a proxy before one that is away.
_UNAVAILABLE = (502, 503, 504)


class ServiceError(TiroirError):
    """The service can't be reached, or has refused."""


class OperationEndedError(TiroirError):
    """The operation that was waited for didn't succeed, or found what must not be."""


def administration(url: str | None, settings: Settings) -> "Administration":
    return Administration(url or f"http://{_address(settings.host)}:{settings.port}")


def _address(host: str) -> str:
    """Where a service that listens on `host` is reached from the same machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  we don't listen
    return f"[{reached}]" if ":" in reached else reached


class Administration:
    def __init__(self, url: str) -> None:
        self._url = url
        self._console = Console(highlight=False, soft_wrap=True)

    def rebuild(self, body: Mapping[str, Any], *, wait: bool) -> None:
        """ServiceError where it is refused; with `wait` OperationEndedError where it doesn't succeed."""
        operation = self._operate("rebuilds", body, wait=wait)
        if operation["status"] == "succeeded":
            result = operation["result"]
            before = result["before"]
            self._console.print(
                f"{result['bands']} bands, threshold {result['threshold']}"
                + (f" (before: {before['bands']}, {before['threshold']})" if result["changed"] else ": as they were")
            )
            if "choice" in result:
                self._console.print(result["choice"]["reason"])

    def audit(self, body: Mapping[str, Any], *, wait: bool) -> None:
        """ServiceError and OperationEndedError as above, also where a lookup missed or invented something."""
        operation = self._operate("audits", body, wait=wait)
        if operation["status"] == "succeeded":
            self._show_audit(operation["result"])

    def _show_audit(self, result: Mapping[str, Any]) -> None:
        table = Table(title=f"{result['lookups']} lookups at threshold {result['threshold']}, {result['bands']} bands")
        for column in ("", "mean", "median", "99 %", "most"):
            table.add_column(column, justify="right")
        for name, key in (("candidates", "candidates"), ("lookup, ms", "lookup_ms"), ("scan, ms", "scan_ms")):
            if (summary := result[key]) is not None:
                table.add_row(name, *(f"{summary[each]:,.1f}" for each in ("mean", "p50", "p99", "max")))
        self._console.print(table)
        self._console.print(f"{result['matches']:,} matches, {result['misses']} misses, {result['invented']} invented")
        if result["misses"] or result["invented"]:
            raise OperationEndedError("lookups differ from the scan: please report this")

    def layout(self) -> None:
        """ServiceError where it can't be had."""
        with self._client() as client:
            layout = _answer(client.get("/v1/admin/layout"), _LAYOUT)
        widths = ", ".join(map(str, layout["widths"]))
        self._console.print(
            f"{layout['bands']} bands of {widths} bits in table {layout['table']}: "
            f"{layout['rows']:,} fingerprints, {layout['bytes'] / 1e6:,.1f} MB; default threshold {layout['threshold']}"
        )
        for other in layout["layouts"]:
            if other["state"] != "active":
                self._console.print(f"{other['bands']} bands in table {other['table']}: {other['state']}")
        costs = Table(title="What lookups should cost")
        for column in ("threshold", "probes", "candidates", "by", "ms", "cheapest bands"):
            costs.add_column(column, justify="right")
        for cost in layout["costs"]:
            expected = cost["expected"]
            way, microseconds = ("scan", expected["scan_us"]) if cost["scan"] else ("probes", expected["probing_us"])
            costs.add_row(
                str(cost["threshold"]),
                f"{cost['probes']:,}",
                f"{expected['candidates']:,}",
                way,
                f"{microseconds / 1000:,.2f}",
                str(cost["cheapest_bands"]),
            )
        buckets = Table(title="Fullest buckets")
        for column in ("collection", "band", "value", "fingerprints"):
            buckets.add_column(column, justify="right")
        for bucket in layout["fullest_buckets"]:
            buckets.add_row(
                bucket["collection"], str(bucket["band"]), f"{bucket['value']:x}", f"{bucket['fingerprints']:,}"
            )
        self._console.print(costs, buckets)

    def _operate(self, kind: str, body: Mapping[str, Any], *, wait: bool) -> dict[str, Any]:
        with self._client() as client:
            operation = _operation(client.post(f"/v1/admin/{kind}", json=body))
            self._console.print(f"{operation['kind']} {operation['id']} is {operation['status']}")
            if wait:
                operation = self._wait(client, f"/v1/admin/{kind}/{operation['id']}", operation)
        if operation["status"] in ("failed", "canceled"):
            how = "was canceled" if operation["status"] == "canceled" else f"has failed: {operation['error']}"
            raise OperationEndedError(f"{operation['kind']} {operation['id']} {how}")
        return operation

    def _wait(self, client: Client, path: str, operation: dict[str, Any]) -> dict[str, Any]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as bars:
            bar, phase = None, None
            heard = time.monotonic()
            while operation["status"] in _UNFINISHED:
                progress = operation["progress"]
                if progress["phase"] != phase:
                    if bar is not None:
                        bars.update(bar, total=bars.tasks[-1].total or 1, completed=bars.tasks[-1].total or 1)
                    phase = progress["phase"]
                    bar = bars.add_task(phase)
                    if not self._console.is_terminal:
                        self._console.print(phase)
                if bar is not None:
                    bars.update(bar, total=progress["total"], completed=progress["done"])
                time.sleep(_POLL_SECONDS)
                try:
                    operation = _operation(client.get(path))
                    heard = time.monotonic()
                except (HTTPError, UnavailableServiceError):
                    if time.monotonic() - heard > _PATIENCE_SECONDS:
                        raise
        return operation

    def _client(self) -> "_Client":
        return _Client(self._url)


class UnavailableServiceError(ServiceError):
    """The service answers that it can't now."""


class _Client:
    """An HTTP client whose failures are a ServiceError."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Client:
        try:
            self._client = Client(base_url=self._url, timeout=_TIMEOUT_SECONDS)
        except InvalidURL:
            raise ServiceError(f"{_shown(self._url)} is no URL of a service") from None
        return self._client

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._client.close()
        if isinstance(error, HTTPError):
            raise ServiceError(
                f"no answer from {_shown(self._url)}: {error or type(error).__name__}. Is it running?"
            ) from None


def _operation(response: Response) -> dict[str, Any]:
    return _answer(response, _OPERATION)


def _answer(response: Response, members: frozenset[str]) -> dict[str, Any]:
    """The JSON object of an answer, which has these members; a ServiceError for all else."""
    try:
        answer = _Object.validate_json(response.content)
    except ValidationError:
        answer = {}
    unavailable = response.status_code in _UNAVAILABLE
    if response.is_success and members <= answer.keys():
        return answer
    if response.is_success or "detail" not in answer:
        kind = UnavailableServiceError if unavailable else ServiceError
        raise kind(f"status {response.status_code} from {_shown(str(response.url))}: is it a Tiroir service?")
    raise (UnavailableServiceError if unavailable else ServiceError)(str(answer["detail"]))


def _shown(url: str) -> str:
    """Without the user and the password that it may hold."""
    scheme, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
