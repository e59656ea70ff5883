"""The ten situations of docs/operating.md, solved by an operator who has the page alone.

One visit to one server, with the story and what it lacks in the database and in the broker. Each
function begins at the first view, follows what that says, and checks the outcome there, in the database and in the broker.
"""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from kombu import Connection
from playwright.sync_api import Locator, Page, expect
from sqlalchemy import Engine, update

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders
from pos_gateway.domain.split import Split
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.counters import counters
from pos_gateway.reports.report import EVENTS, WorkerReport, encoded
from pos_gateway.reports.store import ReportStore
from pos_gateway.routing import splits
from pos_gateway.runtime.vault import Vault
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.browser.watch import Watch, Wrong
from testkit.page_screenshots import log_in
from testkit.page_story import Story, seed
from testkit.patience import PATIENCE
from testkit.servers.rabbitmq import RabbitMQ
from tests.browser_fixtures import Browse
from tests.bulk.lab import an_order, dead_letter, ids, publish
from tests.planting import ROOT
from tests.schema import make_tables
from tests.server.lab import serving

#: Milliseconds for what a thread of the server does.
SOON = 1000 * PATIENCE
NOTHING = counters(0, {}, ())
#: What an operator who has the page alone cannot type.
COMMANDS = re.compile(r"--[a-z]|pos-gateway (?!demo)")


class Night(NamedTuple):
    """A server with all ten situations."""

    url: str
    token: str
    story: Story
    engine: Engine
    broker_url: str

    def state(self, key: Key) -> State:
        found = OrderAdmin(self.engine, Payloads(Vault())).one(key)
        assert found is not None
        return found.state

    def reports(self, worker: str, report: WorkerReport, lasts: float = 7200.0) -> None:
        ReportStore(self.engine).write(
            worker, encoded(report), NOTHING, lasts=lasts, is_first=False
        )

    @property
    def queued(self) -> set[str]:
        return set(ids(self.broker_url, topology.ORDERS_KEY))


