"""Tokens in the database, by their digest alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.schema import tokens
from pos_gateway.domain.errors import AdminError, UnknownToken
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.tokens.token import MAX_RATE, NAMES, Role, Token, digest, is_name, new_token

#: A role of a later version is unknown here, and so is its token: it must not fail the others.
_READABLE = tokens.c.role.in_([role.value for role in Role])
_IS_VALID = tokens.c.revoked_at.is_(None)


class TokenStore:
    """Creates, reads and revokes tokens. Safe from threads (the engine's pool is)."""

    def __init__(self, engine: Engine, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._clock = clock

    def create(
        self,
        name: str,
        role: Role,
        rate: int | None = None,
        *,
        operator: str,
        show: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Create a token, and return its text, which is kept nowhere.

        Args:
            name: for people: the audit has it, and revocation takes it.
            rate: requests a second; None: the server's default.
            operator: who does this, for the audit.
            show: called with the text before the token is kept; if it raises, none is created.

        Raises:
            AdminError: the name is invalid, or is a token's, even a revoked one's; or the rate is
                invalid.
        """
        if not is_name(name):
            raise AdminError(NAMES)
        if rate is not None and not 1 <= rate <= MAX_RATE:
            raise AdminError(f"a rate is 1 to {MAX_RATE} requests a second")
        token, now = new_token(), self._now()
        row = {
            "digest": digest(token),
            "name": name,
            "role": role.value,
            "rate": rate,
            "created_at": now,
        }
        details = f"{name}, {role}" + (f", {rate} requests a second" if rate else "")
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(tokens).values(row))
                _note(connection, now, operator, "tokens.create", details)
                show(token)
        except IntegrityError:
            raise AdminError(
                f"a token has, or had, the name {name!r}: choose another; the audit has to tell "
                "them apart"
            ) from None
        return token

    def list(self) -> Sequence[Token]:
        """Every token, revoked ones too, by name."""
        query = select(tokens).where(_READABLE).order_by(tokens.c.name)
        with self._engine.connect() as connection:
            return [_token(row) for row in connection.execute(query)]

    def revoke(self, name: str, *, operator: str) -> Token:
        """Revoke the token of this name, and return it. Idempotent: the first time counts.

        Raises:
            UnknownToken: no token has this name.
            AdminError: none can; the message does not repeat it, since it may be a token.
        """
        if not is_name(name):
            raise AdminError(NAMES)
        of_it, now = tokens.c.name == name, self._now()
        with self._engine.begin() as connection:
            change = update(tokens).where(of_it, _IS_VALID, _READABLE).values(revoked_at=now)
            if connection.execute(change).rowcount:
                _note(connection, now, operator, "tokens.revoke", name)
            row = connection.execute(select(tokens).where(of_it, _READABLE)).one_or_none()
        if row is None:
            raise UnknownToken(name)
        return _token(row)

    def all_valid(self) -> dict[str, Token]:
        """The tokens that are not revoked, by digest."""
        query = select(tokens).where(_IS_VALID, _READABLE)
        with self._engine.connect() as connection:
            return {row.digest: _token(row) for row in connection.execute(query)}

    def note_use(self, uses: Mapping[str, float]) -> None:
        """Record the last uses, as Unix time by digest: one statement; none moves backward."""
        if not uses:
            return
        earlier = or_(tokens.c.used_at.is_(None), tokens.c.used_at < bindparam("at"))
        change = update(tokens).where(tokens.c.digest == bindparam("of"), earlier)
        # In order of digest: two servers that write the same rows can't deadlock.
        rows = [{"of": each, "at": uses[each]} for each in sorted(uses)]
        with self._engine.begin() as connection:
            connection.execute(change.values(used_at=bindparam("at")), rows)

    def is_empty(self) -> bool:
        """Whether no token is valid: none exists, or all are revoked."""
        query = select(tokens.c.digest).where(_IS_VALID).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) is None

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _note(connection: Connection, at: float, operator: str, what: str, details: str) -> None:
    write(connection, [Note(what, details=details)], by=By(operator), at=at)


def _token(row: Row[Any]) -> Token:
    return Token(
        name=row.name,
        role=Role(row.role),
        rate=row.rate,
        digest=row.digest,
        created_at=row.created_at,
        used_at=row.used_at,
        revoked_at=row.revoked_at,
    )
