"""What the service can be asked: each call is a request, and how its answer is read. Nothing here does I/O."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from app.api.admin_answers import LayoutAnswer, OperationAnswer
from app.api.analysis_answers import (
    AnalysisAnswer,
    AnalysisPage,
    ClusterMemberPage,
    ClusterPage,
    DifferencePage,
    ExactGroupPage,
    FlaggedPage,
    KeyPage,
    PairPage,
)
from app.api.answers import (
    CollectionAnswer,
    CollectionDetail,
    CollectionPage,
    DeletedAnswer,
    DistanceAnswer,
    DocumentAnswer,
    DocumentBatchAnswer,
    DocumentPage,
    FingerprintAnswer,
    ImportAnswer,
    IndexAnswer,
    LookupAnswer,
    LookupBatchAnswer,
    WrittenAnswer,
)

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

# What is no text in a name or a key goes along: the service refuses it, and says why.
_AS_IT_IS = "surrogatepass"

LINES = "application/x-ndjson"

OnError = Literal["continue", "abort"]  # whether the first line that can't be stored ends an import

Clusters = Literal["components", "star"]  # all that chains of near-duplicates connect, or what is near one document
Representative = Literal["oldest", "longest", "shortest_key", "first_key"]
Change = Literal["new", "gone", "moved", "changed", "nearly_unchanged", "unchanged"]
Result = Literal["clusters", "pairs", "documents", "differences"]  # of an analysis
Format = Literal["ndjson", "csv"]

_MEDIA_TYPES: dict[Format, str] = {"ndjson": LINES, "csv": "text/csv"}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request. `read` makes its result of the body of the answer; ValueError where that is something else."""

    method: str
    path: str
    read: Callable[[bytes], T]
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None  # JSON
    accept: str | None = None  # the media type of an answer that is a stream

    @property
    def target(self) -> str:
        """The path with its query."""
        query = urlencode(self.parameters, errors=_AS_IT_IS)
        return f"{self.path}?{query}" if query else self.path


class Contents(TypedDict, total=False):
    """One of text, fingerprint (16 hex digits) and simhash (a decimal), and for a document, if need be, metadata."""

    text: str
    fingerprint: str
    simhash: str
    metadata: dict[str, Any]


class NewDocument(Contents):
    key: str


class Query(TypedDict, total=False):
    """One of text, fingerprint (16 hex digits), simhash (a decimal) and key (of a stored document)."""

    text: str
    fingerprint: str
    simhash: str
    key: str


def index(
    collection: str,
    key: str,
    *,
    text: str | None = None,
    fingerprint: str | None = None,
    simhash: str | None = None,
    metadata: dict[str, Any] | None = None,
    near_duplicates: bool = True,
    threshold: int | None = None,
    limit: int | None = None,
) -> Call[IndexAnswer]:
    """Index a document, and see what it resembles."""
    return Call(
        "PUT",
        f"{_path(collection)}/document",
        _reader(IndexAnswer),
        {"key": key, **_parameters(near_duplicates=near_duplicates, threshold=threshold, limit=limit)},
        _json(text=text, fingerprint=fingerprint, simhash=simhash, metadata=metadata),
    )


def index_many(collection: str, documents: Sequence[NewDocument]) -> Call[list[WrittenAnswer]]:
    """Index up to 1,000 documents, all or none of them."""
    return Call(
        "POST",
        f"{_path(collection)}/documents/batch",
        lambda body: _reader(DocumentBatchAnswer)(body).results,
        body=_json(documents=documents),
    )


def near(
    collection: str,
    *,
    text: str | None = None,
    fingerprint: str | None = None,
    simhash: str | None = None,
    key: str | None = None,
    threshold: int | None = None,
    limit: int | None = None,
    explain: bool = False,
) -> Call[LookupAnswer]:
    """The near-duplicates of one of text, fingerprint, simhash and stored document; the nearest first."""
    return Call(
        "POST",
        f"{_path(collection)}/near-duplicates",
        _reader(LookupAnswer),
        body=_json(
            text=text,
            fingerprint=fingerprint,
            simhash=simhash,
            key=key,
            threshold=threshold,
            limit=limit,
            explain=explain,
        ),
    )