@pytest.fixture(scope="module")
def night(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder: Path = tmp_path_factory.mktemp("runbook")
    rabbitmq.start()
    broker_url = rabbitmq.add_vhost()
    database_url = f"sqlite:///{folder}/gateway.db"
    engine = open_database(database_url)
    make_tables(engine)
    story = seed(engine, broker_url, merchants=20, orders=400)
    token = TokenStore(engine).create("kim", Role.OPERATOR, operator="test")
    night = Night("", token, story, engine, broker_url)
    store = MerchantStore(engine)
    locked_out = store.get([story.locked_out])[story.locked_out]
    store.put([locked_out.model_copy(update={"base_url": "https://127.0.0.1:9/api"})])
    letters = [
        dead_letter(an_order("new-1", "new-place"), code="unknown_merchant"),
        dead_letter(an_order("odd-1", "m-odd"), code="invalid_order"),
        dead_letter(an_order("odd-2", "m-odd"), code="invalid_order"),
    ]
    # Workers died with it again and again, and its time is over.
    stuck, ledger = an_order("stuck-1", story.healthy), Ledger(engine, Payloads(Vault()))
    past = time.time() - 900.0
    claim = ledger.claim(
        Key(story.healthy, "stuck-1"), send=True, deliver_by=past, order=str(stuck).encode()
    )
    ledger.close()
    assert claim is not None
    with engine.begin() as connection:
        row = orders.c.order_id == "stuck-1"
        values = {"state": State.NEW, "owner": None, "deliver_by": past, "updated_at": past}
        connection.execute(update(orders).where(row).values(values))
    letters.append(dead_letter(stuck, code="delivery_limit"))
    publish(broker_url, letters)
    # The canary has a pilot, whose order no worker takes.
    publisher = PlainPublisher(broker_url)
    pilots = Split(pins=frozenset([story.merchants[-1]]))
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    publisher.publish(splits.message_of(pilots.changed("sam", an_hour_ago)))
    publisher.publish(Message("", topology.CANARY_KEY, b"[]", message_id="c-1"))
    publisher.close()
    # It stopped reporting a minute ago.
    night.reports("worker-9-1-0", WorkerReport(uptime=60.0), lasts=0.0)
    log, module = folder / "server.log", "tests.page.serve_patient"
    with serving(broker_url, database_url, log, module=module) as server:
        yield night._replace(url=server.url)
    engine.dispose()
    rabbitmq.delete_vhost(broker_url)


def test_the_documents_have_these_ten_situations() -> None:
    text = (ROOT / "docs/operating.md").read_text()
    rows = re.findall(r"^\| (\d+)\. ([^|]+) \|", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert [name for _, name in rows] == [each.__doc__ for each in SITUATIONS]


def test_an_operator_solves_all_ten_with_the_page_alone(
    browse: Browse, watch: Watch, night: Night
) -> None:
    page = browse()
    log_in(page, night.url, night.token)
    for situation in SITUATIONS:
        home(page)
        situation(page, night)
        refused = page.get_by_role("alert").all_inner_texts()
        assert not [each for each in refused if COMMANDS.search(each)]
    # The browser's own, of a merchant that is not there, and a form that was refused.
    said = [each.what for each in watch.take(Wrong.CONSOLE)]
    assert [each.partition("status of ")[2][:3] for each in said] == ["404", "409"]


# -- what an operator does with every page


def home(page: Page) -> None:
    page.get_by_role("link", name="POS Gateway").click()
    expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()


def notice(page: Page, says: str) -> Locator:
    """A sentence of the first view, which says what to do."""
    found = page.locator(".notices li", has_text=re.compile(says))
    expect(found).to_have_count(1)
    expect(found.locator(".remedy")).not_to_be_empty()
    return found


def follow(page: Page, says: str, link: str) -> None:
    notice(page, says).get_by_role("link", name=link).click()


def click(page: Page, *links: str) -> None:
    for each in links:
        page.get_by_role("link", name=re.compile(f"^{re.escape(each)}( …)?$")).first.click()


def act(page: Page, link: str, button: str, says: str, **fields: str) -> None:
    """Open a form, fill it in, submit it, and read what it did."""
    click(page, link)
    fill(page, button, says, **fields)


def fill(page: Page, button: str, says: str, **fields: str) -> None:
    for name, value in fields.items():
        page.locator(f"form.act [name={name}]").fill(value)
    page.locator("form.act [name=reason]").fill("at two in the morning")
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("main [role=status]")).to_contain_text(says, timeout=SOON)


def bulk(page: Page, link: str, verb: str, count: int) -> None:
    """Preview what the filter means, confirm it, and wait until it is done."""
    click(page, link)
    page.get_by_label("At most a second").fill("200")
    page.locator("form.act [name=reason]").fill("at two in the morning")
    page.get_by_role("button", name="Preview it").click()
    page.get_by_role("link", name=f"{verb} {count}…").click(timeout=SOON)
    page.locator("form.act [name=reason]").fill("at two in the morning")
    page.get_by_role("button", name=f"{verb} {count}", exact=True).click()
    state = page.get_by_text("State", exact=True).locator("..")
    expect(state).to_contain_text("done", timeout=SOON)


def count(page: Page, entry: str) -> Locator:
    """What the navigation counts at an entry."""
    return page.get_by_role("navigation").get_by_role("listitem").filter(has_text=entry)


# -- the ten


def workers(page: Page, night: Night) -> None:
    """no worker reports, or workers were lost"""
    lost = notice(page, "1 worker stopped reporting without a goodbye")
    night.reports("worker-9-1-0", WorkerReport(uptime=1.0, events_age=0.01))
    expect(lost).to_have_count(0)  # by itself


def slow(page: Page, night: Night) -> None:
    """a merchant is slow"""
    follow(page, "merchants are in trouble", "Which, and why")
    merchant_id = night.story.slow
    row = page.get_by_role("row").filter(has_text="slow: replies take 9.4 s, usually 0.3 s")
    row.get_by_role("link", name=merchant_id).click()
    expect(page.locator(".notice .remedy").first).to_contain_text("raise its time limit")
    act(
        page,
        "Change its limits",
        "Change them",
        "Changed",
        max_concurrency="6",
        request_timeout="25",
    )
    record = MerchantStore(night.engine).get([merchant_id])[merchant_id]
    assert (record.max_concurrency, record.request_timeout) == (6, 25)


def provider(page: Page, night: Night) -> None:
    """a provider is down"""
    follow(page, "merchants are in trouble", "Which, and why")
    page.get_by_role("link", name=night.story.dead).first.click()
    expect(page.locator(".notice .remedy").first).to_contain_text("pause the provider")
    click(page, "Merchants")
    store = MerchantStore(night.engine)
    name = str(store.get([night.story.dead])[night.story.dead].provider)
    theirs = page.locator(".providers li").filter(has_text=name)
    theirs.get_by_role("link", name="Pause all of it").click()
    fill(page, "Pause all of it", "paused")
    assert store.get([night.story.dead])[night.story.dead].paused
    page.goto(f"{night.url}/merchants")
    theirs.get_by_role("link", name="Resume it").click()
    fill(page, "Resume it", "resumed")
    assert not store.get([night.story.dead])[night.story.dead].paused


def credentials(page: Page, night: Night) -> None:
    """a POS refuses the gateway's credentials, address or certificate"""
    expect(count(page, "Dead letters")).to_contain_text(re.compile(r"\d"))
    follow(page, "dead letters?: invalid or undeliverable", "Why, and what to do")
    merchant_id, before = night.story.locked_out, night.queued
    group = page.get_by_role("region", name="Groups").get_by_role("row", name="http_403")
    group.first.get_by_role("link").first.click(timeout=SOON)
    expect(page.locator("dl.fields")).to_contain_text("check its POS on the merchant's page")
    listed = page.url
    page.get_by_role("region", name="Letters").get_by_role("link", name=merchant_id).first.click()
    act(page, "Check its POS", "Check it", "its orders would not be sent")
    expect(page.locator("main [role=status]")).to_have_class(re.compile("warn"))  # not green
    act(
        page,
        "Edit its record",
        "Change it",
        "Changed",
        base_url="https://kassa.example.com/api",
    )
    page.goto(listed)
    letters = [k for k in night.story.dead_letters if k.merchant_id == merchant_id]
    bulk(page, "Replay…", "Replay", len(letters))
    assert {each.order_id for each in letters} <= night.queued - before


def in_doubt(page: Page, night: Night) -> None:
    """orders are in doubt"""
    follow(page, "orders in doubt: the POS may have them", "Work list")
    left = [each for each in night.story.in_doubt if each.merchant_id == night.story.doubtful]
    one = left[0]
    page.get_by_role("link", name=one.order_id, exact=True).click()
    expect(page.locator(".standing .title")).to_contain_text("in doubt")
    expect(page.locator(".standing .next")).to_contain_text("ask the merchant")
    click(page, "Resolve it")
    page.get_by_label("The POS has it", exact=True).check()
    fill(page, "Resolve it", "is accepted")
    assert night.state(one) is State.ACCEPTED
    # One answer is true of the rest of this merchant's.
    click(page, "In doubt")
    page.get_by_label("Merchant").fill(night.story.doubtful)
    page.get_by_role("button", name="Filter").click()
    click(page, "Resolve these…")
    page.get_by_label("The POS has them", exact=True).check()
    page.get_by_label("At most a second").fill("200")
    page.locator("form.act [name=reason]").fill("the kitchen looked at its list")
    page.get_by_role("button", name="Preview it").click()
    page.get_by_role("link", name=re.compile(r"Resolve as accepted \d+…")).click(timeout=SOON)
    page.locator("form.act [name=reason]").fill("the kitchen looked at its list")
    page.get_by_role("button", name=re.compile("Resolve as accepted")).click()
    state = page.get_by_text("State", exact=True).locator("..")
    expect(state).to_contain_text("done", timeout=SOON)
    assert {night.state(each) for each in left} == {State.ACCEPTED}


def dead_letters(page: Page, night: Night) -> None:
    """dead letters grow"""
    follow(page, "dead letters: invalid or undeliverable", "Why, and what to do")
    page.get_by_role("link", name="invalid_order").click(timeout=SOON)
    expect(page.locator("dl.fields")).to_contain_text("discard these")
    bulk(page, "Discard…", "Discard", 2)
    click(page, "Dead letters")
    page.get_by_role("link", name="unknown_merchant").click(timeout=SOON)
    expect(page.locator("dl.fields")).to_contain_text("add it on the merchant's page")
    page.get_by_role("region", name="Letters").get_by_role("link", name="new-place").click()
    act(
        page,
        "Add it",
        "Add it",
        "new-place is added",
        record='{"base_url": "https://pos.example.com/api", "adapter": "rest"}',
    )
    assert MerchantStore(night.engine).get(["new-place"])
    page.goto(f"{night.url}/dead-letters?reason=unknown_merchant")
    bulk(page, "Replay…", "Replay", 1)
    assert "new-1" in night.queued


def one_order(page: Page, night: Night) -> None:
    """a customer asks about one order"""
    key = night.story.retried[0]
    click(page, "Orders")
    page.get_by_label("Order", exact=True).fill(key.order_id[2:])
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=key.order_id, exact=True).click()
    expect(page.locator(".standing")).to_contain_text("The POS has it.")
    act(page, "Reveal personal data", "Reveal it once", "Revealed once")
    expect(page.get_by_text("customer")).to_be_visible()
    click(page, "Back to the order, masked")
    act(page, "Cancel it", "Ask to cancel it", "is asked to be cancelled")
    assert key.order_id in night.queued


