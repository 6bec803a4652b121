"""The one tree of errors. A code is stable and part of the HTTP interface; app.api.problems gives each its status."""

from typing import ClassVar


class TiroirError(Exception):
    """What went wrong, in a sentence that a user can act on."""

    code: ClassVar[str] = "internal_error"


class InvalidInputError(TiroirError):
    """The request says something that can't be done; nothing was changed."""

    code = "invalid_input"

    def __init__(self, detail: str, *, pointer: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


class InvalidFingerprintError(InvalidInputError):
    """A fingerprint of the wrong form, or with bits that its scheme doesn't have."""

    code = "invalid_fingerprint"


class NotSupportedError(InvalidInputError):
    """The interface describes it, this version doesn't do it."""

    code = "not_supported"


class InvalidJsonError(InvalidInputError):
    """What should be JSON is none."""

    code = "invalid_json"


class LineTooLongError(InvalidInputError):
    """A line of an import has more bytes than a document may have."""

    code = "line_too_long"


class InvalidEncodingError(InvalidInputError):
    """The compressed data of an import is damaged, or ends too early."""

    code = "invalid_encoding"


class SchemesDifferError(InvalidInputError):
    """Collections of different schemes: their fingerprints are never compared."""

    code = "schemes_differ"


class NotFoundError(TiroirError):
    """The thing named in the request doesn't exist."""

    code = "not_found"

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        """`pointer`: the member of the request that names it, where it is one of several."""
        super().__init__(detail)
        self.pointer = pointer


class CollectionNotFoundError(NotFoundError):
    """No collection has this name."""

    code = "collection_not_found"


class DocumentNotFoundError(NotFoundError):
    """The collection holds no document with this key."""

    code = "document_not_found"


class OperationNotFoundError(NotFoundError):
    """No operation of this kind has this number."""

    code = "operation_not_found"


class CollectionExistsError(TiroirError):
    """A collection of this name exists, with other settings."""

    code = "collection_exists"


class RebuildRunningError(TiroirError):
    """There is one rebuild at a time, and it isn't finished."""

    code = "rebuild_running"

    def __init__(self, detail: str, *, operation_id: int) -> None:
        super().__init__(detail)
        self.operation_id = operation_id


class AnalysisNotFoundError(NotFoundError):
    """The collection has no such analysis, or none at all."""

    code = "analysis_not_found"


class AnalysisUnfinishedError(TiroirError):
    """The analysis has no results yet, or has failed."""

    code = "analysis_unfinished"


class AnalysisTooLargeError(InvalidInputError):
    """It would take more memory than is allowed."""

    code = "analysis_too_large"


class NotCancelableError(TiroirError):
    """The operation is finished, or past the point of no return."""

    code = "not_cancelable"


class IdempotencyKeyReusedError(InvalidInputError):
    """The same Idempotency-Key came with another request before."""

    code = "idempotency_key_reused"


class UnavailableError(TiroirError):
    """The database can't be reached, or can't take the request now: try again later."""

    code = "database_unavailable"


class OverloadedError(UnavailableError):
    """No database connection came free in time: try again later."""

    code = "overloaded"


class QueryTimeoutError(UnavailableError):
    """The database took longer than it is allowed to, or waited too long for a lock."""

    code = "query_timeout"


class StartupError(TiroirError):
    """The service can't start; the message is one line that says what to do."""

    code = "startup_failed"
