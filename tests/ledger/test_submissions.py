"""What is known of an order that comes by HTTP, on both databases."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text

from pos_gateway.database.engine import open_database
from pos_gateway.database.psycopg_internals import wait_at_most
from pos_gateway.database.schema import orders, submissions
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.order import Order
from pos_gateway.ledger import submissions as module
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune_submissions
from pos_gateway.ledger.states import Key, State
from pos_gateway.ledger.submissions import (
    Known,
    Submissions,
    Submitting,
    digest,
)
from pos_gateway.runtime.vault import Vault, new_key
from testkit.patience import PATIENCE

NEW = Known(is_known=False, is_different=False, state=None)
SAME = Known(is_known=True, is_different=False, state=None)
OTHER = Known(is_known=True, is_different=True, state=None)
ONE = Submitting("m1", "o1", "a" * 64, datetime(2026, 11, 20, tzinfo=UTC))
ITEM = {"sku": "s", "name": "n", "quantity": 1, "unit_price": 1}


@pytest.fixture
def payloads() -> Payloads:
    return Payloads(Vault(new_key()))


@pytest.fixture
def known(engine: Engine, payloads: Payloads) -> Iterator[Submissions]:
    submissions = Submissions(engine, payloads)
    yield submissions
    submissions.close()


def test_the_second_of_an_order_is_compared_with_the_first(known: Submissions) -> None:
    assert known.write([ONE], 1.0) == [NEW]
    other = replace(ONE, digest="b" * 64)
    of_another_merchant = replace(other, merchant_id="m2")
    assert known.write([ONE, other, of_another_merchant], 2.0) == [SAME, OTHER, NEW]
    assert known.write([ONE], 3.0) == [SAME], "the first one counts, whatever came since"


def test_two_of_one_group_are_compared(known: Submissions) -> None:
    other = replace(ONE, digest="b" * 64)
    assert known.write([ONE, other, ONE], 1.0) == [NEW, OTHER, SAME]
    assert known.write([other], 2.0) == [OTHER]


def test_a_late_order_is_not_written(known: Submissions) -> None:
    late = replace(ONE, is_late=True)
    assert known.write([late, late], 1.0) == [NEW, NEW]
    assert known.write([replace(late, digest="b" * 64)], 2.0) == [NEW]
    known.write([ONE], 3.0)
    assert known.write([late], 4.0) == [SAME], "it came in time before"


def an_order(**others: object) -> Order:
    record = {
        "order_id": "o1",
        "merchant_id": "m1",
        "placed_at": "2026-01-31T12:00:00Z",
        "deliver_by": "2026-01-31T12:15:00Z",
        "currency": "EUR",
        "items": [{"sku": "s1", "name": "Soup", "quantity": 1, "unit_price": 500}],
        "total": 500,
        **others,
    }
    return Order.parse_json(json.dumps(record))


def row_of(payloads: Payloads, order: Order, key: str = "m1 o1") -> dict[str, object]:
    merchant_id, order_id = key.split()
    return {
        "merchant_id": merchant_id,
        "order_id": order_id,
        "action": "submit",
        "state": "accepted",
        "ticket": 1,
        "epoch": 1,
        "attempts": 1,
        "deaths": 0,
        "pending": False,
        "reopened": 0,
        "created_at": 1.0,
        "updated_at": 1.0,
        "payload": payloads.seal(Key(merchant_id, order_id), order.source),
    }


def test_an_order_that_came_by_amqp_is_compared_with_its_content(
    engine: Engine, known: Submissions, payloads: Payloads
) -> None:
    order = an_order()
    with engine.begin() as connection:
        connection.execute(insert(orders).values(row_of(payloads, order)))
    same = Submitting("m1", "o1", digest(order), order.deliver_by)
    other = replace(same, digest=digest(an_order(total=501)))
    ended = Known(is_known=True, is_different=False, state=State.ACCEPTED)
    assert known.write([same, other], 2.0) == [ended, replace(ended, is_different=True)]
    with engine.connect() as connection:
        assert not connection.execute(select(submissions)).all(), "the ledger knows it already"


def test_an_order_that_an_operator_has_extended_is_the_same(
    engine: Engine, known: Submissions, payloads: Payloads
) -> None:
    """The ledger's has the new deadline, and no submission says how the order came."""
    order = an_order()
    extended = order.until(order.deliver_by + timedelta(hours=2))
    with engine.begin() as connection:
        connection.execute(insert(orders).values(row_of(payloads, extended)))
    same = Submitting("m1", "o1", digest(order), order.deliver_by)
    other = replace(same, digest=digest(an_order(total=501)))
    ended = Known(is_known=True, is_different=False, state=State.ACCEPTED)
    assert known.write([same, other], 2.0) == [ended, replace(ended, is_different=True)]


