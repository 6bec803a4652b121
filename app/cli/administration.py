"""The commands that administrate a running service."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from app.api.admin_answers import OperationAnswer
from app.cli.output import ResultConsole
from app.cli.status import MissedError
from app.cli.waiting import finished
from app.client import Call, Tiroir, calls


class Administration:
    def __init__(self, tiroir: Tiroir) -> None:
        self._tiroir = tiroir
        self._console = ResultConsole()

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
        return finished(self._tiroir, operation, again, self._console).result if wait else None
