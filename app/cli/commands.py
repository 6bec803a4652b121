"""The commands of `tiroir`."""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.cli.server import export, serve
from app.core.errors import TiroirError
from app.settings import Settings

_cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

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
    export(given)
    serve(_settings(given))


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = "; ".join(
            f"TIROIR_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()
        )
        raise SettingsError(problems) from None


class SettingsError(TiroirError):
    """A setting is not valid."""
