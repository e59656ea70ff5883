"""The story that tests of the page find in their database."""

from collections import Counter

import pytest
from sqlalchemy import Engine, func, select

from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import events, orders, pipeline
from pos_gateway.domain.order import Order
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.order_search import OVERDUE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.fleet_view import FleetView, a_minute
from pos_gateway.reports.merchant_hour import merchant_hour
from pos_gateway.runtime.vault import Vault
from testkit.page_story import Story, seed
from tests.schema import make_tables


def test_it_is_told_as_the_gateway_would_have_written_it(engine: Engine) -> None:
    story = seed(engine)
    admin = OrderAdmin(engine, Payloads(Vault()))
    store = MerchantStore(engine)

    assert len(story.merchants) == 200 and len(set(story.merchants)) == 200
    assert store.get([story.paused])[story.paused].paused
    for key in story.in_doubt:
        found = admin.one(key)
        assert found is not None and found.state is State.IN_DOUBT and found.is_in_doubt
    assert {key.merchant_id for key in story.in_doubt} == {story.doubtful, story.slow}
    for key in story.in_flight:
        found = admin.one(key)
        assert found is not None and found.is_leased
    for key in story.dead_letters:
        found = admin.one(key)
        assert found is not None and found.state in (State.FAILED, State.EXPIRED)
    assert {key.merchant_id for key in story.dead_letters} == {story.dead, story.locked_out}
    for key in story.retried:
        found = admin.one(key)
        assert found is not None and found.attempts > 1 and found.state is State.ACCEPTED
        assert len(admin.attempts(key)) == found.attempts
    for key in story.cancelled:
        found = admin.one(key)
        assert found is not None and found.cancellation is State.CANCELLED
    for key in story.with_callbacks:
        types = [each["type"] for each in admin.events(key) if each["type"] != "pending"]
        assert types in (["accepted", "preparing"], ["accepted", "preparing", "ready"])
    assert [each["what"] for each in admin.audit(type(key)(story.paused, ""))] == [
        "merchants.pause"
    ]
    text = admin.order_json(story.retried[0])
    assert text is not None and Order.parse_json(text).order_id == story.retried[0].order_id


def test_the_fleet_and_the_orders_agree(engine: Engine) -> None:
    story = seed(engine, workers=3)
    view = FleetView(engine)
    fleet = view.now()
    assert sorted(each.worker for each in fleet.workers) == sorted(story.workers)
    assert fleet.kinds == {("green", False): 3, ("green", True): 1, ("events", False): 1}
    assert set(fleet.slots) == {"free", "light", "heavy", "silent"}
    troubles = {each.merchant_id: each for each in fleet.troubles()}
    wrong = {story.slow, story.dead, story.doubtful, story.paused, story.locked_out}
    assert troubles.keys() == wrong
    assert troubles[story.dead].breaker == "open" and troubles[story.slow].waiting > 0
    assert fleet.queues["orders.dead"] == len(story.dead_letters)

    counted: Counter[str] = Counter()
    for minute in view.history():
        counted.update(minute.counts)
    with engine.connect() as connection:
        states = connection.execute(
            select(orders.c.state, func.count())
            .where(orders.c.action == "submit")
            .group_by(orders.c.state)
        ).all()
    by_state = dict(map(tuple, states))
    for state in ("accepted", "rejected", "expired", "failed"):
        # The hour's first seconds are in a minute that is not shown any more.
        assert abs(by_state[state] - counted[state]) <= by_state[state] * 0.05
    assert counted["taken"] > 1500 and a_minute(view.history())["taken"] > 0
    hour = merchant_hour(engine, story.slow)
    assert sum(sum(minute.outcomes.values()) for minute in hour.minutes) > 50


def test_no_order_is_past_its_time_while_a_test_looks(engine: Engine) -> None:
    story = seed(engine, orders=400, merchants=20)
    with engine.connect() as connection:
        soonest = connection.scalar(
            select(func.min(orders.c.deliver_by)).where(orders.c.state.in_(OVERDUE))
        )
    assert soonest is not None and soonest > story.now + 20 * 60


def test_every_event_is_published(engine: Engine) -> None:
    seed(engine, orders=200, merchants=10)
    with engine.connect() as connection:
        last = connection.execute(select(pipeline.c.assigned, pipeline.c.published)).one()
        positions = connection.scalars(select(events.c.position).order_by(events.c.position)).all()
    assert positions == list(range(1, len(positions) + 1))
    assert tuple(last) == (len(positions), len(positions))


def test_dead_letters_are_in_the_broker(database_url: str, broker_url: str) -> None:
    engine = open_database(database_url)
    make_tables(engine)
    story = seed(engine, broker_url, orders=400)
    engine.dispose()
    with DeadLetterQueue(broker_url) as queue:
        letters = list(queue)
    assert [each.id for each in letters] == [key.order_id for key in story.dead_letters]
    assert {each.code for each in letters} == {"http_403", "expired"}
    assert all(isinstance(each.content(), Order) for each in letters)


def test_it_is_the_same_story_each_time(tmp_path: object, database_url: str) -> None:
    told: list[Story] = []
    for number in range(2):
        engine = open_database(f"{database_url}-{number}")
        make_tables(engine)
        told.append(seed(engine))
        engine.dispose()
    first, second = told
    assert first.merchants == second.merchants and first.slow == second.slow
    assert first.dead_letters == second.dead_letters and first.retried[:50] == second.retried[:50]


def test_it_is_sealed_where_there_is_a_key(engine: Engine) -> None:
    vault = Vault("a passphrase of the tests")
    story = seed(engine, orders=200, vault=vault)
    with engine.connect() as connection:
        texts = connection.scalars(select(orders.c.payload).where(orders.c.payload.is_not(None)))
        # With a blank, which no sealed text has: four letters are in one story of a hundred by chance.
        assert not any("A. Berg" in text for text in texts)
    admin = OrderAdmin(engine, Payloads(vault))
    found = admin.one(story.in_doubt[0])
    assert found is not None and found.reason_message == (
        "the connection broke off after the order was sent"
    )


def test_too_small_a_story_is_refused(database_url: str) -> None:
    engine = open_database(database_url)
    make_tables(engine)
    with pytest.raises(ValueError, match="10 merchants and 200 orders at least, not 9 and 200"):
        seed(engine, merchants=9, orders=200)
    engine.dispose()
