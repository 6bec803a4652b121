"""What analyses answer, and comes in at the client."""

from typing import Any, ClassVar, Self

from pydantic import Field

from app.api.admin_answers import OperationAnswer
from app.api.answers import Answer
from app.core import model
from app.core.fingerprint import to_hex


class AnalysisAnswer(OperationAnswer):
    memory_bytes: int | None = Field(description="What it takes, stated before it takes it; null: not known yet.")

    @staticmethod
    def members(operation: model.Operation) -> dict[str, Any]:
        parameters = {name: value for name, value in operation.parameters.items() if name != "against_id"}
        return OperationAnswer.members(operation) | {
            "parameters": parameters,
            "memory_bytes": operation.checkpoint.get("memory_bytes"),
        }


class AnalysisPage(Answer):
    items: list[AnalysisAnswer]
    next_cursor: str | None


class Row(Answer):
    """What is a line of a stream, too. In CSV its columns are the members, if nothing else is said."""

    COLUMNS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        return cls.COLUMNS or tuple(cls.model_fields)

    def cells(self) -> list[Any]:
        return list(self.model_dump().values())


class MemberAnswer(Answer):
    key: str
    fingerprint: str
    distance: int = Field(description="To the representative.")


class ClusterAnswer(Answer):
    cluster: int = Field(description="Its number, from 1: the largest.")
    representative: str = Field(description="The key of the document that stands for all.")
    documents: int
    fingerprints: int = Field(description="Distinct ones.")
    diameter: int = Field(description="No two of its documents are farther apart.")
    diameter_is_exact: bool = Field(description="Whether two are that far apart.")
    members: list[MemberAnswer] = Field(
        description="The first documents, the nearest to the representative in front, that one included."
    )

    @classmethod
    def of(cls, cluster: model.Cluster) -> Self:
        return cls(
            cluster=cluster.number,
            representative=cluster.representative,
            documents=cluster.documents,
            fingerprints=cluster.fingerprints,
            diameter=cluster.diameter,
            diameter_is_exact=cluster.diameter_is_exact,
            members=[
                MemberAnswer(key=key, fingerprint=to_hex(simhash), distance=distance)
                for key, simhash, distance in cluster.members
            ],
        )


class ClusterPage(Answer):
    items: list[ClusterAnswer]
    next_cursor: str | None


class ClusterMemberAnswer(Row):
    cluster: int
    representative: str
    key: str
    fingerprint: str
    distance: int = Field(description="To the representative.")

    @classmethod
    def of(cls, member: model.Member) -> Self:
        return cls(
            cluster=member.cluster,
            representative=member.representative,
            key=member.key,
            fingerprint=to_hex(member.simhash),
            distance=member.distance,
        )


class ClusterMemberPage(Answer):
    items: list[ClusterMemberAnswer]
    next_cursor: str | None


class SharedFingerprintAnswer(Answer):
    fingerprint: str
    documents: int = Field(description="That have this fingerprint.")
    keys: list[str] = Field(description="The first of theirs.")

    @classmethod
    def of(cls, shared: model.SharedFingerprint) -> Self:
        return cls(fingerprint=to_hex(shared.simhash), documents=shared.documents, keys=shared.keys)


class PairAnswer(Row):
    COLUMNS: ClassVar[tuple[str, ...]] = (
        "distance",
        "fingerprint_a",
        "documents_a",
        "key_a",
        "fingerprint_b",
        "documents_b",
        "key_b",
    )

    distance: int
    a: SharedFingerprintAnswer
    b: SharedFingerprintAnswer | None = Field(description="null: the documents of a share their fingerprint.")

    @classmethod
    def of(cls, pair: model.Pair) -> Self:
        return cls(
            distance=pair.distance,
            a=SharedFingerprintAnswer.of(pair.first),
            b=None if pair.second is None else SharedFingerprintAnswer.of(pair.second),
        )

    def cells(self) -> list[Any]:
        """One key of each; of documents that share a fingerprint the first two."""
        a, b = self.a, self.b or self.a
        key_a = a.keys[:1]
        key_b = b.keys[:1] if self.b is not None else b.keys[1:2]
        return [
            self.distance,
            *(a.fingerprint, a.documents, "".join(key_a)),
            *(b.fingerprint, b.documents, "".join(key_b)),
        ]


class PairPage(Answer):
    items: list[PairAnswer]
    next_cursor: str | None


class FlaggedAnswer(Row):
    key: str
    fingerprint: str | None = Field(description="null: the text is too short.")
    near_duplicated: bool = Field(description="Another document is within the threshold.")
    exact_duplicated: bool = Field(description="Another document has the same content.")
    cluster: int | None = Field(description="null: it is in none, having no fingerprint.")
    representative: str = Field(description="The document that stands for it: of its cluster, or of its content.")
    nearest_distance: int | None

    @classmethod
    def of(cls, flagged: model.Flagged) -> Self:
        if isinstance(flagged, model.WithoutFingerprint):
            return cls(
                key=flagged.key,
                fingerprint=None,
                near_duplicated=False,
                exact_duplicated=True,
                cluster=None,
                representative=flagged.representative,
                nearest_distance=None,
            )
        return cls(
            key=flagged.key,
            fingerprint=to_hex(flagged.simhash),
            near_duplicated=True,
            exact_duplicated=flagged.exact,
            cluster=flagged.cluster,
            representative=flagged.representative,
            nearest_distance=flagged.nearest,
        )


class FlaggedPage(Answer):
    items: list[FlaggedAnswer]
    next_cursor: str | None


class DifferenceAnswer(Row):
    key: str
    status: model.Change
    distance: int | None = Field(description="To the counterpart; null where there is none, or no fingerprint.")
    counterpart: str | None = Field(
        description="The key of the other collection's document that it is, or was, or else resembles."
    )

    @classmethod
    def of(cls, difference: model.Difference) -> Self:
        return cls(
            key=difference.key,
            status=difference.change,
            distance=difference.distance,
            counterpart=difference.counterpart,
        )


class DifferencePage(Answer):
    items: list[DifferenceAnswer]
    next_cursor: str | None


class ExactGroupAnswer(Answer):
    content_hash: str
    documents: int
    keys: list[str] = Field(description="The first of theirs.")

    @classmethod
    def of(cls, group: model.ExactGroup) -> Self:
        return cls(content_hash=group.content_hash.hex(), documents=group.documents, keys=group.keys)


class ExactGroupPage(Answer):
    items: list[ExactGroupAnswer]
    next_cursor: str | None


class KeyPage(Answer):
    items: list[str]
    next_cursor: str | None
