"""What the service speaks of: the rows of the database, and the answers made of them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.core.cost import Cost
from app.core.layout import Layout
from app.core.probes import ProbePlan
from app.core.scheme import Digest, Scheme, Status, status

MAX_KEY_BYTES = 2048
MAX_THRESHOLD = 63

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Metadata = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Collection:
    """What a lookup searches. An id is never used again, and its scheme never changes; its ttl may."""

    id: int
    name: str
    scheme: Scheme
    store_text: bool
    ttl: int | None  # seconds, after which a document that wasn't seen again goes; None: it stays
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Expiring:
    """A collection whose documents go that weren't seen since a moment, as long as its ttl stays what it is."""

    id: int
    ttl: int
    seen_before: datetime


@dataclass(frozen=True, slots=True)
class CollectionCounts:
    documents: int
    fingerprints: int  # distinct
    too_short: int  # documents without a fingerprint
    exact_duplicates: int  # documents that share their content hash with another one


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """A layout that has a table: every write goes to it, lookups go to the active one."""

    id: int
    layout: Layout
    threshold: int  # the default of lookups that name none, while the layout is active
    table: str
    state: str  # building, active or retired


@dataclass(frozen=True, slots=True)
class Document:
    key: str
    simhash: int | None
    content_hash: bytes | None
    words: int | None
    metadata: Metadata
    created_at: datetime
    updated_at: datetime

    @property
    def status(self) -> Status:
        return status(self.simhash, self.words)


@dataclass(frozen=True, slots=True)
class Exported:
    """All that another collection needs to hold the same document."""

    key: str
    digest: Digest
    metadata: Metadata
    text: str | None  # None: there is none, or nobody asked


class OperationKind(StrEnum):
    REBUILD = "rebuild"
    AUDIT = "audit"
    ANALYSIS = "analysis"


class OperationStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Operation:
    """Work that outlives a request, as its row tells it."""

    id: int
    kind: OperationKind
    collection_id: int | None  # None: it concerns no single one
    parameters: dict[str, Json]
    status: OperationStatus
    phase: str | None  # None: it hasn't begun
    done: int  # of `total`, in the phase
    total: int | None  # None: not known
    checkpoint: dict[str, Json]  # what the next run needs to go on from here
    result: dict[str, Json] | None
    error: str | None
    runs: int  # how many times it was begun: once, and once after each interruption
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Outcome(StrEnum):
    """What a write did."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Match:
    """A document within the threshold. `exact`: its content hash equals the one that was looked up."""

    key: str
    simhash: int | None
    distance: int
    exact: bool
    metadata: Metadata
    collection: str | None = None  # None: the one that was searched


@dataclass(frozen=True, slots=True)
class Matches:
    """The nearest first (then by fingerprint, then by key); `truncated`: there are more than were asked for."""

    threshold: int
    items: list[Match]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a lookup was done; `candidates` are the rows that its probes, or the scan, read."""

    probes: ProbePlan
    scan: bool
    candidates: int
    expected: Cost


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a lookup."""

    digest: Digest
    matches: Matches
    explanation: Explanation | None  # None: nobody asked, or there was no fingerprint to look up
    seconds: float


class Clustering(StrEnum):
    """What a cluster is: all that chains of near-duplicates connect, or what is near one document."""

    COMPONENTS = "components"
    STAR = "star"


class Preference(StrEnum):
    """Which document stands for others that resemble it; where two are alike in that, the first key does."""

    OLDEST = "oldest"
    LONGEST = "longest"
    SHORTEST_KEY = "shortest_key"
    FIRST_KEY = "first_key"


class Change(StrEnum):
    """What became of a document between two crawls."""

    NEW = "new"  # the key wasn't there
    GONE = "gone"  # the key isn't there any more
    MOVED = "moved"  # one key has gone, another has come with its content, or what is near it
    CHANGED = "changed"  # under the same key farther than the threshold
    NEARLY_UNCHANGED = "nearly_unchanged"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Member:
    """A document of a cluster. `number`: that of its fingerprint in the analysis."""

    number: int
    cluster: int
    representative: str  # a key
    simhash: int
    distance: int  # to the representative
    nearest: int  # the distance to the nearest other document
    key: str
    exact: bool  # another document has the same content


@dataclass(frozen=True, slots=True)
class WithoutFingerprint:
    """A document that is in no cluster, and has the same content as another one; the first key stands for these."""

    key: str
    representative: str


Flagged = Member | WithoutFingerprint


@dataclass(frozen=True, slots=True)
class Cluster:
    """Documents that resemble one another, when the analysis was made; `members` are some of those, as they are now."""

    number: int
    fingerprints: int
    documents: int
    diameter: int
    diameter_is_exact: bool  # False: no two are farther apart
    representative: str
    members: list[tuple[str, int, int]]  # key, simhash, distance to the representative


@dataclass(frozen=True, slots=True)
class SharedFingerprint:
    """A fingerprint and those who have it; `keys` are some of those, as they are now."""

    simhash: int
    documents: int
    keys: list[str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two fingerprints within the threshold; `second` None: documents that share one. `number`: from 0."""

    number: int
    distance: int
    first: SharedFingerprint
    second: SharedFingerprint | None


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    change: Change
    distance: int | None
    counterpart: str | None  # the key in the other collection


@dataclass(frozen=True, slots=True)
class ExactGroup:
    """Documents of the same content; `keys` are the first of theirs."""

    content_hash: bytes
    documents: int
    keys: list[str]
