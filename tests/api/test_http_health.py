"""What those who watch over the service ask."""

from importlib.metadata import version

from httpx2 import AsyncClient

from tests.api.support import ok


async def test_the_process_lives_and_is_ready(client: AsyncClient) -> None:
    assert await ok(client, "GET", "/livez") == {"status": "ok"}
    assert await ok(client, "GET", "/readyz") == {"status": "ok"}


async def test_the_version_is_that_of_the_installed_package(client: AsyncClient) -> None:
    assert await ok(client, "GET", "/version") == {"version": version("tiroir")}


async def test_a_monitor_may_add_a_parameter_of_its_own(client: AsyncClient) -> None:
    for url in ("/livez?now=1", "/readyz?now=1", "/version?now=1"):
        await ok(client, "GET", url)
