"""Confirmed publishing for the backend's process, with kombu's public names only.

kombu's own ``confirm_publish`` waits for one confirm at a time, and a caller would wait for all earlier messages. Here
one thread owns the connection and writes the queued messages, and each caller waits for the confirm of a message. All
callers share a round trip, and no caller waits longer than the timeout.
"""

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from amqp.exceptions import PreconditionFailed
from kombu import Producer

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.session import CONFIRM_TIMEOUT, BrokerSession
from pos_gateway.broker.unreachable import unreachable
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    MessageTooLarge,
    PublishError,
    PublishRefused,
    Unroutable,
)

#: Python's: the program is the backend's.
logger = logging.getLogger(__name__)

#: RabbitMQ's words on a message above its size limit.
_TOO_LARGE = re.compile(r"message size \d+ .*max size (\d+)")
#: Maximum writes of a message: once more after a connection lost before the confirm.
_WRITES = 2
#: Seconds for which closing waits for the thread.
_GRACE = 1.0


class PlainPublisher:
    """Publishes messages on its own connection, made at the first message.

    Safe from threads, from green threads, and after a fork.

    Args:
        broker_url: the broker's; a cluster's nodes with ``;`` between them.
        declare: declare the gateway's exchanges and queues on connecting, or check for them.
    """

    def __init__(self, broker_url: str, *, declare: bool = True) -> None:
        self._writer = _Writer(broker_url, declare=declare)

    def publish(self, message: Message, *, timeout: float = 10.0) -> None:
        """Return once the broker has stored the message in a queue.

        A dead connection is replaced once, and the message sent again
        (receivers deduplicate by ``message_id``).

        Raises:
            BrokerUnavailable: unreachable, or no confirm in time; the message may or may not be stored.
            PublishRefused: the broker refused the message.
            Unroutable: no queue takes the message.
        """
        self._of_this_process().run(_PublishJob(message), timeout)

    def publish_many(
        self, messages: Sequence[Message], *, timeout: float = 10.0
    ) -> list[PublishError | None]:
        """Each message's error, in order; None: stored. The messages share round trips and the timeout.

        The errors are as raised by ``publish``.
        """
        return self._of_this_process().run_all([_PublishJob(each) for each in messages], timeout)

    def connect(self, *, timeout: float = 10.0) -> None:
        """Connect and declare now rather than at the first message. Raises as ``publish``."""
        self._of_this_process().run(_PublishJob(None), timeout)

    def close(self) -> None:
        """Close the connection; waiting callers get BrokerUnavailable. Idempotent."""
        self._of_this_process().close()

    def _of_this_process(self) -> "_Writer":
        if self._writer.pid != os.getpid():
            # Forked: the parent's thread, connection and lock are not this process's to use.
            self._writer = self._writer.anew()
        return self._writer


