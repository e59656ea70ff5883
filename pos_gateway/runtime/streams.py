"""Standard streams that the caller has closed (``2>&-``)."""

import os
import sys


def open_closed() -> None:
    """Have /dev/null in their place, here and in a program executed next. Python's standard output stays None.

    Else the next file or connection would have the number: lines of the log, say, would go to the database.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
