"""``celery`` without the optional modules that serve a person at a terminal.

``gcelery.py`` runs a green worker by it. Celery's shell, colours and unused message formats take 16
MiB of an idle worker's 110. Each library works without the modules that it does not find. A later
import (by a custom adapter) finds them.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: Libraries that look for such modules once, while they are loaded.
_LIBRARIES = (
    "celery.bin.celery",
    "celery.utils.debug",
    "kombu.serialization",
    "structlog",
)
#: Modules hidden from them.
HIDDEN = (
    "msgpack",  # kombu: a message format; workers accept JSON only
    "psutil",  # celery inspect memdump
    "pygments",  # celery's commands that print Python
    "rich",  # structlog: coloured tracebacks
    "yaml",  # kombu: another message format
)


def load() -> Any:
    """Load the libraries without the hidden modules; returns Celery's command."""
    shell = ModuleType("click_repl")  # Celery requires this one
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
    sys.exit(load()(auto_envvar_prefix="CELERY", prog_name="celery"))
