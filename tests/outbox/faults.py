"""Faults in a backend's outbox, each with the test that must find it.

``python -m tests.outbox.faults`` tries them.
"""

from tests.planting import Fault, try_all

RELAY, STORE = "client/outbox/relay", "client/outbox/store"
ADDING, CONNECTIONS = "client/outbox/adding", "client/outbox/connections"
PUBLISHING = "client/outbox/publishing"

FAULTS = [
    Fault(
        "an order is not published before the commit",
        CONNECTIONS,
        "return _rows(cursor.fetchall()) if cursor.description else []\n        finally:",
        "return _rows(cursor.fetchall()) if cursor.description else self.connection.commit() or []\n"
        "        finally:",
        "adding::kept_if_the_transaction_commits_and_only_then",
    ),
    Fault(
        "a row is removed only once it is confirmed",
        RELAY,
        "published = publish(self._client, batch)",
        "store.finish([row.id for row in batch])\n        published = publish(self._client, batch)",
        "relay::removed_only_once_it_is_confirmed",
    ),
    Fault(
        "a row without a confirm is not removed",
        STORE,
        "own.execute(_removal(self.dialect, len(published)), published)",
        'own.execute(f"delete from {TABLE}")',
        "relay::removed_only_once_it_is_confirmed",
    ),
    Fault(
        "a confirmed row is removed",
        RELAY,
        "store.finish(published.confirmed, published.refused, delayed)",
        "store.finish([], published.refused, delayed)",
        "killed::a_relay_killed_at_a_failpoint",
    ),
    Fault(
        "a cancel request does not overtake its order",
        STORE,
        "and e.id < o.id",
        "and e.id < 0",
        "relay::never_overtakes_its_order",
    ),
    Fault(
        "a cancel request does not wait for a refused order",
        STORE,
        "and e.order_id = o.order_id and e.id < o.id and e.refused_at is null)",
        "and e.order_id = o.order_id and e.id < o.id)",
        "relay::does_not_wait_for_an_order_that_is_refused",
    ),
    Fault(
        "a refused row is not published again",
        STORE,
        '"where o.refused_at is null "',
        '"where 1 = 1 "',
        "relay::a_refused_row_is_kept_with_its_reason",
    ),
    Fault(
        "a connection in autocommit is refused",
        ADDING,
        "own.require_transaction()",
        "",
        "adding::a_connection_in_autocommit_is_refused",
    ),
    Fault(
        "an invalid order is refused in the request",
        ADDING,
        'require_submittable(parsed, datetime.now(UTC), setting("max_order_bytes", max_order_bytes))',
        "",
        "adding::an_invalid_order_is_refused_in_the_request",
    ),
    Fault(
        "a failed batch is taken apart",
        RELAY,
        "self._limit = 1",
        "pass",
        "relay::a_row_that_fails_whole_batches",
    ),
    Fault(
        "a text of SQLite's is read as bytes",
        STORE,
        '"cast(o.body as blob)" if dialect is Dialect.SQLITE else "o.body"',
        '"o.body"',
        "relay::a_body_that_sqlite_has_as_a_text",
    ),
    Fault(
        "every reason is stored",
        PUBLISHING,
        '.encode("utf-8", "backslashreplace").decode()',
        "",
        "relay::a_reason_that_no_text_column_takes",
    ),
    Fault(
        "a confirmed row that cannot be removed is not submitted again",
        RELAY,
        "if confirmed := [row.id for row in batch if self._confirmed.get(row.id) == row]:",
        "if confirmed := []:",
        "relay::a_row_that_cannot_be_removed",
    ),
    Fault(
        "what is neither an order nor a cancel request is neither",
        PUBLISHING,
        "if row.action != CANCEL:",
        "if False:",
        "relay::a_row_that_contradicts_itself",
    ),
    Fault(
        "a batch is bounded in bytes",
        RELAY,
        "(position == 0 or so_far <= BATCH_BYTES)",
        "True",
        "relay::bounded_in_bytes",
    ),
    Fault(
        "a driver that only SQLAlchemy knows is in autocommit",
        CONNECTIONS,
        "self._is_in_autocommit(driver) if name is None",
        "False if name is None",
        "adding::any_driver",
    ),
    Fault(
        "no error has a part of the database's password",
        "client/outbox/opening",
        'if place.count("@") > 1 or _QUOTED.search(rest):',
        "if False:",
        "relay::a_url_that_does_not_do",
    ),
    Fault(
        "the URL says how long to connect to MariaDB",
        "client/outbox/opening",
        '"connect_timeout": int(connect),',
        '"connect_timeout": _CONNECT,',
        "relay::how_long_to_connect_to_mariadb",
    ),
    Fault(
        "a backlog is not sorted for each batch",
        STORE,
        "; set local enable_sort = off",
        "",
        "relay::not_sorted_out_of_a_backlog",
    ),
    Fault(
        "a row that failed goes alone",
        RELAY,
        "return rows[:1]",
        "return rows",
        "relay::a_row_that_failed_goes_alone",
    ),
    Fault(
        "an outage refuses no row",
        RELAY,
        "(len(batch) == 1 and self._was_up)",
        "len(batch) == 1",
        "relay::while_the_gateway_is_away_nothing_is_given_up",
    ),
    Fault(
        "a database that is away again is said again",
        RELAY,
        "elif self._away == _DATABASE or (self._away and published.confirmed):",
        "elif self._away and published.confirmed:",
        "relay::a_relay_says_each_time_that_its_database_is_away",
    ),
    Fault(
        "an order that has expired in the outbox is submitted all the same",
        PUBLISHING,
        "again=True",
        "again=False",
        "relay::what_is_committed_is_submitted_and_removed",
    ),
    Fault(
        "slow cancel requests do not outlast the transaction",
        PUBLISHING,
        "if clock() >= ends and (published.confirmed or published.unconfirmed):",
        "if False:",
        "relay::slow_cancel_requests",
    ),
    Fault(
        "a pool's connections do not come back in autocommit",
        "client/outbox/opening",
        "connection.detach()",
        "pass",
        "relay::a_pool_s_connections",
    ),
    Fault(
        "one relay at a time works on SQLite",
        "client/outbox/sole_relay",
        "return self._lock.in_transaction",
        "return True",
        "relay::on_sqlite_one_relay_works",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "outbox")
