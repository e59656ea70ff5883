"""What the gateway uses of Celery beyond Celery's documentation; used nowhere else.

- ``Consumer`` is overridden by ``OrderConsumer``: ``Blueprint``, ``start``, ``stop``, ``shutdown``,
  ``ensure_connected``, ``on_…``, ``create_task_handler``, and ``loop``, set before the constructor runs. A malformed
  message stops nothing, a stop loses nothing, and a broker that is away is reconnected to within seconds.
  ``perform_pending_operations`` runs remote control's requests.
- ``Consumer.Blueprint.default_steps``: Celery's ``DelayedDelivery`` step waits for a cluster's node that is down, and
  the worker takes no orders from the live nodes.
- ``RUN``, the state of a blueprint: the loop ends with this state.
- ``worker.state``: ``celery inspect`` reads ``task_reserved``, ``task_accepted`` and ``task_ready``, of requests with
  the attributes of ``OrderRequest``; ``should_stop`` and ``maybe_shutdown`` stop a worker from a signal handler, in
  which nothing may block.
- ``Consumer.timer``: in a synchronous worker the timer's entries end the wait of Celery's loop, which then looks for a
  stop.
- ``TaskPool._pool``: orders run on the pool's green threads, one after the other on each, without Celery's work for
  each job (``worker/crew.py``); a stop kills the threads in flight and so requeues their orders, and Celery joins the
  pool.
- ``AMQP.Connection``: the worker's own connections wait for no reply without limit. ``AMQP.TaskConsumer`` gets a
  connection, and makes the consumer of the worker's queues, declared or looked for as by every process.
- ``pool_cls`` and ``loglevel`` of a worker, ``get_implementation``, ``mlevel``: a pool in which orders would share a
  connection to the database is refused.
- ``get_multiprocessing_logger``: the logger of prefork's pool has its own handler.
- a task's ``request`` has the message's headers as attributes: the synchronous worker's.

Two files run before anything of Celery may be imported, and have Celery's names themselves: ``gcelery.py``
(``kombu.utils.functional.sleep``, which shows whether patching was late, and the class of the pool) and
``slim_celery.py`` (the modules that Celery does without).
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
    "is_stopping",
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


def is_stopping() -> bool:
    """Whether this worker is to stop, by ``request_stop`` or by Celery's handler of a signal, SIGHUP included."""
    is_set: bool = state.should_stop is not None and state.should_stop is not False
    return is_set  # perhaps to 0, an exit code


def steps_without(step: str) -> list[str]:
    """The names of a consumer's steps, without this step."""
    return [each for each in Consumer.Blueprint.default_steps if each != step]


def green_threads(pool: Any) -> Any:
    """The gevent pool behind Celery's."""
    return pool._pool


def pool_module(worker: Any) -> str:
    """The module of a worker's pool."""
    name: str = get_implementation(worker.pool_cls).__module__
    return name


def log_level(worker: Any) -> int:
    """The level on the worker's command line."""
    level: int = mlevel(worker.loglevel)
    return level


def headers_of(request: Any) -> dict[str, Any]:
    """The headers of the message for a synchronous worker's task."""
    headers: dict[str, Any] = vars(request)
    return headers
