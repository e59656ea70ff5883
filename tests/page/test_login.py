"""Logging in and out: who may, what a browser gets, and what keeps others out."""

import asyncio
import time
from collections import Counter
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from pos_gateway.database.schema import sessions
from pos_gateway.server import access, in_flight
from pos_gateway.server.page import attempts
from pos_gateway.server.page.entrance import EVERY
from pos_gateway.tokens.session_store import IDLE
from pos_gateway.tokens.token import Role, new_token
from tests.page.lab import FORM, Desk


def test_a_page_without_a_session_leads_to_the_login_and_back(page: Desk) -> None:
    browser = page.browser()
    reply = browser.get("/trial?says=hi&b=1")
    assert (reply.status, reply.headers["location"]) == (
        303,
        "/login?after=%2Ftrial%3Fsays%3Dhi%26b%3D1",
    )
    form = browser.get(reply.headers["location"]).form("/login")
    assert form.fields["after"] == "/trial?says=hi&b=1"
    reply = browser.submit(form, token=page.token())
    assert (reply.status, reply.headers["location"]) == (303, "/trial?says=hi&b=1")
    assert browser.get("/trial?says=hi").status == 200


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_viewers_and_operators_log_in(page: Desk, role: Role) -> None:
    browser = page.operator(role)
    text = browser.get("/trial").text
    assert f"kim <small>{role}</small>" in text


def test_a_backends_token_is_refused_in_a_sentence(page: Desk) -> None:
    browser = page.browser()
    reply = browser.log_in(page.token(Role.BACKEND, "shop"))
    assert reply.status == 403
    assert "&#39;shop&#39; has the role backend: it is a program" in reply.text
    assert not browser.cookies


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", "Paste a token"),
        ("nonsense", "begins with pgw_ and has 53 characters"),
        (new_token(), "it is unknown, or was revoked"),
        ("x" * 10_000, "begins with pgw_"),
    ],
    ids=["none", "nonsense", "unknown", "long"],
)
def test_other_tokens_are_refused_with_the_remedy(page: Desk, token: str, says: str) -> None:
    reply = page.browser().log_in(token)
    assert reply.status == 401
    assert says in reply.text
    assert "set-cookie" not in reply.headers
    if token:
        assert token not in reply.text


def test_a_token_that_this_process_does_not_know_yet_logs_in(page: Desk) -> None:
    page.site.tokens.refresh()
    token = page.server.store.create("new", Role.VIEWER, operator="test")
    assert page.browser().log_in(token).status == 303


def test_the_login_says_how_to_make_a_token(page: Desk) -> None:
    text = page.browser().get("/login").text
    assert "pos-gateway tokens create NAME --role operator" in text


def test_the_cookie_is_for_this_site_and_no_script(page: Desk) -> None:
    browser = page.operator()
    cookie = browser.set_cookie
    name, _, rest = cookie.partition("=")
    assert name == "pos-gateway-page"
    assert rest.partition(";")[2] == " Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"


def test_behind_tls_the_cookie_is_bound_to_the_host(page: Desk) -> None:
    browser = page.browser(scheme="https")
    browser.log_in(page.token())
    assert browser.set_cookie.startswith("__Host-pos-gateway=")
    assert browser.set_cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
    assert browser.get("/trial").status == 200


def test_behind_tls_a_cookie_of_a_page_without_it_is_not_taken(page: Desk) -> None:
    plain = page.operator()
    browser = page.browser(scheme="https")
    browser.cookies = plain.cookies
    assert browser.get("/trial").status == 303


def test_of_two_cookies_neither_is_taken(page: Desk) -> None:
    """Another site below the same domain may have set one."""
    browser = page.operator()
    [(name, secret)] = browser.cookies.items()
    both = f"{name}={secret}; {name}={'a' * 43}"
    browser.cookies = {}
    assert browser.get("/trial", cookie=f"{name}={secret}").status == 200
    assert browser.get("/trial", cookie=both).status == 303


def test_a_login_makes_another_secret_and_ends_the_one_before(page: Desk) -> None:
    """A secret that was planted in the browser is worth nothing."""
    browser = page.browser()
    browser.cookies = {"pos-gateway-page": "a" * 43}
    token = page.token()
    browser.log_in(token)
    first = dict(browser.cookies)
    assert first["pos-gateway-page"] != "a" * 43
    form = page.browser().get("/login").form("/login")
    browser.submit(form, token=token)
    assert browser.cookies != first
    browser.cookies = first
    assert browser.get("/trial").status == 303


