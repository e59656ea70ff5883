"""Polls merchants' POSes for changes of accepted orders.

All workers poll, each merchant by a single worker at a time, the longest due merchant first. A slow POS
delays the merchant's own polls only. Polls yield to orders: a poll's requests are of the same quotas, a merchant
with an open breaker is not polled, and polls pause while orders lack CPU.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.polls import ListsChanges, Window, is_polled
from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.replies import replied_at
from pos_gateway.adapters.steps import several_steps
from pos_gateway.attempt.call import Caller
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Outcome
from pos_gateway.ledger.callback_rules import Applied, CallbackResult, Received, is_news
from pos_gateway.ledger.callbacks import CallbackLedger, report
from pos_gateway.ledger.commits import GroupCommit
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.open_orders import AGE, DonePoll, DuePoll, OpenOrders
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime.green import yield_control
from pos_gateway.telemetry import metrics
from pos_gateway.transport.errors import NotSent, TransportError
from pos_gateway.transport.exchange import Reply, Request, Send

log = structlog.get_logger(__name__)

#: Merchants polled at once by this process; and seconds between two looks for due polls.
WIDTH, LOOK = 16, 5.0
#: Seconds for a request, for a poll, and between two requests of a poll, or two looks while due polls wait.
SECONDS, LIMIT, PACE = 10.0, 45.0, 1.0
#: Merchants asked for a request between two yields: less than a millisecond.
_YIELD_EVERY = 100
#: Least seconds for a reply; with less left no request is sent.
_LEAST = 1.0
#: Overlap of two polls' times in seconds: a POS may list a change late, and an acceptance is durable some time
#: after the reply.
OVERLAP = 300.0
#: Most seconds by which the clock of a POS without ``Date`` in replies may be wrong.
SKEW = 3600.0
#: Most seconds of changes in a poll; each failure halves the time, five times at most, and further ones double the pause.
#: The first three double the pause, too, if the POS held a thread for ``_HELD`` seconds: 16 threads make 480 such polls a minute.
LONGEST, _HALVINGS, _SILENT, _HELD = 4 * 3600.0, 5, 3, 2.0
#: Most seconds until the next poll after failures, and after a success behind the present.
MAX_WAIT, BEHIND = 1800.0, 10.0
#: Seconds for which ``stop`` waits.
_GRACE = 1.0


class Precedence:
    """Orders' precedence over polls: here none, as in a process without admission."""

    def pause(self) -> float:
        """Seconds to pause before a request, while orders lack CPU."""
        return 0.0

    def is_down(self, merchant_id: str) -> bool:
        """Whether the merchant's breaker is open or half-open."""
        return False

    def begin(self, merchant_id: str) -> Callable[[], None] | None:
        """Take a request from the merchant's quotas, and return the end to be called; None: orders need the rest."""
        return lambda: None

    def refused(self, merchant_id: str, contact: CallResult, retry_after: float | None) -> None:
        """The POS refused a request as one too many: quotas pause as after an order's."""


