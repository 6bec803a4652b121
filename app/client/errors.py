"""What can go wrong between a client and the service."""

from app.core.errors import TiroirError


class ServiceError(TiroirError):
    """The service can't be reached, or has refused."""

    def __init__(self, detail: str, *, status: int | None = None, code: str | None = None) -> None:
        """`status` of HTTP and `code` of the problem (docs/errors.md), where there was one."""
        super().__init__(detail)
        self.status = status
        self.problem = code


class UnavailableServiceError(ServiceError):
    """The service doesn't answer, or answers that it can't now: try again later. Writes can be repeated, too."""
