"""Cursors: opaque to the client, to us the last name or key of a page."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error

from app.core.errors import InvalidInputError


def encode(last: str) -> str:
    return urlsafe_b64encode(last.encode()).decode().rstrip("=")


def decode(cursor: str | None) -> str:
    """What the page comes after; "" is before all. InvalidInputError for what `encode` didn't make."""
    if cursor is None:
        return ""
    try:
        last = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (Error, ValueError):
        last = "\0"
    if "\0" in last or encode(last) != cursor:
        raise InvalidInputError("not a cursor that a page gave", pointer="/cursor")
    return last
