"""The list of orders in doubt, its counts and its reads' bounds, on a database of each kind."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert

from pos_gateway.administration import doubts
from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.doubts import DoubtPage, Doubts, is_left_to_a_person
from pos_gateway.administration.merchant_view import MerchantViews
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders, workers
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger import order_search
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.order_search import OrderSearch, Place, Wanted, within_time
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import State
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from tests.administration.conftest import KIM, a_merchant

NOW = time.time()
ALL = BulkFilter()


@pytest.fixture
def postgres(postgres_url_with_tables: str) -> Iterator[Engine]:
    engine = open_database(postgres_url_with_tables)
    yield engine
    engine.dispose()


def an_order(number: int, state: State = State.IN_DOUBT, **fields: Any) -> dict[str, Any]:
    zero = dict.fromkeys(("ticket", "epoch", "attempts", "deaths", "reopened"), 0)
    none = dict.fromkeys(("owner", "doubt_since", "reason_code", "deliver_by"))
    row = {
        "merchant_id": "m",
        "order_id": f"o-{number:05}",
        "action": "submit",
        "state": state.value,
    }
    times = {"created_at": 1.0, "updated_at": NOW - 1000 + number}
    return {**row, "pending": False, **times, **zero, **none, **fields}


def put(engine: Engine, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)


def page_of(engine: Engine, filter_: BulkFilter = ALL, after: Place | None = None) -> DoubtPage:
    return Doubts(engine, ["by-hand"]).page(filter_, after, NOW, most=50, groups=50)


def ids(page: DoubtPage) -> list[str]:
    return [each.order_id for each in page.orders]


@pytest.mark.parametrize("reason", ["moved", "not_undone", "other"])
def test_those_that_wait_for_a_person_are_told_from_those_that_are_looked_up(
    engine: Engine, admin: MerchantAdmin, reason: str
) -> None:
    admin.put([a_merchant("blind", adapter="by-hand"), a_merchant("p", provider="acme")], KIM)
    put(
        engine,
        [
            an_order(1, deliver_by=NOW + 600, doubt_since=NOW - 2000, reason_code="timeout"),
            an_order(2, merchant_id="blind", deliver_by=NOW + 600),
            an_order(3, reason_code=reason, deliver_by=NOW + 600),
            an_order(4, deliver_by=NOW - 4000),
            an_order(5, merchant_id="p", deliver_by=NOW - 3000),
            an_order(6, State.SENDING, owner="gone", doubt_since=None),
            an_order(7, State.CLAIMED, owner="gone", doubt_since=NOW - 9),
            an_order(8, State.CLAIMED, owner="gone"),
            an_order(9, State.SENDING, owner="alive"),
            an_order(10, State.ACCEPTED),
            an_order(11, action="cancel"),
        ],
    )
    with engine.begin() as connection:
        connection.execute(insert(workers).values(id="alive", beat=1, lease=8.0, beat_at=NOW))
    found = page_of(engine)
    assert ids(found) == [f"o-{n:05}" for n in range(1, 8)]
    waits = {each.order_id for each in found.orders if each.waits_for_person}
    assert waits == {"o-00002", "o-00003", "o-00004"}
    assert (found.count, found.is_least, found.for_person) == (7, False, 3)
    assert found.orders[0].since == NOW - 2000
    for filter_, expected in (
        (BulkFilter(codes=(reason,)), ["o-00003"]),
        (BulkFilter(merchants=("blind", "p")), ["o-00002", "o-00005"]),
        (BulkFilter(providers=("acme",)), ["o-00005"]),
        (BulkFilter(since=NOW - 100), ["o-00007"]),
        (BulkFilter(until=NOW - 1500), ["o-00001"]),
    ):
        found = page_of(engine, filter_)
        assert (ids(found), found.count) == (expected, len(expected)), filter_


@pytest.mark.parametrize("reason", doubts.MAY_BE_ASKED)
def test_a_doubt_that_was_left_to_a_person_before_its_time_was_over_waits_for_one(
    engine: Engine, reason: str
) -> None:
    left = {"reason_code": reason, "last_event": "in_doubt", "updated_at": NOW - 100}
    rows = [
        an_order(1, **left, deliver_by=NOW + 600),
        an_order(2, **left, deliver_by=NOW - 90),
        an_order(3, **{**left, "last_event": None}, deliver_by=NOW + 600),
        an_order(4, **{**left, "reason_code": "timeout"}, deliver_by=NOW + 600),
    ]
    put(engine, rows)
    waits = [each.waits_for_person for each in page_of(engine).orders]
    assert waits == [True, False, False, False]
    standing = OrderAdmin(engine, Payloads(Vault())).orders()
    assert [is_left_to_a_person(each) for each in sorted(standing, key=_by_id)] == waits


def _by_id(order: OrderStanding) -> str:
    return order.order_id


def test_pages_go_on_and_counts_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "MAX_COUNTED", 100)
    # Twos have the same time: a page ends between them.
    put(
        engine,
        [an_order(n, updated_at=NOW - 1000 + n // 2, reason_code="timeout") for n in range(121)],
    )
    read: list[str] = []
    after: Place | None = None
    while True:
        page = page_of(engine, after=after)
        assert len(page.orders) <= 50
        assert (page.count, page.is_least, page.for_person) == (100, True, 0)
        read += ids(page)
        if not page.has_more:
            break
        after = page.orders[-1].place
    assert read == [f"o-{n:05}" for n in range(121)]


def test_a_large_merchant_is_read_along_the_index_of_states(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_search, "MAX_SORTED", 20)
    monkeypatch.setattr(order_search, "MAX_COUNTED", 10)
    states = [State.ACCEPTED, State.ACCEPTED, State.FAILED]
    rows = [an_order(n, states[n % 3], reason_code="x") for n in range(60)]
    put(engine, [*rows, an_order(99, State.NEW, merchant_id="other")])
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    found = OrderSearch(engine).find(Wanted(merchant_id="m"), None, 5)
    assert [each.order_id for each in found.orders] == [f"o-{n:05}" for n in range(59, 54, -1)]
    assert {each.state: (each.number, each.is_least) for each in found.counts} == {
        State.ACCEPTED: (10, True),
        State.FAILED: (10, True),
    }
    _, page, counts = [each for each in statements if "FROM orders" in each]
    assert page.count("LIMIT") > len(State)
    assert counts.count("LIMIT") == len(State)
    after = found.orders[-1].place
    assert (
        OrderSearch(engine).find(Wanted(merchant_id="m"), after, 5).orders[0].order_id == "o-00054"
    )
    work = MerchantViews(engine, MerchantStore(engine)).work("m")
    assert work.counts == found.counts


def test_a_read_that_takes_too_long_is_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_search, "TIMEOUT", 0.01)
    endless = (
        "with recursive n(x) as (select 1 union all select x + 1 from n where x < 1000000000) "
        "select count(*) from n"
    )
    with pytest.raises(AdminError, match="took longer"):
        within_time(engine, lambda connection: connection.exec_driver_sql(endless).all())
    monkeypatch.setattr(order_search, "TIMEOUT", 600.0)
    count = within_time(engine, lambda c: c.exec_driver_sql("select count(*) from orders").scalar())
    assert count == 0


def test_postgresql_reads_no_more_for_a_page_than_it_counts_and_shows(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that it reads, by its own count; with statistics of a table that is mostly in doubt."""
    monkeypatch.setattr(doubts, "MAX_COUNTED", 100)
    put(postgres, [an_order(n) for n in range(4000)])
    with postgres.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("analyze orders")
    statements: list[tuple[str, Any]] = []
    event.listen(postgres, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
    found = page_of(postgres)
    assert (len(found.orders), found.count, found.is_least) == (50, 100, True)
    reads = [each for each in statements if "FROM orders" in each[0]]
    assert len(reads) == 2  # what is counted, and the page
    with postgres.connect() as connection:
        for statement, parameters in reads:
            explained = f"explain (analyze, format json) {statement}"
            [[plan]] = connection.exec_driver_sql(explained, parameters).all()
            assert max(_read(plan[0]["Plan"])) <= 200


def _read(node: dict[str, Any]) -> list[float]:
    mine = []
    if node.get("Relation Name") == "orders":
        mine = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0)]
    return mine + [each for child in node.get("Plans", ()) for each in _read(child)]
