"""The commands of `tiroir`."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.cli.administration import Administration
from app.cli.documents import Commands, keys_of, query_of, text_of
from app.cli.output import results
from app.cli.reports import Reports, Wanted
from app.cli.sources import STANDARD, Fields, Format, Sources
from app.cli.status import Exit, UsageError, exit_of
from app.client import Tiroir
from app.client.calls import Clusters, OnError, Representative
from app.core.errors import TiroirError
from app.settings import Settings

_cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

# A service that restarts is away for a moment, and a long import needn't end for that.
_PATIENCE_SECONDS = 60.0


Url = Annotated[str | None, typer.Option(help="The service; left out, the local one.", envvar="TIROIR_URL")]
ApiKey = Annotated[
    str | None, typer.Option(help="Sent along as a bearer token.", envvar="TIROIR_API_KEY", show_envvar=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON, an object a line.")]
Wait = Annotated[bool, typer.Option(help="Show the progress until it is finished.")]
AnalysisThreshold = Annotated[int | None, typer.Option(help="0 to 63; left out, the default of lookups.")]
CsvFolder = Annotated[
    Path | None, typer.Option("--csv", metavar="DIR", help="A folder for all of it, as tables; made if need be.")
]
Last = Annotated[bool, typer.Option("--last", help="Begin nothing: show the latest that is finished.")]
Collection = Annotated[str, typer.Argument(help="The name of the collection.")]


def main() -> None:
    """Every failure that we foresee is one line on standard error, and a status of its own (docs/commands.md)."""
    try:
        _cli()
    except TiroirError as error:
        sys.stderr.write(f"tiroir: {error}\n")
        sys.exit(exit_of(error))
    except KeyboardInterrupt:
        sys.stderr.flush()
        os._exit(Exit.INTERRUPTED)  # at once: a request may be under way in another thread


def _show_version(value: bool) -> None:
    if value:
        with results():
            typer.echo(f"tiroir {version('tiroir')}")
        raise typer.Exit


@_cli.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find near-duplicate documents, exactly, on PostgreSQL."""


@_cli.command("serve")
def _serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Serving processes.")] = None,
) -> None:
    """Start the service: on TIROIR_DATABASE_URL, or on an embedded PostgreSQL.

    Settings are environment variables (docs/settings.md); these options win over them.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from app.cli.server import export, serve  # noqa: PLC0415  two seconds that the other commands need not wait

    export(given)
    serve(_settings(given))


@_cli.command("worker")
def _worker() -> None:
    """Work on operations beside the service, whose TIROIR_RUN_OPERATIONS is then false: rebuilds, audits.

    On the same TIROIR_DATABASE_URL, or the same embedded PostgreSQL.
    """
    from app.cli.server import work  # noqa: PLC0415  as above

    work(_settings({}))


@_cli.command("rebuild")
def _rebuild(
    threshold: Annotated[int, typer.Option(help="Bits that may differ: the new default of lookups, 0 to 63.")],
    bands: Annotated[int | None, typer.Option(help="2 to 16; left out, as many as make lookups cheapest.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build them anew even if they stay as they are.")] = False,
    wait: Wait = True,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Rebuild the bands of a running service for another threshold, while it goes on answering."""
    with _connected(url, api_key) as tiroir:
        Administration(tiroir).rebuild(threshold, bands, force=force, wait=wait)


