"""What comes in over HTTP. Requests are strict: no unknown member, no number for a string or the reverse."""

import json
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.core import model
from app.core.errors import InvalidFingerprintError, InvalidInputError
from app.core.fingerprint import parse_decimal, parse_hex
from app.core.scheme import ARTICLE, Scheme
from app.service.documents import NewDocument
from app.service.fingerprinting import Content, Simhash, Text
from app.service.near_duplicates import Key

MAX_LIMIT = 1000
DEFAULT_LIMIT = 20
DEFAULT_PAGE = 100
MAX_BATCH = 1000
MAX_BATCH_MATCHES = 100_000  # of all queries together
MAX_COLLECTIONS = 64  # of one lookup
MAX_MEMBERS = 64  # of an object other than metadata
MAX_METADATA_DEPTH = 32
MAX_METADATA_BYTES = 65_536  # as compact JSON; it comes back with every match
MIN_TTL, MAX_TTL = 60, 2**31 - 1  # seconds
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"


def _storable_text(text: str) -> str:
    """PostgreSQL's text holds neither; dropping them without a word would change what the caller sent."""
    if "\0" in text:
        raise PydanticCustomError("invalid_input", "NUL characters are not allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("invalid_input", "lone surrogates are not allowed") from None
    return text


def _short_enough(key: str) -> str:
    if len(key.encode()) > model.MAX_KEY_BYTES:
        raise PydanticCustomError(
            "invalid_input", "a key has at most {most} bytes in UTF-8", {"most": model.MAX_KEY_BYTES}
        )
    return key


def _storable_metadata(metadata: model.Metadata) -> model.Metadata:
    """Refuses what JSON can't say or jsonb can't hold, and what is too large or too deep to come with every match."""
    _require_storable(metadata)
    if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > MAX_METADATA_BYTES:
        raise PydanticCustomError(
            "invalid_input", "metadata has at most {most} bytes as compact JSON", {"most": MAX_METADATA_BYTES}
        )
    return metadata


def _require_storable(metadata: model.Metadata) -> None:
    level: list[model.Json] = [metadata]
    for _ in range(MAX_METADATA_DEPTH):
        below: list[model.Json] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
                below += value.keys()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _storable_text(value)
            elif isinstance(value, float) and not math.isfinite(value):
                raise PydanticCustomError("invalid_input", "NaN and infinities are not JSON")
        if not below:
            return
        level = below
    raise PydanticCustomError(
        "invalid_input", "metadata is nested deeper than {most} levels", {"most": MAX_METADATA_DEPTH}
    )


def _fingerprint(parse: Callable[[str], int]) -> Callable[[object], int]:
    def validate(value: object) -> int:
        if not isinstance(value, str):
            raise PydanticCustomError("invalid_fingerprint", "must be a string")
        try:
            return parse(value)
        except InvalidFingerprintError as error:
            raise PydanticCustomError("invalid_fingerprint", "{reason}", {"reason": str(error)}) from None

    return validate


def whole_number(value: object) -> object:
    """In a query, digits alone: int() would also read "+5", " 5" and "1_000"."""
    if isinstance(value, str):
        if not re.fullmatch(r"-?[0-9]{1,19}", value, re.ASCII):
            raise PydanticCustomError("invalid_input", "must be a whole number")
        return int(value)
    return value


def _in_a_path(name: str) -> str:
    if name in (".", ".."):
        raise PydanticCustomError("invalid_input", "a path with . or .. leads elsewhere")
    return name


def _no_html(html: object) -> None:
    if html is not None:
        raise PydanticCustomError("not_supported", "html is not supported yet: send its text")


FreeText = Annotated[str, AfterValidator(_storable_text)]
Html = Annotated[Any, AfterValidator(_no_html), Field(description="Not supported yet: send its text.")]
DocumentKey = Annotated[
    str,
    Field(
        min_length=1,
        description="A URL or any id of yours, at most 2,048 bytes in UTF-8.",
        examples=["https://shop.example/lyon"],
    ),
    AfterValidator(_storable_text),
    AfterValidator(_short_enough),
]
Metadata = Annotated[dict[str, Any], AfterValidator(_storable_metadata)]
HexFingerprint = Annotated[
    int,
    PlainValidator(_fingerprint(parse_hex)),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-fA-F]{16}$", "examples": ["5103e0855a3e3f03"]}),
]
DecimalSimhash = Annotated[
    int,
    PlainValidator(_fingerprint(parse_decimal)),
    WithJsonSchema({"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,18})$", "examples": ["5837756405351595779"]}),
]
Threshold = Annotated[
    int,
    Field(
        ge=0,
        le=model.MAX_THRESHOLD,
        description="Bits that may differ, 0 to 63, exact at any value. Left out: that of the layout, 3 at first.",
    ),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Matches at most.")]
QueryThreshold = Annotated[Threshold, BeforeValidator(whole_number)]
QueryLimit = Annotated[Limit, BeforeValidator(whole_number)]
Ttl = Annotated[
    int,
    Field(
        ge=MIN_TTL,
        le=MAX_TTL,
        description="Seconds: documents that aren't indexed again for so long are deleted. null: they stay.",
    ),
]
CollectionName = Annotated[str, Field(pattern=NAME_PATTERN, examples=["shop"]), AfterValidator(_in_a_path)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_members(cls, given: object) -> object:
        """Each unknown member is an error of its own: a body of a million of them would take a minute to refuse."""
        if isinstance(given, dict):
            members = cast("dict[str, object]", given)
            if len(members) > MAX_MEMBERS:
                detail = "an object has at most {most} members"
                raise PydanticCustomError("invalid_input", detail, {"most": MAX_MEMBERS})
            return members
        return given


class QueryParameters(BaseModel):
    """No parameters at all: one that is ignored, a misspelt threshold say, changes the answer without a word."""

    model_config = ConfigDict(extra="forbid")


class KeyParameters(QueryParameters):
    key: DocumentKey


class Contents(BaseModel):
    """A text, or the caller's own fingerprint: exactly one of them."""

    text: FreeText | None = None
    html: Html = None
    fingerprint: HexFingerprint | None = None
    simhash: DecimalSimhash | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in self._alternatives() if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "invalid_input",
                "exactly one of {names} is needed",
                {"names": ", ".join(self._alternatives())},
            )
        return self

    def _alternatives(self) -> tuple[str, ...]:
        return ("text", "fingerprint", "simhash")

    def content(self, pointer: str = "") -> Content:
        """`pointer`: to this object, in the request."""
        if self.text is not None:
            return Text(self.text)
        if self.fingerprint is not None:
            return Simhash(self.fingerprint, f"{pointer}/fingerprint")
        assert self.simhash is not None  # noqa: S101  the validator has seen exactly one
        return Simhash(self.simhash, f"{pointer}/simhash")


_PAGE_TEXT = "Toutes nos paires sont expédiées sous 24 heures depuis notre entrepôt de Lyon …"


class DocumentContents(Contents, Request):
    metadata: Metadata | None = Field(
        default=None,
        description="Yours to use, at most 64 KiB as compact JSON. Left out, a stored document keeps what it has.",
    )


class PutDocument(DocumentContents):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": _PAGE_TEXT, "metadata": {"town": "Lyon"}}]})


class PostDocument(DocumentContents):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"key": "https://shop.example/lyon", "text": _PAGE_TEXT}]}
    )

    key: DocumentKey


