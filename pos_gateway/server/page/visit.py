"""A request of a person who is logged in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe

from pos_gateway.server.page.fields import NONE, Fields
from pos_gateway.tokens.sessions import Session
from pos_gateway.tokens.token import Capability, Role, Token


@dataclass(frozen=True, slots=True)
class Visit:
    """What a view's handler gets."""

    session: Session
    #: As the browser asked for it, with its query: forms go there.
    address: str
    #: The ids in the path, by their names in the route.
    values: Mapping[str, str]
    query: Fields
    #: The browser's address.
    client: str
    #: What was done, to be shown once.
    notice: str | None = None
    #: It is no good news.
    notice_warns: bool = False
    #: A form that was refused: what was typed, and why.
    typed: Fields = field(default_factory=lambda: NONE)
    problem: str | None = None
    #: The id of the form that this page may have.
    form: str = field(default_factory=lambda: token_urlsafe(16))

    @property
    def token(self) -> Token:
        return self.session.token

    @property
    def role(self) -> Role:
        return self.session.token.role

    @property
    def csrf(self) -> str:
        """What the session's forms carry."""
        return self.session.csrf

    @property
    def may_act(self) -> bool:
        """Whether it is an operator's."""
        return self.role.allows(Capability.ACT)
