"""Reads the .sql files beside this module: statements, each under a line `-- name: what it is for`."""

import re
from importlib.resources import files

_HEADING = re.compile(r"^-- (\w+): .+$", re.MULTILINE)


def load(file: str) -> dict[str, bytes]:
    """The statements of `sql/{file}` by name, as bytes: psycopg takes those for a query that no user wrote."""
    text = files("app.store").joinpath("sql", file).read_text("utf-8")
    _, *parts = _HEADING.split(text)
    return {name: body.strip().encode() for name, body in zip(parts[::2], parts[1::2], strict=True)}
