"""Acts on every status event once, in their order. Needs Kombu and nothing else.

    python consumer.py amqp://guest:guest@localhost:5672// backend.db [FIRST POSITION]

What your backend does with an event goes into ``apply``.
"""

import json
import sqlite3
import sys
import time

from kombu import Connection, Consumer, Queue
from kombu.mixins import ConsumerMixin

#: Seconds after which a gap is said.
PATIENCE = 60.0
TABLES = """
create table if not exists applied (position integer primary key, id text not null);
create index if not exists applied_by_id on applied (id);
create table if not exists held (position integer primary key, event text not null);
create table if not exists orders (merchant_id text, order_id text, status text, changes integer,
                                   primary key (merchant_id, order_id));
"""


def apply(database, event):
    """Everything that follows from the event, in the transaction that it is called in."""
    database.execute(
        "insert into orders values (?, ?, ?, 1) on conflict (merchant_id, order_id) "
        "do update set status = excluded.status, changes = changes + 1",
        (event["merchant_id"], event["order_id"], event["type"]),
    )


class Inbox:
    """The events that were applied, and those that came before their turn."""

    def __init__(self, file, first=1):
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript(TABLES)
        self._first = first

    def take(self, event):
        """Apply it if it is the next one, and those that were held after it; which were applied."""
        applied = []
        self._database.execute("begin immediate")
        with self._database:  # commits, or rolls all of it back
            last = self._last()
            if event["position"] > last:
                held = (event["position"], json.dumps(event))
                self._database.execute("insert or ignore into held values (?, ?)", held)
            else:
                self._require_known(event)
            while text := self._one("select event from held where position = ?", last + 1):
                last, following = last + 1, json.loads(text)
                if not self._one("select 1 from applied where id = ?", following["id"]):
                    apply(self._database, following)
                    applied.append(following)
                self._database.execute("insert into applied values (?, ?)", (last, following["id"]))
                self._database.execute("delete from held where position = ?", (last,))
        return applied

    def gap(self):
        """The first and the last position that others wait for; None if none is missing."""
        waiting = self._one("select min(position) from held")
        return waiting and (self._last() + 1, waiting - 1)

    def _require_known(self, event):
        known = self._one("select id from applied where position = ?", event["position"])
        if known not in (None, event["id"]):  # None: from before the first, or cleared away
            raise SystemExit(
                f"position {event['position']} comes with another id than before: "
                "has the gateway's database been set back to a backup?"
            )

    def _last(self):
        return self._one("select max(position) from applied") or self._first - 1

    def _one(self, query, *values):
        row = self._database.execute(query, values).fetchone()
        return row and row[0]


class Backend(ConsumerMixin):
    """Takes events from the queue, and connects again for ever."""

    def __init__(self, connection, inbox):
        self.connection = connection
        self._inbox = inbox
        self._gap, self._since = None, 0.0

    def get_consumers(self, _, channel):
        queue = Queue("order-events", no_declare=True)  # the gateway declares it
        return [Consumer(channel, [queue], on_message=self.on_message, prefetch_count=200)]

    def on_message(self, message):
        for event in self._inbox.take(json.loads(message.body)):
            print(event["position"], event["type"], event["order_id"], flush=True)
        message.ack()  # what is not acknowledged when this ends comes again, and is known

    def on_iteration(self):
        gap, now = self._inbox.gap(), time.monotonic()
        if gap != self._gap:
            self._gap, self._since = gap, now
        if gap and now - self._since >= PATIENCE:
            self._since = now
            first, last = gap
            print(
                f"positions {first} to {last} are missing, and later ones wait for them: "
                f"pos-gateway events replay --from {first} --to {last} --queue order-events",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    url, file, *rest = sys.argv[1:]
    with Connection(url, heartbeat=15) as connection:
        Backend(connection, Inbox(file, *map(int, rest))).run()
