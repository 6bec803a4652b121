"""make bench: each figure beside its yardstick, from one run. Machines differ and are noisy: trust the ratios."""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import uvloop
from pydantic import SecretStr

from app.postgres.binaries import best_binaries
from app.postgres.embedded import EmbeddedPostgres
from app.postgres.migrate import migrate
from app.settings import Settings
from bench import analyses, data, imports, kernel, lookups, rebuild, rebuild_under_load, serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="documents")
    parser.add_argument("--queries", type=int, default=1000, help="looked up one by one and at once, 1,000 at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over HTTP")
    parser.add_argument("--load-size", type=int, default=200_000, help="documents while the bands are rebuilt")
    parser.add_argument("--texts", type=int, default=20_000, help="documents imported with text")
    parser.add_argument("--import-bytes", type=int, default=50_000_000, help="of real pages, imported")
    parser.add_argument(
        "--mixed", type=Path, help="real fingerprints to analyse, 16 hex digits a line, gzip; left out, 20,000 of them"
    )
    asked = parser.parse_args()

    kernel_seconds = _fingerprinting()
    folder = Path(tempfile.mkdtemp(prefix="tiroir-"))
    try:
        with EmbeddedPostgres(folder, best_binaries()) as server:
            conninfo = server.dsn()
            migrate(conninfo, connect_timeout=10)
            start = time.perf_counter()
            filled = data.fill(conninfo, asked.size, asked.queries)
            print(f"\n{asked.size:,} documents loaded in {time.perf_counter() - start:.0f} s, uniform fingerprints")
            settings = Settings(database_url=SecretStr(conninfo), layout_grace=0)
            _lookups(uvloop.run(lookups.measure(settings, filled)), len(filled.queries))
            _serving(serving.measure(conninfo, filled, asked.seconds), len(filled.queries))
            _imports(imports.measure(conninfo, asked.texts, 5 * asked.texts, asked.import_bytes), kernel_seconds)
            _rebuilt(uvloop.run(rebuild.measure(settings)))
            _analyses(analyses.measure(conninfo, asked.size, asked.mixed))
            _under_load(rebuild_under_load.measure(conninfo, asked.load_size, 4 * asked.seconds))
    finally:
        shutil.rmtree(folder)


def _fingerprinting() -> float:
    """Seconds of the bare kernel for a text."""
    print(f"Fingerprinting {kernel.WORDS} words")
    times = kernel.measure()
    for name, microseconds in times.items():
        print(f"  {name:34}{microseconds:10,.0f} µs{_ratio(times['plain loop'], microseconds, 'the plain loop')}")
    return times["kernel"] / 1e6


def _lookups(measured: lookups.Lookups, queries: int) -> None:
    print("A lookup, documents joined, one session, median")
    print(f"  {'full scan':34}{measured.full_scan * 1e6:10,.0f} µs")
    print(
        f"  {'the article’s query, threshold 3':34}{measured.article * 1e6:10,.0f} µs"
        f"{_ratio(measured.full_scan, measured.article, 'the full scan')}"
    )
    for threshold, seconds in measured.statement.items():
        article = _ratio(measured.article, seconds, "the article’s query") if threshold == 3 else ""
        print(
            f"  {f'threshold {threshold}':34}{seconds * 1e6:10,.0f} µs"
            f"{_ratio(measured.full_scan, seconds, 'the full scan')}{article}"
        )
        batch = measured.batch[threshold]
        print(
            f"  {f'threshold {threshold}, of {queries:,} at once':34}{batch * 1e6:10,.0f} µs"
            f"{_ratio(seconds, batch, 'one by one')}"
        )


def _serving(measured: serving.Serving, queries: int) -> None:
    print("Over HTTP, one serving process, 8 connections")
    for name, load in (("an endpoint that does nothing", measured.idle), ("lookups at threshold 3", measured.lookups)):
        print(f"  {name:34}{load.per_second:10,.0f} /s   p50 {load.p50 * 1e3:.1f} ms   p99 {load.p99 * 1e3:.1f} ms")
    print(f"  {f'lookups, {queries:,} a request':34}{measured.batched_per_second:10,.0f} /s   2 connections")
    share = measured.lookups.per_second / measured.idle.per_second
    print(f"  {'lookups / nothing':34}{share:10.2f}")
    if measured.resident_megabytes is not None:
        print(f"  {'resident memory, before requests':34}{measured.resident_megabytes:10,.0f} MB")