def test_an_order_whose_content_is_pruned_counts_as_the_same(
    engine: Engine, known: Submissions, payloads: Payloads
) -> None:
    with engine.begin() as connection:
        row = {**row_of(payloads, an_order()), "payload": None}
        connection.execute(insert(orders).values(row))
    assert known.write([ONE], 2.0) == [Known(True, False, State.ACCEPTED)]


def test_layout_and_defaults_are_no_content() -> None:
    order = an_order()
    relaid = Order.parse_json(json.dumps(json.loads(order.source), indent=2, sort_keys=True))
    assert digest(relaid) == digest(order)
    assert digest(an_order(notes=None)) == digest(order)
    assert digest(an_order(placed_at="2026-01-31T13:00:00+01:00")) == digest(order)
    assert digest(an_order(placed_at="2026-01-31T11:00:00Z")) != digest(order)
    assert digest(an_order(extra=1)) != digest(order)
    unknown = an_order(b={"c": [{"e": 1, "d": 2}], "a": 3}, a=4)
    assert digest(an_order(a=4, b={"a": 3, "c": [{"d": 2, "e": 1}]})) == digest(unknown)
    assert digest(an_order(a=4, b={"a": 3, "c": [{"d": 1, "e": 2}]})) != digest(unknown)


@pytest.mark.parametrize(
    "others",
    [
        {"deliver_by": "9999-12-31T23:59:59-05:00"},
        {"placed_at": "0001-01-01T00:00:00+05:00"},
    ],
    ids=["after", "before"],
)
def test_a_time_that_utc_s_calendar_lacks_is_compared_all_the_same(
    engine: Engine, known: Submissions, payloads: Payloads, others: dict[str, str]
) -> None:
    """Some backends use the end of the calendar, in their own zone, for "no deadline"."""
    order = an_order(**others)
    [(name, at)] = others.items()
    elsewhere = at.replace("23:59:59-05:00", "22:59:59-06:00").replace("00:00:00+05", "01:00:00+06")
    assert elsewhere != at
    assert digest(an_order(**{name: elsewhere})) == digest(order)
    assert digest(an_order(**{name: at.replace("-05:", "-06:").replace("+05:", "+06:")})) != digest(
        order
    )
    with engine.begin() as connection:
        connection.execute(insert(orders).values(row_of(payloads, order)))
    neighbour = replace(ONE, order_id="o2", digest="c" * 64, deliver_by=order.deliver_by)
    ended = Known(is_known=True, is_different=True, state=State.ACCEPTED)
    assert known.write([replace(neighbour, order_id="o1"), neighbour], 2.0) == [ended, NEW]


@pytest.mark.parametrize(
    "inside",
    [
        lambda unknown: unknown,
        lambda unknown: {"customer": {"name": "N", **unknown}},
        lambda unknown: {"fulfillment": {"type": "pickup", **unknown}},
        lambda unknown: {"items": [{**ITEM, **unknown}]},
        lambda unknown: {"items": [{**ITEM, "modifiers": [{"name": "n", **unknown}]}]},
    ],
    ids=["order", "customer", "fulfillment", "item", "modifier"],
)
@pytest.mark.parametrize("zone", ["Z", "+01:00"])
def test_the_order_of_unknown_fields_is_no_content_either(
    inside: Callable[[dict[str, Any]], dict[str, Any]], zone: str
) -> None:
    def of(**unknown: Any) -> str:
        hour = "13" if zone == "Z" else "14"
        return digest(an_order(deliver_by=f"2026-02-01T{hour}:00:00{zone}", **inside(unknown)))

    assert of(y=1, x=[2.5]) == of(x=[2.5], y=1)
    assert len({of(), of(x=1), of(x=2), of(y=1)}) == 4
    is_free = "fulfillment" in inside({})  # what a backend and its merchant have agreed on
    assert (of(x=None) == of()) is not is_free, "a field's null counts as absent"
    assert of(y=1) == digest(an_order(deliver_by="2026-02-01T13:00:00Z", **inside({"y": 1})))