class Poller:
    """Polls, on threads: green ones in a green worker. The constructor does no I/O.

    Args:
        open_orders: claims polls.
        callbacks: applies changes; for this poller alone.
        directory: merchants' records.
        adapters: by name.
        caller: has the merchants' credentials and connections.
        every: seconds between two polls of a merchant.
        run: where blocking calls run (``off_the_loop``).
    """

    def __init__(
        self,
        open_orders: OpenOrders,
        callbacks: CallbackLedger,
        directory: Directory,
        adapters: Mapping[str, Adapter],
        caller: Caller,
        *,
        every: float,
        run: Run = here,
    ) -> None:
        self._open_orders, self._callbacks = open_orders, callbacks
        self._directory, self._adapters, self._caller = directory, adapters, caller
        self._every, self._run = every, run
        #: Polls' changes share transactions.
        self._commit = GroupCommit(self._applied)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: Polls in progress by merchant, and rows of ended polls to be stored.
        self._polling: dict[str, threading.Thread] = {}
        self._ended: list[DonePoll] = []
        #: Due polls lack a thread; and half of the threads have ended since, or this process stops.
        self._is_full, self._next_round = False, threading.Event()
        #: Time of the next reading of merchants, and whether any merchant is polled.
        self._enrol_at, self._polls_any = float("-inf"), False
        self._orders = Precedence()

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_on, name="polls", daemon=True)
            self._thread.start()

    def yield_to(self, orders: Precedence) -> None:
        """Yield to orders."""
        self._orders = orders

    def stop(self) -> None:
        """End: no further request is sent, and awaited replies are dropped. Idempotent."""
        self._stopping.set()
        self._next_round.set()
        threads = [*self._polling.values(), *([self._thread] if self._thread else [])]
        until = time.monotonic() + _GRACE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if not any(each.is_alive() for each in threads):
            self._commit.close()
            self._callbacks.close()

    def round(self) -> float:
        """Store the rows of ended polls, and start due polls, ``WIDTH`` at once.

        Returns:
            Seconds until the next round.

        Raises:
            SQLAlchemyError: the database is away.
        """
        now, self._is_full = time.monotonic(), False
        self._next_round.clear()
        if ended := self._ended[:]:
            self._run(lambda: self._open_orders.done(ended))
            del self._ended[: len(ended)]  # more polls may have ended since
        if now >= self._enrol_at:
            self._polls_any = self._run(self._open_orders.enrol)
            self._enrol_at = now + self._every
        if not self._polls_any:
            metrics.polls_waiting.set(0)
            return LOOK
        begun: dict[str, Callable[[], None]] = {}
        try:
            due = self._run(self._open_orders.due)
            chosen = self._chosen(due, begun)
            lease = max(self._every, LIMIT)
            claimed: list[DuePoll] = self._run(lambda: self._open_orders.claim(chosen, lease))
            for each in claimed:
                if each.orders:
                    self._start(each, begun.pop(each.merchant_id, None))
        finally:
            for end in begun.values():  # polls claimed by another worker
                end()
        metrics.polls_waiting.set(len(due) - len(chosen))
        return LOOK if len(due) == len(chosen) else PACE

    def _chosen(
        self, due: Sequence[tuple[str, bool]], begun: dict[str, Callable[[], None]]
    ) -> list[tuple[str, bool]]:
        """The polls to claim, with the ends of begun requests. Others stay due, the longest due first."""
        chosen, left = [], WIDTH - len(self._polling)
        for place, (merchant_id, is_open) in enumerate(due):
            if not place % _YIELD_EVERY:
                yield_control()
            if is_open:
                if left <= 0:
                    self._is_full = True
                    break
                if merchant_id in self._polling:
                    continue
                # The thread loads a record not in memory, and only then are the merchant's quotas known.
                if self._directory.is_fresh(merchant_id) and not self._orders.is_down(merchant_id):
                    if (end := self._orders.begin(merchant_id)) is None:
                        continue
                    begun[merchant_id] = end
                left -= 1
            chosen.append((merchant_id, is_open))
        return chosen

    def _start(self, due: DuePoll, end: Callable[[], None] | None) -> None:
        thread = threading.Thread(
            target=self._poll_safely, args=(due, end), name="poll", daemon=True
        )
        self._polling[due.merchant_id] = thread
        thread.start()

    def _run_on(self) -> None:
        wait, problem = 0.0, ""
        while True:
            self._next_round.wait(wait)
            if self._stopping.is_set():
                return
            before, problem = problem, ""
            try:
                wait = self.round()
            except SQLAlchemyError as error:
                wait, problem = LOOK, str(error).partition("\n")[0]
            except Exception as error:
                wait = LOOK
                log.error("poll.mistake", exc_info=error)
            if problem and not before:
                log.warning("poll.no_database", error=problem)

    def _poll_safely(self, due: DuePoll, end: Callable[[], None] | None) -> None:
        """Make a poll; a failure concerns one merchant only."""
        asking = _Asking(due.merchant_id, self._orders, self._stopping, end)
        try:
            ended = self._poll(due, asking)
        except (SQLAlchemyError, LedgerUnavailable) as error:
            log.debug("poll.no_database", error=str(error))  # due again soon
        except Exception as error:  # an invalid record, or a bug of an adapter
            log.error("poll.mistake", merchant_id=due.merchant_id, exc_info=error)
            self._ended.append(_failed(due, self._every))
        else:
            if ended is not None:
                self._ended.append(ended)
        finally:
            asking.close()
            self._polling.pop(due.merchant_id, None)
            if self._is_full and len(self._polling) <= WIDTH // 2:
                self._next_round.set()

    def _poll(self, due: DuePoll, asking: "_Asking") -> DonePoll | None:
        merchant = self._directory.get(due.merchant_id)
        adapter = self._adapters.get(merchant.adapter)
        is_asked = is_polled(merchant, adapter) and not merchant.paused
        if not isinstance(adapter, ListsChanges) or not is_asked:
            return None
        if self._orders.is_down(merchant.id):
            metrics.polls(adapter.name, "down").inc()
            return None
        if not asking.begin():
            return None  # due again at the end of the claim
        window = window_of(due)
        asking.ask = self._caller.asking(merchant)
        problem: str | None = None
        at_least, results = 0.0, set[CallbackResult]()
        try:
            for page in adapter.changes(window, merchant, Send(asking)):
                if isinstance(page, Outcome):
                    problem = page.kind.value if page.reason is None else page.reason.code
                    at_least = page.retry_after or 0.0
                    self._orders.refused(merchant.id, page.contact, page.retry_after)
                else:
                    results |= self._apply(page, due, merchant, adapter)
        except TransportError as error:
            problem = error.code
        if CallbackResult.BUSY in results:
            problem = "busy"  # workers write an order all the time
        if problem is not None:
            metrics.polls(adapter.name, "failed").inc()
            early = _SILENT if asking.longest_wait >= _HELD else 0
            failed = _failed(due, self._every, at_least, early)
            log.log(
                logging.DEBUG if due.failures else logging.WARNING,
                "poll.failed",
                merchant_id=merchant.id,
                adapter=adapter.name,
                code=problem,
                again_in=failed.wait,
            )
            return failed
        metrics.polls(adapter.name, "listed").inc()
        # A cancellation that waits for a cancel request's end is to be listed again, for hours at most.
        is_held = CallbackResult.WAITING in results and window.until.timestamp() >= due.now
        since = due.since if is_held else listed_until(due, window, asking.said_at)
        lists_all = getattr(adapter, "lists_all", False)
        if lists_all or since != window.until.timestamp() - OVERLAP:
            return DonePoll(due.merchant_id, since, 0, self._every)
        # Behind: more follows soon. The POS may list short times alone, and longer ones would fail again.
        kept = due.failures if due.failures <= _HALVINGS else 0
        return DonePoll(due.merchant_id, since, kept, min(self._every, BEHIND))

    def _apply(
        self, said: Sequence[Callback], due: DuePoll, merchant: Merchant, adapter: Adapter
    ) -> set[CallbackResult]:
        """Apply the changes; after BUSY or WAITING the next poll has to list the same again."""
        owners = {merchant.id: (endpoint(merchant, adapter), merchant.endpoint)}
        steps, received = several_steps(adapter), []
        for each in said:
            order = due.orders.get(each.external_id or "")
            if order is not None and is_news(each.meaning, order.lifecycle):
                its = replace(each, order_id=order.order_id)
                received.append(
                    Received(adapter.name, merchant.id, its, owners, steps=steps, is_polled=True)
                )
        if not received:
            return set()
        applied = self._commit(received, timeout=SECONDS)
        for one, result in zip(received, applied, strict=True):
            if result.result is not CallbackResult.MOVED:  # listed again by each poll
                report(one, result, merchant.provider)
        return {each.result for each in applied}

    def _applied(self, polls: Sequence[Sequence[Received]]) -> list[list[Applied]]:
        """The results for each poll, of a single transaction."""
        received = [each for poll in polls for each in poll]
        applied = iter(self._run(lambda: self._callbacks.apply(received)))
        return [[next(applied) for _ in poll] for poll in polls]


