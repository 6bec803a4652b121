"""The bench runs in a small size; its figures are read by people, not asserted."""

import subprocess
import sys

from service import ROOT


def test_the_bench_prints_each_figure_beside_its_yardstick() -> None:
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "--size",
            "3000",
            "--queries",
            "50",
            "--seconds",
            "0.2",
            "--load-size",
            "1000",
            "--texts",
            "300",
            "--import-bytes",
            "3000000",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    for figure in (
        "faster than the plain loop",
        "faster than the full scan",
        "query, threshold 3",
        "lookups / nothing",
        "one by one",
        "a request",
        "of the bare kernel",
        "of these, without indexes",
        "memory of the process at most",
        "of INSERT and CREATE INDEX",
        "while 8 bands are built",
    ):
        assert figure in answer.stdout
