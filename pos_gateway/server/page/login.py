"""Login and logout: a token for a session's cookie."""

import asyncio
from collections.abc import Callable
from hmac import compare_digest

from pos_gateway.server.access import Access
from pos_gateway.server.body import Scope
from pos_gateway.server.page.answer import PageResponse, html, redirect
from pos_gateway.server.page.attempts import Attempts
from pos_gateway.server.page.entrance import Entrance
from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.render import Renderer
from pos_gateway.server.page.security import clear_cookie, secret_of, set_cookie
from pos_gateway.server.page.view import Page
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.tokens.sessions import ROLES, Session, Sessions
from pos_gateway.tokens.token import Token, is_well_formed

_CREATE = "pos-gateway tokens create NAME --role operator"
#: Longest text that is looked at.
_LONGEST = 256


class Login:
    """The routes. For the event loop.

    Args:
        is_page: whether a path, with its query, is a page to go on at.
    """

    def __init__(
        self,
        access: Access,
        entrance: Entrance,
        sessions: Sessions,
        renderer: Renderer,
        reading: Reading,
        is_page: Callable[[str], bool],
    ) -> None:
        self._access = access
        self._entrance = entrance
        self._sessions = sessions
        self._renderer = renderer
        self._reading = reading
        self._is_page = is_page
        self._attempts = Attempts()

    def form(self, after: str, problem: str | None = None, status: int = 200) -> PageResponse:
        """The page to log in at; after it the browser goes on at ``after``."""
        page = Page(
            "login.html", "Log in", after=self._target(after), problem=problem, create=_CREATE
        )
        return html(status, self._renderer.page(page, None, {}, {}))

    async def log_in(self, scope: Scope, fields: Fields) -> PageResponse:
        """Start a session, or show the form again with the reason."""
        client, now = self._access.client(scope), asyncio.get_running_loop().time()
        after = fields.get("after", "/")
        text = fields.get("token", "").strip()[:_LONGEST]
        # What is known in memory costs nothing, and no other client of a proxy's keeps it out.
        token = self._entrance.known(text)
        if token is None:
            wait = self._attempts.wait(client, now)
            if wait:
                why = f"Too many attempts from {client}: wait {wait:.0f} s."
                answer = self.form(after, why, 429)
                answer.headers.append((b"retry-after", b"%d" % max(1, round(wait))))
                return answer
            token = await self._looked_up(text, client, now)
        problem = self._problem(token, text)
        if problem is not None or token is None:
            status = 401 if token is None else 403
            self._access.refused(scope, status, None if token is None else token.name)
            return self.form(after, problem, status)
        secret = await self._reading(lambda: self._sessions.start(token, secret_of(scope)))
        self._access.acted(token, scope, "page.login", "", "")
        return redirect(self._target(after), set_cookie(scope, secret))

    async def _looked_up(self, text: str, client: str, now: float) -> Token | None:
        self._attempts.failed(client, now)  # those at the same time count, too
        try:
            token = await self._entrance.token(text)
        except Problem:
            self._attempts.succeeded(client)
            raise
        if token is not None:
            self._attempts.succeeded(client)
        return token

    async def log_out(self, scope: Scope, session: Session, fields: Fields) -> PageResponse:
        """End the session. Raises Problem 403 if the form is not the session's."""
        if not compare_digest(fields.get("csrf", "").encode(), session.csrf.encode()):
            raise Problem(
                403, "other_session", "the form is of an earlier session: open the page again"
            )
        await self._reading(lambda: self._sessions.end(session.digest))
        self._access.acted(session.token, scope, "page.logout", "", "")
        return redirect("/login", clear_cookie(scope))

    def _target(self, after: str) -> str:
        return after if self._is_page(after) else "/"

    def _problem(self, token: Token | None, text: str) -> str | None:
        if token is None:
            if not text:
                return "Paste a token."
            if not is_well_formed(text):
                return (
                    "That is no token: one begins with pgw_ and has 53 characters. Paste all of it."
                )
            return f"No valid token is like this one: it is unknown, or was revoked. Make one: {_CREATE}"
        if token.role not in ROLES:
            return (
                f"The token {token.name!r} has the role {token.role}: it is a program's, and opens no page. "
                f"Make one for yourself: {_CREATE}"
            )
        return None
