"""A browser without a screen: cookies, forms and links, over HTTP or inside the test's process."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlencode

import requests

from pos_gateway.server.site import Site
from pos_gateway.tokens.token import Role
from testkit.patience import PATIENCE
from tests.page.trial import Trial, trials
from tests.server.inside import Inside, inside

HOST = "gateway.test"
FORM = "application/x-www-form-urlencoded"


class Reply(NamedTuple):
    """A reply to a browser."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def forms(self) -> "list[Form]":
        """The page's forms."""
        parser = _Forms()
        parser.feed(self.text)
        return parser.forms

    def form(self, action: str) -> "Form":
        """The form whose action begins so."""
        return next(each for each in self.forms if each.action.startswith(action))


class Form:
    """A form as a browser has it."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.fields: dict[str, str] = {}


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.forms.append(Form(given.get("action") or ""))
        elif tag == "input" and self.forms and given.get("name"):
            is_off = given.get("type") == "checkbox" and "checked" not in given
            if not is_off:
                self.forms[-1].fields[str(given["name"])] = given.get("value") or ""


#: Sends a request: method, path, headers, body.
Ask = Callable[[str, str, Mapping[str, str], bytes], Reply]


class Browser:
    """Keeps cookies, and says where a form is from."""

    def __init__(self, ask: Ask, origin: str) -> None:
        self._ask = ask
        self.origin = origin
        self.cookies: dict[str, str] = {}
        #: The last reply's cookie, with its attributes.
        self.set_cookie = ""

    def get(self, path: str, **headers: str) -> Reply:
        """Without following a redirect."""
        return self._send("GET", path, b"", headers)

    def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> Reply:
        """A form."""
        body = urlencode(fields, doseq=True, errors="surrogatepass").encode()
        sent = {"content-type": FORM, "origin": self.origin, **headers}
        return self._send("POST", path, body, {k: v for k, v in sent.items() if v})

    def submit(self, form: Form, /, **fields: str) -> Reply:
        """A form as it came, with these fields filled in."""
        return self.post(form.action, {**form.fields, **fields})

    def log_in(self, token: str) -> Reply:
        return self.submit(self.get("/login").form("/login"), token=token)

    def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        sent = {"accept": "text/html", "host": self.origin.partition("://")[2]}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
        reply = self._ask(method, path, sent, body)
        if "set-cookie" in reply.headers:
            self.set_cookie = reply.headers["set-cookie"]
            for name, each in SimpleCookie(self.set_cookie).items():
                self.cookies[name] = each.value
                if each["max-age"] == "0":
                    del self.cookies[name]
        return reply


class Desk:
    """A site in this process, with the trial view, and browsers for it."""

    def __init__(self, server: Inside, trial: Trial) -> None:
        self.server = server
        self.trial = trial
        self.runner = asyncio.Runner()

    @property
    def site(self) -> Site:
        return self.server.site

    def token(self, role: Role = Role.OPERATOR, name: str = "kim") -> str:
        return self.server.token(role, name=name)

    def browser(
        self, *, client: str = "192.0.2.7", scheme: str = "http", peer: str | None = None
    ) -> Browser:
        def ask(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
            reply = self.runner.run(
                self.server.ask(
                    method,
                    path,
                    body=body,
                    headers=headers,
                    client=client,
                    scheme=scheme,
                    peer=peer,
                )
            )
            content = reply.says if isinstance(reply.says, bytes) else repr(reply.says).encode()
            return Reply(reply.status, reply.headers, content.decode())

        return Browser(ask, f"{scheme}://{HOST}")

    def operator(self, role: Role = Role.OPERATOR, name: str = "kim") -> Browser:
        """A browser that is logged in."""
        browser = self.browser()
        assert browser.log_in(self.token(role, name)).status == 303
        return browser

    def did(self) -> list[tuple[str, str, str]]:
        """What the trial's action has done: operator, merchant, reason."""
        return [
            (operator, merchant, details)
            for operator, what, merchant, _, details in self.server.audited()
            if what == "trial.did"
        ]


@contextmanager
def desk(database_url: str, **settings: Any) -> Iterator[Desk]:
    """Call ``trial.add`` before."""
    with inside(database_url, **settings) as server:
        found = Desk(server, trials[-1])
        server.site.tokens.refresh()
        with found.runner:
            yield found
        server.site._page_reading.close()
        server.site._entrance_reading.close()
        server.site._acting.close()


def over_http(url: str) -> Browser:
    """A browser for a server's process."""
    session = requests.Session()
    session.trust_env = False

    def ask(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        request = requests.Request(method, url + path, headers=dict(headers), data=body or None)
        # As it is: requests would tidy the path.
        prepared = session.prepare_request(request)
        prepared.url = url + path
        session.cookies.clear()
        reply = session.send(prepared, allow_redirects=False, timeout=PATIENCE)
        lower = {name.lower(): value for name, value in reply.headers.items()}
        return Reply(reply.status_code, lower, reply.text)

    return Browser(ask, url)
