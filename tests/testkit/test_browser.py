"""The browser that tests drive: it finds what is wrong, on pages that are wrong on purpose."""

import html
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from testkit.browser.axe import violations
from testkit.browser.chromium import Chromium
from testkit.browser.harm import harm
from testkit.browser.watch import Watch, Wrong
from testkit.hostile_text import FRAMING, HOSTILE, MARKUP, SHAPE, Hostile
from tests.browser_fixtures import Browse
from tests.testkit.static_pages import STRICT, StaticPages


# They outlive each test's contexts: a browser asks for an icon when the test may be over.
@pytest.fixture(scope="module")
def pages() -> Iterator[StaticPages]:
    with StaticPages() as pages:
        yield pages


@pytest.fixture(scope="module")
def strict() -> Iterator[StaticPages]:
    """The same, with a Content-Security-Policy."""
    with StaticPages(Content_Security_Policy=STRICT) as pages:
        yield pages


def test_a_sound_page_has_nothing_to_complain_of(page: Page, pages: StaticPages) -> None:
    page.goto(pages.show("<p>All is well.</p>"))
    assert violations(page) == [] and harm(page) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Wrong.CONSOLE, "<script>console.error('wrong', 7)</script>"),
        (Wrong.CONSOLE, "<img src=/nowhere.png alt=''>"),
        (Wrong.SCRIPT, "<script>nothing.of_that_name</script>"),
        (Wrong.SCRIPT, "<script>Promise.reject(new Error('not caught'))</script>"),
        (Wrong.DIALOG, "<script>alert(1)</script>"),
        (Wrong.WINDOW, "<script>open('about:blank')</script>"),
    ],
)
def test_what_is_wrong_is_found(
    kind: Wrong, body: str, page: Page, pages: StaticPages, watch: Watch
) -> None:
    page.goto(pages.show(body))
    watch.wait_for(kind)
    assert watch.take() == []


def test_what_is_wrong_fails_the_test(page: Page, pages: StaticPages, watch: Watch) -> None:
    page.goto(pages.show("<script>console.error('wrong')</script>"))
    with pytest.raises(AssertionError, match=r"console error at http.*: wrong"):
        watch.require_none()
    watch.take()


def test_what_was_written_after_the_page_was_loaded_counts_too(
    page: Page, pages: StaticPages, watch: Watch
) -> None:
    page.goto(pages.show("<p>All is well.</p>"))
    watch.require_none()
    page.evaluate("console.error('late')")
    assert [each.what.partition(" ")[0] for each in watch.take(Wrong.CONSOLE)] == ["late"]


def test_the_policy_refuses_an_inline_script_and_that_is_found(
    page: Page, strict: StaticPages, watch: Watch
) -> None:
    page.goto(strict.show("<script>window.__ran = 1</script>"))
    found = watch.wait_for(Wrong.CSP)
    assert "script-src-elem refused inline" in found.what
    watch.wait_for(Wrong.CONSOLE, "Content Security Policy")
    assert page.evaluate("window.__ran") is None


def test_a_request_to_another_origin_is_found_and_one_to_ours_is_not(
    page: Page, pages: StaticPages, watch: Watch
) -> None:
    with StaticPages() as other:
        theirs = other.put("/a.png", "", "image/png")
        ours = pages.put("/ours.js", "", "text/javascript")
        page.goto(pages.show(f"<script src={ours}></script><img alt='' src={theirs}>"))
        assert watch.wait_for(Wrong.ORIGIN).what == theirs
        assert watch.take(Wrong.ORIGIN) == []
        watch.allow(other.url)
        page.reload()
        assert watch.take(Wrong.ORIGIN) == []


def test_another_host_is_unknown_to_the_browser(
    page: Page, pages: StaticPages, watch: Watch
) -> None:
    hosts = ["pos.example.com", "192.0.2.1", "[2001:db8::1]"]
    page.goto(pages.show("".join(f"<img alt='' src=http://{host}/x.png>" for host in hosts)))
    for _ in hosts:
        assert "ERR_NAME_NOT_RESOLVED" in watch.wait_for(Wrong.CONSOLE).what
    assert len(watch.take(Wrong.ORIGIN)) == len(hosts)


