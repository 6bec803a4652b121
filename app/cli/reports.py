"""The commands that report on whole collections: their near-duplicates, and what became of an earlier one."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.api.analysis_answers import AnalysisAnswer, ClusterAnswer, DifferenceAnswer
from app.cli.output import ResultConsole, written
from app.cli.sources import STANDARD, printable
from app.cli.status import NoAnalysisError, OutputError, UsageError
from app.cli.waiting import finished
from app.client import Tiroir, calls
from app.client.calls import Change, Clusters, Representative, Result

_SHOWN = 10  # clusters, and keys of a kind
_PAGE = 100  # analyses, as many as a page may hold
_BAR = 40  # characters
_ANY_FINGERPRINT = "0" * 16

# What a counterpart under another key is to a document.
_RELATED = {"moved": "was", "new": "resembles", "gone": "resembles"}

_DIFFERENT: dict[Change, str] = {
    "new": "new",
    "gone": "gone",
    "moved": "moved",
    "changed": "changed",
    "nearly_unchanged": "nearly unchanged",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An analysis of `collection`. None: not given."""

    collection: str
    threshold: int | None
    clusters: Clusters | None = None
    representative: Representative | None = None
    against: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        named = {
            "threshold": self.threshold,
            "clusters": self.clusters,
            "representative": self.representative,
            "against": self.against,
        }
        return {name: value for name, value in named.items() if value is not None}


