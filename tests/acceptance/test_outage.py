"""The database goes away under load: 503 while it is gone, answers again when it is back, nothing restarted."""

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic, sleep

from service import PATIENCE, Service, running

from app.postgres.embedded import EmbeddedPostgres

TEXT = " ".join(f"word{number}" for number in range(250))


@contextmanager
def load(service: Service, clients: int) -> Generator[Counter[int]]:
    """Lookups from several clients until the end of the block; their statuses."""
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def look_up() -> None:
        with service.client() as client:
            while not over.is_set():
                answer = client.post("/v1/collections/shop/near-duplicates", json={"text": TEXT})
                statuses[answer.status_code] += 1
                if answer.status_code == 503:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.headers["content-type"] == "application/problem+json"

    threads = [threading.Thread(target=look_up) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


def wait_for(statuses: Counter[int], status: int) -> None:
    before = statuses[status]
    deadline = monotonic() + PATIENCE
    while statuses[status] < before + 20:
        assert monotonic() < deadline, statuses
        sleep(0.02)


def test_an_outage_under_load(postgres: EmbeddedPostgres) -> None:
    with running(database_url=postgres.dsn(), pool_timeout=0.5) as service:
        with service.client() as client:
            client.put("/v1/collections/shop/documents/a", json={"text": TEXT}).raise_for_status()
        with load(service, clients=4) as statuses:
            wait_for(statuses, 200)
            postgres.stop()
            wait_for(statuses, 503)
            with service.client() as client:
                assert client.get("/livez").status_code == 200
                assert client.get("/readyz").status_code == 503
            postgres.start()
            wait_for(statuses, 200)
        assert set(statuses) == {200, 503}
        with service.client() as client:
            answers = [
                client.post("/v1/collections/shop/near-duplicates", json={"text": TEXT}).json() for _ in range(20)
            ]
        assert all([match["key"] for match in answer["matches"]] == ["a"] for answer in answers)
    assert "Traceback" not in service.log
