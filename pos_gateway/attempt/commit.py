"""Makes an attempt's consequences durable, before the message is acknowledged."""

from collections import Counter
from collections.abc import Callable
from math import inf

from pos_gateway.attempt.decision import Decision
from pos_gateway.events.relay import EventRelay
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Entry, Key
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime import failpoints
from pos_gateway.telemetry import metrics


class Commit:
    """Commits decisions. Safe for any number of green threads at once.

    ``store`` publishes messages, and returns once the broker has stored all.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        events: EventRelay,
        directory: Directory,
        store: Callable[..., None],
    ) -> None:
        self._ledger = ledger
        self._events = events
        self._directory = directory
        self._store = store
        #: Recorded events by kind, for this process's report: to read the metrics costs too much there.
        self.outcomes: Counter[str] = Counter()

    def __call__(self, decision: Decision, *, timeout: float = inf) -> bool:
        """Return once all is durable, in this order: entries, events, messages. Retries until then.

        False: a different worker has taken over the order, and does the rest.

        Raises:
            LedgerUnavailable, BrokerUnavailable: this process is stopping, or ``timeout`` seconds
                have passed.
        """
        for claim, entry in decision.entries:
            if not self._ledger.finish(claim, entry, timeout=timeout):
                return False
            self._event_recorded(claim.key, entry)
        for record in decision.event_records:
            self._ledger.record_event(record.key, record.entry, record.body, timeout=timeout)
            self._event_recorded(record.key, record.entry)
        failpoints.reach("publish.before")
        if decision.messages:
            self._store(decision.messages, timeout=timeout)
        failpoints.reach("publish.confirmed")
        return True

    def _event_recorded(self, key: Key, entry: Entry) -> None:
        """An event is durable: wake its publisher."""
        if entry.event is not None:
            self.outcomes[entry.event.kind] += 1
            provider = self._directory.provider_of(key.merchant_id)
            metrics.outcome_recorded(entry.event.kind, provider)
            self._events.wake()
