"""Work lists in a real browser, with the story in the database and a real broker."""

import re
from collections import Counter

from playwright.sync_api import Page, expect

from pos_gateway.broker import topology
from testkit.browser.watch import Watch, Wrong
from testkit.page_screenshots import log_in
from testkit.patience import PATIENCE
from tests.browser_fixtures import Browse
from tests.bulk.lab import an_order, dead_letter, ids, publish
from tests.page.looks import DESK, faults
from tests.page.story_place import StoryPlace

#: Milliseconds for what a thread of the server does.
SOON = 1000 * PATIENCE


def operator(browse: Browse, place: StoryPlace, token: str, **options: object) -> Page:
    page = browse(**options)
    log_in(page, place.url, token)
    return page


def previewed(page: Page, reason: str) -> None:
    """Preview a replay of the letters with this reason."""
    page.get_by_role("link", name="Dead letters", exact=True).click()
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="Replay…").click()
    page.get_by_label("At most a second").fill("10")  # the other operator comes meanwhile
    page.get_by_label("Reason").fill("the merchant has a new token")
    page.get_by_role("button", name="Preview it").click()
    page.get_by_role("link", name=re.compile("Replay 100…")).wait_for(timeout=SOON)


def test_no_work_list_breaks_a_rule_of_axe_or_overflows(browse: Browse, place: StoryPlace) -> None:
    """Light, and dark and as wide as a phone."""
    page = operator(browse, place, place.kim, color_scheme="light", viewport=DESK)
    page.goto(f"{place.url}/dead-letters")
    expect(page.get_by_role("region", name="Letters")).to_be_visible(timeout=SOON)
    page.goto(f"{place.url}/dead-letters/discard")
    page.get_by_label("Reason").fill("an example")
    page.get_by_role("button", name="Preview it").click()
    expect(page.locator(".standing")).to_contain_text("would be discarded", timeout=SOON)
    run = page.url.partition("?")[0]
    paths = [f"{place.url}{each}" for each in ("/dead-letters", "/in-doubt", "/runs")]
    paths += [f"{place.url}/dead-letters/replay?reason=token", f"{place.url}/in-doubt/resolve"]
    paths += [run, f"{run}/start", f"{run}/stop"]
    for path in paths:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert faults(page) == [], path


def test_a_hundred_letters_are_replayed_while_another_operator_does_too(
    browse: Browse, watch: Watch, place: StoryPlace
) -> None:
    names = [f"b-{n}" for n in range(100)]
    publish(place.broker_url, (dead_letter(an_order(each), code="browser_test") for each in names))
    before = ids(place.broker_url, topology.ORDERS_KEY)
    kim = operator(browse, place, place.kim)
    sam = operator(browse, place, place.sam)
    previewed(kim, "browser_test")
    previewed(sam, "browser_test")
    for page in (kim, sam):
        page.get_by_role("link", name="Replay 100…").click()
        page.get_by_label("Reason").fill("the merchant has a new token")
    kim.get_by_role("button", name="Replay 100").dblclick()
    kim.wait_for_url(re.compile(r"/runs/\d+(\?.*)?$"))
    sam.get_by_role("button", name="Replay 100").click()
    expect(sam.get_by_role("alert")).to_contain_text("of kim")
    watch.wait_for(Wrong.CONSOLE, "409")
    sam.goto(kim.url)
    for page in (kim, sam):
        expect(page.get_by_text("Replayed", exact=True).locator("..")).to_contain_text(
            "100", timeout=SOON
        )
        expect(page.get_by_text("State", exact=True).locator("..")).to_contain_text(
            "done", timeout=SOON
        )
    assert ids(place.broker_url, topology.ORDERS_KEY) - before == Counter(names)
