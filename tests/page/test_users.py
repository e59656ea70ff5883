"""Users whom a proxy has logged in: who is believed, what a name may be, and what they may do."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.server import access
from pos_gateway.server.page.users import LASTS, PageUsers
from pos_gateway.server.problems import Problem
from pos_gateway.server.serving import _config
from pos_gateway.settings import Settings
from pos_gateway.tokens.token import Role
from tests.page.lab import Browser, Desk, Reply, desk
from tests.page.test_acting import PAUSE, WHY

PROXY, CLIENT = "10.0.0.9", "198.51.100.9"
SETTINGS = {
    "page_user_header": "X-User",
    "page_proxies": f"{PROXY}, fd00:4::/64",
    "page_operators": "kim@example.com, Jürgen Groß",
    "page_viewers": "vic",
    # Who may say where a request is from may not say who it is.
    "trusted_proxies": "10.0.0.0/8",
}


class Person(Browser):
    """A browser behind the proxy."""

    user = "kim@example.com"

    def _send(self, method: str, path: str, body: bytes, headers: Any) -> Reply:
        return super()._send(method, path, body, {"x-user": self.user, **headers})


@pytest.fixture
def page(database_url: str, with_trial: None) -> Iterator[Desk]:
    with desk(database_url, **SETTINGS) as found:
        yield found


def person(page: Desk, user: str = "kim@example.com", **where: Any) -> Person:
    plain = page.browser(**{"peer": PROXY, "client": CLIENT, **where})
    found = Person(plain._ask, plain.origin)
    found.user = user
    return found


def session(*headers: tuple[bytes, bytes], peer: Any = (PROXY, 1), **settings: str) -> Any:
    users = PageUsers.of(Settings.model_validate(SETTINGS | settings), SYSTEM_CLOCK)
    scope = {"headers": list(headers), "peer": peer, "client": (PROXY, 1), "scheme": "http"}
    return users.session(scope)


def test_an_operator_acts_with_a_line_in_the_audit_that_has_the_users_name(page: Desk) -> None:
    kim = person(page)
    form = kim.get(PAUSE).form("/trial")
    assert "HttpOnly; SameSite=Strict" in kim.set_cookie
    reply = kim.submit(form, reason=WHY)
    assert reply.status == 303
    assert page.did() == [("kim@example.com", "m1", WHY)]
    assert page.server.why("trial.pause") == [("kim@example.com", WHY, f"page, from {CLIENT}")]
    shown = kim.get(reply.headers["location"])
    assert "Paused m1." in shown.text and "kim@example.com <small>operator" in _plain(shown)
    assert [each.action for each in shown.forms] == []  # the proxy logs out
    assert "set-cookie" not in shown.headers
    assert kim.submit(form, reason=WHY).status == 303 and len(page.did()) == 1


def _plain(reply: Reply) -> str:
    return reply.text.replace('<bdi class="data">', "").replace("</bdi>", "")


def test_a_viewer_looks_and_does_not_act(page: Desk) -> None:
    vic, kim = person(page, "vic"), person(page)
    assert vic.get("/trial").status == 200
    assert vic.get(PAUSE).status == 403
    form = kim.get(PAUSE).form("/trial")
    assert vic.submit(form, reason=WHY).status == 403
    assert page.did() == []


@pytest.mark.parametrize("origin", ["", "null", "https://evil.test", "http://gateway.test.evil"])
def test_another_site_submits_no_form(page: Desk, origin: str) -> None:
    kim = person(page)
    form = kim.get(PAUSE).form("/trial")
    fields = {**form.fields, "reason": WHY}
    assert kim.post(PAUSE, fields, origin=origin).status == 403
    assert kim.post(PAUSE, fields, **{"sec-fetch-site": "same-site"}).status == 403
    assert page.did() == []


def test_a_form_is_its_users_and_its_browsers(page: Desk) -> None:
    """A cookie that another one knows, or has set, makes no form of theirs this user's."""
    kim, other = person(page), person(page, "Jürgen Groß")
    form = other.get(PAUSE).form("/trial")
    kim.get("/trial")
    kim.cookies = dict(other.cookies)
    assert kim.submit(form, reason=WHY).status == 403
    mine = kim.get(PAUSE).form("/trial")
    kim.cookies.clear()
    again = kim.submit(mine, reason=WHY)
    assert (again.status, page.did()) == (403, [])
    assert kim.submit(again.form("/trial")).status == 303


def test_a_link_from_elsewhere_changes_no_cookie(page: Desk) -> None:
    kim = person(page)
    reply = kim.get("/trial", **{"sec-fetch-site": "cross-site"})
    assert "set-cookie" not in reply.headers and "Go on to the page" in reply.text


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_cookie_alone_logs_no_one_in(page: Desk, scheme: str) -> None:
    kim = person(page, scheme=scheme)
    assert kim.get("/trial").status == 200
    assert next(iter(kim.cookies)).startswith("__Host-") is (scheme == "https")
    thief = page.browser(scheme=scheme)
    thief.cookies = dict(kim.cookies)
    assert thief.get("/trial").status == 303
    assert thief.get("/page/live?part=trial").status == 401