def test_old_rows_are_pruned_in_batches(engine: Engine, known: Submissions) -> None:
    known.write([replace(ONE, order_id=f"o{n}") for n in range(5)], 1.0)
    known.write([replace(ONE, order_id="young")], 9.0)
    assert list(prune_submissions(engine, 9.0, batch=2)) == [2, 2, 1]
    assert known.write([ONE, replace(ONE, order_id="young")], 10.0) == [NEW, SAME]


def test_an_order_that_was_not_published_leaves_its_id_free(known: Submissions) -> None:
    other = replace(ONE, digest="b" * 64)
    known.write([ONE, replace(ONE, order_id="o2")], 1.0)
    known.forget([ONE, replace(other, order_id="o2")])
    assert known.write([other, replace(ONE, order_id="o2")], 2.0) == [NEW, SAME], "not another's"


def test_the_id_of_an_order_that_came_twice_stays_taken(known: Submissions) -> None:
    """Another server may have published the second one."""
    assert known.write([ONE], 1.0) == [NEW]
    assert known.write([ONE], 2.0) == [SAME]
    known.forget([ONE])
    assert known.write([replace(ONE, digest="b" * 64)], 3.0) == [OTHER]


@pytest.fixture
def another(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["AnotherServer"]:
    monkeypatch.setattr(module, "_SESSION", "set statement_timeout = '60s'")
    monkeypatch.setattr(module, "ANSWER", 60.0)
    engine = open_database(postgresql_url)
    another = AnotherServer(engine)
    yield another
    another.close()
    engine.dispose()


class AnotherServer:
    """Writes rows in a transaction that it has not committed yet, beside ``known``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.known = Submissions(engine, Payloads(Vault(new_key())))
        self._connection = engine.connect()
        self._pool = ThreadPoolExecutor(1)

    def write(self, order: Submitting) -> None:
        values = {"merchant_id": order.merchant_id, "order_id": order.order_id, "digest": "c" * 64}
        self._connection.execute(insert(submissions).values(**values, submitted_at=1.0))

    def wait_for_it(self, orders: list[Submitting]) -> "Future[list[Known]]":
        """Have ``known`` write these orders, until it waits for a row of this one."""
        writing = self._pool.submit(self.known.write, orders, 2.0)
        waiting = text("select count(*) from pg_locks where not granted")
        with self._engine.connect() as connection:
            while not connection.scalar(waiting):
                assert not writing.done(), writing.result()
        return writing

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()
        self._pool.shutdown()
        self.known.close()


def test_a_call_is_prompt_once_its_connection_is_made(known: Submissions, engine: Engine) -> None:
    """SQLite's waits for other writers."""
    assert not known.is_prompt, "connecting may take long"
    known.connect()
    assert known.is_prompt == (engine.dialect.name == "postgresql")
    known.close()
    assert not known.is_prompt


def test_a_prompt_call_ends_although_postgresql_does_not(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    with closing(Submissions(engine, Payloads(Vault(new_key())))) as known, engine.begin() as other:
        known.connect()
        wait_at_most(known._writer._connection, 0.05)
        other.execute(text("lock table submissions in access exclusive mode"))
        with pytest.raises(LedgerUnavailable, match=r"has not answered for 0\.05 s"):
            known.write([ONE], 1.0)
        assert not known.is_prompt
    engine.dispose()


def test_what_another_server_writes_at_the_same_moment_is_compared(another: AnotherServer) -> None:
    another.write(ONE)
    writing = another.wait_for_it([ONE, replace(ONE, order_id="o2")])
    another.commit()
    assert writing.result(PATIENCE) == [OTHER, NEW]


def test_servers_with_the_same_orders_do_not_wait_for_each_other(another: AnotherServer) -> None:
    """One that waits for a row has none of those behind it, whatever the batch's order."""
    last = replace(ONE, order_id="o2")
    another.write(ONE)
    writing = another.wait_for_it([last, ONE])
    another.write(last)
    another.commit()
    assert writing.result(PATIENCE) == [OTHER, OTHER]
