"""The lines of imports and exports: an export's are an import's."""

import re
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError, to_json

from app.api.problems import pointer
from app.api.schemas import DecimalSimhash, DocumentKey, FreeText, HexFingerprint, Html, Metadata, Request
from app.core.errors import InvalidFingerprintError, InvalidInputError, InvalidJsonError, NotSupportedError
from app.core.fingerprint import to_hex
from app.core.model import Exported
from app.core.scheme import Digest
from app.service.documents import NewDocument
from app.service.fingerprinting import Content, Known, Text

_HASH = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)
_MOST_WORDS = 2**31 - 1

# By the type of pydantic's error.
_ERRORS = {
    "json_invalid": InvalidJsonError,
    InvalidFingerprintError.code: InvalidFingerprintError,
    NotSupportedError.code: NotSupportedError,
}


def _content_hash(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str) and _HASH.fullmatch(value):
        return bytes.fromhex(value)
    raise PydanticCustomError("invalid_input", "must be 32 hex digits")


class ImportLine(Request):
    """A document. With a text all else is computed anew; without one it needs a fingerprint, or what an export says."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"key": "https://shop.example/lyon", "text": "…"},
                {"key": "a", "fingerprint": "5103e0855a3e3f03"},
            ]
        }
    )

    key: DocumentKey
    text: FreeText | None = None
    html: Html = None
    fingerprint: HexFingerprint | None = None
    simhash: DecimalSimhash | None = None
    words: int | None = Field(
        default=None, ge=0, le=_MOST_WORDS, description="Of the text that the fingerprint was made of."
    )
    content_hash: Annotated[
        bytes | None,
        PlainValidator(_content_hash),
        WithJsonSchema({"type": ["string", "null"], "pattern": "^[0-9a-fA-F]{32}$"}),
    ] = Field(default=None, description="Of the normalised text, as an answer gives it: equal for exact duplicates.")
    metadata: Metadata | None = Field(default=None, description="Left out, a stored document keeps what it has.")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        given = (self.fingerprint, self.simhash)
        if self.text is not None:
            return self
        if None not in given and self.fingerprint != self.simhash:
            raise PydanticCustomError("invalid_input", "fingerprint and simhash differ")
        # A text that was too short has no fingerprint, but a number of words.
        if given == (None, None) and self.words is None:
            raise PydanticCustomError("invalid_input", "text, fingerprint or simhash is needed")
        return self

    def content(self) -> Content:
        if self.text is not None:
            return Text(self.text)
        simhash = self.simhash if self.fingerprint is None else self.fingerprint
        place = "/simhash" if self.fingerprint is None else "/fingerprint"
        return Known(Digest(simhash, self.content_hash, self.words), place)


def read(line: bytes) -> NewDocument:
    """InvalidInputError, and its kinds, for what is no document."""
    try:
        given = ImportLine.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        kind = _ERRORS.get(first["type"], InvalidInputError)
        raise kind(first["msg"], pointer=pointer(*first["loc"])) from None
    return NewDocument(given.key, given.content(), given.metadata)


def spell(exported: Exported) -> bytes:
    """The line of a document, with its line feed."""
    digest = exported.digest
    line: dict[str, Any] = {
        "key": exported.key,
        "fingerprint": None if digest.simhash is None else to_hex(digest.simhash),
        "words": digest.words,
        "content_hash": None if digest.content_hash is None else digest.content_hash.hex(),
        "metadata": exported.metadata,
    }
    if exported.text is not None:
        line["text"] = exported.text
    return to_json(line) + b"\n"
