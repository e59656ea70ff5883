"""Pictures of the operations page with the story in it: ``make screenshots`` writes them.

Each path is shown in the light, in the dark, and as wide as a phone. ``{slow}`` and the other names of
``testkit/page_story.py`` stand for their merchants, ``{in_doubt}`` and the other lists for the path
of their first order.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.ledger.states import Key
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.browser.chromium import Chromium
from testkit.browser.watch import Watch
from testkit.page_story import Story, seed
from testkit.servers.http_server import HttpServer
from testkit.servers.rabbitmq import RabbitMQ

PATHS = ("/", "/merchants", "/merchants/{slow}", "/merchants/{in_doubt}")
_WIDE, _PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: A picture's name, and the options of its context.
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": _WIDE},
    "dark": {"color_scheme": "dark", "viewport": _WIDE},
    "phone": {"color_scheme": "light", "viewport": _PHONE, "device_scale_factor": 2},
}
#: Pixels of the longest picture: a list of a thousand rows says no more than its beginning.
_TALLEST = 1600


def take(
    browser: Browser,
    origin: str,
    token: str,
    paths: Mapping[str, str],
    looks: Sequence[str],
    folder: Path,
) -> Iterator[Path]:
    """Write a picture of every path in these looks, as an operator sees it; yields its file.

    Args:
        paths: by the pictures' names.

    Raises AssertionError for a page that the browser complains of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for look in looks:
        watch = Watch()
        context = browser.new_context(
            reduced_motion="reduce", locale="en-GB", timezone_id="UTC", **LOOKS[look]
        )
        watch.attach(context)
        page = context.new_page()
        is_logged_in = False
        for name, path in paths.items():
            if path != "/login" and not is_logged_in:
                log_in(page, origin, token)
                is_logged_in = True
            page.goto(origin + path)
            watch.require_none()
            width = page.evaluate("document.documentElement.clientWidth")
            height = page.evaluate("document.documentElement.scrollHeight")
            picture = folder / f"{name}-{look}.png"
            shown = {"x": 0, "y": 0, "width": width, "height": min(height, _TALLEST)}
            page.screenshot(path=picture, full_page=True, clip=shown)  # type: ignore[arg-type]
            yield picture
        context.close()


def log_in(page: Page, origin: str, token: str) -> None:
    """Log in with a token, as a person does."""
    page.goto(f"{origin}/login")
    page.locator("input[name=token]").fill(token)
    page.locator("input[name=token]").press("Enter")
    page.wait_for_url(lambda url: not url.rstrip("/").endswith("/login"))


def picture_name(path: str) -> str:
    """The name of a path's picture: what stands in the path, without the story's names."""
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "now"


def filled(path: str, story: Story) -> str:
    """The path with the story's names in it."""
    return path.format(**{each.name: _in_path(getattr(story, each.name)) for each in fields(story)})


def _in_path(value: Any) -> str:
    match value:
        case str():
            return quote(value, safe="")
        case (Key() as key, *_):
            return f"{quote(key.merchant_id, safe='')}/orders/{quote(key.order_id, safe='')}"
        case (str() as first, *_):
            return quote(first, safe="")
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a broker and a server, seed the story, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=PATHS, help=f"default: {' '.join(PATHS)}")
    parser.add_argument("--look", action="append", choices=LOOKS, help="default: all")
    parser.add_argument("--folder", type=Path, default=Path("docs/images/page"))
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--merchants", type=int, default=200)
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        database_url = f"sqlite:///{place}/story.db"
        rabbitmq = stack.enter_context(RabbitMQ())
        broker_url = rabbitmq.add_vhost()
        engine = open_database(database_url)
        upgrade(engine)
        with patch("socket.gethostname", return_value="worker"):  # the workers' name
            story = seed(engine, broker_url, merchants=given.merchants, orders=given.orders)
        token = TokenStore(engine).create("operator", Role.OPERATOR, operator="screenshots")
        engine.dispose()
        server = stack.enter_context(HttpServer(broker_url, database_url))
        chromium = stack.enter_context(Chromium())
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.connect_over_cdp(chromium.url)
        paths = {picture_name(path): filled(path, story) for path in given.paths}
        for picture in take(
            browser, server.url, token, paths, given.look or list(LOOKS), given.folder
        ):
            print(picture)


if __name__ == "__main__":
    main()
