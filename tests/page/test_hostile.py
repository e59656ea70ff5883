"""The whole hostile corpus in every field, through every view of the page, in a real browser.

One database, one broker, one visit: nothing runs, and no page is wider than its window, on a desk and
on a phone.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from sqlalchemy import Engine

from pos_gateway.administration.bulk.previews import Previews
from pos_gateway.administration.bulk.run import BulkAction, NewItem
from pos_gateway.administration.refusal import Refusal
from pos_gateway.audit.note import By, Note, write
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.database.engine import open_database
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import InvalidMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.split import Split
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, Entry, Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.counters import counters
from pos_gateway.reports.report import encoded
from pos_gateway.reports.store import ReportStore
from pos_gateway.routing import splits
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.page.links import link
from pos_gateway.server.site import Site
from pos_gateway.settings import Settings
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.browser.harm import harm
from testkit.browser.watch import Watch, Wrong
from testkit.hostile_records import order_named, order_with, reason_with, report_with
from testkit.hostile_text import HOSTILE, Hostile
from testkit.page_screenshots import log_in
from testkit.patience import PATIENCE
from testkit.servers.rabbitmq import RabbitMQ
from tests.browser_fixtures import Browse
from tests.bulk.lab import an_order, dead_letter, publish
from tests.schema import make_tables
from tests.server.lab import serving

WIDTHS: tuple[ViewportSize, ...] = (
    {"width": 1280, "height": 900},
    {"width": 390, "height": 844},
)
#: Milliseconds for what a thread of the server does.
SOON = 1000 * PATIENCE
#: Strings of one merchant and one order.
TOGETHER = 12
ALL = list(HOSTILE.values())


class Place(NamedTuple):
    """A server with the corpus, and the paths of all that has it."""

    url: str
    token: str
    database_url: str
    paths: Sequence[str]


@pytest.fixture(scope="module")
def place(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    rabbitmq.start()
    broker_url = rabbitmq.add_vhost()
    database_url = f"sqlite:///{folder}/gateway.db"
    engine = open_database(database_url)
    make_tables(engine)
    token = TokenStore(engine).create("kim", Role.OPERATOR, operator="test")
    paths = [
        *_merchants(engine),
        *_orders(engine),
        *_reports(engine),
        *_letters(broker_url),
        *_runs(engine),
        *_canary(broker_url),
    ]
    paths += [f"/nothing/{quote(each.text[:500], safe='')}" for each in ALL[:3] if _sent(each)]
    with serving(broker_url, database_url, folder / "server.log") as server:
        yield Place(server.url, token, database_url, paths)
    engine.dispose()
    rabbitmq.delete_vhost(broker_url)


def _sent(hostile: Hostile) -> bool:
    """A browser sends it in a path as it is."""
    return hostile.text == _kept(hostile.text)


def _kept(text: str) -> str:
    """As a database keeps it."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def _groups() -> Iterator[tuple[int, tuple[Hostile, ...]]]:
    starts = range(0, len(ALL), TOGETHER)
    return enumerate(tuple(ALL[start : start + TOGETHER]) for start in starts)


def _merchants(engine: Engine) -> Iterator[str]:
    """Providers, ids at the POS, and names; what operators said of them."""
    known: dict[str, Merchant] = {}
    for number, group in _groups():
        record: dict[str, Any] = {"id": f"m-{number}", "base_url": "https://pos.example.com"}
        for place, each in enumerate(group):
            text = _kept(each.text)[:128]
            pos = {**record.get("pos", {}), f"id_{chr(97 + place)}": text}
            for fields in ({"provider": text}, {"pos": pos}):
                try:
                    Merchant.parse(record | fields)
                except InvalidMerchant:
                    continue
                record |= fields
        known[record["id"]] = Merchant.parse(record)
        yield link("/merchants/{}", record["id"])
        with engine.begin() as connection:
            for each in group:
                text = _kept(each.text)
                changes = {"provider": (text[:200], text[:200])}
                note = Note("merchants.set", record["id"], details=text, changes=changes)
                write(connection, [note], by=By(text[:128] or "x", text), at=time.time())
    for each in ALL:
        if name := order_named(each.text):
            fields = {"id": name, "base_url": "https://pos.example.com", "provider": name}
            known[name] = Merchant.parse(fields)
    MerchantStore(engine).put(known.values())
    yield from ("/merchants", "/merchants?find=")
    hostile = next(name for name in known if "<" in name)
    yield link("/merchants/{}", hostile)
    yield link("/merchants/{}", hostile) + "/orders"
    for act in ("pause", "resume", "limits", "edit", "check"):
        yield link("/merchants/{}", hostile) + f"/{act}"
    yield link("/providers/{}", hostile) + "/pause"
    yield link("/providers/{}", hostile) + "/resume"
    yield link("/merchants/{}", f"{hostile}-unknown")
    yield link("/merchants/{}", f"{hostile}-unknown") + "/add"


