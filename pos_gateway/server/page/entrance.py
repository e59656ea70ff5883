"""Finds the session of a request, in memory; the database is asked for those that are new here."""

import asyncio
from collections.abc import Mapping, Sequence

from pos_gateway.server.access import HOLDER
from pos_gateway.server.body import Scope
from pos_gateway.server.page.security import secret_of
from pos_gateway.server.page.users import PageUsers
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.shared_reads import SharedReads
from pos_gateway.tokens.session_store import is_secret
from pos_gateway.tokens.sessions import Session, Sessions
from pos_gateway.tokens.token import Capability, Token, is_well_formed
from pos_gateway.tokens.tokens import Tokens

#: Seconds between two reads of the database for what is unknown: guessing causes no more.
EVERY = 0.2
#: Seconds for such a read, all before it included.
TIMEOUT = 5.0


class Entrance:
    """For the event loop.

    Args:
        tokens, sessions: the valid ones.
        users: those whom a proxy has logged in, which need neither.
        reading: the threads that read them again.
    """

    def __init__(
        self, tokens: Tokens, sessions: Sessions, users: PageUsers, reading: Reading
    ) -> None:
        self._tokens = tokens
        self._sessions = sessions
        self._users = users
        self._reads = SharedReads(reading, self._refresh, every=EVERY)

    async def find(self, scope: Scope, *, touch: bool = False) -> Session | None:
        """The request's session; None: there is none.

        Args:
            touch: a person has asked, which puts off its end; a stream goes on by itself.

        Raises:
            Problem: 503: the database is away, so that it is not known; 403: of a user's header.
        """
        if (user := self._users.session(scope)) is not None:
            scope[HOLDER] = user.token.digest
            return user
        secret = secret_of(scope)
        found = self._sessions.find(secret)
        if found is None and secret is not None and is_secret(secret):
            await self._look_again()  # another process may have started it
            found = self._sessions.find(secret)
        if found is not None and touch:
            self._sessions.touch(found)
        if found is None and secret is not None and self._tokens.problem is not None:
            raise Problem(503, "tokens_unknown", self._tokens.problem, retry_after=1)
        if found is not None:
            scope[HOLDER] = found.token.digest
        return found

    def known(self, text: str) -> Token | None:
        """The valid token with this text, if it is known in memory."""
        return self._tokens.find(text)

    async def token(self, text: str) -> Token | None:
        """The valid token with this text, even a new one; None: there is none. Raises Problem."""
        found = self._tokens.find(text)
        if found is None and is_well_formed(text):
            await self._look_again()
            found = self._tokens.find(text)
        if found is None and self._tokens.problem is not None:
            raise Problem(503, "tokens_unknown", self._tokens.problem, retry_after=1)
        return found

    def is_valid(self, session: Session) -> bool:
        """Whether what goes on may."""
        if session.is_by_proxy:
            return self._users.is_valid(session)
        return self._sessions.is_valid(session)

    def may_act(self, token: Token) -> bool:
        """Whether this token is an operator's still, whatever became of the session."""
        if self._users.may_act(token):
            return True
        current = self._tokens.current(token.digest)
        return current is not None and current.role.allows(Capability.ACT)

    async def _look_again(self) -> None:
        """Read tokens and sessions: once for all who ask before it begins."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._reads(())
        except TimeoutError:
            detail = "the database does not answer"
            raise Problem(503, "database_unavailable", detail, retry_after=1) from None

    def _refresh(self, _keys: Sequence[None]) -> Mapping[None, None]:
        self._tokens.refresh()
        self._sessions.refresh()
        return {}
