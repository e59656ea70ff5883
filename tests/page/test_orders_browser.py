"""Orders in a real browser, with the story in the database and a real broker: as an operator works."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.page.links import link
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.browser.axe import violations
from testkit.browser.harm import harm
from testkit.browser.watch import Watch, Wrong
from testkit.page_screenshots import log_in
from testkit.page_story import Story, seed
from testkit.servers.http_server import HttpServer
from testkit.servers.rabbitmq import RabbitMQ
from tests.browser_fixtures import Browse
from tests.schema import make_tables

PHONE = {"width": 390, "height": 844}
NAMES = re.compile(r"Berg|Okafor|Lindqvist|Moreau|Haddad|Tanaka|ring twice")


class Place(NamedTuple):
    """A server with the story."""

    url: str
    token: str
    story: Story
    engine: Engine

    def path(self, key: Key, act: str = "") -> str:
        return self.url + link("/merchants/{}/orders/{}", key.merchant_id, key.order_id) + act

    def order(self, key: Key) -> State:
        found = OrderAdmin(self.engine, Payloads(Vault())).one(key)
        assert found is not None
        return found.state


@pytest.fixture(scope="module")
def place(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("orders")
    rabbitmq.start()
    broker_url = rabbitmq.add_vhost()
    database_url = f"sqlite:///{folder}/gateway.db"
    engine = open_database(database_url)
    make_tables(engine)
    story = seed(engine, broker_url, merchants=20, orders=400)
    token = TokenStore(engine).create("kim", Role.OPERATOR, operator="test")
    with HttpServer(broker_url, database_url) as server:
        yield Place(server.url, token, story, engine)
    engine.dispose()
    rabbitmq.delete_vhost(broker_url)


def operator(browse: Browse, place: Place, **options: object) -> Page:
    page = browse(**options)
    log_in(page, place.url, place.token)
    return page


def test_no_page_of_orders_breaks_a_rule_of_axe_or_overflows(browse: Browse, place: Place) -> None:
    """Light, and dark and as wide as a phone."""
    story = place.story
    wide = operator(browse, place, color_scheme="light")
    phone = operator(browse, place, color_scheme="dark", viewport=PHONE)
    keys = [story.in_doubt[0], story.dead_letters[0], story.with_callbacks[0]]
    paths = [f"{place.url}/orders?state=failed&since=7d&order=o-", *map(place.path, keys)]
    paths += [place.path(keys[0], f"/{each}") for each in ("resolve", "extend", "reveal")]
    paths.append(place.path(keys[1], "/replay"))
    for path in paths:
        wide.goto(path)
        expect(wide.locator("h1")).to_be_visible()
        phone.goto(path)
        for page in (wide, phone):
            assert violations(page) == [], path
            assert harm(page) == [], path


def test_an_operator_finds_an_order_in_doubt_and_resolves_it(browse: Browse, place: Place) -> None:
    key = place.story.in_doubt[-1]
    page, other = operator(browse, place), operator(browse, place)
    page.get_by_role("link", name="Each order").click()
    page.get_by_label("Order", exact=True).fill(key.order_id[2:])
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=key.order_id, exact=True).click()
    expect(page.locator(".standing .title")).to_contain_text("in doubt")
    assert NAMES.search(page.content()) is None
    other.goto(place.path(key))
    page.get_by_role("link", name="Resolve it").click()
    expect(page.get_by_text("Does your POS have the order")).to_be_visible()
    page.get_by_label("The POS has it", exact=True).check()
    page.get_by_label("id for it").fill("K-77")
    page.get_by_label("Reason").fill("called the kitchen")
    page.get_by_role("button", name="Resolve it").click()
    expect(page.locator(".notice.done")).to_contain_text("is accepted")
    expect(page.locator(".standing .title")).to_contain_text("accepted")
    expect(page.get_by_text("kim: orders.resolve.accepted", exact=True)).to_be_visible()
    assert place.order(key) is State.ACCEPTED
    # The other operator's page shows it by itself.
    expect(other.locator(".standing .title")).to_contain_text("accepted")


def test_an_operator_replays_a_failed_order_once(
    browse: Browse, place: Place, watch: Watch
) -> None:
    key = next(each for each in place.story.dead_letters if place.order(each) is State.FAILED)
    page = operator(browse, place)
    for says in ("is on the queue again", None):
        page.goto(place.path(key, "/replay"))
        page.get_by_label("New time").select_option(label="an hour")
        page.get_by_label("Reason").fill("its credentials are mended")
        page.get_by_role("button", name="Replay it").click()
        if says is not None:
            expect(page.locator(".notice.done")).to_contain_text(says)
            assert place.order(key) is State.NEW
    expect(page.get_by_role("alert")).to_contain_text(
        "No message of this order is in the dead letters"
    )
    watch.wait_for(Wrong.CONSOLE, "409")


def test_a_reveal_is_shown_once_and_not_kept_by_the_browser(browse: Browse, place: Place) -> None:
    key = place.story.retried[0]
    page = operator(browse, place)
    page.goto(place.path(key))
    page.get_by_role("link", name="Reveal personal data").click()
    page.get_by_label("Reason").fill("the merchant asks for the name")
    page.get_by_role("button", name="Reveal it once").click()
    expect(page.locator(".notice.done")).to_contain_text("Revealed once")
    assert NAMES.search(page.content()) is not None
    page.get_by_role("link", name="Back to the order").click()
    expect(page.locator(".standing")).to_be_visible()
    page.go_back(wait_until="commit")
    expect(page.get_by_text("customer")).to_be_visible()
    expect(page.locator(".standing")).to_be_visible()
    assert NAMES.search(page.content()) is None


def test_what_is_printed_is_the_order_alone(browse: Browse, place: Place) -> None:
    page = operator(browse, place)
    page.goto(place.path(place.story.in_doubt[0]))
    page.emulate_media(media="print")
    for each in ("header nav", ".who", ".acts"):
        expect(page.locator(each)).to_be_hidden()
    expect(page.locator("ol.life")).to_be_visible()
    expect(page.locator("table.items")).to_be_visible()