class DocumentBatch(Request):
    """All of them are written, or none."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "documents": [
                        {"key": "https://shop.example/lyon", "text": _PAGE_TEXT},
                        {"key": "lyon.png", "fingerprint": "5103e0855a3e3f03"},
                    ]
                }
            ]
        }
    )

    documents: Annotated[list[PostDocument], Field(min_length=1, max_length=MAX_BATCH)]

    def news(self) -> list[NewDocument]:
        """InvalidInputError where two of them have the same key: which of them is meant to stay?"""
        first: dict[str, int] = {}
        for number, document in enumerate(self.documents):
            if (earlier := first.setdefault(document.key, number)) != number:
                raise InvalidInputError(f"document {earlier} has the same key", pointer=f"/documents/{number}/key")
        return [
            NewDocument(document.key, document.content(f"/documents/{number}"), document.metadata)
            for number, document in enumerate(self.documents)
        ]


class KeyBatch(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": ["https://shop.example/lyon", "bordeaux"]}]})

    keys: Annotated[list[DocumentKey], Field(min_length=1, max_length=MAX_BATCH)]


class ImportParameters(QueryParameters):
    on_error: Literal["continue", "abort"] = Field(
        default="continue", description="abort: the first line that can't be stored ends the import."
    )


class ExportParameters(QueryParameters):
    text: bool = Field(default=False, description="With the texts, where they are stored.")


class WriteParameters(QueryParameters):
    threshold: QueryThreshold | None = None
    limit: QueryLimit = DEFAULT_LIMIT
    near_duplicates: bool = Field(default=True, description="Whether to look up what the document resembles.")


class KeyedWriteParameters(KeyParameters, WriteParameters):
    pass


class _Lookup(Contents):
    """A text, a fingerprint, or the key of a stored document: exactly one of them."""

    key: DocumentKey | None = None

    def _alternatives(self) -> tuple[str, ...]:
        return (*super()._alternatives(), "key")

    def query(self) -> Content | Key:
        return self.content() if self.key is None else Key(self.key)

    def one_of_several(self, pointer: str) -> Content | Key:
        """`pointer`: to this object, in the request."""
        return self.content(pointer) if self.key is None else Key(self.key, f"{pointer}/key")


class LookupParameters(_Lookup, QueryParameters):
    threshold: QueryThreshold | None = None
    limit: QueryLimit = DEFAULT_LIMIT
    explain: bool = Field(default=False, description="Add how the lookup was done.")


class LookupRequest(_Lookup, Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": _PAGE_TEXT, "threshold": 3}]})

    threshold: Threshold | None = None
    limit: Limit = DEFAULT_LIMIT
    explain: bool = Field(default=False, description="Add how the lookup was done.")


class LookupQuery(_Lookup, Request):
    """One of several queries."""


class _ManyLookups(Request):
    queries: Annotated[list[LookupQuery], Field(min_length=1, max_length=MAX_BATCH)]
    threshold: Threshold | None = None
    limit: Limit = DEFAULT_LIMIT

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if len(self.queries) * self.limit > MAX_BATCH_MATCHES:
            raise PydanticCustomError(
                "invalid_input",
                "queries times limit is at most {most}: ask for fewer matches, or in several requests",
                {"most": MAX_BATCH_MATCHES},
            )
        return self

    def asked(self) -> list[Content | Key]:
        return [query.one_of_several(f"/queries/{number}") for number, query in enumerate(self.queries)]


class LookupBatch(_ManyLookups):
    """Many lookups at one threshold."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"queries": [{"text": _PAGE_TEXT}, {"key": "lyon"}], "threshold": 3}]}
    )