class _Writer:
    """The thread that writes, and the queued jobs."""

    def __init__(self, broker_url: str, *, declare: bool, closed: bool = False) -> None:
        self.pid = os.getpid()
        self._broker_url = broker_url
        self._declare = declare
        self._closed = closed
        self._lock = threading.Lock()
        self._jobs: deque[_PublishJob] = deque()
        #: None before the first message, and after a lost connection.
        self._thread: threading.Thread | None = None
        self._session: _PublishingSession | None = None

    def anew(self) -> "_Writer":
        """The same for a forked child."""
        return _Writer(self._broker_url, declare=self._declare, closed=self._closed)

    def run(self, job: "_PublishJob", timeout: float) -> None:
        """Queue a job for the thread, and wait for the confirm. Raises as ``PlainPublisher.publish``."""
        self._queue([job])
        job.wait(timeout)

    def run_all(self, jobs: Sequence["_PublishJob"], timeout: float) -> list[PublishError | None]:
        """Queue jobs for the thread, and wait for all confirms; the errors."""
        until = time.monotonic() + timeout
        errors: list[PublishError | None] = []
        try:
            self._queue(jobs)
        except BrokerUnavailable as error:
            return [error for _ in jobs]
        for job in jobs:
            try:
                job.wait(max(0.0, until - time.monotonic()))
                errors.append(None)
            except PublishError as error:
                errors.append(error)
        return errors

    def _queue(self, jobs: Sequence["_PublishJob"]) -> None:
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("this publisher is closed")
            self._require_thread()
            self._jobs.extend(jobs)
        self._wake()

    def close(self) -> None:
        """As ``PlainPublisher.close``."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._wake()
            thread.join(_GRACE)

    def _require_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="publisher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                raise BrokerUnavailable(f"cannot connect: {error}") from error
            self._thread = thread

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()

    def _is_closed(self) -> bool:
        """Also in a forked child with gevent's copy of this green thread: the parent's goes on."""
        return self._closed or self.pid != os.getpid()

    def _run(self) -> None:
        try:
            while self._has_jobs():
                self._serve()
        except BaseException as error:  # a green thread killed by the program
            with self._lock:
                self._thread = None
                self._fail(BrokerUnavailable(f"the publisher's thread has ended: {error!r}"))
            raise

    def _has_jobs(self) -> bool:
        """Whether to connect (again). If not, the thread ends; the next message starts a thread."""
        with self._lock:
            if self._is_closed():
                self._fail(BrokerUnavailable("this publisher is closed"))
            if not self._jobs:
                self._thread = None
            return bool(self._jobs)

    def _serve(self) -> None:
        """Publish on a connection until the connection is lost."""
        session, why = None, "closed by this process"
        try:
            with _PublishingSession(self._broker_url) as session:
                session.open(declare=self._declare)
                self._session = session
                while not (self._is_closed() or session.is_refused):
                    while self._jobs and not session.is_refused:
                        session.write(self._jobs.popleft())
                    session.wait(inf)
                    session.check_confirms()
        except PublishError as error:
            self._fail(error)
        except PreconditionFailed as error:
            why = str(error)
            if session is not None:
                session.refuse_too_large(why)
        except Exception as error:  # noqa: BLE001
            # Any error: callers would wait for a dead thread.
            why = str(error)
            if self._session is None:
                self._fail(unreachable(self._broker_url, error))
        finally:
            self._session = None
            if session is not None:
                self._write_again(session, why)

    def _write_again(self, session: "_PublishingSession", why: str) -> None:
        """Queue the messages left by a lost connection without a confirm, once each."""
        for job in reversed(session.unconfirmed.values()):
            if job.writes < _WRITES and not self._is_closed():
                self._jobs.appendleft(job)
            else:
                job.settle(BrokerUnavailable(f"the connection to the broker was lost: {why}"))

    def _fail(self, error: PublishError) -> None:
        """Fail all queued jobs."""
        while self._jobs:
            self._jobs.popleft().settle(type(error)(str(error)))  # a copy for each raising thread


@dataclass(eq=False, slots=True)
class _PublishJob:
    """A caller's message, and the wait for the confirm."""

    #: None: only to connect.
    message: Message | None
    writes: int = 0
    written_at: float = 0.0
    error: PublishError | None = None
    done: "Future[None]" = field(default_factory=Future)

    def wait(self, timeout: float) -> None:
        """Wait for the broker's reply. Raises as ``PlainPublisher.publish``."""
        try:
            self.done.result(timeout)
        except TimeoutError:
            why = "no confirm came in time; the message may or may not be stored"
            raise BrokerUnavailable(why) from None
        finally:
            self.done.cancel()  # an unwritten message is never written

    def settle(self, error: PublishError | None = None) -> None:
        """The broker has replied, or never will. Only the first call counts."""
        error = self.error or error
        with suppress(InvalidStateError):  # the caller waits no longer
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class _PublishingSession(BrokerSession):
    """A connection in confirm mode."""

    def __init__(self, broker_url: str) -> None:
        #: Jobs by delivery tag, the oldest first.
        self.unconfirmed: dict[int, _PublishJob] = {}
        #: Whether the broker has refused a message. The next message needs a new connection: on a channel whose first
        #: message came while a cluster had no leader for the queue, every later message is refused, even once there is
        #: a leader (RabbitMQ 3.10).
        self.is_refused = False
        self._blocked: str | None = None
        self._written = 0
        self._producer: Any = None
        super().__init__(broker_url, on_blocked=self._on_blocked, on_unblocked=self._on_unblocked)

    def open(self, *, declare: bool) -> None:
        """Declare the topology, and open the channel. Raises as ``topology.declare``."""
        if declare:
            trouble = topology.declare(self.connection)
            if trouble is not None:
                logger.warning("canary.split_away: %s", trouble)
        channel = self.connection.channel()
        self._producer = Producer(channel, on_return=self._on_return)
        if self.is_amqp:
            channel.confirm_select()
            channel.events["basic_ack"].add(self._on_ack)
            channel.events["basic_nack"].add(self._on_nack)

    def write(self, job: _PublishJob) -> None:
        """Write a job's message. Raises CONNECTION_ERRORS."""
        message = job.message
        if message is None:
            job.settle()
        elif self._blocked is not None:
            # The broker has stopped reading: more would only fill the socket.
            job.settle(BrokerUnavailable(f"the broker takes no messages: {self._blocked}"))
        elif not job.done.done():
            job.writes, job.error = job.writes + 1, None
            job.written_at = time.monotonic()
            self._written += 1
            self.unconfirmed[self._written] = job
            self._producer.publish(
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                mandatory=True,
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode="persistent",
                priority=None,
                headers=dict(message.headers),
                message_id=message.message_id,
                timestamp=int(time.time()),
            )
            if not self.is_amqp:
                self._on_ack(self._written, False)

    def check_confirms(self) -> None:
        """Raise TimeoutError if the oldest message has no confirm after ``CONFIRM_TIMEOUT`` seconds without an alarm."""
        oldest = next(iter(self.unconfirmed.values()), None)
        if oldest is None or self._blocked is not None:
            return
        if time.monotonic() - oldest.written_at >= CONFIRM_TIMEOUT:
            raise TimeoutError(f"no confirm for {CONFIRM_TIMEOUT:g} s")

    def refuse_too_large(self, why: str) -> None:
        """The broker has closed the channel, perhaps at a message longer than the broker's limit."""
        said = _TOO_LARGE.search(why)
        refused = [
            tag
            for tag, job in self.unconfirmed.items()
            if said and job.message is not None and len(job.message.body) > int(said[1])
        ]
        for tag in refused:
            error = MessageTooLarge(f"the broker refused the message: {why}")
            self.unconfirmed.pop(tag).settle(error)
        if refused:  # count no other writes: several messages may be too large
            for job in self.unconfirmed.values():
                job.writes -= 1

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for job in self._taken(tag, multiple):
            job.settle()

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self.is_refused = True
        for job in self._taken(tag, multiple):
            job.settle(PublishRefused("the broker refused the message (nack)"))

    def _taken(self, tag: int, multiple: bool) -> Iterable[_PublishJob]:
        """The unconfirmed jobs up to this tag, or the tag's job alone."""
        tags = [each for each in self.unconfirmed if each <= tag] if multiple else [tag]
        return [self.unconfirmed.pop(each) for each in tags if each in self.unconfirmed]

    def _on_return(self, error: Exception, exchange: str, key: str, message: Any) -> None:
        # basic.return precedes the confirm of the same message, and the confirm settles the message.
        for job in self.unconfirmed.values():
            sent = job.message
            if sent is not None and (sent.message_id, sent.exchange, sent.routing_key) == (
                message.properties.get("message_id"),
                exchange,
                key,
            ):
                job.error = Unroutable(
                    f"no queue takes messages of exchange {exchange!r} with key {key!r}"
                )

    def _on_blocked(self, reason: str) -> None:
        self._blocked = reason

    def _on_unblocked(self) -> None:
        for job in self.unconfirmed.values():
            job.written_at = time.monotonic()  # unread by the broker until now
        self._blocked = None