def stuck(page: Page, night: Night) -> None:
    """an order does not move"""
    expect(count(page, "Orders")).to_contain_text("1 past their time")
    follow(page, "1 order is past its deliver_by and has not ended", "Which")
    click(page, "stuck-1")
    expect(page.locator(".standing")).to_contain_text("its message has not come back")
    click(page, "Replay it")
    page.get_by_label("New time").select_option(label="an hour")
    fill(page, "Replay it", "is on the queue again")
    assert "stuck-1" in night.queued
    home(page)
    expect(count(page, "Orders").locator(".count")).to_have_count(0)


def events(page: Page, night: Night) -> None:
    """events are late, or are not consumed"""
    name = next(each for each in night.story.workers if each.startswith("events"))
    unread = {"order-events": 25_000}
    night.reports(name, WorkerReport(EVENTS, uptime=60.0, events_age=95.0, queues=unread))
    late = notice(page, "Events are 1 min 35 s late")
    expect(late).to_contain_text("events.broker_unavailable")
    expect(notice(page, "25,000 events in the queue order-events")).to_contain_text("consumer")
    night.reports(name, WorkerReport(EVENTS, uptime=60.0, events_age=0.04, queues={"orders": 1}))
    expect(late).to_have_count(0)


def canary(page: Page, night: Night) -> None:
    """the canary does worse"""
    pilot = night.story.merchants[-1]
    page.locator("main").get_by_role("link", name="Canary").click()
    expect(page.locator(".standing .title")).to_have_text("abort", timeout=SOON)
    expect(page.locator(".standing")).to_contain_text("move all merchants back")
    act(page, "Move all merchants back", "Move all back", "go to the stable workers within seconds")
    assert not splits.in_force(night.broker_url, 0).takes_any
    # A worker of the right release is there for the next try, and not before.
    click(page, "Change its share")
    share = {"percent": "0", "pins": pilot}
    for name, value in share.items():
        page.locator(f"form.act [name={name}]").fill(value)
    page.locator("form.act [name=reason]").fill("the release before")
    page.get_by_role("button", name="Change it", exact=True).click()
    refusal = page.get_by_role("alert")
    expect(refusal).to_contain_text("No worker consumes orders.canary: start a canary worker first")
    assert COMMANDS.search(refusal.inner_text()) is None
    with (
        Connection(night.broker_url) as connection,
        connection.Consumer([topology.canary_queue], on_message=lambda _: None),
    ):
        fill(page, "Change it", "and the pilots")
    assert splits.in_force(night.broker_url, 0).pins == {pilot}


SITUATIONS = (
    *(workers, slow, provider, credentials, in_doubt),
    *(dead_letters, one_order, stuck, events, canary),
)
