"""Which process of a run takes which tests."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.planting import ROOT

APART, TOGETHER = "tests/worker/test_parking.py", "tests/values/test_order.py"
#: Two tests of one file at once, if there are two processes for them.
TESTS = """
import threading
import pytest

@pytest.mark.parametrize("n", range(20))
def test_it(n):
    threading.Event().wait(0.02)
"""


def test_a_files_tests_stay_in_one_process_but_for_those_of_the_files_named(tmp_path: Path) -> None:
    for file in (APART, TOGETHER):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(TESTS)
    run = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "--rootdir",
                tmp_path,
                "-v",
                "-p",
                "no:cacheprovider",
            ),
            *("--disable-plugin-autoload", "-p", "xdist", "-p", "tests.distribution"),
            *("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder", "tests"),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    ran = defaultdict(set)
    for process, file in re.findall(r"\[(gw\d)\] .*PASSED (\S+)::", run.stdout):
        ran[file].add(process)
    assert {file: len(each) for file, each in ran.items()} == {APART: 2, TOGETHER: 1}
