"""The limit on open files, connections included."""

import resource

#: Descriptors besides peers' connections: broker, database, Redis, logs, the interpreter's.
OTHER_FILES = 128


def allow_files(wanted: int) -> int:
    """Raise the soft limit to ``wanted``, as far as the hard limit allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)
