"""Bulk operations, composed from the settings: previews runs, and runs them.

The command line and the server use this; neither knows how letters or orders are found.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Engine

from pos_gateway.administration.bulk.doubt import DoubtWork
from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.letters import Act, LetterWork
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.read_ahead import ReadAheadOrderAdmin
from pos_gateway.administration.bulk.run import BulkAction, BulkRun, NewItem, problem_of
from pos_gateway.administration.bulk.runner import BulkRunner, Watcher
from pos_gateway.administration.bulk.store import BulkStore, RunClaim
from pos_gateway.administration.bulk.work import Work
from pos_gateway.administration.discard import Discard, key_of
from pos_gateway.administration.replay import Replay
from pos_gateway.administration.resolve import Resolution
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.errors import AdminError
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.search import provider_of_each
from pos_gateway.routing.splits import in_force
from pos_gateway.settings import Settings

#: Seconds after which the canary split is read again.
_SPLIT = 30.0


class BulkOperations:
    """Previews and runs bulk runs.

    Args:
        settings: the broker, the largest order, the canary's percentage.
        engine: the database.
        payloads: opens and seals orders.
    """

    def __init__(self, settings: Settings, engine: Engine, payloads: Payloads) -> None:
        self._settings = settings
        self._engine = engine
        self._payloads = payloads
        self._ledger = OrderAdmin(engine, payloads)
        self.store = BulkStore(engine)

    def found(
        self,
        action: BulkAction,
        filter_: BulkFilter,
        options: BulkOptions,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[NewItem]:
        """The letters or orders that the filter selects, each with why it would be refused now.

        Changes and stores nothing. Raises AdminError once ``is_stopped``.
        """
        with self._work(action, filter_, options) as work:
            for item in work.found():
                if is_stopped():
                    raise AdminError("its server was stopped; preview it again")
                if item is not None:
                    yield item

    def preview(
        self,
        action: BulkAction,
        filter_: BulkFilter,
        options: BulkOptions,
        operator: str,
        *,
        limit: int | None = None,
    ) -> BulkRun:
        """Store a run that an operator can confirm: the first ``limit`` items that the filter selects.

        Raises:
            AdminError: another run has the letters, or orders; or not all letters came.
        """
        self.store.require_idle(action.subject)
        run_id = self.store.previews.prepare(
            action, operator=operator, filter_=filter_.record, options=options.record
        )
        self.store.previews.fill(run_id, _first(self.found(action, filter_, options), limit))
        return self.store.run(run_id)

    def fill(
        self,
        run_id: int,
        *,
        limit: int | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> BulkRun:
        """Write the items of a run that ``previews.prepare`` has stored: the first ``limit`` that the filter selects.

        Raises:
            AdminError: not all letters came, or it was stopped; it is stored why.
        """
        run = self.store.run(run_id)
        filter_, options = BulkFilter.of(run.filter), BulkOptions.of(run.options)
        found = self.found(run.action, filter_, options, is_stopped)
        try:
            self.store.previews.fill(run_id, _first(found, limit))
        except Exception as error:
            self.store.previews.fail(run_id, problem_of(error))
            raise
        return self.store.run(run_id)

    def run(
        self,
        run_id: int,
        operator: str,
        *,
        total: int | None = None,
        refused: int | None = None,
        watcher: Watcher | None = None,
    ) -> BulkRun:
        """Start or resume the run, and act on its items to the end, on this thread.

        Args:
            run_id: the run.
            operator: who starts or resumes it.
            total, refused: its preview's numbers, as an operator has confirmed them.
            watcher: follows the progress, and can stop it.

        Raises:
            AdminError, PublishError: it cannot start, or had to stop.
        """
        claim = self.store.take(run_id, operator=operator, total=total, refused=refused)
        return self.go_on(claim, watcher)

    def go_on(self, claim: RunClaim, watcher: Watcher | None = None) -> BulkRun:
        """Act on the items of a run that is leased to this process, to the end, on this thread.

        Raises:
            AdminError, PublishError: it had to stop.
        """
        run = claim.run
        options = BulkOptions.of(run.options)
        with self._work(run.action, BulkFilter.of(run.filter), options) as work:
            return BulkRunner(
                self.store, claim, work, rate=options.rate, watcher=watcher or Watcher()
            ).run()

    @contextmanager
    def _work(
        self, action: BulkAction, filter_: BulkFilter, options: BulkOptions
    ) -> Iterator[Work]:
        publisher = Publisher(self._settings.broker_url)
        try:
            yield self._work_with(publisher, action, filter_, options)
        finally:
            publisher.close()

    def _work_with(
        self, publisher: Publisher, action: BulkAction, filter_: BulkFilter, options: BulkOptions
    ) -> Work:
        providers = provider_of_each(self._engine) if filter_.providers else {}
        split = _RecentSplit(self._settings)
        ahead = ReadAheadOrderAdmin(self._engine, self._payloads)
        if action in (BulkAction.ACCEPTED, BulkAction.NOT_SENT):
            there = action is BulkAction.ACCEPTED
            return DoubtWork(
                self._ledger,
                is_selected=lambda order: filter_.has_order(order, providers),
                resolving=lambda operator, note: Resolution(
                    self._ledger if operator else ahead,
                    publisher,
                    operator,
                    Split() if there or not operator else split(),
                    note=note,
                ),
                ahead=lambda orders: ahead.read(
                    (each.key for each in orders), with_orders=not there
                ),
                connect=publisher.connect,
                there=there,
                until=options.until,
            )
        if action is BulkAction.DISCARD:
            acting, judge = self._discarding(options, ahead)
        else:
            acting, judge = self._replaying(options, publisher, split, ahead)
        return LetterWork(
            self._settings.broker_url,
            is_selected=lambda letter: filter_.has_letter(letter, providers),
            judge=judge,
            ahead=lambda letters: ahead.read(map(key_of, letters)),
            acting=acting,
        )

    def _discarding(
        self, options: BulkOptions, ahead: ReadAheadOrderAdmin
    ) -> tuple["_Acting", Act]:
        def acting(queue: DeadLetterQueue, operator: str, note: str) -> Act:
            return Discard(
                self._ledger, queue.acknowledge, operator, options.even_open, note
            ).discard

        return acting, Discard(ahead, _nothing, "", options.even_open).why_not

    def _replaying(
        self,
        options: BulkOptions,
        publisher: Publisher,
        split: "_RecentSplit",
        ahead: ReadAheadOrderAdmin,
    ) -> tuple["_Acting", Act]:
        def replay(
            letter: DeadLetter, acknowledge: Callable[[DeadLetter], None], operator: str, note: str
        ) -> Replay:
            return Replay(
                self._ledger if operator else ahead,
                publish=publisher.publish,
                acknowledge=acknowledge,
                operator=operator,
                split=split() if operator else Split(),
                until=options.until(datetime.now(UTC)),
                largest=self._settings.max_order_bytes,
                dry_run=not operator,
                note=note,
            )

        def acting(queue: DeadLetterQueue, operator: str, note: str) -> Act:
            return lambda letter: replay(letter, queue.acknowledge, operator, note).replay(letter)

        return acting, lambda letter: replay(letter, _nothing, "", "").replay(letter)


#: Given a pass's queue, the operator and the note: acts on a letter.
_Acting = Callable[[DeadLetterQueue, str, str], Act]


class _RecentSplit:
    """The canary split in force, read again now and then: a run may take hours."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: Split | None = None
        self._read_at = 0.0

    def __call__(self) -> Split:
        now = time.monotonic()
        if self._known is None or now >= self._read_at + _SPLIT:
            self._known = in_force(self._settings.broker_url, self._settings.canary_percent)
            self._read_at = now
        return self._known


def _first(items: Iterator[NewItem], limit: int | None) -> Iterator[NewItem]:
    for number, item in enumerate(items, 1):
        yield item
        if number == limit:
            return


def _nothing(_letter: DeadLetter) -> None:
    """Acknowledges nothing."""