@pytest.mark.parametrize(
    "after",
    [
        "//evil.test/trial", "https://evil.test/", "/\\evil.test", "javascript:alert(1)", "/no/page",
        "/v1/events", "/trial\r\nx: y", "", "/logout", "/trial#\u202e",
    ],
)  # fmt: skip
def test_a_login_goes_on_at_a_page_of_ours_alone(page: Desk, after: str) -> None:
    browser = page.browser()
    form = browser.get("/login").form("/login")
    reply = browser.submit(form, token=page.token(), after=after)
    assert (reply.status, reply.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ""},
        {"origin": "null"},
        {"origin": "https://evil.test"},
        {"origin": "http://gateway.test.evil.test"},
        {"origin": "http://gateway.test:8080"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_site_logs_no_person_in(page: Desk, headers: dict[str, str]) -> None:
    reply = page.browser().post("/login", {"token": page.token(), "after": "/"}, **headers)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers
    assert "POS_GATEWAY_HTTP_PUBLIC_URL" in reply.text


def test_the_public_address_is_this_site_too(database_url: str, with_trial: None) -> None:
    from tests.page.lab import desk

    with desk(database_url, http_public_url="https://orders.example/pos") as page:
        browser = page.browser()
        fields = {"token": page.token(), "after": "/"}
        assert browser.post("/login", fields, origin="https://orders.example").status == 303
        assert browser.post("/login", fields, origin="http://orders.example").status == 403


def test_a_logout_ends_the_session(page: Desk) -> None:
    browser = page.operator()
    cookies = dict(browser.cookies)
    reply = browser.submit(browser.get("/trial").form("/logout"))
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    assert not browser.cookies
    browser.cookies = cookies
    assert browser.get("/trial").status == 303


def test_a_logout_needs_the_sessions_form(page: Desk) -> None:
    browser = page.operator()
    assert browser.post("/logout", {}).status == 403
    assert browser.post("/logout", {"csrf": "a" * 64}).status == 403
    assert browser.get("/logout").status == 405
    assert browser.get("/trial").status == 200


def test_logins_and_logouts_are_in_the_audit(page: Desk) -> None:
    browser = page.operator()
    browser.submit(browser.get("/trial").form("/logout"))
    page.site.audit.write()
    assert [(line[0], line[1], line[4]) for line in page.server.audited()] == [
        ("kim", "page.login", "over HTTP, from 192.0.2.7"),
        ("kim", "page.logout", "over HTTP, from 192.0.2.7"),
    ]


def test_an_idle_session_is_sent_to_the_login(page: Desk) -> None:
    browser = page.operator()
    with page.site.database.begin() as connection:
        connection.execute(update(sessions).values(used_at=sessions.c.used_at - IDLE - 1))
    page.site._sessions.refresh()
    assert browser.get("/trial").status == 303


def test_a_page_is_a_use_of_its_session_and_a_stream_is_none(page: Desk) -> None:
    browser = page.operator()
    page.site._sessions.refresh()
    browser.get("/page/live?part=nothing")
    assert not page.site._sessions._used
    browser.get("/trial")
    assert page.site._sessions._used


def test_a_session_of_another_process_is_known(page: Desk) -> None:
    token = page.token()
    from pos_gateway.tokens.session_store import SessionStore
    from pos_gateway.tokens.token import digest

    browser = page.browser()
    secret = SessionStore(page.site.database).start(digest(token))
    browser.cookies = {"pos-gateway-page": secret}
    assert browser.get("/trial").status == 200


def test_guesses_cause_few_reads_of_the_database(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    refresh = page.site._sessions.refresh
    monkeypatch.setattr(page.site._sessions, "refresh", lambda: reads.append(refresh()))

    async def script() -> None:
        asks = [
            page.server.ask("GET", "/trial", headers={"cookie": f"pos-gateway-page={number:043}"})
            for number in range(200)
        ]
        await asyncio.gather(*asks)

    page.runner.run(script())
    assert len(reads) <= 2


def test_guesses_one_after_the_other_cause_reads_with_pauses(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []
    refresh = page.site._sessions.refresh
    monkeypatch.setattr(
        page.site._sessions, "refresh", lambda: (began.append(time.monotonic()), refresh())
    )

    async def script() -> None:
        for number in range(3):
            cookie = f"pos-gateway-page={number:043}"
            await page.server.ask("GET", "/trial", headers={"cookie": cookie})

    page.runner.run(script())
    pauses = [after - before for before, after in pairwise(began)]
    assert len(pauses) == 2
    assert min(pauses) > EVERY / 2, "at least that long, however slow the machine is"


def test_failures_are_bounded_by_client_and_logged(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_LOG_EVERY", 0.05)
    token = page.token()
    with capture_logs() as logs:
        for _ in range(attempts.BURST):
            assert page.browser().log_in("nonsense").status == 401
        reply = page.browser().log_in(new_token())
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) in range(1, 7)
        assert "Too many attempts from 192.0.2.7" in reply.text
        # No other client of one proxy, or network, keeps an operator out.
        assert page.browser().log_in(token).status == 303
        other = page.browser(client="192.0.2.8")
        assert other.log_in(token).status == 303

        def refused() -> list[Any]:
            return [each for each in logs if each["event"] == "token.refused"]

        async def wait() -> None:
            while sum(each["count"] for each in refused()) < attempts.BURST:
                await asyncio.sleep(0.01)

        page.runner.run(wait())
        page.runner.run(asyncio.sleep(0.1))
    assert sum(each["count"] for each in refused()) == attempts.BURST
    assert {(each["client"], each["status"]) for each in refused()} == {("192.0.2.7", 401)}


def test_failures_at_the_same_time_are_bounded_too(page: Desk) -> None:
    """Without it a client's guesses would all be looked up that come before the first one's reply."""
    fields = {"origin": "http://gateway.test", "host": "gateway.test", "content-type": FORM}

    async def guess() -> int:
        body = urlencode({"token": new_token()}).encode()
        return (await page.server.ask("POST", "/login", body=body, headers=fields)).status

    async def guesses() -> list[int]:
        return await asyncio.gather(*(guess() for _ in range(3 * attempts.BURST)))

    counts = Counter(page.runner.run(guesses()))
    assert counts == {401: attempts.BURST, 429: 2 * attempts.BURST}


def test_those_without_a_session_keep_no_operator_from_acting(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "BODIES", 64 * 1024)
    browser = page.operator()
    with page.site.page._logins.reading() as come:
        come(32 * 1024)  # all that requests without a token may have: of logins that do not end
        assert page.browser().log_in(page.token(name="kay")).status == 429
        form = browser.get("/trial/m1/pause").form("/trial")
        assert browser.submit(form, reason="its tablet is off").status == 303
    large = page.browser().post("/login", {"token": "a" * 17_000})
    assert large.status == 413


def test_a_client_may_try_again_after_the_wait() -> None:
    tried = attempts.Attempts()
    for _ in range(attempts.BURST):
        assert tried.wait("192.0.2.7", 100.0) == 0.0
        tried.failed("192.0.2.7", 100.0)
    assert tried.wait("192.0.2.7", 100.0) == attempts.SECONDS
    assert tried.wait("192.0.2.7", 100.0 + attempts.SECONDS) == 0.0


def test_addresses_of_one_network_are_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_CLIENTS", 2)
    tried = attempts.Attempts()
    for number in range(attempts.BURST):
        tried.failed(f"2001:db8::{number}", 0.0)
    assert tried.wait("2001:db8::ffff", 0.0)
    assert not tried.wait("2001:db8:0:1::1", 0.0)
    for client in ("192.0.2.1", "192.0.2.2", "unix"):
        tried.failed(client, 0.0)
    assert len(tried._until) == 2


def test_a_link_from_elsewhere_finds_the_session(page: Desk) -> None:
    """SameSite=Strict: such a request has no cookie, so the page asks the browser to come again."""
    browser = page.browser()
    reply = browser.get("/trial?says=%22%3Cb%3E", sec_fetch_site="cross-site")
    assert reply.status == 200
    assert '<meta http-equiv="refresh" content="0; url=/trial?says=%22%3Cb%3E">' in reply.text
    reply = browser.get("//evil.test/", sec_fetch_site="cross-site")
    assert 'evil.test/"' not in reply.text
    assert reply.status == 404
