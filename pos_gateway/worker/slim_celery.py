"""``celery``, without what it and other libraries load for a person at a terminal.

A green worker is run by it (``gcelery.py``). A shell of Celery's, colours, formats that no message
of ours has: 16 MiB of the 110 of a worker that has nothing to do. Each library does without what
it does not find. Whoever asks for one of these later (somebody's own adapter) gets it.
"""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

#: What looks for something of the kind, once, while it is loaded.
_LIBRARIES = (
    "celery.bin.celery",
    "celery.utils.debug",
    "kombu.serialization",
    "requests",
    "structlog",
)
#: What they are not to find.
HIDDEN = (
    "charset_normalizer",  # requests guesses the encoding of a text that does not say it
    "msgpack",  # kombu: a format of messages; we take JSON alone
    "psutil",  # celery inspect memdump
    "pygments",  # celery's commands that print Python
    "rich",  # structlog's tracebacks for the eye
    "yaml",  # kombu: another format
)


def load() -> Any:
    """The libraries, without what is hidden from them; Celery's command."""
    shell = ModuleType("click_repl")  # Celery does not do without that one
    vars(shell)["register_repl"] = lambda group: None
    hidden: dict[str, Any] = {"click_repl": shell, **dict.fromkeys(HIDDEN)}
    sys.modules.update(hidden)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to find acceptable character detection")
            command, *_ = map(import_module, _LIBRARIES)
    finally:
        for name in hidden:
            del sys.modules[name]
    return command.celery


if __name__ == "__main__":
    sys.exit(load()(auto_envvar_prefix="CELERY", prog_name="celery"))
