"""Dead letters, orders in doubt, and runs on many of them, over HTTP, with a real broker."""

import html
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pos_gateway.administration.bulk import letters
from pos_gateway.broker import topology
from pos_gateway.routing import splits
from tests.bulk.lab import an_order, dead_letter, ids, publish
from tests.page.lab import Browser, Desk, Reply, desk

WHY = "the merchant is back"
#: Seconds for what a thread of the server does.
PATIENCE = 60.0


@pytest.fixture
def broker(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker that has no split for the canary, and is not waited for."""
    monkeypatch.setattr(splits, "THERE", 0.0)
    monkeypatch.setattr(letters, "PAUSE", 0.05)
    return broker_url


@pytest.fixture
def site(broker: str, database_url: str, with_trial: None) -> Iterator[Desk]:
    with desk(database_url, broker_url=broker) as found:
        yield found
        found.site.bulk.stop()


def words(reply: Reply) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", reply.text)).split())


def until(browser: Browser, path: str, is_there: Callable[[str], object]) -> str:
    """The page's text, once it says so."""
    end = time.monotonic() + PATIENCE
    while True:
        text = words(browser.get(path))
        if is_there(text):
            return text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def fill(broker: str, count: int, code: str = "token", **fields: object) -> list[str]:
    names = [f"{code}-{n}" for n in range(count)]
    publish(broker, (dead_letter(an_order(each, **fields), code=code) for each in names))
    return names


def act(browser: Browser, path: str, **fields: str) -> Reply:
    form = browser.get(path).form(path)
    return browser.submit(form, reason=WHY, **fields)


def preview(browser: Browser, path: str, **fields: str) -> str:
    """The path of a run that is previewed."""
    reply = act(browser, path, **fields)
    assert reply.status == 303, words(reply)
    run = reply.headers["location"].partition("?")[0]
    until(browser, run, lambda text: "is being previewed" not in text)
    return run


def test_five_hundred_letters_are_previewed_and_each_replayed_once(site: Desk, broker: str) -> None:
    names = fill(broker, 500)
    fill(broker, 3, "poison")
    kim = site.operator()
    listed = until(kim, "/dead-letters", lambda text: "503 letters" in text)
    assert "credentials or certificates are not valid" in listed
    run = preview(kim, "/dead-letters/replay?reason=token", rate="1000", minutes="30")
    assert "500 letters: 500 would be replayed, 0 refused" in words(kim.get(run))
    assert act(kim, f"{run}/start").status == 303
    done = until(kim, run, lambda text: "State done" in text)
    assert "Replayed 500" in done and WHY in done and "kim" in done
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
    assert ids(broker, topology.DEAD_KEY) == Counter(f"poison-{n}" for n in range(3))
