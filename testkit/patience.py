"""How long a test waits for a condition before it fails.

A wait ends with its condition, so a long limit costs a passing test nothing, and a machine at half speed
with five test processes on two cores must not reach it. No assertion is about seconds.
"""

import os

#: Seconds after which a wait fails: for a start, an answer, an end. ``PATIENCE=600`` for a slower machine.
PATIENCE = float(os.environ.get("PATIENCE", "120"))
