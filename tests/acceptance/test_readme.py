"""The README's own lines, run as they stand there."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from service import ROOT, Service, running


@pytest.fixture
def curl_lines() -> list[str]:
    lines = re.findall(r"^curl .+$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(lines) == 5
    return lines


def run(line: str, service: Service) -> dict[str, Any]:
    assert "http://127.0.0.1:8000/" in line
    command = line.replace("http://127.0.0.1:8000", service.url).replace("curl ", "curl --silent --show-error ", 1)
    answer = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def test_five_lines_find_the_pair(curl_lines: list[str], short_path: Path) -> None:
    with running(data_dir=short_path) as service:
        lyon, espresso, bordeaux, near, collection = [run(line, service) for line in curl_lines]
    assert lyon["near_duplicates"] == espresso["near_duplicates"] == []
    assert [match["key"] for match in bordeaux["near_duplicates"]] == ["lyon"]
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.search(r"```json\n(.+?)```", readme, re.DOTALL)
    assert shown is not None
    expected = json.loads(shown[1])
    [expected_match] = expected.pop("matches")
    [match] = near["matches"]
    assert expected.items() <= near.items()
    assert expected_match.items() <= match.items()
    assert collection["counts"] == {"documents": 3, "fingerprints": 3, "too_short": 0, "exact_duplicates": 0}
