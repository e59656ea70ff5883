"""``celery`` without the optional modules for a person at a terminal.

``gcelery.py`` runs a green worker with this module. Celery's shell, colours and unused message formats take 16 MiB of
an idle worker's 110. Each library works without the hidden modules. A later import (by a custom adapter) finds the
modules.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: Libraries that look for the optional modules once, while being loaded.
_LIBRARIES = (
    "celery.bin.celery",
    "celery.utils.debug",
    "kombu.serialization",
    "structlog",
)
#: Modules hidden from the libraries.
HIDDEN = (
    "msgpack",  # kombu: a message format; workers accept JSON only
    "psutil",  # celery inspect memdump
    "pygments",  # Celery's commands that print Python
    "rich",  # structlog: coloured tracebacks
    "yaml",  # kombu: an unused message format
)


def load() -> Any:
    """Load the libraries without the hidden modules; returns Celery's command."""
    shell = ModuleType("click_repl")  # Celery requires this module
    vars(shell)["register_repl"] = lambda group: None
    hidden: dict[str, Any] = {"click_repl": shell, **dict.fromkeys(HIDDEN)}
    sys.modules.update(hidden)
    try:
        command, *_ = map(import_module, _LIBRARIES)
    finally:
        for name in hidden:
            del sys.modules[name]
    return command.celery


if __name__ == "__main__":
    # On SIGHUP Celery runs ``sys.argv`` again, where gevent.monkey leaves the name of the module, not of its file.
    sys.argv[0] = __file__
    sys.exit(load()(auto_envvar_prefix="CELERY", prog_name="celery"))