def _all_different(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("invalid_input", "a collection stands more than once")
    return names


CollectionNames = Annotated[
    list[CollectionName],
    Field(min_length=1, max_length=MAX_COLLECTIONS, examples=[["crawl-41", "crawl-42"]]),
    AfterValidator(_all_different),
]


class LookupAcross(_Lookup, Request):
    """One lookup in several collections of one scheme."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"collections": ["crawl-41", "crawl-42"], "text": _PAGE_TEXT}]}
    )

    collections: CollectionNames
    threshold: Threshold | None = None
    limit: Limit = DEFAULT_LIMIT


class LookupBatchAcross(_ManyLookups):
    """Many lookups at one threshold in several collections of one scheme."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"collections": ["crawl-41", "crawl-42"], "queries": [{"text": _PAGE_TEXT}]}]}
    )

    collections: CollectionNames


class PageParameters(QueryParameters):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole_number)] = DEFAULT_PAGE
    cursor: FreeText | None = Field(default=None, description="`next_cursor` of the page before.")


class DocumentPageParameters(PageParameters):
    near_duplicated: bool | None = Field(
        default=None, description="Those alone that an analysis has found near-duplicates of, or has not."
    )
    analysis: Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(whole_number)] | None = Field(
        default=None, description="Which analysis; left out, the latest."
    )

    @model_validator(mode="after")
    def _of_what(self) -> Self:
        if self.analysis is not None and self.near_duplicated is None:
            raise PydanticCustomError("invalid_input", "analysis goes with near_duplicated")
        return self


class SchemeParts(Request):
    """How a text becomes a fingerprint. Fixed once the collection exists."""

    tokenizer: Literal["article"] = "article"
    shingle_size: int = Field(default=ARTICLE.shingle_size, ge=1, le=10, description="Words.")
    bits: int = Field(default=ARTICLE.bits, ge=1, le=64)
    min_words: int = Field(
        default=ARTICLE.min_words, ge=1, le=1_000_000, description="Texts with fewer words get no fingerprint."
    )

    def scheme(self) -> Scheme:
        return Scheme(self.tokenizer, self.shingle_size, self.bits, self.min_words)


def _named_scheme(value: object) -> object:
    if isinstance(value, str):
        if value == "article":
            return {}
        if value == "text":
            raise PydanticCustomError("not_supported", 'the scheme "text" is not supported yet')
        raise PydanticCustomError("invalid_input", 'a scheme is "article" or its parts')
    return value


SchemeChoice = Annotated[
    SchemeParts,
    BeforeValidator(_named_scheme, json_schema_input_type=Literal["article"] | SchemeParts),
]


class FingerprintRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "le chat mange", "scheme": {"min_words": 1}}]})

    text: FreeText | None = None
    html: Html = None
    scheme: SchemeChoice = SchemeParts()

    @model_validator(mode="after")
    def _text(self) -> Self:
        if self.text is None:
            raise PydanticCustomError("invalid_input", "text is needed")
        return self


class DistanceParameters(QueryParameters):
    a: HexFingerprint
    b: HexFingerprint


class NewCollection(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "shop", "scheme": "article"}]})

    name: CollectionName
    scheme: SchemeChoice = SchemeParts()
    store_text: bool = Field(
        default=True, description="Whether texts are kept, for comparisons to come, or their fingerprints alone."
    )
    ttl: Ttl | None = None


class CollectionChange(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"ttl": 2_592_000}]})

    ttl: Ttl | None
