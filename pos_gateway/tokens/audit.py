"""The audit of what tokens do over HTTP: a line of the log at once, and one of the table soon."""

import threading
from collections import deque
from typing import Any

import structlog
from sqlalchemy import Engine, insert
from sqlalchemy.exc import DataError

from pos_gateway.audit.note import DETAILS, ID, REASON
from pos_gateway.database.schema import audit
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.tokens.token import Token

log = structlog.get_logger(__name__)

#: Maximum lines that wait for the database; the oldest beyond it are in the log alone.
MAX_LINES = 10_000


class TokenAudit:
    """Takes lines without blocking, and writes them together. Safe from threads.

    The server calls ``write`` as often as it reads the tokens, and after each act on its page.
    """

    def __init__(self, engine: Engine, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._clock = clock
        self._writing = threading.Lock()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_LINES)
        self._is_away = False

    def note(
        self,
        token: Token,
        what: str,
        client: str,
        *,
        merchant_id: str = "",
        order_id: str = "",
        details: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Record that the token's holder did this.

        Texts are cut to what the table takes: a line that it refuses would keep all behind it waiting.
        """
        self.log(token, what, client, merchant_id=merchant_id, order_id=order_id)
        details = f"over HTTP, from {client}" if details is None else details
        self._lines.append(
            {
                "at": self._clock.now().timestamp(),
                "operator": token.name,
                "what": what,
                "merchant_id": merchant_id[:ID],
                "order_id": order_id[:ID],
                "details": details[:DETAILS],
                "reason": None if reason is None else reason[:REASON],
            }
        )

    def log(
        self, token: Token, what: str, client: str, *, merchant_id: str = "", order_id: str = ""
    ) -> None:
        """Have the log alone say it: what was done has written its line itself."""
        log.info(
            "token.acted",
            token=token.name,
            what=what,
            client=client,
            merchant_id=merchant_id,
            order_id=order_id,
        )

    def write(self) -> None:
        """Write the lines that wait. Never raises: while the database is away they stay."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._insert(lines)
        except Exception as error:  # noqa: BLE001  (any failure: the next call tries again)
            self._lines.extendleft(reversed(lines))
            if not self._is_away:
                log.warning("audit.unavailable", error=str(error))
            self._is_away = True
        else:
            self._is_away = False

    def _insert(self, lines: list[dict[str, Any]]) -> None:
        """Write the lines, and take them out of the list; a line that the table refuses is in the log alone."""
        try:
            self._insert_together(lines)
            lines.clear()
        except (DataError, UnicodeError):
            while lines:  # one is to blame: a letter that the database's encoding lacks, say
                self._insert_alone(lines[0])
                del lines[0]

    def _insert_alone(self, line: dict[str, Any]) -> None:
        try:
            self._insert_together([line])
        except (DataError, UnicodeError) as error:
            reason = type(error).__name__
            log.error("audit.refused", token=line["operator"], what=line["what"], error=reason)

    def _insert_together(self, lines: list[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            connection.execute(insert(audit), lines)
