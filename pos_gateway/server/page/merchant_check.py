"""Has ``pos-gateway merchants check`` look at one merchant, in a process of its own.

That command needs green threads, which this process has not. The process has this one's environment,
so it is the same database, keys and network rules; what it prints is data.
"""

import json
import subprocess
import sys
import threading
from typing import NamedTuple

from pos_gateway.domain.errors import AdminError

#: Seconds for it; an action has 20.
TIMEOUT = 15.0
#: At once: the actions' other threads stay free.
_AT_ONCE = 2
_CHECK = ("-P", "-m", "pos_gateway", "merchants", "check", "--json", "--")


class Checked(NamedTuple):
    """What a check found."""

    is_ok: bool
    #: In a sentence.
    says: str


class MerchantCheck:
    """Safe from threads."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def __call__(self, merchant_id: str) -> Checked:
        """The result. Blocks. Raises AdminError: there is none."""
        if not self._places.acquire(blocking=False):
            raise AdminError("other checks run: try again in a moment")
        try:
            done = subprocess.run(  # noqa: S603  (the id is behind "--")
                [sys.executable, *_CHECK, merchant_id],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AdminError(
                f"the check did not end within {TIMEOUT:g} s, and was stopped: its POS, or what gives it its token, "
                "does not answer in time. pos-gateway merchants check ID waits for longer"
            ) from None
        finally:
            self._places.release()
        found = _result(done.stdout)
        if found is None:
            raise AdminError(
                f"the check itself failed (exit code {done.returncode}): run pos-gateway merchants check ID where the "
                "gateway's commands run; it says why"
            )
        return found


def _result(printed: bytes) -> Checked | None:
    """The one line that it prints, in words; None: it is none."""
    try:
        found = json.loads(printed)
        is_ok, problem, advice = found["ok"], found["problem"], found["advice"]
        location = "; ".join(found["location"] or ())
    except (ValueError, TypeError, KeyError):
        return None
    if is_ok:
        says = "Checked: all that a worker does before it sends an order succeeds."
        return Checked(True, f"{says} The POS says: {location}." if location else says)
    says = f"Checked, and its orders would not be sent: {problem}. Remedy: {advice}"
    return Checked(False, says)
