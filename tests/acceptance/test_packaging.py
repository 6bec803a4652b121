"""The wheel holds all that the service needs."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from service import ROOT, Service


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
        check=True,
    )
    [wheel] = folder.glob("tiroir-*.whl")
    ZipFile(wheel).extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_serves(unpacked: Path, short_path: Path) -> None:
    """Started outside the checkout, from the wheel's files alone: migrations and statements must be among them."""
    start = f"import sys; sys.path.insert(0, {str(unpacked)!r}); import app.cli; print(app.__file__); app.cli.main()"
    service = Service(command=(sys.executable, "-P", "-c", start, "serve"), data_dir=short_path)
    service.environment["PYTHONPATH"] = str(unpacked)
    service.start().wait_until_ready()
    with service.client() as client:
        answer = client.put("/v1/collections/shop/documents/a", json={"text": "word " * 30})
        assert answer.status_code == 201
    assert service.stop() == 0
    assert os.fspath(unpacked) in service.log


def test_nothing_but_the_package_is_in_the_wheel(unpacked: Path) -> None:
    assert {path.name.partition("-")[0] for path in unpacked.iterdir()} == {"app", "tiroir"}
    assert (unpacked / "app" / "py.typed").exists()
