"""What goes in and out over HTTP. Requests are strict: no unknown member, no number for a string or the reverse."""

import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypedDict, cast

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
from app.core.cost import Cost
from app.core.errors import InvalidFingerprintError
from app.core.fingerprint import parse_decimal, parse_hex, to_hex
from app.core.probes import NOT_PROBED
from app.core.scheme import ARTICLE, Digest, Scheme, Status
from app.service.near_duplicates import Content, Found, Key, Simhash, Text

MAX_LIMIT = 1000
DEFAULT_LIMIT = 20
DEFAULT_PAGE = 100
MAX_MEMBERS = 64  # of an object other than metadata
MAX_METADATA_DEPTH = 32
MAX_METADATA_BYTES = 65_536  # as compact JSON; it comes back with every match
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
CollectionName = Annotated[str, Field(pattern=NAME_PATTERN, examples=["shop"])]


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

    def content(self) -> Content:
        if self.text is not None:
            return Text(self.text)
        if self.fingerprint is not None:
            return Simhash(self.fingerprint, "/fingerprint")
        assert self.simhash is not None  # noqa: S101  the validator has seen exactly one
        return Simhash(self.simhash, "/simhash")


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


class LookupParameters(_Lookup, QueryParameters):
    threshold: QueryThreshold | None = None
    limit: QueryLimit = DEFAULT_LIMIT
    explain: bool = Field(default=False, description="Add how the lookup was done.")


class LookupRequest(_Lookup, Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": _PAGE_TEXT, "threshold": 3}]})

    threshold: Threshold | None = None
    limit: Limit = DEFAULT_LIMIT
    explain: bool = Field(default=False, description="Add how the lookup was done.")


class PageParameters(QueryParameters):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole_number)] = DEFAULT_PAGE
    cursor: FreeText | None = Field(default=None, description="`next_cursor` of the page before.")


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


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FingerprintAnswer(Answer):
    fingerprint: str | None = Field(description="16 hex digits; null: the text is too short.")
    simhash: str | None = Field(description="The same as a signed decimal.")
    words: int
    shingles: int
    status: Status

    @classmethod
    def of(cls, digest: Digest, scheme: Scheme) -> Self:
        assert digest.words is not None  # noqa: S101  it was made from a text
        return cls(
            **spelled(digest.simhash),
            words=digest.words,
            shingles=scheme.shingles(digest.words),
            status=digest.status,
        )


class Spelled(TypedDict):
    fingerprint: str | None
    simhash: str | None


def spelled(simhash: int | None) -> Spelled:
    """Both spellings of a fingerprint."""
    if simhash is None:
        return {"fingerprint": None, "simhash": None}
    return {"fingerprint": to_hex(simhash), "simhash": str(simhash)}


class DistanceAnswer(Answer):
    distance: int


class DocumentAnswer(Answer):
    collection: str
    key: str
    fingerprint: str | None
    simhash: str | None
    words: int | None = Field(description="null where the fingerprint was given.")
    status: Status
    content_hash: str | None = Field(
        description="BLAKE2b-128 of the normalised text, in hex; null where nothing is known of it."
    )
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, collection: str, document: model.Document) -> Self:
        return cls(
            collection=collection,
            key=document.key,
            **spelled(document.simhash),
            words=document.words,
            status=document.status,
            content_hash=None if document.content_hash is None else document.content_hash.hex(),
            metadata=document.metadata,
            created_at=document.created_at,
            updated_at=document.updated_at,
        )


class DocumentPage(Answer):
    items: list[DocumentAnswer]
    next_cursor: str | None


class MatchAnswer(Answer):
    key: str
    fingerprint: str | None
    distance: int = Field(description="Bits that differ.")
    match: Literal["exact", "near"] = Field(
        description="exact: the same content; near at distance 0: the same fingerprint."
    )
    similarity: float | None = Field(description="Not computed yet.")
    metadata: dict[str, Any]

    @classmethod
    def of(cls, match: model.Match) -> Self:
        return cls(
            key=match.key,
            fingerprint=None if match.simhash is None else to_hex(match.simhash),
            distance=match.distance,
            match="exact" if match.exact else "near",
            similarity=None,
            metadata=match.metadata,
        )


