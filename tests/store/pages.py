"""A collection, as the tests write and ask it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from app.core.model import Found, Matches, Metadata, Outcome
from app.runtime import Services
from app.service.documents import Indexed, NewDocument
from app.service.fingerprinting import Content, Simhash, Text
from app.service.near_duplicates import Key, Options
from tests.store.brute_force import Answer, answers

_numbers = count()

Query = int | str | Key
"""A fingerprint, a text, or the key of a stored document."""


def _content(content: int | str) -> Content:
    return Text(content) if isinstance(content, str) else Simhash(content, "/simhash")


@dataclass(frozen=True)
class Pages:
    services: Services
    name: str = field(default_factory=lambda: f"pages-{next(_numbers)}")

    async def index(self, key: str, content: int | str, threshold: int = 3, limit: int = 20) -> Indexed:
        new = NewDocument(key, _content(content), None)
        return await self.services.documents.index(self.name, new, Options(threshold, limit))

    async def put(self, key: str, content: int | str, metadata: Metadata | None = None) -> Outcome:
        new = NewDocument(key, _content(content), metadata)
        return (await self.services.documents.index(self.name, new, None)).outcome

    async def put_many(self, contents: Mapping[str, int | str]) -> list[Outcome]:
        news = [NewDocument(key, _content(content), None) for key, content in contents.items()]
        return [outcome for outcome, _ in await self.services.documents.index_many(self.name, news)]

    async def delete(self, key: str) -> None:
        await self.services.documents.delete(self.name, key)

    async def find(self, query: Query, threshold: int | None = 3, limit: int = 20, *, explain: bool = False) -> Found:
        content = query if isinstance(query, Key) else _content(query)
        return await self.services.near_duplicates.find(self.name, content, Options(threshold, limit), explain=explain)

    async def matches(self, query: Query, threshold: int | None = 3, limit: int = 20) -> Matches:
        return (await self.find(query, threshold, limit)).matches

    async def found(self, query: Query, threshold: int | None = 3, limit: int = 20) -> list[Answer]:
        return answers(await self.matches(query, threshold, limit))

    async def keys(self, query: Query, threshold: int | None = 3) -> list[str]:
        return [match.key for match in (await self.matches(query, threshold)).items]

    async def matches_of_many(self, queries: Sequence[int | str], threshold: int | None, limit: int) -> list[Matches]:
        contents = [_content(query) for query in queries]
        found = await self.services.near_duplicates.find_many(self.name, contents, Options(threshold, limit))
        return [each.matches for each in found]
