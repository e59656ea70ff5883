"""The page's application: finds session and view, and answers in HTML, errors as well."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from pos_gateway.domain.errors import (
    LedgerUnavailable,
    PosGatewayError,
    UnknownMerchant,
    UnknownToken,
)
from pos_gateway.server.access import Access
from pos_gateway.server.body import (
    Disconnected,
    Receive,
    Scope,
    Send,
    header,
    read_body,
)
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.page.acting import ENDED, Acting, FormRefused, require_operator
from pos_gateway.server.page.answer import PageResponse, html, redirect
from pos_gateway.server.page.entrance import Entrance
from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.links import from_segment, link
from pos_gateway.server.page.live import Live
from pos_gateway.server.page.login import Login
from pos_gateway.server.page.render import Renderer
from pos_gateway.server.page.security import require_same_origin, set_user_cookie
from pos_gateway.server.page.shares import Shares
from pos_gateway.server.page.static import PATH as STATIC
from pos_gateway.server.page.static import StaticFiles
from pos_gateway.server.page.users import REFUSED
from pos_gateway.server.page.view import FormAction, Get, Page, View
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import without_commands
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.unread import refuse
from pos_gateway.tokens.sessions import Session, Sessions

log = structlog.get_logger(__name__)

#: Maximum bytes of a form, and of a login, which anyone may send.
FORM, LOGIN = 256 * 1024, 16 * 1024
#: Forms that are read at once.
_FORMS = 100
#: Paths of the API, whose errors are problem details.
_API = ("/v1/", "/openapi.json", "/healthz", "/readyz")
_TYPE = b"application/x-www-form-urlencoded"
_READS = ("GET", "HEAD")
_TITLES = {
    401: "Log in again",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    429: "Too many requests",
    500: "This failed",
    503: "Not available now",
}


class _Route:
    """What metrics call a request by."""

    def __init__(self, path: str) -> None:
        self.path = path


class PageApp:
    """An ASGI application. For the event loop.

    Args:
        views: all of them.
        reading: threads for what views and templates do.
        public_url: the address that browsers have, where a proxy changes the header Host.
    """

    def __init__(
        self,
        views: Sequence[View],
        renderer: Renderer,
        static: StaticFiles,
        live: Live,
        acting: Acting,
        access: Access,
        entrance: Entrance,
        sessions: Sessions,
        reading: Reading,
        public_url: str | None,
    ) -> None:
        self._routes = [route for view in views for route in view.routes]
        self._renderer = renderer
        self._static = static
        self._live = live
        self._acting = acting
        self._access = access
        self._entrance = entrance
        self._reading = reading
        self._public_url = public_url
        self._shares = Shares()
        self._forms = InFlight(_FORMS)
        #: Apart: those without a session keep no operator from acting.
        self._logins = InFlight(_FORMS)
        self._login = Login(access, entrance, sessions, renderer, reading, self._is_page)

    def takes(self, scope: Scope, path: str) -> bool:
        """Whether the request is the page's: its path is, or a browser is lost."""
        if path.startswith(_API):
            return False
        if path in ("/login", "/logout") or path.startswith(STATIC):
            return True
        return self._find(path) is not None or (scope["method"] == "GET" and _wants_html(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        session: Session | None = None
        try:
            if (answer := self._file(scope)) is None:
                if scope["method"] == "POST":
                    require_same_origin(scope, self._public_url)
                session = await self._entrance.find(scope, touch=True)
                answer = await self._answer(scope, receive, session)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001
            problem = _problem(error, scope)
            if problem.code == REFUSED:
                self._access.refused(scope, problem.status, None)
            if not _wants_html(scope):
                await refuse(problem, send)
                return
            answer = self._refusal(problem, scope, session)
        if session is not None and session.cookie is not None and not _is_cross_site(scope):
            answer.headers.append(set_user_cookie(scope, session.cookie))
        if scope["method"] == "HEAD":
            answer = answer._replace(body=b"")
        await answer.send(send)

    async def _answer(
        self, scope: Scope, receive: Receive, session: Session | None
    ) -> PageResponse:
        path, method = scope["path"], scope["method"]
        query = Fields.parse(scope["query_string"])
        if path == "/login":
            _route(scope, path, "GET", "HEAD", "POST")
            if method == "POST" and not (session and session.is_by_proxy):
                return await self._login.log_in(
                    scope, await self._form(scope, receive, LOGIN, self._logins)
                )
            after = query.get("after", "/")
            return (
                redirect(after if self._is_page(after) else "/")
                if session
                else self._login.form(after)
            )
        if path == "/logout":
            _route(scope, path, "POST")
            return await self._log_out(scope, receive, session)
        found = self._find(path)
        if found is None:
            raise Problem(404, "not_found", f"there is no page at {from_segment(path)[:200]}")
        route, values = found
        _route(
            scope,
            route.pattern.path,
            *_READS,
            *(("POST",) if isinstance(route, FormAction) else ()),
        )
        if session is None or (session.cookie is not None and _is_cross_site(scope)):
            return self._log_in_first(scope)
        visit = Visit(session, _address(scope), values, query, self._access.client(scope))
        if isinstance(route, FormAction):
            if method == "POST":
                return await self._act(route, visit, await self._form(scope, receive))
            require_operator(visit)
        self._access.charge(session.token)
        async with self._shares.reading(session.token.digest):
            if (form_id := query.get("notice")) is not None and method == "GET":
                notice = await self._reading(lambda: self._acting.notice(visit, form_id))
                if notice is not None:
                    visit = replace(visit, notice=notice.says, notice_warns=notice.warns)
            return await self._page(await self._reading(lambda: route.page(visit)), visit)

    async def _log_out(
        self, scope: Scope, receive: Receive, session: Session | None
    ) -> PageResponse:
        if session is None:
            return redirect("/login")
        if session.is_by_proxy:
            detail = "the proxy has logged you in: log out there"
            raise Problem(409, "not_possible", detail)
        return await self._login.log_out(scope, session, await self._form(scope, receive))

    async def _act(self, action: FormAction, visit: Visit, form: Fields) -> PageResponse:
        try:
            return redirect(await self._acting(action, visit, form))
        except FormRefused as refused:
            visit = replace(visit, typed=refused.form, problem=refused.why)
            if refused.same:
                visit = replace(visit, form=refused.form["form"])
            page = await self._reading(lambda: action.page(visit))
            page.status = refused.status
            return await self._page(page, visit)

    async def _page(self, page: Page, visit: Visit) -> PageResponse:
        given = {**visit.query, **visit.values, "here": self._renderer.here(visit.address)}
        topics = [self._live.topic(name, visit.role, given) for name in ("nav", *page.parts)]
        has_acted = visit.notice is not None
        parts = {topic.part: await self._live.html(topic, fresh=has_acted) for topic in topics}
        live = {name: value for topic in topics for name, value in topic.values}
        body = await self._reading(lambda: self._renderer.page(page, visit, parts, live))
        return html(page.status, body)

    async def _form(
        self,
        scope: Scope,
        receive: Receive,
        most: int = FORM,
        forms: InFlight | None = None,
    ) -> Fields:
        with (forms or self._forms).reading() as count:
            body = await read_body(scope, receive, most, content_types=(_TYPE,), count=count)
        return Fields.parse(body)

    def _file(self, scope: Scope) -> PageResponse | None:
        if not scope["path"].startswith(STATIC):
            return None
        _route(scope, STATIC + "{file}", *_READS)
        file = self._static.get(scope["path"])
        if file is None:
            raise Problem(
                404, "not_found", "there is no such file: this server has another release"
            )
        kept = (b"cache-control", b"public, max-age=31536000, immutable")
        return PageResponse(200, file.body, [(b"content-type", file.type), kept])

    def _log_in_first(self, scope: Scope) -> PageResponse:
        address = _address(scope)
        if scope["method"] == "POST":
            raise Problem(401, "unauthorized", ENDED)
        # A link from elsewhere comes without the cookie: asked again by a page of ours, it is sent.
        if _is_cross_site(scope):
            page = Page("bounce.html", "One moment", address=address)
            return html(200, self._renderer.page(page, None, {}, {}))
        return (
            self._login.form(address, status=401) if not _wants_html(scope) else _to_login(address)
        )

    def _refusal(self, problem: Problem, scope: Scope, session: Session | None) -> PageResponse:
        visit = None
        if session is not None:
            visit = Visit(session, _address(scope), {}, Fields([]), self._access.client(scope))
        detail = without_commands(problem.detail[:1].upper() + problem.detail[1:])
        title = _TITLES.get(problem.status, "This is not possible")
        page = Page("error.html", title, status=problem.status, detail=detail, code=problem.status)
        headers = [
            each for each in problem.headers() if each[0] not in (b"content-type", b"cache-control")
        ]
        return html(problem.status, self._renderer.page(page, visit, {}, {}), *headers)

    def _find(self, path: str) -> tuple[Get | FormAction, Mapping[str, str]] | None:
        for route in self._routes:
            values = route.pattern.match(path)
            if values is not None:
                return route, values
        return None

    def _is_page(self, address: str) -> bool:
        is_sound = address.isascii() and address.isprintable() and "\\" not in address
        return is_sound and self._find(address.partition("?")[0]) is not None


def _route(scope: Scope, path: str, *methods: str) -> None:
    """Name the route for the metrics. Raises Problem 405."""
    scope["route"] = _Route(path)
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        detail = f"{path} takes {allowed} only"
        raise Problem(405, "method_not_allowed", detail, headers={"allow": allowed}, close=True)


def _to_login(address: str) -> PageResponse:
    return redirect("/login" if address == "/" else link("/login", after=address))


def _address(scope: Scope) -> str:
    """Path and query, without the notice that is shown once."""
    parts = scope["query_string"].decode("latin-1").split("&")
    query = "&".join(each for each in parts if each and not each.startswith("notice="))
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _is_cross_site(scope: Scope) -> bool:
    return header(scope["headers"], b"sec-fetch-site") == b"cross-site"


def _wants_html(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _problem(error: Exception, scope: Scope) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, UnknownMerchant | UnknownToken):
        return Problem(404, "not_found", str(error))
    if isinstance(error, LedgerUnavailable):
        detail = "the database does not answer"
        return Problem(503, "database_unavailable", detail, retry_after=1)
    if isinstance(error, PosGatewayError):
        return Problem(409, "refused", str(error))
    log.error("http.failed", path=scope["path"], exc_info=error)
    detail = "the request failed; this server's log says why"
    return Problem(500, "internal", detail, close=True)
