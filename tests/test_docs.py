"""The documentation says what the code does: what one of them has and the other hasn't fails here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.api.problems import PROBLEMS
from app.main import create_app
from app.settings import Settings

ROOT = Path(__file__).parent.parent


def table_rows(document: str) -> list[list[str]]:
    lines = (ROOT / document).read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if not set(row[0]) <= {"-", ""}]


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(Settings())


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1].strip("`") for row in table_rows("docs/settings.md")[1:]}
    fields = Settings.model_fields
    assert list(documented) == [f"TIROIR_{name.upper()}" for name in fields]
    for name, field in fields.items():
        default = documented[f"TIROIR_{name.upper()}"]
        if field.default_factory is None:
            assert default == ("none" if field.default is None else str(field.default))


def test_every_error_code_is_documented_with_its_status() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in table_rows("docs/errors.md")[1:]}
    assert documented == {code: status for code, (status, _) in PROBLEMS.items()}


def test_every_route_of_administration_is_documented(app: FastAPI) -> None:
    described = (ROOT / "docs" / "administration.md").read_text("utf-8")
    routes = {path for path in app.openapi()["paths"] if path.startswith("/v1/admin/")}
    assert "/v1/admin/layout" in routes
    assert [path for path in sorted(routes) if f" {path}`" not in described] == []


def test_every_route_of_analyses_is_documented(app: FastAPI) -> None:
    described = (ROOT / "docs" / "reports.md").read_text("utf-8")
    routes = {path for path in app.openapi()["paths"] if "/analyses" in path or "/exact-duplicates" in path}
    assert len(routes) >= 10
    assert [path for path in sorted(routes) if path.removeprefix("/v1/collections/{collection}") not in described] == []


def test_every_command_is_documented() -> None:
    documents = "".join(path.read_text("utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    shown = subprocess.run([sys.executable, "-m", "app.cli", "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^[│|]? *([a-z]+)  +[A-Z]", shown.stdout, re.MULTILINE)
    assert {"serve", "worker", "rebuild"} <= set(commands)
    assert [command for command in commands if f"tiroir {command}" not in documents] == []


def test_every_other_route_stands_in_the_readme(app: FastAPI) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    undocumented = {
        path
        for path in app.openapi()["paths"]
        if path.startswith("/v1/")
        and not path.startswith("/v1/admin/")
        and "/analyses/" not in path
        and path.removeprefix("/v1/collections/{collection}").removeprefix("/v1") not in readme
    }
    assert undocumented <= {
        "/v1/collections/{collection}/document",  # the same as …/documents/{key}
    }


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), target


def test_every_make_target_explains_itself() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert targets is not None
    for target in targets[1].split():
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target
