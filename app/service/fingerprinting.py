"""What comes in, a text or a fingerprint from elsewhere, becomes a digest, without holding up the event loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anyio import CapacityLimiter, to_thread

from app.core.fingerprint import require_bits
from app.core.scheme import Digest, Scheme, digest, given

# Characters. Shorter texts take under 2 ms, less than handing them to a thread is worth under load.
_INLINE = 50_000

# The words of a large text take many times its size in memory. More at once would not be faster either.
_LARGE_TEXTS_AT_ONCE = CapacityLimiter(2)


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Simhash:
    """A fingerprint of the caller's own."""

    simhash: int
    pointer: str  # the member of the request that gave it, for errors


@dataclass(frozen=True, slots=True)
class Known:
    """All that was kept of a text elsewhere, by the same scheme."""

    digest: Digest
    pointer: str


Content = Text | Simhash | Known


def digest_of(content: Content, scheme: Scheme, known: Digest | None = None) -> Digest:
    """InvalidFingerprintError where a given fingerprint has bits that the scheme hasn't.

    `known`: what the scheme has made of an earlier text, which may be the same.
    """
    if isinstance(content, Text):
        made = digest(content.text, scheme, known)
        # Punctuation alone makes words, if there is enough of it, but no content that two pages could share.
        return made if made.content_hash is not None else replace(made, simhash=None)
    its = given(content.simhash) if isinstance(content, Simhash) else content.digest
    if its.simhash is not None:
        require_bits(its.simhash, scheme.bits, pointer=content.pointer)
    return its


async def digest_contents(contents: Sequence[Content], scheme: Scheme) -> list[Digest]:
    """InvalidFingerprintError as above."""

    def digest_all() -> list[Digest]:
        return [digest_of(content, scheme) for content in contents]

    if sum(len(content.text) for content in contents if isinstance(content, Text)) <= _INLINE:
        return digest_all()
    return await to_thread.run_sync(digest_all, limiter=_LARGE_TEXTS_AT_ONCE)


async def digest_text(text: str, scheme: Scheme) -> Digest:
    """As the scheme says, punctuation or not."""
    if len(text) <= _INLINE:
        return digest(text, scheme)
    return await to_thread.run_sync(digest, text, scheme, limiter=_LARGE_TEXTS_AT_ONCE)
