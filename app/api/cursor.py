"""Cursors: opaque to the client, to us the last name, key or number of a page."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable
from typing import TypeVar

from app.core.errors import InvalidInputError

T = TypeVar("T")


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
        raise _not_ours()
    return last


def decode_number(cursor: str | None, most: int) -> int:
    """The number that the page comes before; `most` + 1 is after all. InvalidInputError as above."""
    if cursor is None:
        return most + 1
    last = decode(cursor)
    if not _is_number(last, most) or int(last) == 0:
        raise _not_ours()
    return int(last)


def place(of: str, number: int, text: str = "") -> str:
    """What a cursor holds for `decode_place`. `of`: the list, without blanks."""
    return f"{of} {number} {text}"


def decode_place(cursor: str | None, of: str, most: int) -> tuple[int, str]:
    """The number, 0 to `most`, and the text that the page comes after; (0, "") is before all. Errors as above."""
    if cursor is None:
        return 0, ""
    named, _, place = decode(cursor).partition(" ")
    number, separator, text = place.partition(" ")
    if named != of or not separator or not _is_number(number, most):
        raise _not_ours()
    return int(number), text


def decode_hex(text: str) -> bytes:
    """The bytes that are a part of a cursor. Errors as above."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise _not_ours() from None


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most


def _not_ours() -> InvalidInputError:
    return InvalidInputError("not a cursor that a page gave", pointer="/cursor")


def cut(found: list[T], limit: int, last: Callable[[T], str]) -> tuple[list[T], str | None]:
    """The page, of what was found when one more than `limit` was asked for, and the cursor of the next, if any.

    `last` is what a cursor holds of the last item of a page.
    """
    page = found[:limit]
    return page, encode(last(page[-1])) if len(found) > len(page) else None
