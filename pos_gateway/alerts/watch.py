"""Looks for what needs a person, and sends alerts of it: a thread of ``pos-gateway serve``."""

import contextlib
import threading

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.alerts.looking import look
from pos_gateway.alerts.message import message_of
from pos_gateway.alerts.rules import decide
from pos_gateway.alerts.sender import TIMEOUT, AlertSender
from pos_gateway.alerts.store import AlertStore
from pos_gateway.reports.fleet_view import FleetView

log = structlog.get_logger(__name__)

#: Seconds between two rounds, and messages of a round.
EVERY, MESSAGES = 10.0, 20


class AlertWatch:
    """Alerts, while it runs. Of several servers one sends; another takes over if that one is gone.

    Args:
        database: the gateway's.
        sender: where messages go.
        public_url: where the operations page is, for links.
    """

    def __init__(self, database: Engine, sender: AlertSender, public_url: str | None) -> None:
        self._database = database
        self._fleet = FleetView(database)
        self._store = AlertStore(database)
        self._sender = sender
        self._public_url = public_url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._problem = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End after the message that is being sent. Idempotent."""
        self._stopping.set()

    def stop(self) -> None:
        """Wait until it has ended. Idempotent."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT + 1)

    def round(self) -> None:
        """Look, decide, and send what is due, if no other server does. Raises SQLAlchemyError."""
        if not self._store.claim():
            return
        findings = look(self._database, self._fleet)
        if not self._store.update(lambda alerts, now: decide(alerts, findings, now)):
            return
        for alert in self._store.due(MESSAGES):
            if self._stopping.is_set() or not self._store.begin(alert):
                return
            problem = self._sender.send(message_of(alert, self._public_url))
            if problem:
                log.warning(
                    "alerts.not_sent",
                    alert=alert.condition,
                    subject=alert.subject,
                    attempt=alert.attempts + 1,
                    error=problem,
                )
                return  # the receiver is in trouble: the others wait for the next round
            self._store.delivered(alert)
            log.info(
                "alerts.sent", alert=alert.condition, subject=alert.subject, status=alert.state
            )

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            problem = ""
            try:
                self.round()
            except SQLAlchemyError as error:
                problem = str(error).partition("\n")[0]
            except Exception as error:
                log.error("alerts.failed", exc_info=error)
            if problem and problem != self._problem:
                log.warning("alerts.no_database", error=problem)
            self._problem = problem
        with contextlib.suppress(SQLAlchemyError):  # else the claim expires
            self._store.release()
