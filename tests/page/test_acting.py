"""Actions: by an operator alone, from a form of the session, with a reason, once, and in the audit."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from pos_gateway.server.page import acting
from pos_gateway.tokens.act_store import act_id
from pos_gateway.tokens.token import Role
from tests.page.lab import Browser, Desk, Form, desk

PAUSE = "/trial/m1/pause"
WHY = "its tablet is off"


def form_of(browser: Browser) -> Form:
    reply = browser.get(PAUSE)
    assert reply.status == 200
    return reply.form("/trial")


def test_an_action_is_done_and_said_once(page: Desk) -> None:
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason="  its tablet\n is off ")
    assert reply.status == 303
    assert page.did() == [("kim", "m1", WHY)]
    where = reply.headers["location"]
    assert where.startswith("/trial?notice=")
    browser._send("HEAD", where, b"", {})  # shows nothing
    assert "Paused m1." in browser.get(where).text
    assert "Paused m1." not in browser.get(where).text
    assert "notice=" not in browser.get(where).text


def test_a_notice_is_its_sessions_own(page: Desk) -> None:
    browser, other = page.operator(), page.operator(name="kay")
    where = browser.submit(form_of(browser), reason=WHY).headers["location"]
    assert "Paused m1." not in other.get(where).text
    assert "Paused m1." in browser.get(where).text


def test_what_is_done_is_in_the_audit_with_the_operator_and_the_reason(page: Desk) -> None:
    browser = page.operator()
    with capture_logs() as logs:
        browser.submit(form_of(browser), reason=WHY)
    assert page.server.why("trial.pause") == [("kim", WHY, "page, from 192.0.2.7")]
    [line] = [each for each in logs if each["event"] == "token.acted"]
    assert (line["token"], line["what"], line["merchant_id"]) == ("kim", "trial.pause", "m1")


def test_a_viewer_may_neither_act_nor_see_the_form(page: Desk) -> None:
    browser, operator = page.operator(Role.VIEWER, "vic"), page.operator()
    reply = browser.get(PAUSE)
    assert reply.status == 403
    assert "has the role viewer, which may look and not act" in reply.text
    fields = form_of(operator).fields
    csrf = browser.get("/trial").form("/logout").fields["csrf"]
    reply = browser.post(PAUSE, {**fields, "csrf": csrf, "reason": WHY})
    assert reply.status == 403
    assert page.did() == []


@pytest.mark.parametrize("csrf", ["", "a" * 64, "é" * 64, "\ud800"])
def test_a_form_of_another_session_does_nothing_and_is_shown_again(page: Desk, csrf: str) -> None:
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason=WHY, csrf=csrf)
    assert (reply.status, page.did()) == (403, [])
    again = reply.form("/trial")
    assert again.fields["reason"] == WHY
    assert browser.submit(again).status == 303
    assert page.did() == [("kim", "m1", WHY)]


def test_the_other_sessions_token_is_not_this_ones(page: Desk) -> None:
    browser, other = page.operator(), page.operator(name="kay")
    csrf = form_of(other).fields["csrf"]
    assert browser.submit(form_of(browser), reason=WHY, csrf=csrf).status == 403
    assert page.did() == []


@pytest.mark.parametrize("origin", ["", "null", "https://evil.test", "http://gateway.test.evil"])
def test_a_form_from_elsewhere_does_nothing(page: Desk, origin: str) -> None:
    browser = page.operator()
    fields = {**form_of(browser).fields, "reason": WHY}
    reply = browser.post(PAUSE, fields, origin=origin)
    assert (reply.status, page.did()) == (403, [])
    assert WHY not in reply.text


def test_a_form_without_a_session_does_nothing_and_says_how_to_go_on(page: Desk) -> None:
    browser = page.operator()
    form = form_of(browser)
    browser.cookies.clear()
    reply = browser.submit(form, reason=WHY)
    assert (reply.status, page.did()) == (401, [])
    assert "Log in again in another tab" in reply.text


@pytest.mark.parametrize(("reason", "does"), [("", 0), ("ab", 0), ("  a  b ", 1), ("a" * 200, 1), ("a" * 201, 0), (" \n\t", 0)])  # fmt: skip
def test_a_reason_has_three_to_two_hundred_characters(page: Desk, reason: str, does: int) -> None:
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason=reason, how="kept")
    assert (reply.status, len(page.did())) == ((303, 1) if does else (422, 0))
    if not does:
        assert "Reason: say in 3 to 200 characters" in reply.text
        assert reply.form("/trial").fields["how"] == "kept"


def test_a_refusal_shows_its_sentence_with_what_was_typed(page: Desk) -> None:
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason=WHY, how="refuse")
    assert (reply.status, page.did()) == (409, [])
    assert "The merchant is paused already; resume it first" in reply.text
    again = reply.form("/trial")
    assert (again.fields["reason"], again.fields["how"]) == (WHY, "refuse")
    assert browser.submit(again, how="").status == 303


def test_a_failure_is_logged_and_says_nothing_of_the_inside(page: Desk) -> None:
    browser = page.operator()
    with capture_logs() as logs:
        reply = browser.submit(form_of(browser), reason=WHY, how="break")
    assert reply.status == 409
    assert "may have been done in part" in reply.text
    assert "a secret of the inside" not in reply.text
    assert "page.act_failed" in [each["event"] for each in logs]
    assert page.server.why("trial.pause") == [("kim", WHY, "page, from 192.0.2.7; it failed")]


def test_a_line_that_the_table_would_refuse_keeps_none_behind_it_waiting(
    any_database: str, with_trial: None
) -> None:
    with desk(any_database) as page:
        browser = page.operator()
        fields = {**form_of(browser).fields, "reason": WHY, "how": "break"}
        assert browser.post(f"/trial/{'m' * 300}/pause", fields).status == 409
        assert browser.submit(form_of(browser), reason=WHY).status == 303
        lines = [line[2] for line in page.server.audited() if line[1] == "trial.pause"]
        assert lines == ["m" * 128, "m1"]


def test_what_a_page_refuses_is_no_failure(page: Desk) -> None:
    browser = page.operator()
    with capture_logs() as logs:
        fields = {**form_of(browser).fields, "reason": WHY}
        assert browser.post("/runs/7/stop", fields).status == 404
    assert [each["event"] for each in logs if each["log_level"] == "error"] == []
    assert page.server.why("bulk.stop") == []


def test_a_form_that_is_submitted_twice_acts_once(page: Desk) -> None:
    browser = page.operator()
    form = form_of(browser)
    first = browser.submit(form, reason=WHY)
    second = browser.submit(form, reason="another reason")
    assert first.headers["location"] == second.headers["location"]
    assert page.did() == [("kim", "m1", WHY)]


def test_a_double_click_acts_once(page: Desk) -> None:
    browser = page.operator()
    fields = {**form_of(browser).fields, "reason": WHY, "how": "slow"}
    ask, asked = browser._ask, []

    def note(*request: Any) -> Any:
        asked.append(request)
        return ask(*request)

    browser._ask = note
    assert browser.post(PAUSE, {**fields, "form": "f" * 16}).status == 303
    [(method, path, headers, body)] = asked

    async def click_twice() -> list[int]:
        body_of_new = body.replace(b"f" * 16, b"g" * 16)
        asks = [page.server.ask(method, path, body=body_of_new, headers=headers) for _ in range(5)]
        return [each.status for each in await asyncio.gather(*asks)]

    assert page.runner.run(click_twice()) == [303] * 5
    assert len(page.did()) == 2


def test_a_second_click_in_another_process_waits_for_the_first(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says that the result is not known if the first one's process has ended."""
    browser = page.operator()
    form = form_of(browser)
    session = page.site._sessions.find(browser.cookies["pos-gateway-page"])
    assert session is not None
    store = page.site._acting._store
    of = act_id(session.digest, form.fields["form"])
    assert store.begin(of) is None
    monkeypatch.setattr(acting, "_WAIT", 0.3)
    reply = browser.submit(form, reason=WHY)
    assert (reply.status, page.did()) == (409, [])
    assert "its result is not known" in reply.text