def _orders(engine: Engine) -> Iterator[str]:
    """Orders whose every field, attempts and reasons have it; those in doubt; what POSes said."""
    ledger = Ledger(engine, Payloads(Vault()))
    now = time.time()
    for number, group in _groups():
        filled = [order_with(each.text, f"o-{number}", f"m-{number}").record for each in group]
        whole = filled[0] | {key: value for each in filled for key, value in each.items()}
        whole["items"] = [item for each in filled for item in each["items"]]
        whole["total"] = 500 * len(whole["items"])
        order = Order.parse_json(json.dumps(whole))
        key = Key(f"m-{number}", f"o-{number}")
        for tries, each in enumerate(group, 1):
            claim = _claim(ledger, key, order)
            last = tries == len(group)
            reason = reason_with(each.text)
            state = State.FAILED if last else State.NEW
            outcome = Kind.FAILED if last else Kind.RETRY
            entry = Entry(state, now, tries, reason=reason, external_id=None, outcome=outcome)
            assert ledger.finish(claim, entry)
        yield _path(key)
    received = []
    for number, each in enumerate(ALL):
        order_id = f"{number}-{order_named(each.text) or ''}"[:128]
        key = Key(order_named(each.text) or "m-0", order_id)
        order = Order.parse(an_order(key.order_id, key.merchant_id))
        claim = _claim(ledger, key, order)
        entry = Entry(State.IN_DOUBT, now, 1, now, reason=reason_with(each.text))
        assert ledger.finish(claim, entry)
        if number % TOGETHER == 0:
            said = Callback(f"c-{number}", Kind.REJECTED, order_id, reason=reason_with(each.text))
            owners = {key.merchant_id: ("x",)}
            received.append(Received("rest", key.merchant_id, said, owners))
            yield _path(key)
    ledger.close()
    callbacks = CallbackLedger(engine, Payloads(Vault()), dehydrated)
    callbacks.apply(received)
    callbacks.close()
    for act in ("cancel", "resolve", "extend", "replay", "reveal"):
        yield _path(key) + f"/{act}"
    yield from ("/orders", "/in-doubt", "/in-doubt?before=2030-01-01T00:00Z")
    for each in filter(_sent, ALL[::24]):
        text = each.text[:128]
        yield link("/orders", order=text, merchant=text)
        yield link("/in-doubt/resolve", reason=text, provider=text)
        yield link("/merchants", find=text)


def _path(key: Key) -> str:
    return link("/merchants/{}/orders/{}", key.merchant_id, key.order_id)


def _claim(ledger: Ledger, key: Key, order: Order) -> Claim:
    deliver_by = order.deliver_by.timestamp()
    claim = ledger.claim(key, send=True, deliver_by=deliver_by, order=order.source)
    assert isinstance(claim, Claim)
    return claim


def _reports(engine: Engine) -> Iterator[str]:
    store, nothing = ReportStore(engine), counters(0, {}, ())
    for number, each in enumerate(ALL):
        report = report_with(_kept(each.text)[:2000], f"m-{number // TOGETHER}")
        store.write(f"w-{number}", encoded(report), nothing, lasts=7200.0, is_first=False)
    yield "/"