def near_many(
    collection: str, queries: Sequence[Query], *, threshold: int | None = None, limit: int | None = None
) -> Call[list[LookupAnswer]]:
    """The near-duplicates of up to 1,000 queries, in their order."""
    return Call(
        "POST",
        f"{_path(collection)}/near-duplicates/batch",
        lambda body: _reader(LookupBatchAnswer)(body).results,
        body=_json(queries=queries, threshold=threshold, limit=limit),
    )


def near_across(
    collections: Sequence[str],
    *,
    text: str | None = None,
    fingerprint: str | None = None,
    simhash: str | None = None,
    key: str | None = None,
    threshold: int | None = None,
    limit: int | None = None,
) -> Call[LookupAnswer]:
    """`near` over several collections of one scheme; each match names its collection."""
    return Call(
        "POST",
        "/v1/near-duplicates",
        _reader(LookupAnswer),
        body=_json(
            collections=collections,
            text=text,
            fingerprint=fingerprint,
            simhash=simhash,
            key=key,
            threshold=threshold,
            limit=limit,
        ),
    )


def near_many_across(
    collections: Sequence[str], queries: Sequence[Query], *, threshold: int | None = None, limit: int | None = None
) -> Call[list[LookupAnswer]]:
    """`near_many` over several collections of one scheme; each match names its collection."""
    return Call(
        "POST",
        "/v1/near-duplicates/batch",
        lambda body: _reader(LookupBatchAnswer)(body).results,
        body=_json(collections=collections, queries=queries, threshold=threshold, limit=limit),
    )


def document(collection: str, key: str) -> Call[DocumentAnswer]:
    """Read a document."""
    return Call("GET", f"{_path(collection)}/document", _reader(DocumentAnswer), {"key": key})


def documents(
    collection: str, *, limit: int | None = None, cursor: str | None = None, near_duplicated: bool | None = None
) -> Call[DocumentPage]:
    """A page of documents in the order of their keys; `cursor` is the `next_cursor` of the page before.

    `near_duplicated`: those alone that the latest analysis has found near-duplicates of, or has not. Then a page may
    hold fewer than `limit`, or none, though more come behind it.
    """
    return Call(
        "GET",
        f"{_path(collection)}/documents",
        _reader(DocumentPage),
        _parameters(limit=limit, cursor=cursor, near_duplicated=near_duplicated),
    )


def delete(collection: str, key: str) -> Call[None]:
    """Delete a document."""
    return Call("DELETE", f"{_path(collection)}/document", _nothing, {"key": key})


def delete_many(collection: str, keys: Sequence[str]) -> Call[int]:
    """Delete up to 1,000 documents; how many there were."""
    return Call(
        "POST",
        f"{_path(collection)}/documents/delete",
        lambda body: _reader(DeletedAnswer)(body).deleted,
        body=_json(keys=keys),
    )


def fingerprint(text: str) -> Call[FingerprintAnswer]:
    """The fingerprint of a text; nothing is stored."""
    return Call("POST", "/v1/fingerprints", _reader(FingerprintAnswer), body=_json(text=text))


def distance(a: str, b: str) -> Call[int]:
    """How many bits of two fingerprints, in hex, differ."""
    return Call("GET", "/v1/distance", lambda body: _reader(DistanceAnswer)(body).distance, {"a": a, "b": b})


def create_collection(
    name: str, *, scheme: Mapping[str, int] | None = None, store_text: bool = True, ttl: int | None = None
) -> Call[CollectionAnswer]:
    """Create a collection; `scheme`: shingle_size, bits and min_words that differ from the article's."""
    return Call(
        "POST",
        "/v1/collections",
        _reader(CollectionAnswer),
        body=_json(name=name, scheme=scheme, store_text=store_text, ttl=ttl),
    )


def collection(name: str) -> Call[CollectionDetail]:
    """Its settings and what it holds."""
    return Call("GET", _path(name), _reader(CollectionDetail))


