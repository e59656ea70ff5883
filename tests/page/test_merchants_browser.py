"""Merchants in a real browser, with the story in the database: as an operator works."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from pos_gateway.audit.log import AuditFilter, AuditLog
from pos_gateway.database.engine import open_database
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.server.page.links import link
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.page_screenshots import log_in
from testkit.page_story import Story, seed
from tests.browser_fixtures import Browse
from tests.page.conftest import NO_BROKER
from tests.page.looks import DESK, faults
from tests.schema import make_tables
from tests.server.lab import serving


class Place(NamedTuple):
    """A server with the story."""

    url: str
    token: str
    story: Story
    engine: Engine

    def path(self, merchant_id: str, act: str = "") -> str:
        return self.url + link("/merchants/{}", merchant_id) + act


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("merchants")
    database_url = f"sqlite:///{folder}/gateway.db"
    engine = open_database(database_url)
    make_tables(engine)
    story = seed(engine, merchants=70, orders=400)
    token = TokenStore(engine).create("kim", Role.OPERATOR, operator="test")
    with serving(NO_BROKER, database_url, folder / "server.log", is_ready=False) as server:
        yield Place(server.url, token, story, engine)
    engine.dispose()


def operator(browse: Browse, place: Place, **options: object) -> Page:
    page = browse(**options)
    log_in(page, place.url, place.token)
    return page


def test_no_page_of_merchants_breaks_a_rule_of_axe_or_overflows(
    browse: Browse, place: Place
) -> None:
    """Light, and dark and as wide as a phone."""
    story = place.story
    paths = [
        f"{place.url}/merchants",
        f"{place.url}/merchants?find=",
        f"{place.url}/merchants?find=%",
    ]
    paths += [place.path(each) for each in (story.slow, story.paused, story.healthy)]
    paths += [place.path(story.slow, f"/{each}") for each in ("pause", "limits", "edit", "check")]
    paths += [place.path(story.paused, "/resume"), place.path(story.paused, "/pause")]
    paths += [f"{place.url}/providers/kassa/{each}" for each in ("pause", "resume")]
    page = operator(browse, place, color_scheme="light", viewport=DESK)
    for path in paths:
        page.goto(path)
        for details in page.locator("details").all():
            details.locator("summary").click()
        assert faults(page) == [], path


def test_an_operator_finds_the_slow_merchant_pauses_it_and_resumes_it(
    browse: Browse, place: Place
) -> None:
    slow = place.story.slow
    page = operator(browse, place)
    page.get_by_role("link", name="Which, and why").click()
    row = page.get_by_role("row").filter(has_text="slow: replies take 9.4 s, usually 0.3 s")
    row.get_by_role("link", name=slow).click()
    expect(page.get_by_role("img", name="Reply time")).to_be_visible()
    expect(page.get_by_role("img", name="Attempts a minute, by outcome")).to_be_visible()
    page.get_by_role("link", name="Pause it").click()
    expect(page.get_by_text("wait or are parked", exact=False).first).to_be_visible()
    page.get_by_label("Reason").fill("its till is being replaced")
    page.get_by_role("button", name="Pause it").click()
    expect(page.get_by_role("status").filter(has_text=f"{slow} is paused")).to_be_visible()
    # The live part says so, too: another operator's page as well.
    expect(
        page.get_by_text(re.compile("Paused by kim since .*its till is being replaced"))
    ).to_be_visible()
    assert MerchantStore(place.engine).get([slow])[slow].paused
    page.get_by_role("link", name="Merchants", exact=True).click()
    expect(page.get_by_text(re.compile("^paused by kim since"))).to_be_visible()
    page.get_by_label("Find one of").fill(slow[:8].upper())
    page.get_by_role("button", name="Find").click()
    found = page.get_by_role("region", name="Merchants found")
    found.get_by_role("link", name=slow).click()
    page.get_by_role("link", name="Resume it").click()
    page.get_by_label("Reason").fill("it is replaced")
    page.get_by_role("button", name="Resume it").click()
    expect(page.get_by_role("status").filter(has_text=f"{slow} is resumed")).to_be_visible()
    expect(page.get_by_role("link", name="Pause it")).to_be_visible()
    assert not MerchantStore(place.engine).get([slow])[slow].paused
    lines = AuditLog(place.engine).last(AuditFilter(merchant_id=slow), 10)
    assert [(each.operator, each.what, each.reason) for each in lines] == [
        ("kim", "merchants.pause", "its till is being replaced"),
        ("kim", "merchants.resume", "it is replaced"),
    ]


def test_the_search_and_the_list_work_without_javascript(browse: Browse, place: Place) -> None:
    page = operator(browse, place, java_script_enabled=False)
    page.goto(f"{place.url}/merchants")
    page.get_by_label("Find one of").fill(place.story.healthy)
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("region", name="Merchants found").get_by_role("row")).to_have_count(2)
    page.get_by_role("region", name="Merchants found").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(place.story.healthy)
