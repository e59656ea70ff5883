"""Two event pipelines as one writes them first, on the gateway's own tables.

    python -m loadtests.baselines.naive_events singly|chunks BROKER_URL DATABASE_URL

``singly``: row after row, each published, confirmed and marked before the next is looked at.
``chunks``: all that there is at a moment is cut into equal chunks, one for each of two workers, which
hydrate them; when the last of them is done, all is published in order. Whatever comes meanwhile
waits. That is the seed's first pipeline. Both hydrate and publish with the gateway's own code.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.engine import open_database
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Outbox, Row, Term
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault

WORKERS = 2
#: Seconds between two looks for events.
POLL = 0.03


class Naive:
    """What both have in common: the table, and the only publisher."""

    def __init__(self, broker_url: str, database_url: str) -> None:
        self._outbox = Outbox(open_database(database_url))
        self._publisher = Publisher(broker_url)
        term = self._outbox.take("naive", self._outbox.look()[0].epoch)
        assert term is not None, "another process publishes"
        self._term: Term = term

    def assigned(self, most: int) -> list[Row]:
        """The next rows, with their positions."""
        term = self._outbox.assign(self._term, most)
        assert term is not None, "another process publishes"
        self._term = term
        return self._outbox.read(term.published, most)

    def publish(self, messages: Sequence[Message], last: Row) -> None:
        """Publish, wait for all confirms, and write that down."""
        stored = self._publisher.publish_batch(messages, on_trouble=print)
        assert stored == len(messages), f"{stored} of {len(messages)} were stored"
        term = Term(self._term.leader, self._term.epoch, self._term.assigned, last.position or 0)
        self._term = self._outbox.assign(term, 0) or term


def singly(naive: Naive) -> None:
    """One after the other, for ever."""
    while True:
        rows = naive.assigned(1)
        if not rows:
            time.sleep(POLL)
        for row in rows:
            naive.publish([_HYDRATION.message(row)], row)


def chunks(naive: Naive) -> None:
    """All that there is, in equal chunks, for ever."""
    with ProcessPoolExecutor(WORKERS) as pool:
        while True:
            rows = naive.assigned(1_000_000)
            if not rows:
                time.sleep(POLL)
                continue
            size = -(-len(rows) // WORKERS)
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            messages = [each for part in pool.map(_hydrated, parts) for each in part]
            naive.publish(messages, rows[-1])


_HYDRATION = Hydration(Payloads(Vault()))


def _hydrated(rows: Sequence[Row]) -> list[Message]:
    return [_HYDRATION.message(row) for row in rows]


def main(how: str, *urls: str) -> None:
    """Publish until a signal ends it."""
    ways: dict[str, Any] = {"singly": singly, "chunks": chunks}
    ways[how](Naive(*urls))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
