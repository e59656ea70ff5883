"""Run the merchants with steps: ``python -m testkit.steps PORT``."""

import asyncio
import sys

from testkit.steps.server import StepServer

asyncio.run(StepServer().serve(int(sys.argv[1])))
