"""People whom a proxy has logged in (SSO): it names them in a header of each request.

The header counts from the proxies' own addresses alone, which is the connection's peer and no
``X-Forwarded-For``; from any other peer it is refused. A cookie has no part in who it is: it has the
secret of which forms' tokens are made, so that no other site can submit one.
"""

from ipaddress import IPv6Address, ip_address
from secrets import token_urlsafe
from typing import Self

from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.domain.user_name import EVERYONE, is_user_name, user_names, user_names_or_everyone
from pos_gateway.runtime.addresses import Network, networks
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.body import Scope
from pos_gateway.server.page.security import user_secret_of
from pos_gateway.server.peer import PEER
from pos_gateway.server.problems import Problem
from pos_gateway.settings import Settings
from pos_gateway.tokens.session_store import csrf_token, is_secret, session_digest
from pos_gateway.tokens.sessions import Session
from pos_gateway.tokens.token import Capability, Role, Token

#: The code of a refused header.
REFUSED = "user_header_refused"
#: Seconds for which a request's user counts: a stream is then begun again, through the proxy.
LASTS = 300.0
#: Begins a user's digest; a token's has hexadecimal digits alone.
_USER = "user:"


class PageUsers:
    """Safe from threads.

    Args:
        header: the header's name; empty: there are no users.
        proxies: who may send it.
        operators, viewers: the users that may log in.
    """

    def __init__(
        self,
        header: str,
        proxies: tuple[Network, ...],
        operators: frozenset[str],
        viewers: frozenset[str],
        clock: Clock,
    ) -> None:
        self._name = header
        self._header = header.lower().encode()
        self._proxies = proxies
        self._operators = operators
        self._viewers = viewers
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings, clock: Clock) -> Self:
        """From the settings. Raises InvalidSettings: one of them needs another one."""
        proxies = networks(settings.page_proxies)
        operators = user_names(settings.page_operators)
        viewers = user_names_or_everyone(settings.page_viewers)
        if settings.page_user_header and not proxies:
            problem = "is needed with POS_GATEWAY_PAGE_USER_HEADER: the proxies that may send it"
            raise InvalidSettings([FieldError("POS_GATEWAY_PAGE_PROXIES", problem, "")])
        if settings.page_user_header and not (operators or viewers):
            problem = "or POS_GATEWAY_PAGE_VIEWERS is needed with POS_GATEWAY_PAGE_USER_HEADER: no user could log in"
            raise InvalidSettings([FieldError("POS_GATEWAY_PAGE_OPERATORS", problem, "")])
        return cls(settings.page_user_header, proxies, operators, viewers, clock)

    def session(self, scope: Scope) -> Session | None:
        """The session of the user that a proxy names; None: none is named.

        Raises:
            Problem: 403: the header is not from a proxy, comes twice, or names no user of the page.
        """
        given = [value for name, value in scope["headers"] if name == self._header]
        if not given or not self._header:
            return None
        if not self._is_proxy(scope):
            raise _refused(
                f"the header {self._name} is not from a proxy that POS_GATEWAY_PAGE_PROXIES names: leave it out, "
                "or have this server name the proxy that sends it"
            )
        if len(given) > 1:
            raise _refused(
                f"the header {self._name} comes twice: have the proxy replace the client's, not add its own"
            )
        if not given[0].strip():  # the proxy lets requests pass that it knows no user of
            return None
        name = _name(given[0])
        if name is None:
            raise _refused(
                f"the header {self._name} is no user's name: it has to have 1 to 128 printable characters, "
                "no comma, and no token"
            )
        role = self._role(name)
        if role is None:
            raise _refused(
                f"the user {name!r} may not see this page: POS_GATEWAY_PAGE_OPERATORS or "
                "POS_GATEWAY_PAGE_VIEWERS would have to have the name, exactly so"
            )
        return self._session(scope, name, role)

    def is_valid(self, session: Session) -> bool:
        """Whether what goes on for a user may."""
        return session.until is not None and self._clock.monotonic() < session.until

    def may_act(self, token: Token) -> bool:
        """Whether it is a user's who acts: settings, which do not change, say so."""
        return token.digest.startswith(_USER) and token.role.allows(Capability.ACT)

    def _session(self, scope: Scope, name: str, role: Role) -> Session:
        known = user_secret_of(scope)
        is_known = known is not None and is_secret(known)
        secret = known if known is not None and is_known else token_urlsafe(32)
        own = f"{secret}:{name}"  # another user of the same browser has other forms
        token = Token(name, role, None, _USER + session_digest(name), 0.0, None, None)
        until = self._clock.monotonic() + LASTS
        return Session(
            session_digest(own), csrf_token(own), token, until, None if is_known else secret
        )

    def _role(self, name: str) -> Role | None:
        if name in self._operators:
            return Role.OPERATOR
        return Role.VIEWER if {name, EVERYONE} & self._viewers else None

    def _is_proxy(self, scope: Scope) -> bool:
        peer = scope.get(PEER)
        try:
            address = ip_address(peer[0]) if peer else None
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address is not None and any(address in each for each in self._proxies)


def _name(value: bytes) -> str | None:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if is_user_name(text) else None


def _refused(detail: str) -> Problem:
    return Problem(403, REFUSED, detail)
