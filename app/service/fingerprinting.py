"""Fingerprints texts without holding up the event loop."""

from anyio import CapacityLimiter, to_thread

from app.core.scheme import Digest, Scheme, digest

# Characters. Shorter texts take under 2 ms, less than handing them to a thread is worth under load.
_INLINE = 50_000

# The words of a large text take many times its size in memory. More at once would not be faster either.
_LARGE_TEXTS_AT_ONCE = CapacityLimiter(2)


async def digest_text(text: str, scheme: Scheme) -> Digest:
    if len(text) <= _INLINE:
        return digest(text, scheme)
    return await to_thread.run_sync(digest, text, scheme, limiter=_LARGE_TEXTS_AT_ONCE)
