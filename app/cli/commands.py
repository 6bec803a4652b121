"""The commands of `tiroir`."""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.cli.administration import administration
from app.core.errors import TiroirError
from app.settings import Settings

_cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Url = Annotated[str | None, typer.Option(help="The service; left out, the local one.", envvar="TIROIR_URL")]

# 2 is the usage error of the command line itself.
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main() -> None:
    """Every failure that we foresee is one line on standard error."""
    try:
        _cli()
    except TiroirError as error:
        sys.stderr.write(f"tiroir: {error}\n")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _show_version(value: bool) -> None:
    if value:
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
    wait: Annotated[bool, typer.Option(help="Show the progress until it is finished.")] = True,
    url: Url = None,
) -> None:
    """Rebuild the bands of a running service for another threshold, while it goes on answering."""
    administration(url, _settings({})).rebuild({"threshold": threshold, "bands": bands, "force": force}, wait=wait)


@_cli.command("audit")
def _audit(
    sample: Annotated[int, typer.Option(help="Lookups to compare with a full scan.")] = 1000,
    threshold: Annotated[int | None, typer.Option(help="0 to 63; left out, the default of lookups.")] = None,
    wait: Annotated[bool, typer.Option(help="Show the progress until it is finished.")] = True,
    url: Url = None,
) -> None:
    """Compare lookups of a running service with a full scan of its data. Status 1 where one missed something."""
    administration(url, _settings({})).audit({"sample": sample, "threshold": threshold}, wait=wait)


@_cli.command("layout")
def _layout(url: Url = None) -> None:
    """Show the bands of a running service, their fullest buckets, and what lookups should cost."""
    administration(url, _settings({})).layout()


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
