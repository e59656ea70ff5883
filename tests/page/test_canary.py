"""The canary on the page, and the counts and refusals that every page shares."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from pos_gateway.broker.queue_state import QueueState
from pos_gateway.canary import administration
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.order_search import count_overdue
from pos_gateway.ledger.states import State
from pos_gateway.server.page.views import canary as view
from pos_gateway.server.page.words import without_commands
from pos_gateway.tokens.token import Role
from tests.page.lab import Desk
from tests.page.test_merchants import submit, words

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def split(page: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Split]:
    """The splits in force, the last one now; the page's own is an earlier one until it is read again."""
    found = [Split(percent=10, pins=frozenset(["m1"])).changed("sam", AT)]
    queues = QueueState("orders", 3, 2), QueueState("orders.canary", 1, 4)
    page.site._own_split = found[0]
    monkeypatch.setattr(page.site._splits, "split", lambda: None)
    for where in (view, administration):
        monkeypatch.setattr(where, "queue_states", lambda _: queues)
    monkeypatch.setattr(administration.splits, "in_force", lambda *_: found[-1])

    class Changing:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> object:
            return found.append

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(administration.splits, "changing", Changing)
    return found


def test_the_canary_says_who_is_in_it_and_what_to_do(page: Desk, split: list[Split]) -> None:
    text = words(page.operator(Role.VIEWER, "vic").get("/canary"))
    for figure in ("Share 10 % of the merchants", "Pilots m1", "4 consumers", "Changed by sam"):
        assert figure in text, figure
    assert "hold" in text  # there are no orders to compare
    assert "Change its share" not in text
    assert "Move all merchants back" in words(page.operator().get("/canary"))


def test_a_share_is_changed_as_it_was_seen(page: Desk, split: list[Split]) -> None:
    browser = page.operator()
    form = browser.get("/canary/share").form("/canary/share")
    split.append(split[-1].changed("lee", datetime(2026, 1, 31, 13, tzinfo=UTC), percent=50))
    reply = browser.submit(form, percent="20", pins="m1 m2", reason="a try")
    assert (reply.status, "Lee has changed it meanwhile, to 50 %" in words(reply)) == (409, True)
    assert split[-1].percent == 50
    page.site._own_split = split[-1]
    assert submit(browser, "/canary/share", percent="20", pins="m2").status == 303
    assert (split[-1].percent, split[-1].pins, split[-1].changed_by) == (20, {"m2"}, "kim")


def test_without_a_worker_no_share_is_given(
    page: Desk, split: list[Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = QueueState("orders", 0, 1), QueueState("orders.canary", 0, 0)
    monkeypatch.setattr(administration, "queue_states", lambda _: queues)
    reply = submit(page.operator(), "/canary/share", percent="20")
    assert reply.status == 409
    assert "No worker consumes orders.canary: start a canary worker first" in words(reply)
    assert "-Q" not in words(reply)
    assert len(split) == 1


@pytest.mark.parametrize("percent", ["", "-1", "101", "1e2", "nan", "٣", "<b>"])
def test_what_is_no_percentage_is_refused(page: Desk, split: list[Split], percent: str) -> None:
    reply = submit(page.operator(), "/canary/share", percent=percent)
    assert (reply.status, "is no percentage, 0 to 100" in words(reply)) == (409, True)
    assert len(split) == 1


def test_all_are_moved_back_also_while_the_queues_cannot_be_seen(
    page: Desk, split: list[Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> None:
        raise BrokerUnavailable("cannot look at the queues")

    monkeypatch.setattr(administration, "queue_states", away)
    monkeypatch.setattr(view, "queue_states", away)
    browser = page.operator()
    reply = submit(browser, "/canary/abort")
    assert not split[-1].takes_any
    after = browser.get(reply.headers["location"])
    assert "But cannot look at the queues" in words(after)
    assert 'class="notice warn" role="status"' in after.text  # not green


# -- counts


def test_orders_past_their_time_are_counted_and_listed(page: Desk) -> None:
    now = datetime.now(UTC).timestamp()
    row = dict.fromkeys(("ticket", "epoch", "attempts", "deaths", "reopened"), 0)
    cases = {
        "gone": (State.NEW, now - 900, now - 900, "submit"),
        "claimed": (State.CLAIMED, now - 900, now - 900, "submit"),
        "undecided": (State.PENDING, now - 900, now - 900, "submit"),
        "not yet": (State.NEW, now + 900, now - 900, "submit"),
        "just now": (State.NEW, now - 900, now, "submit"),
        "ended": (State.EXPIRED, now - 900, now - 900, "submit"),
        "looked up": (State.IN_DOUBT, now - 900, now - 900, "submit"),
        "request": (State.NEW, now - 900, now - 900, "cancel"),
    }
    rows = [
        {
            **row, "merchant_id": "m1", "order_id": order_id, "action": action, "state": state,
            "pending": False, "deliver_by": deliver_by, "created_at": updated_at,
            "updated_at": updated_at,
        }
        for order_id, (state, deliver_by, updated_at, action) in cases.items()
    ]  # fmt: skip
    with page.site.database.begin() as connection:
        connection.execute(insert(orders), rows)
    assert count_overdue(page.site.database) == 3
    browser = page.operator()
    for path in ("/orders?state=overdue", "/orders?state=overdue&merchant=m1"):
        text = browser.get(path).text
        listed = [each for each in cases if f"/merchants/m1/orders/{each}" in text]
        assert listed == ["gone", "claimed", "undecided"], path
    assert "3 orders are past their deliver_by" in words(browser.get("/"))
    assert '3<span class="of"> past their time</span>' in text


def test_without_the_database_the_navigation_stays(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = page.operator()

    def away(*_: object) -> int:
        raise OperationalError("select", {}, Exception("away"))

    monkeypatch.setattr(OrderAdmin, "count", away)
    text = browser.get("/trial/live").text
    assert '<a href="/merchants">Merchants</a>' in text
    assert '<a href="/trial" aria-current="page">' in text
    navigation = text.partition("</nav>")[0]
    assert "does not answer" not in navigation and 'class="count"' not in navigation


# -- refusals


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ("give it new time (--for 30m)", "give it new time"),
        (
            "resolve it (pos-gateway orders resolve A-1 --accepted, or --not-sent); or",
            "resolve it; or",
        ),
        ("it has 3 bytes; 2 are allowed (POS_GATEWAY_MAX_ORDER_BYTES)", None),
        ("paused by kim (the kitchen -- flooded)", None),
    ],
)
def test_the_page_names_acts_and_no_commands(says: str, shown: str | None) -> None:
    assert without_commands(says) == (shown or says)
