"""The commands that administrate a running service, with a progress bar where a person waits."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.api.admin_answers import OperationAnswer
from app.cli.status import MissedError, OperationEndedError
from app.client import Call, Tiroir, UnavailableServiceError, calls

_POLL_SECONDS = 0.5
# A service that restarts is away for a moment; an operation goes on all the same.
_PATIENCE_SECONDS = 60.0


class Administration:
    def __init__(self, tiroir: Tiroir) -> None:
        self._tiroir = tiroir
        self._console = Console(highlight=False, soft_wrap=True)

    def rebuild(self, threshold: int, bands: int | None, *, force: bool, wait: bool) -> None:
        """ServiceError where it is refused; with `wait` OperationEndedError where it doesn't succeed."""
        begun = self._tiroir.begin_rebuild(threshold, bands=bands, force=force)
        result = self._result(begun, calls.rebuild(begun.id), wait=wait)
        if result is not None:
            before = result["before"]
            self._console.print(
                f"{result['bands']} bands, threshold {result['threshold']}"
                + (f" (before: {before['bands']}, {before['threshold']})" if result["changed"] else ": as they were")
            )
            if "choice" in result:
                self._console.print(result["choice"]["reason"])

    def audit(self, sample: int, threshold: int | None, *, wait: bool) -> None:
        """ServiceError and OperationEndedError as above; MissedError where a lookup missed or invented something."""
        begun = self._tiroir.begin_audit(sample=sample, threshold=threshold)
        result = self._result(begun, calls.audit(begun.id), wait=wait)
        if result is not None:
            self._show_audit(result)

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
            raise MissedError("lookups differ from the scan: please report this")

    def layout(self) -> None:
        """ServiceError where it can't be had."""
        layout = self._tiroir.layout()
        widths = ", ".join(map(str, layout.widths))
        self._console.print(
            f"{layout.bands} bands of {widths} bits in table {layout.table}: "
            f"{layout.rows:,} fingerprints, {layout.bytes / 1e6:,.1f} MB; default threshold {layout.threshold}"
        )
        for other in layout.layouts:
            if other.state != "active":
                self._console.print(f"{other.bands} bands in table {other.table}: {other.state}")
        costs = Table(title="What lookups should cost")
        for column in ("threshold", "probes", "candidates", "by", "ms", "cheapest bands"):
            costs.add_column(column, justify="right")
        for cost in layout.costs:
            expected = cost.expected
            way, microseconds = ("scan", expected.scan_us) if cost.scan else ("probes", expected.probing_us)
            costs.add_row(
                str(cost.threshold),
                f"{cost.probes:,}",
                f"{expected.candidates:,}",
                way,
                f"{microseconds / 1000:,.2f}",
                str(cost.cheapest_bands),
            )
        buckets = Table(title="Fullest buckets")
        for column in ("collection", "band", "value", "fingerprints"):
            buckets.add_column(column, justify="right")
        for bucket in layout.fullest_buckets:
            buckets.add_row(bucket.collection, str(bucket.band), f"{bucket.value:#x}", f"{bucket.fingerprints:,}")
        self._console.print(costs, buckets)

    def _result(self, operation: OperationAnswer, again: Call[OperationAnswer], *, wait: bool) -> dict[str, Any] | None:
        """None where nobody waits for it. `again` asks how far it is."""
        self._console.print(f"{operation.kind} {operation.id} is {operation.status}")
        if wait:
            operation = self._wait(operation, again)
        if operation.status in ("failed", "canceled"):
            how = "was canceled" if operation.status == "canceled" else f"has failed: {operation.error}"
            raise OperationEndedError(f"{operation.kind} {operation.id} {how}")
        return operation.result

    def _wait(self, operation: OperationAnswer, again: Call[OperationAnswer]) -> OperationAnswer:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as bars:
            bar, phase = None, None
            heard = time.monotonic()
            while operation.finished_at is None:
                progress = operation.progress
                if progress.phase is not None and progress.phase != phase:
                    if bar is not None:
                        bars.update(bar, total=bars.tasks[-1].total or 1, completed=bars.tasks[-1].total or 1)
                    phase = progress.phase
                    bar = bars.add_task(phase)
                    if not self._console.is_terminal:
                        self._console.print(phase)
                if bar is not None:
                    bars.update(bar, total=progress.total, completed=progress.done)
                time.sleep(_POLL_SECONDS)
                try:
                    operation = self._tiroir.send(again)
                    heard = time.monotonic()
                except UnavailableServiceError:
                    if time.monotonic() - heard > _PATIENCE_SECONDS:
                        raise
        return operation
