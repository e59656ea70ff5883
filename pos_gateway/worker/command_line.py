"""Forbids Celery's commands, flags and variables that would harm a worker or the queues.

The broker and the worker's behaviour have one source, ``POS_GATEWAY_*``. Celery reads further sources: flags, a
variable for each flag (``CELERY_WORKER_PURGE=1``), a configuration module. A contradiction is refused with a sentence
that names the source.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

#: Variables by which Celery takes a broker before the app's own. Celery's command copies ``-b`` and the last two
#: variables into the first.
_BROKERS = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_BROKER",
    "BROKER_URL",
)
#: Variables that load a configuration beside the settings, and the flags that set these variables.
_CONFIGURATIONS = {"CELERY_CONFIG_MODULE": "--config", "CELERY_LOADER": "--loader"}
#: Celery's commands that take orders out of queues, without an event.
_TAKING = ("purge", "amqp", "migrate")
#: Flags of a worker that no order survives, or that cannot work: the reasons.
_REFUSED = {
    "purge": "it would erase orders without an event; pos-gateway dlq discard takes them out of orders.dead",
    "beat": "the gateway has no periodic tasks of Celery's",
    "time_limit": "POS_GATEWAY_REQUEST_TIMEOUT and a merchant's request_timeout limit an attempt",
    "soft_time_limit": "POS_GATEWAY_REQUEST_TIMEOUT and a merchant's request_timeout limit an attempt",
}
#: Flags of a green worker alone: the reasons. Celery shrinks the pool while idle green threads keep places, and the next
#: order waits for a place for ever.
_REFUSED_GREEN = {"autoscale": "POS_GATEWAY_SLOTS is the number of orders at once, from the start"}


def refused_command() -> str | None:
    """Why the running Celery command is refused; None: no command runs, or the command is allowed."""
    context = click.get_current_context(silent=True)
    command = context.invoked_subcommand if context else None
    if command not in _TAKING:
        return None
    return (
        f"celery {command} would take orders out of their queues without an event; use"
        " pos-gateway dlq discard for orders.dead, pos-gateway cancel for an order"
    )


def contradictions(broker_url: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Contradictions of Celery's environment with the settings, a sentence each. Values may be secrets."""
    given = {name: environment.get(name, "") for name in _BROKERS}
    others = [name for name, url in given.items() if url not in ("", broker_url)]
    if "CELERY_BROKER_URL" in others:
        context = click.get_current_context(silent=True)
        if context and context.get_parameter_source("broker") == ParameterSource.COMMANDLINE:
            others[0] = "-b"
        elif given["CELERY_BROKER_URL"] in (given["CELERY_BROKER"], given["BROKER_URL"]):
            del others[0]
    for name in others:
        yield f"{name} names another broker than POS_GATEWAY_BROKER_URL, the only source: unset it"
    for name, flag in _CONFIGURATIONS.items():
        if environment.get(name):
            yield f"{name} ({flag}) configures Celery beside POS_GATEWAY_*: unset it"


def refused_options(options: Mapping[str, Any], queues: Sequence[str]) -> str | None:
    """Why the options of a worker, of its command line or of ``CELERY_WORKER_*``, are refused.

    Args:
        options: in Celery's form.
        queues: all queues from which a worker may consume.
    """
    is_green = getattr(options.get("pool"), "is_green", False)
    for name, why in (_REFUSED | _REFUSED_GREEN if is_green else _REFUSED).items():
        if options.get(name):
            return f"{_shown(name)}: {why}"
    for name in ("queues", "exclude_queues"):
        unknown = set(options.get(name) or ()) - set(queues)
        if unknown:
            return (
                f"{_shown(name)}: {', '.join(sorted(unknown))} is no queue of orders;"
                f" they are {' and '.join(queues)}"
            )
    if not set(options.get("queues") or queues) - set(options.get("exclude_queues") or ()):
        return f"{_shown('exclude_queues')}: no queue is left"
    context = click.get_current_context(silent=True)
    if context is not None and context.args:
        return f"{context.args[0].partition('=')[0]}: Celery's settings are POS_GATEWAY_*'s to make"
    return None


def _shown(name: str) -> str:
    """An option as a user gives it."""
    return f"--{name.replace('_', '-')} (or CELERY_WORKER_{name.upper()})"
