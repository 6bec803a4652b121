"""The container's own commands and settings, as the files state them, run without an engine."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from service import ROOT, Service, running

from app.postgres.embedded import EmbeddedPostgres


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


def instruction(dockerfile: str, name: str) -> str:
    [*_, last] = re.findall(rf"^{name} +(.+)$", dockerfile, re.MULTILINE)
    return last


def settings(dockerfile: str) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in instruction(dockerfile, "ENV").split())
    return {name.removeprefix("TIROIR_").lower(): value for name, value in pairs if name.startswith("TIROIR_")}


def test_the_image_runs_as_another_user_than_root(dockerfile: str) -> None:
    assert instruction(dockerfile, "USER") == "10001:10001"
    assert dockerfile.count("\nFROM ") + dockerfile.startswith("FROM ") == 2


def test_command_settings_and_health_check(dockerfile: str, short_path: Path) -> None:
    command = json.loads(instruction(dockerfile, "CMD"))
    assert command == ["tiroir", "serve"]
    given = settings(dockerfile) | {"data_dir": str(short_path)}
    health = json.loads(instruction(dockerfile, "HEALTHCHECK").partition("CMD ")[2])
    service = Service(tuple(command), **given)
    service.environment["TIROIR_PORT"] = str(service.port)
    service.environment["PATH"] = f"{Path(sys.executable).parent}:{service.environment['PATH']}"  # as in the image

    def healthy() -> bool:
        # env looks the program up in the PATH that it is given
        checked = subprocess.run(["/usr/bin/env", *health], env=service.environment, capture_output=True, check=False)
        return checked.returncode == 0

    assert not healthy()
    service.start().wait_until_ready()
    assert healthy()
    assert service.stop() == 0
    assert not healthy()


def test_the_database_of_compose_serves_a_role_that_only_owns_it(postgres: EmbeddedPostgres) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    tiroir, server = compose["services"]["tiroir"], compose["services"]["postgres"]
    defaults = re.compile(r"\$\{\w+:-(\w+)\}")
    url = defaults.sub(r"\1", tiroir["environment"]["TIROIR_DATABASE_URL"])
    stated = {name: defaults.sub(r"\1", value) for name, value in server["environment"].items()}
    parts = urlsplit(url)
    assert (parts.hostname, parts.port) == ("postgres", 5432)
    assert (parts.username, parts.password) == (stated["POSTGRES_USER"], stated["POSTGRES_PASSWORD"])
    assert parts.path == f"/{stated['POSTGRES_DB']}"
    assert {"source": "postgres", "target": "/var/lib/postgresql"}.items() <= mount(server["volumes"][0]).items()
    assert server["image"] == "postgres:18"
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE tiroir LOGIN PASSWORD 'tiroir'")
        connection.execute("CREATE DATABASE compose OWNER tiroir TEMPLATE template0")
    own = make_conninfo(postgres.dsn("compose"), user=parts.username, password=parts.password)
    with running(database_url=own) as service, service.client() as client:
        assert client.put("/v1/collections/shop/documents/a", json={"text": "word " * 30}).status_code == 201


def mount(short: str) -> dict[str, str]:
    source, target = short.split(":")
    return {"source": source, "target": target}
