"""Documents over HTTP."""

from httpx2 import AsyncClient


async def test_smoke(client: AsyncClient) -> None:
    answer = await client.post("/v1/collections/shop/documents", json={"key": "a", "text": "un " * 30})
    assert answer.status_code == 201, answer.text