@pytest.mark.parametrize(
    "form_id", ["", "short", "a" * 65, "é" * 20, "a" * 20 + "\r\nset-cookie: a=b"]
)
def test_a_form_without_its_id_does_nothing(page: Desk, form_id: str) -> None:
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason=WHY, form=form_id)
    assert (reply.status, page.did()) == (422, [])


def test_while_the_database_is_away_nothing_is_done(page: Desk) -> None:
    browser = page.operator()
    form = form_of(browser)

    def away(*_: Any) -> None:
        raise ConnectionError("away")

    from sqlalchemy.exc import OperationalError

    def fail(*_: Any) -> None:
        raise OperationalError("select", {}, Exception("away"))

    event.listen(page.site.database, "before_cursor_execute", fail)
    reply = browser.submit(form, reason=WHY)
    event.remove(page.site.database, "before_cursor_execute", fail)
    assert (reply.status, page.did()) == (503, [])
    assert "nothing was done. Submit it again" in reply.text
    assert reply.form("/trial").fields["reason"] == WHY


def test_an_action_that_takes_long_goes_on_and_its_form_shows_the_result(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "TIMEOUT", 0.1)
    browser = page.operator()
    reply = browser.submit(form_of(browser), reason=WHY, how="slow")
    assert reply.status == 202
    assert "It takes longer than 0.1 s, and goes on" in reply.text
    monkeypatch.setattr(acting, "TIMEOUT", 20.0)
    assert browser.submit(reply.form("/trial")).status == 303
    assert page.did() == [("kim", "m1", WHY)]