def collections(*, limit: int | None = None, cursor: str | None = None) -> Call[CollectionPage]:
    """A page of collections in the order of their names."""
    return Call("GET", "/v1/collections", _reader(CollectionPage), _parameters(limit=limit, cursor=cursor))


def set_ttl(name: str, ttl: int | None) -> Call[CollectionAnswer]:
    """Let documents go that weren't indexed again for so many seconds; None: they stay."""
    return Call("PATCH", _path(name), _reader(CollectionAnswer), body=json.dumps({"ttl": ttl}).encode())


def delete_collection(name: str) -> Call[None]:
    """Delete a collection with all that it holds."""
    return Call("DELETE", _path(name), _nothing)


def import_lines(collection: str, *, on_error: OnError = "continue") -> Call[ImportAnswer]:
    """Takes its body from elsewhere."""
    return Call("POST", f"{_path(collection)}/import", _reader(ImportAnswer), {"on_error": on_error})


def export_lines(collection: str, *, text: bool = False) -> Call[bytes]:
    """Its answer is read line by line."""
    return Call("GET", f"{_path(collection)}/export", bytes, _parameters(text=text), accept=LINES)


def begin_analysis(
    collection: str,
    *,
    threshold: int | None = None,
    clusters: Clusters | None = None,
    representative: Representative | None = None,
    against: str | None = None,
) -> Call[AnalysisAnswer]:
    """Find all near-duplicates of a collection and their clusters, or compare it with an earlier one.

    `threshold` None: the default of lookups. `against`, the earlier collection, goes without clusters and
    representative.
    """
    return Call(
        "POST",
        f"{_path(collection)}/analyses",
        _reader(AnalysisAnswer),
        body=_json(threshold=threshold, clusters=clusters, representative=representative, against=against),
    )


def analysis(collection: str, analysis_id: int) -> Call[AnalysisAnswer]:
    """How far an analysis is, or what it has counted."""
    return Call("GET", _analysis(collection, analysis_id), _reader(AnalysisAnswer))


def analyses(collection: str, *, limit: int | None = None, cursor: str | None = None) -> Call[AnalysisPage]:
    """A page of the analyses of a collection, the youngest first."""
    return Call("GET", f"{_path(collection)}/analyses", _reader(AnalysisPage), _parameters(limit=limit, cursor=cursor))


def cancel_analysis(collection: str, analysis_id: int) -> Call[AnalysisAnswer]:
    """Cancel an analysis: it ends within seconds, and leaves nothing behind."""
    return Call("POST", f"{_analysis(collection, analysis_id)}/cancel", _reader(AnalysisAnswer))


def delete_analysis(collection: str, analysis_id: int) -> Call[None]:
    """Delete an analysis that is finished, with its results."""
    return Call("DELETE", _analysis(collection, analysis_id), _nothing)


def clusters(
    collection: str, analysis_id: int, *, limit: int | None = None, cursor: str | None = None
) -> Call[ClusterPage]:
    """A page of clusters, the largest first, each with its first documents."""
    return Call(
        "GET",
        f"{_analysis(collection, analysis_id)}/clusters",
        _reader(ClusterPage),
        _parameters(limit=limit, cursor=cursor),
    )


def cluster(
    collection: str, analysis_id: int, cluster: int, *, limit: int | None = None, cursor: str | None = None
) -> Call[ClusterMemberPage]:
    """A page of the documents of a cluster, the nearest to its representative first."""
    return Call(
        "GET",
        f"{_analysis(collection, analysis_id)}/clusters/{cluster}",
        _reader(ClusterMemberPage),
        _parameters(limit=limit, cursor=cursor),
    )


def pairs(collection: str, analysis_id: int, *, limit: int | None = None, cursor: str | None = None) -> Call[PairPage]:
    """A page of the pairs of fingerprints within the threshold, cluster by cluster."""
    return Call(
        "GET",
        f"{_analysis(collection, analysis_id)}/pairs",
        _reader(PairPage),
        _parameters(limit=limit, cursor=cursor),
    )


