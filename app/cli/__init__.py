"""The command line."""

from app.cli.commands import main

__all__ = ["main"]
