"""The page in a real browser: what it shows, how it stays live, and what it refuses."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route
from sqlalchemy import Engine, create_engine, insert, select

from pos_gateway.database.schema import audit
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.browser.watch import Watch, Wrong
from testkit.page_screenshots import log_in
from testkit.page_story import Story, seed
from testkit.servers.http_server import HttpServer
from tests.browser_fixtures import Browse
from tests.page.conftest import NO_BROKER
from tests.page.looks import DESK, faults
from tests.planting import PLANTED, ROOT
from tests.testkit.static_pages import StaticPages


class TrialServer(HttpServer):
    """With the trial view, and without a broker."""

    def _command(self) -> Sequence[str | Path]:
        command = [str(each) for each in super()._command()]
        return ["tests.page.serve_trial" if each == "pos_gateway" else each for each in command]

    def _answers(self) -> bool:
        super()._answers()
        return True  # it has answered: that it is not ready, without a broker


class Gateway:
    """The server, its database, and who logs in."""

    def __init__(self, server: TrialServer, engine: Engine, story: Story) -> None:
        self.server = server
        self.engine = engine
        self.story = story
        self._tokens = TokenStore(engine)
        self._made = 0

    def token(self, role: Role = Role.OPERATOR) -> tuple[str, str]:
        """A new one: its name, and the token."""
        self._made += 1
        name = f"kim-{self._made}"
        return name, self._tokens.create(name, role, operator="test")

    def log_in(self, page: Page, path: str = "/", role: Role = Role.OPERATOR) -> str:
        """Have a page at this path, as a new user; the name of the token."""
        name, token = self.token(role)
        log_in(page, self.server.url, token)
        if path != "/":
            page.goto(self.server.url + path)
        return name

    def revoke(self, name: str) -> None:
        self._tokens.revoke(name, operator="test")

    def change(self) -> None:
        """Change what the trial's part shows."""
        row = {"at": 0.0, "operator": "x", "what": "x"}
        row |= {"merchant_id": "", "order_id": "", "details": ""}
        with self.engine.begin() as connection:
            connection.execute(insert(audit).values(row))

    def did(self, merchant_id: str) -> int:
        """How often the trial's action was done for this merchant."""
        wanted = select(audit).where(
            audit.c.what == "trial.did", audit.c.merchant_id == merchant_id
        )
        with self.engine.connect() as connection:
            return len(connection.execute(wanted).all())


@pytest.fixture(scope="module")
def gateway(module_database: str) -> Iterator[Gateway]:
    engine = create_engine(module_database)
    story = seed(engine, merchants=20, orders=200)
    planted = {name: os.environ[name] for name in (PLANTED,) if name in os.environ}
    settings: Mapping[str, str] = {"PYTHONPATH": str(ROOT), **planted}
    with TrialServer(NO_BROKER, module_database, settings) as server:
        yield Gateway(server, engine, story)
    engine.dispose()


@pytest.fixture
def page(browse: Browse) -> Page:
    """In place of the other files' desk."""
    return browse()


@pytest.fixture
def live(browse: Browse, gateway: Gateway) -> Page:
    """The trial's live page, which counts each part's replacements."""
    page = browse()
    page.add_init_script(_COUNT)
    gateway.log_in(page, "/trial/live")
    return page


#: It counts what page.js does, from before it runs.
_COUNT = """
window.__replaced = {};
addEventListener("DOMContentLoaded", () => {
    for (const part of document.querySelectorAll("[data-part]")) {
        window.__replaced[part.dataset.part] = 0;
        new MutationObserver(() => { window.__replaced[part.dataset.part] += 1; })
            .observe(part, {childList: true});
    }
});
"""


_POINT_AT_A_TIME = """() => {
    const time = document.querySelector(".asof time");
    time.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
    return time.title;
}"""


def focused(page: Page) -> str:
    """What the keyboard acts on: its id, or its text."""
    found: str = page.evaluate(
        "() => (document.activeElement.id || document.activeElement.textContent).trim()"
    )
    return found


def changed(page: Page, gateway: Gateway) -> None:
    """Change the trial's parts, and return once the page shows it."""
    count = page.locator("#count")
    before = count.inner_text()
    gateway.change()
    page.wait_for_function(
        "before => document.getElementById('count').innerText !== before", arg=before
    )


