"""Start, stop and death of the serving process, on the embedded server."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import pytest
from service import PATIENCE, Service, ends, running

TEXT = " ".join(f"word{number}" for number in range(250))


def index(service: Service, key: str, text: str = TEXT) -> None:
    with service.client() as client:
        client.put(f"/v1/collections/shop/documents/{key}", json={"text": text}).raise_for_status()


def found(service: Service, text: str = TEXT) -> list[str]:
    with service.client() as client:
        answer = client.post("/v1/collections/shop/near-duplicates", json={"text": text}).raise_for_status()
    return [match["key"] for match in answer.json()["matches"]]


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "data" / "postmaster.pid").read_text().split()[0])


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_stops_service_and_server(short_path: Path, number: signal.Signals, workers: int) -> None:
    with running(data_dir=short_path, workers=workers) as service:
        index(service, "a")
        server = postmaster(short_path)
        assert service.stop(number) == 0
    assert ends(server)
    assert not (short_path / "data" / "postmaster.pid").exists()
    assert "Traceback" not in service.log


def test_a_killed_service_leaves_nothing_broken(short_path: Path) -> None:
    with running(data_dir=short_path) as service:
        index(service, "a")
        service.stop(signal.SIGKILL)
    with running(data_dir=short_path) as service:
        assert found(service) == ["a"]


def test_workers_end_with_the_process_that_started_them(short_path: Path) -> None:
    with running(data_dir=short_path, workers=2) as service:
        index(service, "a")
        service.process.kill()
        service.wait()
        assert port_becomes_free(service.port)
        with running(data_dir=short_path) as again:
            assert found(again) == ["a"]


def port_becomes_free(port: int) -> bool:
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                sleep(0.05)
            else:
                return True
    return False


def test_a_closed_terminal_is_a_stop_like_any_other(short_path: Path) -> None:
    with running(data_dir=short_path) as service:
        server = postmaster(short_path)
        assert service.stop(signal.SIGHUP) == 0
    assert ends(server)


def test_two_services_share_a_data_directory(short_path: Path) -> None:
    with running(data_dir=short_path) as first:
        index(first, "a")
        with running(data_dir=short_path) as second:
            assert found(second) == ["a"]
            first.stop()
            index(second, "b")
            assert found(second) == ["a", "b"]


def test_a_path_with_a_space_and_an_apostrophe(short_path: Path) -> None:
    with running(data_dir=short_path / "it's here") as service:
        index(service, "a")
        assert found(service) == ["a"]


def test_what_one_worker_writes_all_workers_find(short_path: Path) -> None:
    """Each request comes by a connection of its own, so that it may reach any of the workers."""
    with running(data_dir=short_path, workers=2) as service:
        for number in range(30):
            key = f"{number:02}"
            index(service, key)
            assert found(service)[-1:] == [key] or number >= 20
    with running(data_dir=short_path, workers=2) as service:
        assert found(service) == [f"{number:02}" for number in range(20)]


def test_three_replicas_start_at_once_on_an_empty_database(short_path: Path) -> None:
    replicas = [Service(data_dir=short_path).start() for _ in range(3)]
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Service.wait_until_ready, replicas))
        index(replicas[0], "a")
        assert [found(replica) for replica in replicas] == [["a"]] * 3
    finally:
        for replica in replicas:
            assert replica.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tiroir:secret%23pass@127.0.0.1:1/tiroir",
        "postgresql://tiroir:sec@ret#pass@127.0.0.1/tiroir",
        "host=127.0.0.1 password=secret#pass =",
        "postgresql://tiroir:secret#pass@no-such-host.invalid/tiroir",
    ],
)
def test_a_failing_start_is_one_line_without_the_password(url: str, workers: int) -> None:
    service = Service(database_url=url, workers=workers).start()
    assert service.wait() == 1
    assert service.log.startswith("tiroir: ")
    assert service.log.count("\n") == 1
    assert "pass" not in service.log.replace("the password", "").replace("user:password@", "")
    assert "ret#" not in service.log


def test_a_port_in_use_is_a_failing_start(short_path: Path) -> None:
    with running(data_dir=short_path) as first:
        second = Service(data_dir=short_path, port=first.port).start()
        assert second.wait() != 0
        assert "address already in use" in second.log
        assert "Traceback" not in second.log
        assert found_nothing(first)


def found_nothing(service: Service) -> bool:
    with service.client() as client:
        return client.post("/v1/collections/shop/near-duplicates", json={"text": TEXT}).status_code == 404