def test_pages_of_two_users_share_no_cookie(browse: Browse, pages: StaticPages) -> None:
    pages.headers["Set-Cookie"] = "who=one; HttpOnly"
    one, two = browse(), browse(color_scheme="dark", viewport={"width": 360, "height": 700})
    one.goto(pages.show("<p>One.</p>"))
    del pages.headers["Set-Cookie"]
    two.goto(pages.url + "/")
    assert [each["name"] for each in one.context.cookies()] == ["who"]
    assert two.context.cookies() == []
    assert two.evaluate("[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [
        360,
        True,
    ]


def test_without_javascript_a_page_is_watched_too(
    browse: Browse, pages: StaticPages, watch: Watch
) -> None:
    page = browse(java_script_enabled=False)
    page.goto(pages.show("<p>Read me.</p><img src=/nowhere.png alt=''><script>alert(1)</script>"))
    assert page.inner_text("p") == "Read me."
    watch.wait_for(Wrong.CONSOLE, "404")
    assert watch.take() == []


def test_a_failed_test_leaves_a_picture_and_the_console(
    page: Page, pages: StaticPages, watch: Watch, tmp_path: Path
) -> None:
    page.goto(pages.show("<script>console.log('seen'); console.error('wrong')</script>"))
    watch.settle()
    log, picture = watch.save(tmp_path, "test_x")
    assert "log: seen" in log.read_text() and "error: wrong" in log.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    watch.take()


def test_axe_finds_what_breaks_a_rule_whatever_the_policy(page: Page, strict: StaticPages) -> None:
    picture = strict.put("/a.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")
    page.goto(strict.show(f"<p><img src='{picture}'></p><input><a href=/></a>"))
    found = violations(page)
    assert [each.partition(" ")[0] for each in found if "critical" in each] == [
        "image-alt",
        "label",
    ]
    assert any(each.startswith("link-name (serious): ") for each in found)
    assert violations(page, "h1") == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<script>window.__ran = 1</script>", "its scripts ran 1 times"),
        ("<p data-hostile>x</p>", "it made <p data-hostile"),
        ("<p>1787569</p>", "a template was evaluated"),
        ("<p style='width: 3000px'>x</p>", "pixels wide in a window of"),
        ("<p>A \u202e B</p><p>of <span>\u202e abc</span> 7 orders</p>", "turns its neighbours"),
    ],
)
def test_harm_is_found(body: str, found: str, page: Page, pages: StaticPages) -> None:
    page.goto(pages.show(body))
    [said] = harm(page)
    assert found in said


def test_isolated_text_harms_no_neighbour(page: Page, pages: StaticPages) -> None:
    turned = "\u202eabc"
    page.goto(
        pages.show(
            f"<p>of <bdi>{turned}</bdi> 7 orders</p><p>{turned}</p>"
            f"<table><tr><td>{turned}<td>7 orders</table>"
            f"<p>of <span style='unicode-bidi: isolate'><b>{turned}</b></span> 7 orders</p>"
        )
    )
    assert harm(page) == []


def _shown(each: Hostile) -> str:
    """As a page has to show it: escaped, isolated, broken where it is too long, and bounded."""
    text = html.escape(each.text[:2000])
    return f'<p title="{text}"><bdi>{text}</bdi></p>'


_WRAPPED = "<style>p { overflow-wrap: anywhere; max-width: 100% }</style>"


def test_hostile_text_that_is_shown_as_text_does_no_harm(page: Page, pages: StaticPages) -> None:
    page.goto(pages.show("".join(map(_shown, HOSTILE.values())), head=_WRAPPED))
    assert harm(page) == [] and page.locator("p").count() == len(HOSTILE)


#: Markup that does harm only in an attribute, a script, or a form that is decoded once more.
_ELSEWHERE = {
    *("double quotation mark", "double quotation mark without blanks", "single quotation mark"),
    *("attribute without quotation marks", "unfinished tag", "other host's URL", "style's value"),
    *("less-than sign of full width", "link of Markdown", "document's URL"),
    *(name for name in MARKUP if name.startswith(("escaped", "script's"))),
}