def figure(page: Page, name: str) -> Locator:
    return page.locator(".figure", has=page.get_by_text(name, exact=True)).locator("dd b")


# -- what it shows


def test_an_operator_logs_in_sees_what_is_wrong_and_logs_out(
    page: Page, gateway: Gateway, watch: Watch
) -> None:
    page.goto(gateway.server.url)
    page.get_by_label("Access token").fill("pgw_nonsense")
    page.keyboard.press("Enter")
    assert "That is no token" in page.get_by_role("alert").inner_text()
    watch.wait_for(Wrong.CONSOLE, "401")
    _, token = gateway.token()
    page.get_by_label("Access token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    assert figure(page, "In doubt").inner_text() == str(len(gateway.story.in_doubt))
    assert figure(page, "Workers").inner_text() == str(len(gateway.story.workers))
    assert "in trouble" in page.locator(".notices").inner_text()
    assert re.fullmatch(r".+ \(.+\)", page.evaluate(_POINT_AT_A_TIME))  # in the reader's own zone
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Log in", exact=True).wait_for()
    page.goto(gateway.server.url)
    assert page.url.endswith("/login")


def test_pages_break_no_rule_of_accessibility(browse: Browse, gateway: Gateway) -> None:
    page = browse(reduced_motion="reduce", color_scheme="light", viewport=DESK)
    page.goto(f"{gateway.server.url}/login")
    found = {"/login": faults(page)}
    gateway.log_in(page)
    for path in ("/", "/trial/m-1/pause"):
        page.goto(gateway.server.url + path)
        found[path] = faults(page)
    assert found == {path: [] for path in found}


def test_keys_alone_reach_the_content_and_every_control(page: Page, gateway: Gateway) -> None:
    name = gateway.log_in(page)
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    skip = page.locator("a.skip")
    box = skip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["y"] >= 0  # it is seen
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    page.goto(page.url.partition("#")[0])
    views = page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    expected, order = ["Skip to the content", "POS Gateway", *views, "Log out"], []
    for _ in expected:
        page.keyboard.press("Tab")
        order.append(focused(page))
        outline = "() => getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) != "none", order
    assert order == expected
    assert name in page.locator(".who").inner_text()


def test_without_javascript_it_reads_and_reloads(browse: Browse, gateway: Gateway) -> None:
    page = browse(java_script_enabled=False)
    gateway.log_in(page)
    assert figure(page, "In doubt").inner_text() == str(len(gateway.story.in_doubt))

    def sooner(route: Route) -> None:
        """The same, in one second rather than ten."""
        reply = route.fetch()
        written = '<meta http-equiv="refresh" content="10">'
        assert written in reply.text()
        route.fulfill(
            response=reply, body=reply.text().replace(written, written.replace("10", "1"))
        )

    page.route("**/trial/live", sooner)
    page.goto(f"{gateway.server.url}/trial/live")
    before = page.locator("#count").inner_text()
    gateway.change()
    page.locator("#count").get_by_text(re.compile(rf"^(?!{before}$)\d+$")).wait_for()


# -- how it stays live


def test_a_part_is_replaced_when_it_has_changed(live: Page, gateway: Gateway) -> None:
    changed(live, gateway)
    replaced = live.evaluate("window.__replaced")
    assert replaced["still"] == 0
    assert replaced["also"] >= 1


def test_focus_stays_where_it_is(live: Page, gateway: Gateway) -> None:
    # At once: the part may be replaced at any moment.
    live.evaluate("""() => {
        const link = document.querySelector("#part-trial a");
        link.focus();
        link.isOld = true;
        document.getElementById("more").open = true;
    }""")
    for _ in range(2):
        changed(live, gateway)
    live.wait_for_function(
        "() => !document.activeElement.isOld"
    )  # this part may come after the count's
    assert focused(live).startswith("Trial of")
    assert live.locator("#more").evaluate("each => each.open")


def test_what_is_being_copied_stays_until_it_is_copied(live: Page, gateway: Gateway) -> None:
    # At once: the part may be replaced at any moment before.
    live.evaluate("document.getSelection().selectAllChildren(document.getElementById('copied'))")
    before = live.locator("#part-trial p").first.inner_text()
    for _ in range(2):
        changed(live, gateway)
    assert live.evaluate("document.getSelection().toString()").strip() == "What a person copies"
    assert live.locator("#part-trial p").first.inner_text() == before
    live.evaluate("document.getSelection().removeAllRanges()")
    live.wait_for_function(
        "before => document.querySelector('#part-trial p').innerText !== before", arg=before
    )


def test_a_lost_connection_says_since_when_and_comes_back(
    live: Page, gateway: Gateway, watch: Watch
) -> None:
    changed(live, gateway)
    gateway.server.kill()
    line = live.locator("#connection")
    line.get_by_text(re.compile(r"Connection lost since \d\d:\d\d:\d\d UTC")).wait_for()
    said, before = line.inner_text(), live.locator("#count").inner_text()
    watch.wait_for(Wrong.CONSOLE, "ERR_CONNECTION_REFUSED")  # it tried again
    watch.settle()
    assert line.inner_text() == said  # since it was lost
    gateway.change()
    gateway.server.start()
    line.wait_for(state="hidden")
    live.wait_for_function(
        "before => document.getElementById('count').innerText !== before", arg=before
    )
    watch.take(Wrong.CONSOLE)  # the browser's own, of what it could not reach


def test_a_session_that_is_revoked_says_so(live: Page, gateway: Gateway, watch: Watch) -> None:
    name = live.locator(".who span").inner_text().split()[0]
    gateway.revoke(name)
    live.get_by_text("Your session has ended.").wait_for()
    assert not live.get_by_text("Connection lost").is_visible()
    live.get_by_role("link", name="Log in again").click()
    _, token = gateway.token()
    live.get_by_label("Access token").fill(token)
    live.keyboard.press("Enter")
    live.wait_for_url("**/trial/live")
    watch.take(Wrong.CONSOLE)  # a stream that it tried again was refused, perhaps


# -- what it refuses


def test_the_policy_refuses_scripts_that_are_not_files_of_the_page(
    page: Page, gateway: Gateway, watch: Watch
) -> None:
    gateway.log_in(page)
    page.evaluate("""() => {
        document.getElementById("main").insertAdjacentHTML("beforeend",
            `<img alt="" src="/page/static/none" onerror="window.__ran = 1">`);
        const script = document.createElement("script");
        script.textContent = "window.__ran = 1";
        document.body.append(script);
    }""")
    watch.wait_for(Wrong.CSP, "script-src-elem refused inline")
    watch.wait_for(Wrong.CSP, "script-src-attr refused inline")
    watch.wait_for(Wrong.CONSOLE, "404")  # the picture's: its onerror would have run
    assert page.evaluate("window.__ran") is None
    watch.take(Wrong.CONSOLE)


def test_a_second_click_does_nothing(page: Page, gateway: Gateway) -> None:
    gateway.log_in(page, "/trial/m-twice/pause")
    page.get_by_label("How").fill("slow")
    page.get_by_label("Reason").fill("the kitchen is flooded")
    page.get_by_role("button", name="Pause it").dblclick(no_wait_after=True)
    page.get_by_text("Paused m-twice.").wait_for()
    assert gateway.did("m-twice") == 1


def test_another_site_can_link_to_a_page_and_submit_no_form(
    page: Page, gateway: Gateway, watch: Watch
) -> None:
    gateway.log_in(page)
    ours = gateway.server.url
    with StaticPages() as pages:
        elsewhere = pages.url.replace("127.0.0.1", "localhost")  # to a browser another site
        watch.allow(elsewhere)
        pages.show(
            f'<a href="{ours}/trial">A link</a>'
            f'<form method="post" action="{ours}/trial/m-forged/pause">'
            '<input type="hidden" name="reason" value="forged"><button>Act</button></form>'
        )
        page.goto(elsewhere)
        page.get_by_role("link", name="A link").click()
        page.get_by_role("heading", name="Trial").wait_for()  # still logged in
        page.goto(elsewhere)
        page.get_by_role("button", name="Act").click()
        page.get_by_text("The form is not from this page's address").wait_for()
    assert gateway.did("m-forged") == 0
    watch.take(Wrong.CONSOLE)  # the 403