def _letters(broker_url: str) -> Iterator[str]:
    letters = []
    for number, each in enumerate(ALL):
        text = _kept(each.text)[:4000]
        order = an_order(f"l-{number}", "m-0", notes=text[:500] or "x", extra=text)
        letters.append(dead_letter(order, code=text))
    publish(broker_url, letters)
    yield from ("/dead-letters", "/dead-letters?by=merchant")
    for each in filter(_sent, ALL[::24]):
        text = each.text[:128]
        yield link("/dead-letters", reason=text, merchant=text)
        yield link("/dead-letters/replay", reason=text)
        yield link("/dead-letters/discard", provider=text)


def _runs(engine: Engine) -> Iterator[str]:
    previews = Previews(engine)
    for _, group in _groups():
        texts = [_kept(each.text)[:400] for each in group]
        items = [
            NewItem(f"i-{place}", text[:128], "m-0", "o-0", Refusal(text, text))
            for place, text in enumerate(texts)
        ]
        items.append(NewItem("left", "left", None, None))
        options = {"reason": texts[0], "rate": 20.0}
        run_id = previews.prepare(
            BulkAction.REPLAY, operator="kim", filter_={"reason": texts}, options=options
        )
        previews.fill(run_id, items)
        yield link("/runs/{}", str(run_id))
    for act in ("start", "stop", "resume"):
        yield link("/runs/{}", str(run_id)) + f"/{act}"
    yield "/runs"


def _canary(broker_url: str) -> Iterator[str]:
    pins = {name for each in ALL if (name := order_named(each.text))}
    publisher = PlainPublisher(broker_url)
    split = Split(pins=frozenset(pins), changed_by=_kept(ALL[0].text))
    publisher.publish(splits.message_of(split))
    publisher.close()
    yield from ("/canary", "/canary/share", "/canary/abort")


def test_hostile_text_does_nothing_in_any_view(browse: Browse, watch: Watch, place: Place) -> None:
    page = browse(viewport=WIDTHS[0])
    page.goto(f"{place.url}/login?after={quote(ALL[0].text)}")
    assert harm(page) == []
    log_in(page, place.url, place.token)
    found = {}
    for path in place.paths:
        page.goto(place.url + path)
        if path.startswith("/dead-letters?") or path == "/dead-letters":
            expect(page.get_by_text("counted", exact=False).first).to_be_visible(timeout=SOON)
        while True:
            found.update(_harmed(page, path))
            following = page.locator("a[rel=next], .pages a:has-text('Next page')")
            if not following.count():
                break
            following.first.click()
    found.update(_revealed(page, place))
    assert found == {}
    # The browser's own of pages that are not there.
    assert all("404" in each.what for each in watch.take(Wrong.CONSOLE))
    assert _unvisited(place) == []


def _harmed(page: Page, path: str) -> dict[str, list[str]]:
    """In both widths, first in the one that the window has: a change lays the page out anew."""
    harms = {}
    for size in sorted(WIDTHS, key=lambda each: each != page.viewport_size):
        if size != page.viewport_size:
            page.set_viewport_size(size)
        if each := harm(page):
            harms[f"{path}, {size['width']} pixels"] = each
    return harms


def _revealed(page: Page, place: Place) -> dict[str, list[str]]:
    page.goto(place.url + link("/merchants/{}/orders/{}/reveal", "m-0", "o-0"))
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Reveal it once").click()
    expect(page.locator("main [role=status]")).to_contain_text("Revealed once")
    return _harmed(page, "revealed")


def _unvisited(place: Place) -> list[str]:
    """The views of the page that no path was of."""
    site = Site(Settings(database_url=place.database_url))
    routes = [route.pattern for route in site.app._page._routes]
    paths = [each.partition("?")[0] for each in place.paths]
    site.database.dispose()
    first = {next(each.path for each in routes if each.match(path) is not None) for path in paths
             if any(each.match(path) is not None for each in routes)}  # fmt: skip
    return [each.path for each in routes if each.path not in first]