def flagged(
    collection: str, analysis_id: int, *, limit: int | None = None, cursor: str | None = None
) -> Call[FlaggedPage]:
    """A page of the documents that have a duplicate, near or exact, cluster by cluster."""
    return Call(
        "GET",
        f"{_analysis(collection, analysis_id)}/documents",
        _reader(FlaggedPage),
        _parameters(limit=limit, cursor=cursor),
    )


def differences(
    collection: str,
    analysis_id: int,
    *,
    status: Change | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[DifferencePage]:
    """A page of what became of documents, in the order of their keys.

    `status` None: all but what is unchanged.
    """
    return Call(
        "GET",
        f"{_analysis(collection, analysis_id)}/differences",
        _reader(DifferencePage),
        _parameters(status=status, limit=limit, cursor=cursor),
    )


def result_stream(
    collection: str, analysis_id: int, result: Result, *, form: Format = "ndjson", status: Change | None = None
) -> Call[bytes]:
    """Its answer is read part by part."""
    path = f"{_analysis(collection, analysis_id)}/{result}"
    return Call("GET", path, bytes, _parameters(status=status), accept=_MEDIA_TYPES[form])


def exact_duplicates(collection: str, *, limit: int | None = None, cursor: str | None = None) -> Call[ExactGroupPage]:
    """A page of groups of documents of the same content, as they are now, the largest first."""
    return Call(
        "GET",
        f"{_path(collection)}/exact-duplicates",
        _reader(ExactGroupPage),
        _parameters(limit=limit, cursor=cursor),
    )


def keys_of_content(
    collection: str, content_hash: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[KeyPage]:
    """A page of the keys of all documents of one content; `content_hash` is that of `exact_duplicates`."""
    return Call(
        "GET",
        f"{_path(collection)}/exact-duplicates/{_quoted(content_hash)}",
        _reader(KeyPage),
        _parameters(limit=limit, cursor=cursor),
    )


def begin_rebuild(threshold: int, *, bands: int | None = None, force: bool = False) -> Call[OperationAnswer]:
    """Rebuild the bands for another default threshold, while lookups and writes go on."""
    return Call(
        "POST",
        "/v1/admin/rebuilds",
        _reader(OperationAnswer),
        body=_json(threshold=threshold, bands=bands, force=force),
    )


def rebuild(operation_id: int) -> Call[OperationAnswer]:
    """How far a rebuild is, or how it ended."""
    return Call("GET", f"/v1/admin/rebuilds/{operation_id}", _reader(OperationAnswer))


def begin_audit(*, sample: int | None = None, threshold: int | None = None) -> Call[OperationAnswer]:
    """Compare lookups near stored fingerprints with a full scan."""
    return Call("POST", "/v1/admin/audits", _reader(OperationAnswer), body=_json(sample=sample, threshold=threshold))


def audit(operation_id: int) -> Call[OperationAnswer]:
    """How far an audit is, or what it found."""
    return Call("GET", f"/v1/admin/audits/{operation_id}", _reader(OperationAnswer))


def layout() -> Call[LayoutAnswer]:
    """The bands in use, their fullest buckets, and what lookups are expected to cost."""
    return Call("GET", "/v1/admin/layout", _reader(LayoutAnswer))


def _path(collection: str) -> str:
    return f"/v1/collections/{_quoted(collection)}"


def _analysis(collection: str, analysis_id: int) -> str:
    return f"{_path(collection)}/analyses/{analysis_id}"


def _quoted(name: str) -> str:
    return quote(name, safe="", errors=_AS_IT_IS)


def _reader(model: type[Model]) -> Callable[[bytes], Model]:
    """A newer service may say more."""
    return lambda body: model.model_validate_json(body, extra="ignore")


def _nothing(_: bytes) -> None:
    return None


def _parameters(**given: str | float | bool | None) -> dict[str, str]:
    """What is None is left out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }


def _json(**members: object) -> bytes:
    """In ASCII, so that whatever a string holds arrives at the service. What is None is left out."""
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()
