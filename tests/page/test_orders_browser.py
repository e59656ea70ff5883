"""Orders in a real browser, with the story in the database and a real broker: as an operator works."""

import re

from playwright.sync_api import Page, expect

from pos_gateway.ledger.states import State
from testkit.browser.watch import Watch, Wrong
from testkit.page_screenshots import log_in
from tests.browser_fixtures import Browse
from tests.page.looks import DESK, faults
from tests.page.story_place import StoryPlace

NAMES = re.compile(r"Berg|Okafor|Lindqvist|Moreau|Haddad|Tanaka|ring twice")


def operator(browse: Browse, place: StoryPlace, **options: object) -> Page:
    page = browse(**options)
    log_in(page, place.url, place.kim)
    return page


def test_no_page_of_orders_breaks_a_rule_of_axe_or_overflows(
    browse: Browse, place: StoryPlace
) -> None:
    """Light, and dark and as wide as a phone."""
    story = place.story
    page = operator(browse, place, color_scheme="light", viewport=DESK)
    keys = [story.in_doubt[0], story.dead_letters[0], story.with_callbacks[0]]
    paths = [f"{place.url}/orders?state=failed&since=7d&order=o-", *map(place.path, keys)]
    paths += [place.path(keys[0], f"/{each}") for each in ("resolve", "extend", "reveal")]
    paths.append(place.path(keys[1], "/replay"))
    for path in paths:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert faults(page) == [], path


def test_an_operator_finds_an_order_in_doubt_and_resolves_it(
    browse: Browse, place: StoryPlace
) -> None:
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
    browse: Browse, place: StoryPlace, watch: Watch
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


def test_a_reveal_is_shown_once_and_not_kept_by_the_browser(
    browse: Browse, place: StoryPlace
) -> None:
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


def test_what_is_printed_is_the_order_alone(browse: Browse, place: StoryPlace) -> None:
    page = operator(browse, place)
    page.goto(place.path(place.story.in_doubt[0]))
    page.emulate_media(media="print")
    for each in ("header nav", ".who", ".acts"):
        expect(page.locator(each)).to_be_hidden()
    expect(page.locator("ol.life")).to_be_visible()
    expect(page.locator("table.items")).to_be_visible()