def test_hostile_markup_does_harm_where_it_is_not_escaped(
    page: Page, pages: StaticPages, watch: Watch
) -> None:
    harmless = []
    for name in sorted(MARKUP.keys() - _ELSEWHERE - {"refresh"}):
        page.goto(pages.show(f"<div>{MARKUP[name].text}</div>"), wait_until="commit")
        watch.settle()
        if not harm(page):
            harmless.append(name)
    assert harmless == []
    watch.take()


def test_a_hostile_refresh_leads_away(page: Page, pages: StaticPages, watch: Watch) -> None:
    page.goto(pages.show(f"<div>{MARKUP['refresh'].text}</div>"), wait_until="commit")
    watch.wait_for(Wrong.ORIGIN, "http://127.0.0.1:9/")
    page.close()  # the browser would try it again
    watch.take()


_DECODE = """<script>
    const decode = text => Object.assign(document.createElement("p"), {innerHTML: text}).textContent
</script><div id=x></div>"""
_WHERE = {
    "double quotation mark": '<input value="{}">',
    "double quotation mark without blanks": '<input value="{}">',
    "single quotation mark": "<input value='{}'>",
    "attribute without quotation marks": "<input value={}>",
    "script's URL": '<iframe src="{}"></iframe>',
    "script's URL with a tab": '<iframe src="{}"></iframe>',
    "script's string end": "<script>const a = '{}';</script>",
    "script's double string end": '<script>const a = "{}";</script>',
    "script's template string": "<script>const a = `{}`;</script>",
    "script's line end": "<script>// {}\n</script>",
    "escaped once": "<script>x.innerHTML = decode(`{}`)</script>",
    "escaped as numbers": "<script>x.innerHTML = decode(`{}`)</script>",
    "escaped twice": "<script>x.innerHTML = decode(decode(`{}`))</script>",
    "escaped in a script": "<script>x.innerHTML = '{}'</script>",
    "escaped in a URL": "<script>x.innerHTML = unescape('{}')</script>",
}


def test_the_other_markup_does_harm_where_it_belongs(
    page: Page, pages: StaticPages, watch: Watch
) -> None:
    harmless = []
    for name, template in _WHERE.items():
        page.goto(pages.show(_DECODE + template.replace("{}", MARKUP[name].text)))
        watch.settle()
        if not harm(page) and not page.evaluate("frames[0]?.__ran"):
            harmless.append(name)
    assert harmless == []
    watch.take()


@pytest.mark.parametrize(
    "each", [SHAPE["one word of 5,000 characters"], SHAPE["wide characters"]], ids=str
)
def test_a_long_word_widens_a_page_that_does_not_break_it(
    each: Hostile, page: Page, pages: StaticPages
) -> None:
    page.goto(pages.show(f"<p>{each.text}</p>"))
    assert "pixels wide" in harm(page)[0]


def test_a_server_sent_event_in_a_text_is_an_event_where_lines_are_not_escaped(
    page: Page, pages: StaticPages
) -> None:
    stream = f"data: {FRAMING['server-sent event'].text}\n\n"
    pages.put("/stream", stream, "text/event-stream")
    page.goto(pages.show("<p>Live</p>"))
    got = page.evaluate(
        """() => new Promise(done => {
            const source = new EventSource("/stream");
            source.addEventListener("hostile", event => { source.close(); done(event.lastEventId); });
        })"""
    )
    assert got == "999999"


def test_the_browser_dies_with_the_tests() -> None:
    program = (
        "import os, sys; from testkit.browser.chromium import Chromium\n"
        "browser = Chromium(); browser.start(); print(browser.pid, flush=True); sys.stdin.read()"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tests.stdout is not None
    browser = os.pidfd_open(int(tests.stdout.readline()))
    os.kill(tests.pid, signal.SIGKILL)
    tests.communicate()
    assert select.select([browser], [], [], 20)[0], "it outlives its parent"
    os.close(browser)


def test_killed_and_started_again_it_answers() -> None:
    with Chromium() as browser:
        assert "Chrome/" in browser.version
        browser.kill()
        browser.start()
        assert "Chrome/" in browser.version
