"""A browser for tests: one for each process, fresh contexts for each test, and its complaints.

``page`` is a page in a context of its own; ``browse`` opens more of them, each as another user.
A test fails at its end if a page has done what none should (``testkit/browser/watch.py``), unless
the test took that from ``watch``. What a failed test saw is in ``build/browser/``.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testkit.browser.chromium import Chromium

if TYPE_CHECKING:  # every test process reads this file, and few need a browser
    from playwright.sync_api import Browser, BrowserContext, Page

    from testkit.browser.watch import Watch

#: Opens a page as another user; takes what playwright's ``new_context`` does.
Browse = Callable[..., "Page"]

_FAILURES = Path(__file__).resolve().parents[1] / "build/browser"
_WATCH = pytest.StashKey["Watch"]()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The shared Chromium."""
    with Chromium() as server:
        yield server


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator["Browser"]:
    """A connection to it. Of a file alone: while it is open, its thread can run no other event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium.start()
        connected = playwright.chromium.connect_over_cdp(chromium.url)
        yield connected
        connected.close()


@pytest.fixture
def watch(request: pytest.FixtureRequest) -> "Watch":
    """What the test's pages have done that no page should."""
    from testkit.browser.watch import Watch

    watch = Watch()
    request.node.stash[_WATCH] = watch
    return watch


@pytest.fixture
def browse(browser: "Browser", watch: "Watch", request: pytest.FixtureRequest) -> Iterator[Browse]:
    """Opens pages, each in a context of its own: other cookies, another user."""
    from playwright.sync_api import expect

    from testkit.browser.watch import SOON

    expect.set_options(timeout=SOON * 1000)  # a context's default does not hold for it
    contexts: list[BrowserContext] = []

    def open_page(**options: object) -> "Page":
        settings = {"service_workers": "block", "locale": "en-GB", "timezone_id": "UTC", **options}
        context = browser.new_context(**settings)  # type: ignore[arg-type]
        context.set_default_timeout(SOON * 1000)
        contexts.append(context)
        watch.attach(context, has_scripts=bool(options.get("java_script_enabled", True)))
        return context.new_page()

    try:
        yield open_page
        try:
            watch.require_none()
        except AssertionError:
            _save(watch, request.node)
            raise
    finally:
        for context in contexts:
            context.close()


@pytest.fixture
def page(browse: Browse) -> "Page":
    """A page, in a context of its own."""
    return browse()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Save what a failed test's pages show, before its fixtures close them."""
    report: pytest.TestReport = yield  # type: ignore[misc]
    watch = item.stash.get(_WATCH, None)
    if watch is not None and report.when == "call" and report.failed:
        report.sections.append(("Browser", "\n".join(map(str, _save(watch, item)))))
    return report  # type: ignore[return-value]


def _save(watch: "Watch", item: pytest.Item) -> list[Path]:
    name = re.sub(r"[^\w.-]+", "-", item.nodeid.rpartition("/")[2])
    return watch.save(_FAILURES, name[:120])
