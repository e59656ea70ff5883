"""Figures from a process of their own that gevent has patched, on the worker's core."""

import json
import subprocess
import sys
from typing import Any

from loadtests.bench.cores import on_the_workers_core


def figures_of(module: str, *arguments: object) -> Any:
    """What a module of the benchmark prints as JSON, run with these arguments."""
    command = [sys.executable, "-m", "gevent.monkey", "--module", module, *map(str, arguments)]
    run = subprocess.run(
        on_the_workers_core(command), check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(run.stdout)