class _Asking:
    """The requests of a poll, one a second: the poll waits for each of the merchant's quotas, within the poll's time.

    Args:
        merchant_id: the merchant.
        orders: go first.
        stopping: ends the poll.
        end: of the first request, if begun.
    """

    #: Sends a request.
    ask: Send

    def __init__(
        self,
        merchant_id: str,
        orders: Precedence,
        stopping: threading.Event,
        end: Callable[[], None] | None,
    ) -> None:
        self._merchant_id, self._orders, self._stopping = merchant_id, orders, stopping
        self._end = end
        self._until = time.monotonic() + LIMIT
        self._is_first, self.longest_wait = True, 0.0
        #: The POS's clock at the first reply (Unix time); None: unknown.
        self.said_at: float | None = None

    def begin(self) -> bool:
        """Take a request from the quotas, unless one is taken; False: orders need the rest."""
        self._end = self._end or self._orders.begin(self._merchant_id)
        return self._end is not None

    def close(self) -> None:
        """End the begun request, if any."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __call__(self, request: Request) -> Reply:
        is_first, self._is_first = self._is_first, False
        pause, code = 0.0 if is_first else PACE, "timeout"
        while True:
            pause = max(pause, self._orders.pause())
            left = self._until - time.monotonic() - pause
            if left < _LEAST or self._stopping.wait(pause):
                raise NotSent(code, "the poll's time is over, or this process stops")
            if self.begin():
                break
            # Orders need the rest of the POS's limits. No order has this code.
            pause, code = PACE, "quota"
        began = time.monotonic()
        try:
            reply = self.ask(replace(request, seconds=min(SECONDS, request.seconds, left)))
        finally:
            self.longest_wait = max(self.longest_wait, time.monotonic() - began)
            self.close()
        date = replied_at(reply) if is_first else None
        self.said_at = self.said_at if date is None else date.timestamp()
        return reply


def window_of(due: DuePoll) -> Window:
    """The time since the last poll, and since the oldest open order was made."""
    made = max(min(each.created_at for each in due.orders.values()), due.now - AGE) - SKEW
    since = min(max(made, due.since or made), due.now)
    part = 0.5 ** min(due.failures, _HALVINGS)
    until = since + LONGEST * part
    until = until if until < due.now else due.now + SKEW
    made = max(made, due.now - AGE * part - SKEW)
    return Window(*(datetime.fromtimestamp(each, UTC) for each in (since, until, made)))


def listed_until(due: DuePoll, window: Window, said_at: float | None) -> float:
    """Until when the POS has listed changes: by the POS's clock, and no later than the database's."""
    known = due.now - SKEW if said_at is None else min(said_at, due.now)
    since = window.since.timestamp()
    return max(since, min(known, window.until.timestamp()) - OVERLAP)


def _failed(due: DuePoll, every: float, at_least: float = 0.0, early: int = 0) -> DonePoll:
    doublings = max(min(due.failures, early), min(due.failures - _HALVINGS, 10))
    wait = max(at_least, min(every * 2.0**doublings, MAX_WAIT))
    return DonePoll(due.merchant_id, due.since, due.failures + 1, wait)
