"""Whether this process runs on green threads."""

import sys


def green() -> bool:
    """Whether gevent has patched what waits for a socket."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))