def test_an_id_with_a_slash_or_dots_reaches_its_action(page: Desk) -> None:
    browser = page.operator()
    for path, merchant in (("a%2Fb", "a/b"), ("=..", ".."), ("=%3D", "=")):
        form = browser.get(f"/trial/{path}/pause").form("/trial")
        assert browser.submit(form, reason=WHY).status == 303
        assert page.did()[-1][1] == merchant


def test_a_form_is_bounded(page: Desk) -> None:
    browser = page.operator()
    fields = {**form_of(browser).fields, "reason": WHY}
    assert browser.post(PAUSE, {**fields, "how": "x" * 300_000}).status == 413
    assert browser.post(PAUSE, {**fields, "many": ["x"] * 3000}).status == 422
    assert browser.post(PAUSE, {**fields, "how": "\0"}).status == 422
    assert browser.post(PAUSE, fields, content_type="multipart/form-data").status == 415
    assert page.did() == []


def test_a_form_whose_session_ends_while_it_waits_does_nothing(page: Desk) -> None:
    browser = page.operator()
    form, threads = form_of(browser), page.site._acting._threads
    held = threading.Event()
    busy = [threads.submit(held.wait, 20) for _ in range(acting.THREADS)]
    while not all(each.running() for each in busy):
        threading.Event().wait(0.01)

    def revoke() -> None:
        page.server.store.revoke("kim", operator="test")
        page.site.tokens.refresh()
        held.set()

    with ThreadPoolExecutor(1) as other:
        waits = other.submit(_once_queued, threads, revoke)
        reply = browser.submit(form, reason=WHY)
        waits.result()
    assert all(each.result() for each in busy)
    assert (reply.status, page.did()) == (401, [])
    assert "Your session has ended, and nothing was done" in reply.text


def _once_queued(threads: ThreadPoolExecutor, then: Callable[[], None]) -> None:
    while threads._work_queue.empty():
        threading.Event().wait(0.01)
    then()
