"""What figures are from: they say little without it."""

import os
import platform
from importlib.metadata import version

_VERSIONS = ("celery", "gevent", "kombu", "amqp", "requests")


def machine() -> str:
    """Cores and versions in a line."""
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
