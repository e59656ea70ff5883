"""What the gateway uses of Celery beyond its documentation; used nowhere else.

- ``Consumer`` is overridden by ``OrderConsumer``: ``Blueprint``, ``start``, ``stop``, ``shutdown``,
  ``ensure_connected``, ``on_…``, ``create_task_handler``, and ``loop``, which
  is set before its constructor runs. A malformed message stops nothing, a stop loses nothing, and
  a broker that is away is reconnected to within seconds. ``perform_pending_operations`` runs what
  remote control has asked for.
- ``Consumer.Blueprint.default_steps``: Celery's ``DelayedDelivery`` step waits for a node of a
  cluster that is down, while the worker takes no orders from the others.
- ``RUN``, the state of a blueprint: the loop ends with it.
- ``worker.state``: ``task_reserved``, ``task_accepted`` and ``task_ready`` are what ``celery
  inspect`` reads, of requests that have what ``OrderRequest`` has; ``should_stop`` and ``maybe_shutdown`` stop a worker from a signal handler, in
  which nothing may block.
- ``Consumer.timer``: in a synchronous worker its entries end the wait of Celery's loop, which then looks
  for a stop.
- ``TaskPool._pool``: orders run on its green threads, one after the other on each, without what Celery
  does for each job (``worker/crew.py``); a stop kills those in flight, which requeues their orders, and Celery joins it.
- ``AMQP.Connection``: the worker's own connections wait for no reply without limit. ``AMQP.TaskConsumer``
  gets one, and makes the consumer of its queues: they are declared, or looked for, as by every other process.
- ``pool_cls`` and ``loglevel`` of a worker, ``get_implementation``, ``mlevel``: a pool in which
  orders would share a connection to the database is refused.
- ``get_multiprocessing_logger``: the logger of prefork's pool has a handler of its own.
- a task's ``request`` has the message's headers as attributes: the synchronous worker's.

Two files run before anything of Celery may be imported, and have their names themselves:
``gcelery.py`` (``kombu.utils.functional.sleep``, by which it sees whether patching was late, and the
class of the pool) and ``slim_celery.py`` (the modules that Celery does without).
"""

from typing import Any

from celery.app.amqp import AMQP
from celery.bootsteps import RUN
from celery.concurrency import get_implementation
from celery.utils.log import get_multiprocessing_logger, mlevel
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown, task_accepted, task_ready, task_reserved

__all__ = [
    "AMQP",
    "RUN",
    "Consumer",
    "get_multiprocessing_logger",
    "green_threads",
    "headers_of",
    "log_level",
    "maybe_shutdown",
    "pool_module",
    "request_stop",
    "steps_without",
    "task_accepted",
    "task_ready",
    "task_reserved",
]


def request_stop(exit_code: int) -> None:
    """Have the next ``maybe_shutdown`` stop this worker. Never blocks."""
    state.should_stop = exit_code


def steps_without(step: str) -> list[str]:
    """The names of a consumer's steps, but for this one."""
    return [each for each in Consumer.Blueprint.default_steps if each != step]


def green_threads(pool: Any) -> Any:
    """The gevent pool behind Celery's."""
    return pool._pool


def pool_module(worker: Any) -> str:
    """The module of a worker's pool."""
    name: str = get_implementation(worker.pool_cls).__module__
    return name


def log_level(worker: Any) -> int:
    """The level that the worker's command line names."""
    level: int = mlevel(worker.loglevel)
    return level


def headers_of(request: Any) -> dict[str, Any]:
    """The headers of the message that a synchronous worker's task was called for."""
    headers: dict[str, Any] = vars(request)
    return headers