def test_the_header_is_refused_from_any_other_peer_and_logged(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_LOG_EVERY", 0.01)
    with capture_logs() as logs:
        for path in ("/", "/login", PAUSE, "/page/live?part=trial"):
            reply = person(page, peer=CLIENT).get(path)
            assert reply.status == 403, path
        page.runner.run(asyncio.sleep(0.05))
    assert "POS_GATEWAY_PAGE_PROXIES" in person(page, peer="10.0.0.8").get("/").text
    refused = [each for each in logs if each["event"] == "token.refused"]
    assert refused and refused[0]["client"] == CLIENT
    # The API has its own tokens: the header says nothing there.
    assert person(page).get("/v1/events", accept="*/*").status == 401


def test_what_a_trusted_proxy_forwards_makes_no_peer(database_url: str, with_trial: None) -> None:
    with desk(database_url, **SETTINGS) as page:
        config = _config(page.site, None, None)
        config.load()
        page.site.app = config.loaded_app  # type: ignore[assignment]
        headers = {"x-user": "kim@example.com", "accept": "text/html", "host": "gateway.test"}

        def ask(peer: str, forwarded: str) -> int:
            given = headers | {"x-forwarded-for": forwarded}
            return page.runner.run(
                page.server.ask("GET", "/trial", headers=given, client=peer)
            ).status

        assert ask("10.0.0.8", PROXY) == 403
        assert ask("10.0.0.8", f"{PROXY}, {PROXY}") == 403
        assert ask(CLIENT, PROXY) == 403
        assert ask(PROXY, CLIENT) == 200


#: No name, even where every user is a viewer.
WRONG = (
    b"a" * 129,
    b"kim@example.com,vic",
    b"vic, kim@example.com",
    b"*",
    b"pgw_" + b"a" * 49,
    b"kim\x00",
    b"kim\t@example.com",
    b"kim\xff",
    b"J\xfcrgen Gro\xdf",
    "kim\u202e".encode(),
    "kim\u200b@example.com".encode(),
    b" kim@example.com",
    "Jürgen Groß".encode("utf-16-le"),
)
OTHERS = b"KIM@example.com", b"kim@example.com.evil", b"mallory", "Ju\u0308rgen Groß".encode()


def test_other_names_are_refused() -> None:
    for value in WRONG:
        with pytest.raises(Problem, match="is no user's name"):
            session((b"x-user", value), page_viewers="*")
    for value in OTHERS:
        with pytest.raises(Problem, match="may not see this page"):
            session((b"x-user", value))


def test_who_is_believed_and_who_is_not() -> None:
    kim = (b"x-user", b"kim@example.com")
    for peer in ((PROXY, 1), ("fd00:4::7", 1), (f"::ffff:{PROXY}", 1)):
        assert session(kim, peer=peer).token.role is Role.OPERATOR, peer
    for peer in (None, (), ("", 1), ("10.0.0.8", 1), ("fd00:5::1", 1), ("unix", 1), ("::ffff:10.0.0.8", 1)):  # fmt: skip
        with pytest.raises(Problem, match="not from a proxy"):
            session(kim, peer=peer)
    with pytest.raises(Problem, match="comes twice"):
        session(kim, kim)
    with pytest.raises(Problem, match="comes twice"):
        session((b"x-user", b""), kim)
    assert session((b"x-user", "Jürgen Groß".encode())).token.name == "Jürgen Groß"
    assert session((b"x-user", b" ")) is None
    assert session((b"x_user", b"kim@example.com"), (b"x-users", b"kim@example.com")) is None
    assert session(kim, page_user_header="") is None
    other = session((b"x-user", b"mallory"), page_viewers="*")
    assert (other.token.name, other.token.role) == ("mallory", Role.VIEWER)
    assert session(kim, page_viewers="*").token.role is Role.OPERATOR


def test_a_stream_begins_again_through_the_proxy(page: Desk) -> None:
    """Which knows whether its user may still look; this server does not."""
    found = session((b"x-user", b"kim@example.com"))
    now = SYSTEM_CLOCK.monotonic()
    assert found.until == pytest.approx(now + LASTS, abs=60)
    users = page.site._entrance._users
    assert users.is_valid(found)
    object.__setattr__(found, "until", now - 1)
    assert not page.site._entrance.is_valid(found)
    assert page.site._entrance.may_act(found.token)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"PAGE_PROXIES": ""}, "POS_GATEWAY_PAGE_PROXIES"),
        ({"PAGE_OPERATORS": "", "PAGE_VIEWERS": ""}, "POS_GATEWAY_PAGE_OPERATORS"),
        ({"PAGE_PROXIES": "0.0.0.0/0"}, "POS_GATEWAY_PAGE_PROXIES"),
        ({"PAGE_PROXIES": "::/0"}, "POS_GATEWAY_PAGE_PROXIES"),
        ({"PAGE_USER_HEADER": "X_User"}, "POS_GATEWAY_PAGE_USER_HEADER"),
        ({"PAGE_USER_HEADER": "Cookie"}, "POS_GATEWAY_PAGE_USER_HEADER"),
        ({"PAGE_USER_HEADER": "X-User\n"}, "POS_GATEWAY_PAGE_USER_HEADER"),
        ({"PAGE_OPERATORS": "*"}, "POS_GATEWAY_PAGE_OPERATORS"),
        ({"PAGE_OPERATORS": "kim, \u202e"}, "POS_GATEWAY_PAGE_OPERATORS"),
    ],
)
def test_settings_that_would_let_in_too_many_or_no_one_are_refused(
    settings: dict[str, str], names: str
) -> None:
    given = {name.upper(): value for name, value in SETTINGS.items()} | settings
    with pytest.raises(InvalidSettings, match=names):
        found = Settings.from_environment({f"POS_GATEWAY_{k}": v for k, v in given.items()})
        PageUsers.of(found, SYSTEM_CLOCK)