class IndexAnswer(Answer):
    document: DocumentAnswer
    result: model.Outcome
    threshold: int | None = Field(description="null where no lookup was asked for.")
    near_duplicates: list[MatchAnswer] | None = Field(description="null where no lookup was asked for.")
    truncated: bool


class ExpectedAnswer(Answer):
    """What the cost model thinks beforehand. The cheaper way is taken, probing always where it takes under 1 ms."""

    candidates: int = Field(description="Rows that the probes would read.")
    probing_us: int = Field(description="Microseconds by probing, on one core of the machine that it was fitted on.")
    scan_us: int = Field(description="Microseconds by reading all fingerprints of the collection.")

    @classmethod
    def of(cls, expected: Cost) -> Self:
        return cls(
            candidates=round(expected.candidates), probing_us=round(expected.probing), scan_us=round(expected.scan)
        )


class PlanAnswer(Answer):
    bands: int
    radii: list[int] = Field(description="For each band the bits that may differ in it; -1: not probed.")
    probes: int
    candidates: int = Field(description="Rows read.")
    scan: bool
    expected: ExpectedAnswer

    @classmethod
    def of(cls, explanation: model.Explanation) -> Self:
        return cls(
            bands=len(explanation.probes.radii),
            radii=[NOT_PROBED] * len(explanation.probes.radii) if explanation.scan else list(explanation.probes.radii),
            probes=0 if explanation.scan else explanation.probes.probes,
            candidates=explanation.candidates,
            scan=explanation.scan,
            expected=ExpectedAnswer.of(explanation.expected),
        )


class LookupAnswer(Answer):
    fingerprint: str | None
    simhash: str | None
    status: Status
    words: int | None
    threshold: int
    matches: list[MatchAnswer] = Field(description="By distance, then by fingerprint, then by key.")
    truncated: bool = Field(description="Whether more documents match than the limit allows.")
    took_ms: float
    plan: PlanAnswer | None = Field(
        default=None, description="Only with explain; null where the text is too short to be looked up."
    )

    @classmethod
    def of(cls, found: Found, *, explain: bool) -> Self:
        answer = cls(
            **spelled(found.digest.simhash),
            status=found.digest.status,
            words=found.digest.words,
            threshold=found.matches.threshold,
            matches=[MatchAnswer.of(match) for match in found.matches.items],
            truncated=found.matches.truncated,
            took_ms=round(found.seconds * 1000, 3),
        )
        if explain:  # a member that isn't set isn't sent
            answer.plan = None if found.explanation is None else PlanAnswer.of(found.explanation)
        return answer


class CollectionAnswer(Answer):
    name: str
    scheme: SchemeParts
    store_text: bool
    created_at: datetime

    @classmethod
    def members(cls, collection: model.Collection) -> dict[str, Any]:
        scheme = collection.scheme
        return {
            "name": collection.name,
            "scheme": SchemeParts.model_validate(
                {
                    "tokenizer": scheme.tokenizer,
                    "shingle_size": scheme.shingle_size,
                    "bits": scheme.bits,
                    "min_words": scheme.min_words,
                }
            ),
            "store_text": collection.store_text,
            "created_at": collection.created_at,
        }


class CollectionPage(Answer):
    items: list[CollectionAnswer]
    next_cursor: str | None


class CollectionCountsAnswer(Answer):
    documents: int
    fingerprints: int = Field(description="Distinct ones.")
    too_short: int = Field(description="Documents without a fingerprint.")
    exact_duplicates: int = Field(description="Documents that share their content with another one.")


class CollectionDetail(CollectionAnswer):
    counts: CollectionCountsAnswer