class Reports:
    """`as_json`: for programs. `last`: of the latest analysis that there is, else of one that isn't finished, or new.

    `folder`: for tables that are complete. Results go to standard output, all else to standard error.
    """

    def __init__(self, tiroir: Tiroir, *, as_json: bool, folder: Path | None, last: bool, wait: bool) -> None:
        """UsageError where these contradict one another."""
        if as_json and folder is not None:
            raise UsageError("give --csv or --json: with --csv the summary is for persons")
        if not wait and (last or folder is not None):
            raise UsageError("give --no-wait alone: nothing is shown of an analysis that isn't finished")
        if folder == STANDARD:
            raise UsageError("--csv takes a folder, for several tables")
        self._tiroir = tiroir
        self._as_json = as_json
        self._folder = folder
        self._last = last
        self._wait = wait
        self._console = ResultConsole()
        self._progress = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True, quiet=as_json)

    def report(self, wanted: Wanted) -> None:
        """ServiceError where it is refused; OperationEndedError, NoAnalysisError; OutputError where it can't be put."""
        analysis = self._finished(wanted)
        if analysis.result is None:
            self._show_unfinished(analysis)
            return
        for result in ("clusters", "pairs", "documents"):
            self._write(f"{result}.csv", wanted, analysis, result)
        largest = self._tiroir.clusters(wanted.collection, analysis.id, limit=_SHOWN).items
        if self._as_json:
            told = {"largest_clusters": [cluster.model_dump(mode="json") for cluster in largest]}
            _print_json(analysis.model_dump(mode="json") | told)
        else:
            self._show_report(wanted.collection, analysis, analysis.result, largest)

    def diff(self, wanted: Wanted) -> None:
        """The same errors."""
        analysis = self._finished(wanted)
        if analysis.result is None:
            self._show_unfinished(analysis)
            return
        self._write("differences.csv", wanted, analysis, "differences")
        self._write("unchanged.csv", wanted, analysis, "differences", "unchanged")
        first: dict[Change, list[DifferenceAnswer]] = {
            change: self._tiroir.differences(wanted.collection, analysis.id, status=change, limit=_SHOWN).items
            for change in _DIFFERENT
        }
        if self._as_json:
            told = {change: [each.model_dump(mode="json") for each in its] for change, its in first.items()}
            _print_json(analysis.model_dump(mode="json") | {"first_differences": told})
        else:
            self._show_diff(wanted, analysis, analysis.result, first)

    def _finished(self, wanted: Wanted) -> AnalysisAnswer:
        """As it is, finished or not, where nobody waits."""
        if self._folder is not None:
            _make(self._folder)
        if self._last:
            return self._latest(wanted)
        collection = wanted.collection
        analysis = self._unfinished(wanted) or self._tiroir.begin_analysis(collection, **wanted.given)
        if not self._wait:
            return analysis
        self._progress.print(_described(analysis))
        try:
            return finished(self._tiroir, analysis, calls.analysis(collection, analysis.id), self._progress)
        except KeyboardInterrupt:
            sys.stderr.write(
                f"interrupted: analysis {analysis.id} goes on; the same command waits for it again,"
                " and with --last shows it when it is finished\n"
            )
            raise

    def _latest(self, wanted: Wanted) -> AnalysisAnswer:
        """Of those that have succeeded. What isn't given may be anything."""
        for analysis in self._analyses(wanted.collection):
            parameters = analysis.parameters
            fits = wanted.given.items() <= parameters.items() and parameters.get("against") == wanted.against
            if fits and analysis.status == "succeeded":
                return analysis
        settings = ", ".join(f"{name} {value}" for name, value in wanted.given.items())
        which = f"analysis with {settings}" if settings else "analysis"
        raise NoAnalysisError(f"{wanted.collection} has no finished {which}: without --last one begins")

    def _unfinished(self, wanted: Wanted) -> AnalysisAnswer | None:
        """The youngest that a new one would only repeat."""
        defaults = {} if wanted.against is not None else {"clusters": "components", "representative": "oldest"}
        expected = defaults | wanted.given
        found = [
            analysis
            for analysis in self._analyses(wanted.collection)
            if analysis.finished_at is None and expected.items() <= analysis.parameters.items()
        ]
        if found and wanted.threshold is None:
            # Any lookup tells the default, which an analysis has, too.
            lookup = self._tiroir.near(wanted.collection, fingerprint=_ANY_FINGERPRINT, limit=1)
            found = [analysis for analysis in found if analysis.parameters["threshold"] == lookup.threshold]
        return found[0] if found else None

    def _analyses(self, collection: str) -> Iterator[AnalysisAnswer]:
        """The youngest first."""
        cursor = None
        while True:
            page = self._tiroir.analyses(collection, limit=_PAGE, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _write(
        self, name: str, wanted: Wanted, analysis: AnalysisAnswer, result: Result, status: Change | None = None
    ) -> None:
        """A file of the folder, if there is one, that appears when it is complete."""
        if self._folder is None:
            return
        path = self._folder / name
        if self._progress.is_terminal:
            self._progress.print(f"writing {printable(str(path))}", markup=False)
        parts = self._tiroir.stream(wanted.collection, analysis.id, result, form="csv", status=status)
        with written(path) as write:
            for part in parts:
                write(part)

    def _show_unfinished(self, analysis: AnalysisAnswer) -> None:
        if self._as_json:
            _print_json(analysis.model_dump(mode="json"))
        else:
            self._console.print(_described(analysis))

    def _show_report(
        self, collection: str, analysis: AnalysisAnswer, result: dict[str, Any], largest: list[ClusterAnswer]
    ) -> None:
        settings = analysis.parameters
        documents, near_duplicated = result["documents"], result["near_duplicated"]
        share = 100 * near_duplicated / documents if documents else 0.0
        clusters = f"{result['clusters']:,} clusters"
        if largest:
            width = _diameter(result["widest_cluster"], exact=result["widest_cluster_is_exact"])
            clusters += f", the largest of {result['largest_cluster']:,} documents, the widest of {width} bits"
        self._console.print(
            f"{collection} at {_moment(result)}: threshold {settings['threshold']}, {settings['clusters']},"
            f" representative {settings['representative']}",
            f"{documents:,} documents, {result['fingerprints']:,} fingerprints, {result['too_short']:,} too short",
            f"{near_duplicated:,} near-duplicated ({share:.1f} %),"
            f" {result['exact_duplicated']:,} exact duplicated in {result['exact_groups']:,} groups",
            clusters,
            _histogram("Pairs by distance", "pairs", result["histogram"]),
            sep="\n",
        )
        if largest:
            self._console.print(_clusters(largest))

    def _show_diff(
        self,
        wanted: Wanted,
        analysis: AnalysisAnswer,
        result: dict[str, Any],
        first: dict[Change, list[DifferenceAnswer]],
    ) -> None:
        counts = ", ".join(f"{result[change]:,} {name}" for change, name in _DIFFERENT.items())
        self._console.print(
            f"{wanted.collection} against {wanted.against} at {_moment(result)}:"
            f" threshold {analysis.parameters['threshold']}",
            f"{result['documents']:,} documents, {result['documents_before']:,} before",
            f"{counts}, {result['unchanged']:,} unchanged",
            _histogram("Nearly unchanged by distance", "documents", result["histogram"]),
            sep="\n",
        )
        for change, differences in first.items():
            if differences:
                more = f", the first {len(differences)}" if result[change] > len(differences) else ""
                self._console.print(f"{_DIFFERENT[change]}{more}:")
                self._console.print(*map(_difference, differences), sep="\n")


def _make(folder: Path) -> None:
    """OutputError where it can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{printable(str(folder))}: {error.strerror or error}") from None


def _print_json(told: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")


def _described(analysis: AnalysisAnswer) -> str:
    return f"{analysis.kind} {analysis.id} is {analysis.status}"


def _moment(result: dict[str, Any]) -> str:
    return f"{datetime.fromisoformat(result['moment']):%Y-%m-%d %H:%M:%S %Z}"


def _diameter(bits: int, *, exact: bool) -> str:
    return str(bits) if exact else f"≤ {bits}"


def _histogram(title: str, counted: str, histogram: list[int]) -> Table:
    table = Table(title=title)
    table.add_column("distance", justify="right")
    table.add_column(counted, justify="right")
    table.add_column()
    for distance, count in enumerate(histogram):
        table.add_row(str(distance), f"{count:,}", Bar(max(histogram), 0, count, width=_BAR))
    return table


def _clusters(largest: list[ClusterAnswer]) -> Table:
    table = Table(title="Largest clusters")
    for column in ("documents", "fingerprints", "diameter"):
        table.add_column(column, justify="right")
    table.add_column("representative", overflow="fold")
    for cluster in largest:
        table.add_row(
            f"{cluster.documents:,}",
            f"{cluster.fingerprints:,}",
            _diameter(cluster.diameter, exact=cluster.diameter_is_exact),
            Text(printable(cluster.representative)),
        )
    return table


def _difference(difference: DifferenceAnswer) -> Text:
    """The key, with the distance to its counterpart and the key of that, if it is another."""
    distance = "" if difference.distance is None else f"{difference.distance}  "
    counterpart = difference.counterpart
    other = "" if counterpart in (None, difference.key) else f"  {_RELATED[difference.status]} {printable(counterpart)}"
    return Text(f"  {distance}{printable(difference.key)}{other}")
