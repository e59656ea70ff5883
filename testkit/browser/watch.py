"""Collects what pages do that no page of ours should: a test fails at its end if any of it is left."""

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Page, Request

from testkit.patience import PATIENCE

#: Seconds for anything that should happen at once.
SOON = PATIENCE


class Wrong(StrEnum):
    """A kind of complaint."""

    #: ``console.error``, and what the browser itself reports there: a 404, a refused script.
    CONSOLE = "console error"
    #: An exception that no script caught.
    SCRIPT = "page error"
    #: The Content-Security-Policy refused something.
    CSP = "CSP violation"
    #: ``alert``, ``confirm``, ``prompt``: each is dismissed.
    DIALOG = "dialog"
    #: A request to another origin than that of the first page.
    ORIGIN = "other origin"
    #: A window that a page opened.
    WINDOW = "window"
    #: The page's process died.
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that a page did wrong."""

    kind: Wrong
    what: str
    #: The page on which it was.
    url: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.url}: {self.what}"


class Watch:
    """Watches the contexts of one test."""

    def __init__(self) -> None:
        #: What came and was not taken.
        self.complaints: list[Complaint] = []
        #: Everything that a page has written to the console.
        self.console: list[str] = []
        self._allowed: set[str] = set()
        self._pages: list[Page] = []
        self._without_scripts: set[BrowserContext] = set()

    @property
    def pages(self) -> list[Page]:
        """The pages that are open."""
        return [page for page in self._pages if not page.is_closed()]

    def allow(self, url: str) -> None:
        """Another origin that pages may call, besides the first page's."""
        self._allowed.add(_origin(url))

    def attach(self, context: BrowserContext, *, has_scripts: bool = True) -> None:
        """Watch a context, before its first page is opened.

        Args:
            context: the context.
            has_scripts: it was made with JavaScript enabled.
        """
        if not has_scripts:
            self._without_scripts.add(context)
        context.expose_binding("__violated", self._violated)
        context.add_init_script(_LISTEN)
        context.on("console", self._logged)
        context.on("weberror", lambda error: self._say(Wrong.SCRIPT, str(error.error), error.page))
        context.on("dialog", self._asked)
        context.on("request", self._requested)
        context.on("page", self._opened)

    def wait_for(self, kind: Wrong, text: str = "") -> Complaint:
        """The first complaint of this kind with this text, once it is there; the test expects it."""
        until = time.monotonic() + SOON
        while True:
            self.settle()
            for each in self.complaints:
                if each.kind is kind and text in each.what:
                    self.complaints.remove(each)
                    return each
            if time.monotonic() > until:
                raise AssertionError(f"no {kind} with {text!r} came, but {self._listed()}")

    def take(self, *kinds: Wrong) -> list[Complaint]:
        """All complaints of these kinds (none given: of all) until now; the test expects them."""
        self.settle()
        wanted = kinds or tuple(Wrong)
        taken = [each for each in self.complaints if each.kind in wanted]
        self.complaints = [each for each in self.complaints if each.kind not in wanted]
        return taken

    def settle(self) -> None:
        """Return once what pages have done until now is known here."""
        for page in self.pages:
            try:
                # Without JavaScript a page has no timers, and nothing to wait for.
                is_dead = page.context in self._without_scripts
                page.evaluate("0" if is_dead else _TWO_FRAMES)
            except Error:
                continue  # it navigates, or is gone: what it did before came earlier on this line

    def require_none(self) -> None:
        """Raise AssertionError if anything is left that the test has not taken."""
        self.settle()
        if self.complaints:
            raise AssertionError(f"the browser complains: {self._listed()}")

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write a picture of every open page, and the console, for one who looks into a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{name}.log"
        log.write_text("\n".join([*map(str, self.complaints), *self.console]) + "\n")
        written = [log]
        for number, page in enumerate(self.pages, 1):
            picture = folder / f"{name}-{number}.png"
            try:
                page.screenshot(path=picture, timeout=5000)
            except Error as error:  # a page that hangs has no picture
                with log.open("a") as more:
                    more.write(f"no picture of {page.url}: {error.message}\n")
            else:
                written.append(picture)
        return written

    def _listed(self) -> str:
        return "".join(f"\n  {each}" for each in self.complaints) or "nothing did"

    def _say(self, kind: Wrong, what: str, page: Page | None) -> None:
        self.complaints.append(Complaint(kind, what, "" if page is None else page.url))

    def _violated(self, source: Any, what: str) -> None:
        self._say(Wrong.CSP, what, source["page"])

    def _logged(self, message: ConsoleMessage) -> None:
        self.console.append(f"{message.type}: {message.text}")
        if message.type == "error":
            where = message.location.get("url", "")
            self._say(Wrong.CONSOLE, f"{message.text} ({where})", message.page)

    def _asked(self, dialog: Dialog) -> None:
        self._say(Wrong.DIALOG, f"{dialog.type}: {dialog.message}", dialog.page)
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).scheme in _WITHOUT_NETWORK:
            return
        origin = _origin(request.url)
        if not self._allowed:
            self._allowed.add(origin)
        elif origin not in self._allowed:
            self.complaints.append(Complaint(Wrong.ORIGIN, request.url, _page_of(request)))

    def _opened(self, page: Page) -> None:
        self._pages.append(page)
        page.on("crash", lambda page: self._say(Wrong.CRASH, "its process died", page))
        if page.opener() is not None:
            self._say(Wrong.WINDOW, page.url, page)


#: No other machine sees a request for these.
_WITHOUT_NETWORK = ("data", "blob", "about")

#: In the page's own world, since its document is there; before any script of the page.
_LISTEN = """
addEventListener("securitypolicyviolation", event => {
    const what = `${event.effectiveDirective} refused ${event.blockedURI || "something inline"}`;
    window.__violated(event.sample ? `${what}: ${event.sample}` : what);
}, true);
"""
#: The second frame begins after the work that the first one has caused. A page that is not shown has
#: no frames.
_TWO_FRAMES = """() => new Promise(done => {
    requestAnimationFrame(() => requestAnimationFrame(done));
    setTimeout(done, 1000);
})"""


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _page_of(request: Request) -> str:
    try:
        return request.frame.url
    except Error:  # the request of a page that is being opened has no frame yet
        return ""
