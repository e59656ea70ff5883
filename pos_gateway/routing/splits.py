"""The canary split in the broker: the last message of a stream.

Every client can read a stream's last message without consuming it, and receives the next one at
once. A process that routes orders needs the broker for it, and nothing else.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from amqp.exceptions import AccessRefused, ChannelError, ResourceLocked
from kombu import Connection, Consumer

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.broker.session import CONNECTION_ERRORS, BrokerSession
from pos_gateway.broker.unreachable import with_right
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    FieldError,
    InvalidSplit,
    PublishRefused,
)
from pos_gateway.domain.split import Split
from pos_gateway.runtime.urls import mask_url

#: Python's: the program is the backend's.
logger = logging.getLogger(__name__)

#: Seconds to wait for the last message, which takes milliseconds: if the broker counts one, and if
#: it does not, since it counts a stream's messages some five seconds late. ``present`` always waits
#: ``THERE``.
THERE, PERHAPS = 2.0, 0.1
#: Seconds that the first callers wait for the split, connecting included.
FIRST = THERE + 1.0
#: Seconds after the first message to wait for those published with it.
_TOGETHER = 0.05
#: Seconds that closing waits for the thread.
_GRACE = 1.0
#: Seconds that an operator waits for another operator's change, and between two tries.
TURN, _NEXT_TRY = 5.0, 0.05
#: Seconds until a retry: while the broker is away, and at most, after repeated refusals.
_RETRY_AFTER, _REFUSED = 1.0, 60.0


def message_of(split: Split) -> Message:
    """The message that puts this split in force."""
    return Message("", topology.splits_stream.name, split.to_json(), message_id="")


def present(broker_url: str) -> Split | None:
    """The split in force; None if none was published yet.

    Raises:
        BrokerUnavailable: it cannot be read.
        PublishRefused: the stream is missing, and this broker user may not declare it.
        InvalidSplit: the last message is no split, so processes may go by different ones.
    """
    found: list[bytes | str] = []
    try:
        with BrokerSession(broker_url) as session:
            if session.is_amqp:
                has_some = _consume(session.connection, found.append, declare=True)
                session.wait_until(lambda: bool(found), time.monotonic() + THERE)
                if has_some and not found:
                    raise TimeoutError(f"its last message has not come within {THERE:g} s")
                session.wait_until(lambda: False, time.monotonic() + _TOGETHER)
    except CONNECTION_ERRORS as error:
        stream = f"{topology.splits_stream.name} at {mask_url(broker_url)}"
        raise BrokerUnavailable(f"cannot read {stream}: {with_right(error)}") from error
    try:
        return Split.parse_json(found[-1]) if found else None
    except InvalidSplit as error:
        problem = f"its last message is no split; moving all merchants back writes one (pos-gateway canary abort): {error}"
        raise InvalidSplit([FieldError(topology.splits_stream.name, problem)]) from None


def in_force(broker_url: str, percent: float) -> Split:
    """The split in force, or this percentage if none was published yet. Raises as ``present``."""
    said = present(broker_url)
    return Split(percent=percent) if said is None else said


@contextmanager
def changing(broker_url: str, *, at_once: bool = False) -> Iterator[Callable[[Split], None]]:
    """Change the split while no other operator does; yields the function that publishes it.

    Args:
        broker_url: where the broker is.
        at_once: publish it even if another operator's change does not end, or this broker user may take no
            turn.

    Raises:
        BrokerUnavailable: the broker is away, or another operator's change does not end.
    """
    publisher = PlainPublisher(broker_url)
    try:
        with BrokerSession(broker_url) as session:
            try:
                has_turn = not session.is_amqp or _took_turn(session.connection)
            except AccessRefused:
                if not at_once:
                    raise
                has_turn = False
            if not (has_turn or at_once):
                raise BrokerUnavailable("another operator is changing it at this moment; try again")

            def publish(split: Split) -> None:
                if has_turn:  # this process may have been paused, and lost its turn
                    turn = topology.splits_turn.bind(session.connection.default_channel)
                    turn.queue_declare(passive=True)
                publisher.publish(message_of(split))

            yield publish
    except CONNECTION_ERRORS as error:
        stream = f"{topology.splits_stream.name} at {mask_url(broker_url)}"
        raise BrokerUnavailable(f"cannot change {stream}: {with_right(error)}") from error
    finally:
        publisher.close()


def _took_turn(connection: Connection) -> bool:
    """Whether this connection is the one that changes the split, until it is closed."""
    until = time.monotonic() + TURN
    while True:
        try:
            topology.splits_turn.bind(connection.default_channel).queue_declare()
        except ResourceLocked:
            if time.monotonic() >= until:
                return False
            time.sleep(_NEXT_TRY)
        else:
            return True


class SplitWatch:
    """Follows the split on its own thread and connection, from the first ``split`` on.

    While the broker is away the split stays as it was. Safe from threads and green threads; after a
    fork of a process with threads the child follows it by itself.

    Args:
        broker_url: where the broker is; the nodes of a cluster with ``;`` between them.
        declare: declare the stream, or see that it is there if the broker user may not.
    """

    def __init__(self, broker_url: str, *, declare: bool = True) -> None:
        self._broker_url = broker_url
        self._declare = declare
        self._split: Split | None = None
        self._session: BrokerSession | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._looked, self._stopping = threading.Event(), threading.Event()

    def split(self, wait: float = FIRST) -> Split | None:
        """The present split; None: none was published yet, or the broker did not answer in time.

        Args:
            wait: maximum seconds that the first callers wait for it, ``FIRST`` at most.
        """
        if self._stopping.is_set():
            return self._split
        if self._pid != os.getpid():
            self._forget_the_parent()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="split", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # there are too many; the next call tries again
                    logger.warning("canary.split_not_followed: %s", error)
                    return self._split
                self._thread = thread
        if not self._looked.is_set():
            self._looked.wait(min(wait, FIRST))
            self._looked.set()
        return self._split

    def close(self) -> None:
        """Stop following; ``split`` stays as it is. Idempotent."""
        self._stopping.set()
        if self._pid == os.getpid() and self._thread is not None:
            if self._session is not None:
                self._session.wake()
            self._thread.join(_GRACE)

    def _forget_the_parent(self) -> None:
        """Forked: the parent's thread is gone, its lock may be held forever. Its split is kept."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._thread = self._session = None
        self._looked, self._stopping = threading.Event(), threading.Event()
        if self._split is not None:
            self._looked.set()

    def _run(self) -> None:
        pid, pause, later = os.getpid(), 0.0, _RETRY_AFTER
        # A forked child follows by itself; gevent copies this green thread to it.
        while not self._stopping.wait(pause) and pid == os.getpid():
            try:
                with BrokerSession(self._broker_url) as session:
                    self._follow(session)
            except (ChannelError, PublishRefused) as error:
                # It may not be read, is missing, or is no stream. A broker that has just started
                # says so for a moment, too: retry soon, and ever later.
                pause, later = later, min(2 * later, _REFUSED)
                logger.warning("canary.split_refused: %s", error)
            except CONNECTION_ERRORS:
                pause = later = _RETRY_AFTER  # the broker is away, which publishers report
            except Exception:
                # Any bug: without this thread the process would never follow the split again.
                pause, later = later, min(2 * later, _REFUSED)
                logger.exception("canary.split_mistake")
            finally:
                if pid == os.getpid():
                    self._looked.set()
                    self._session = None

    def _follow(self, session: BrokerSession) -> None:
        self._session = session
        if not session.is_amqp:
            self._stopping.set()
            return
        has_some = _consume(session.connection, self._on_split, declare=self._declare)
        until = time.monotonic() + (THERE if has_some else PERHAPS)
        session.wait_until(lambda: self._split is not None or self._stopping.is_set(), until)
        self._looked.set()
        session.wait_until(self._stopping.is_set, inf)

    def _on_split(self, body: bytes | str) -> None:
        try:
            self._split = Split.parse_json(body)
        except InvalidSplit as error:
            logger.warning("canary.split_invalid: %s", error)


def _consume(
    connection: Connection, on_body: Callable[[bytes | str], None], *, declare: bool
) -> bool:
    """Consume the last message, and all that follow; whether the broker counts any."""

    def on_message(message: Any) -> None:
        message.ack()
        on_body(message.body)

    if declare:
        topology.declare_queues(connection, topology.splits_stream)
    channel = connection.channel()
    stream = topology.splits_stream.bind(channel)
    has_some = bool(stream.queue_declare(passive=True).message_count)
    stream.consumer_arguments = {"x-stream-offset": "last"}
    # A stream is consumed with a prefetch count only.
    consumer = Consumer(
        channel, stream, on_message=on_message, auto_declare=False, prefetch_count=10
    )
    consumer.consume()
    return has_some
