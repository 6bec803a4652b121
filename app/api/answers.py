"""What goes out over HTTP, and comes in at the client. Nothing here knows how it is found."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from app.core import model
from app.core.cost import Cost
from app.core.fingerprint import to_hex
from app.core.probes import NOT_PROBED
from app.core.scheme import Digest, Scheme, Status


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
    collection: str | None = Field(default=None, description="Only where several were searched.")
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
        members = {} if match.collection is None else {"collection": match.collection}  # what isn't set isn't sent
        return cls(
            **members,
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
    def of(cls, found: model.Found, *, explain: bool = False) -> Self:
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


class LookupBatchAnswer(Answer):
    results: list[LookupAnswer] = Field(description="In the order of the queries; `took_ms` is that of all.")


class WrittenAnswer(Answer):
    key: str
    result: model.Outcome
    fingerprint: str | None
    status: Status


class DocumentBatchAnswer(Answer):
    results: list[WrittenAnswer] = Field(description="In the order of the documents.")

    @classmethod
    def of(cls, written: Iterable[tuple[str, model.Outcome, Digest]]) -> Self:
        return cls(
            results=[
                WrittenAnswer(
                    key=key, result=outcome, fingerprint=spelled(digest.simhash)["fingerprint"], status=digest.status
                )
                for key, outcome, digest in written
            ]
        )


class DeletedAnswer(Answer):
    deleted: int = Field(description="How many of the documents there were.")


class LineErrorAnswer(Answer):
    line: int = Field(description="From 1; blank lines count.")
    code: str
    detail: str


class ImportAnswer(Answer):
    """What became of the lines: each is created, replaced, unchanged or failed."""

    lines: int = Field(description="Those that aren't blank.")
    created: int
    replaced: int
    unchanged: int
    short: int = Field(description="Of those that were stored.")
    too_short: int = Field(description="Of those that were stored.")
    failed: int
    errors: list[LineErrorAnswer] = Field(description="The first 1,000.")
    complete: bool = Field(
        description="false: the rest was not read, since an error was to end it or the encoding is damaged."
    )


class SchemeAnswer(Answer):
    tokenizer: str
    shingle_size: int
    bits: int
    min_words: int

    @classmethod
    def of(cls, scheme: Scheme) -> Self:
        return cls(
            tokenizer=scheme.tokenizer,
            shingle_size=scheme.shingle_size,
            bits=scheme.bits,
            min_words=scheme.min_words,
        )


class CollectionAnswer(Answer):
    name: str
    scheme: SchemeAnswer
    store_text: bool
    ttl: int | None = Field(description="Seconds; null: documents stay.")
    created_at: datetime

    @classmethod
    def members(cls, collection: model.Collection) -> dict[str, Any]:
        return {
            "name": collection.name,
            "scheme": SchemeAnswer.of(collection.scheme),
            "store_text": collection.store_text,
            "ttl": collection.ttl,
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