def _imports(measured: imports.Imports, kernel_seconds: float) -> None:
    bare = 1 / kernel_seconds
    print("An import over HTTP, one serving process, PostgreSQL beside it")
    print(f"  {'the bare kernel, one core':34}{bare:10,.0f} /s")
    for name, rate in ((f"texts of {kernel.WORDS} words", measured.texts), ("fingerprints", measured.fingerprints)):
        share = f"   {rate.imported / bare:.0%} of the bare kernel" if rate is measured.texts else ""
        print(f"  {name:34}{rate.imported:10,.0f} /s{share}")
        print(f"  {'COPY of these, without indexes':34}{rate.copied:10,.0f} /s")
    print(f"  {'the same texts again':34}{measured.again:10,.0f} /s")
    megabytes = measured.large_bytes / 1e6
    print(f"  {f'real pages of {megabytes:,.0f} MB':34}{megabytes / measured.large_seconds:10,.1f} MB/s")
    if measured.peak_megabytes is not None:
        print(f"  {'memory of the process at most':34}{measured.peak_megabytes:10,.0f} MB")


def _rebuilt(measured: rebuild.Rebuilt) -> None:
    print(f"A rebuild of {rebuild.BANDS} bands, beside the same work by hand")
    copying, indexing = measured.phases["copying"], measured.phases["indexing"]
    for name, ours, by_hand in (
        ("copying", copying, measured.copy_by_hand),
        ("indexing, concurrently", indexing, measured.indexes_by_hand),
        ("both", copying + indexing, measured.copy_by_hand + measured.indexes_by_hand),
    ):
        print(f"  {name:34}{ours:10,.1f} s    {ours / by_hand:.2f} × the {by_hand:,.1f} s of INSERT and CREATE INDEX")
    others = {name: seconds for name, seconds in measured.phases.items() if name not in {"copying", "indexing"}}
    print("  " + ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in others.items()))


def _analyses(measured: analyses.Analyses) -> None:
    print("Analyses over HTTP, from the request to the result")
    print(f"  {f'{analyses.ARTICLE_PAGES:,} pages by the article’s query':34}{measured.article:10,.2f} s")
    print(f"  {'threshold 3 by the four bands, SQL':34}{measured.join:10,.2f} s")
    print(f"  {'ten sorts':34}{measured.sorts:10,.2f} s")
    for name, alone in (("uniform", measured.uniform), ("one site", measured.one_site)):
        memory = "" if alone.megabytes is None else f", {alone.megabytes:,.0f} MB"
        _analyzed(name, alone.analyzed, f"   {alone.analyzed.seconds / measured.sorts:.1f} × the sorts{memory}")
    _analyzed("uniform", measured.before)
    _analyzed("uniform, 1,000 more", measured.again, f"   based on {measured.again.result['based_on']}")
    for analyzed in measured.mixed:
        _analyzed("real, mixed", analyzed)
    _analyzed("half of them one page", measured.copies)
    _analyzed("with one of these alone", measured.without_copies)


def _analyzed(name: str, analyzed: analyses.Analyzed, more: str = "") -> None:
    result = analyzed.result
    print(
        f"  {f'{name}, threshold {analyzed.threshold}':34}{analyzed.seconds:10,.2f} s"
        f"   {result['documents']:,} documents, {result['pairs']:,} pairs, {result['clusters']:,} clusters{more}"
        f"\n  {'':34}{'':10}     {result['plan']['parts']} {result['plan']['kind']}, "
        + ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in result["seconds"].items())
    )


def _under_load(measured: rebuild_under_load.UnderLoad) -> None:
    before = measured.before
    print(f"8 clients that look up, write and delete among {measured.size:,} documents, each answer judged")
    print(f"  {'lookups before':34}{'':10}     p50 {before.p50 * 1e3:.1f} ms   p99 {before.p99 * 1e3:.1f} ms")
    for bands, during in measured.rebuilds.items():
        print(
            f"  {f'while {bands} bands are built':34}{measured.seconds[bands]:10,.1f} s   p50 {during.p50 * 1e3:.1f} ms"
            f"   p99 {during.p99 * 1e3:.1f} ms, {during.p99 / before.p99:.1f} × before;"
            f" {during.requests:,} requests, none failed"
        )


def _ratio(yardstick: float, measured: float, name: str) -> str:
    return "" if yardstick == measured else f"   {yardstick / measured:,.1f} × faster than {name}"


main()