@_cli.command("audit")
def _audit(
    sample: Annotated[int, typer.Option(help="Lookups to compare with a full scan.")] = 1000,
    threshold: Annotated[int | None, typer.Option(help="0 to 63; left out, the default of lookups.")] = None,
    wait: Wait = True,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Compare lookups of a running service with a full scan of its data. Status 7 where one missed something."""
    with _connected(url, api_key) as tiroir:
        Administration(tiroir).audit(sample, threshold, wait=wait)


@_cli.command("layout")
def _layout(url: Url = None, api_key: ApiKey = None) -> None:
    """Show the bands of a running service, their fullest buckets, and what lookups should cost."""
    with _connected(url, api_key) as tiroir:
        Administration(tiroir).layout()


@_cli.command("index")
def _index(
    collection: Collection,
    files: Annotated[list[Path], typer.Argument(help="NDJSON, CSV, plain texts, folders; - for standard input.")],
    format: Annotated[Format, typer.Option(help="Of all files; auto goes by their names.")] = Format.AUTO,  # noqa: A002  the option's name
    key: Annotated[str, typer.Option(help="The member or column that is the key.")] = "key",
    text: Annotated[
        list[str] | None, typer.Option(help="The one that is the text; of several the first that there is.")
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="Those that are kept as metadata.")] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Whether the first document that can't be stored ends it.")
    ] = "continue",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Index the documents of files. Run again, it changes nothing.

    A line of NDJSON is an object with key and text, or key and fingerprint. A table has columns of these names, or of
    those that are given. A plain text is a document whose key is the file's name. All may be compressed by gzip.
    """
    fields = Fields(key, tuple(text or ("text",)), tuple(metadata or ()))
    with _connected(url, api_key, patience=_PATIENCE_SECONDS) as tiroir:
        Commands(tiroir, as_json=as_json).index(collection, Sources(files, format, fields), on_error=on_error)


@_cli.command("near")
def _near(
    collection: Collection,
    file: Annotated[Path | None, typer.Argument(help="A text; - for standard input.")] = None,
    text: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    fingerprint: Annotated[str | None, typer.Option(help="16 hex digits.")] = None,
    key: Annotated[str | None, typer.Option(help="Of a stored document.")] = None,
    threshold: Annotated[int | None, typer.Option(help="0 to 63; left out, the default of lookups.")] = None,
    limit: Annotated[int, typer.Option(help="Documents at most.")] = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Find the near-duplicates of a text, a fingerprint or a stored document: distance, exact or near, key."""
    query: dict[str, Any] = query_of(file, text, fingerprint, key)
    with _connected(url, api_key) as tiroir:
        Commands(tiroir, as_json=as_json).near(collection, {**query, "threshold": threshold, "limit": limit})


@_cli.command("fingerprint")
def _fingerprint(
    files: Annotated[list[Path] | None, typer.Argument(help="Texts; - for standard input.")] = None,
    text: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Show the fingerprints of texts. Nothing is stored."""
    if (text is None) == (not files):
        raise UsageError("give files, or --text")
    texts = [("-", text)] if text is not None else ((str(file), text_of(file)) for file in files or ())
    with _connected(url, api_key) as tiroir:
        Commands(tiroir, as_json=as_json).fingerprint(texts)


@_cli.command("export")
def _export(
    collection: Collection,
    output: Annotated[Path, typer.Option("--output", "-o", help="A file; compressed if it ends in .gz.")] = STANDARD,
    text: Annotated[bool, typer.Option("--text", help="With the texts, where they are stored.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Write all documents as lines of JSON, which `tiroir index` takes back."""
    with _connected(url, api_key) as tiroir:
        Commands(tiroir, as_json=False).export(collection, output, text=text)


@_cli.command("collections")
def _collections(
    collection: Annotated[str | None, typer.Argument(help="One of them, with what it holds.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """List the collections."""
    with _connected(url, api_key) as tiroir:
        Commands(tiroir, as_json=as_json).collections(collection)


@_cli.command("delete")
def _delete(
    collection: Collection,
    keys: Annotated[list[str] | None, typer.Argument(help="Of the documents to delete.")] = None,
    keys_from: Annotated[Path | None, typer.Option(help="A file with one a line; - for standard input.")] = None,
    whole: Annotated[bool, typer.Option("--all", help="The collection itself, with all its documents.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before all is deleted.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Delete documents, or a whole collection."""
    if [bool(keys), keys_from is not None, whole].count(True) != 1:
        raise UsageError("give KEYS, --keys-from or --all")
    if whole and not yes:
        if not sys.stdin.isatty():
            raise UsageError("to delete a whole collection without being asked, give --yes")
        typer.confirm(f"Delete {collection} with all its documents?", abort=True, err=True)
    with _connected(url, api_key) as tiroir:
        commands = Commands(tiroir, as_json=as_json)
        if whole:
            commands.delete_collection(collection)
        else:
            commands.delete(collection, keys_of(keys_from) if keys_from is not None else keys or ())


@_cli.command("report")
def _report(
    collection: Collection,
    threshold: AnalysisThreshold = None,
    clusters: Annotated[
        Clusters | None,
        typer.Option(help="What chains of near-duplicates connect (left out), or what is near one document."),
    ] = None,
    representative: Annotated[
        Representative | None, typer.Option(help="Which document stands for a cluster; left out, the oldest.")
    ] = None,
    csv: CsvFolder = None,
    as_json: AsJson = False,
    last: Last = False,
    wait: Wait = True,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Find all near-duplicates of a collection: how many, how far apart, the largest clusters.

    An analysis with the same settings that isn't finished is waited for, else one begins.
    """
    with _connected(url, api_key) as tiroir:
        Reports(tiroir, as_json=as_json, folder=csv, last=last, wait=wait).report(
            Wanted(collection, threshold, clusters=clusters, representative=representative)
        )


@_cli.command("diff")
def _diff(
    old: Annotated[str, typer.Argument(help="The name of the earlier collection.")],
    new: Annotated[str, typer.Argument(help="The name of the later one.")],
    threshold: AnalysisThreshold = None,
    csv: CsvFolder = None,
    as_json: AsJson = False,
    last: Last = False,
    wait: Wait = True,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Tell what became of the documents of a collection in a later one: new, gone, changed, nearly unchanged.

    An analysis with the same settings that isn't finished is waited for, else one begins.
    """
    with _connected(url, api_key) as tiroir:
        Reports(tiroir, as_json=as_json, folder=csv, last=last, wait=wait).diff(Wanted(new, threshold, against=old))


@contextmanager
def _connected(url: str | None, api_key: str | None, *, patience: float = 0.0) -> Generator[Tiroir]:
    """The service that is named, or the local one, for a command that writes its results to standard output."""
    if url is None:
        settings = _settings({})
        url = f"http://{_address(settings.host)}:{settings.port}"
    with Tiroir(url, api_key=api_key, patience=patience) as tiroir, results():
        yield tiroir


def _address(host: str) -> str:
    """Where a service that listens on `host` is reached from the same machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  we don't listen
    return f"[{reached}]" if ":" in reached else reached


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_spelled, error.errors()))) from None


def _spelled(error: ErrorDetails) -> str:
    """One that concerns several settings names them itself."""
    reason = error["msg"].removeprefix("Value error, ")
    return f"TIROIR_{'_'.join(map(str, error['loc'])).upper()}: {reason}" if error["loc"] else reason


class SettingsError(TiroirError):
    """A setting is not valid."""
