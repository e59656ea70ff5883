"""One order, as the HTTP API shows it."""

from typing import Any

from pydantic_core import from_json
from sqlalchemy import Engine

from pos_gateway.broker.message import Message
from pos_gateway.domain.masking import masked_reason
from pos_gateway.domain.submit_result import SUBMITTED
from pos_gateway.events.archive import Archive
from pos_gateway.ledger.attempts import RecordedAttempt
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.ledger.submissions import submitted_at
from pos_gateway.runtime.clock import shown
from pos_gateway.server.masked_events import masked_event
from pos_gateway.server.problems import Problem


class Orders:
    """Reads orders. Safe from threads. Raises SQLAlchemyError when the database is away."""

    def __init__(self, engine: Engine, admin: OrderAdmin, archive: Archive) -> None:
        self._engine = engine
        self._admin = admin
        self._archive = archive

    def show(self, merchant_id: str, order_id: str, *, reveal: bool) -> dict[str, Any]:
        """The order's state, attempts and events.

        Args:
            reveal: show what may quote a customer; else it is masked.

        Raises:
            Problem: 404.
        """
        key = Key(merchant_id, order_id)
        standing = self._admin.one(key)
        cancellation = self._admin.one(Key(merchant_id, order_id, Action.CANCEL))
        came_at = submitted_at(self._engine, key)
        if standing is None and came_at is None and cancellation is None:
            detail = f"no order {order_id!r} of merchant {merchant_id!r} is known"
            raise Problem(404, "unknown_order", detail)
        events = self._archive.of_order(
            key,
            standing.reopened if standing else 0,
            cancellation.reopened if cancellation else 0,
        )
        return {
            "order_id": order_id,
            "merchant_id": merchant_id,
            "state": standing.state.value if standing else SUBMITTED,
            "submitted_at": shown(came_at),
            **_standing(standing, reveal=reveal),
            "attempts": self._attempts(key, reveal=reveal),
            "cancellation": self._cancellation(cancellation, reveal=reveal),
            "events": [_event(message, reveal=reveal) for message in events],
        }

    def _attempts(self, key: Key, *, reveal: bool) -> list[dict[str, Any]]:
        """The last ten, oldest first."""
        return [_attempt(each, key.action, reveal=reveal) for each in self._admin.attempts(key)]

    def _cancellation(
        self, request: OrderStanding | None, *, reveal: bool
    ) -> dict[str, Any] | None:
        if request is None:
            return None
        return {
            "state": request.state.value,
            # In the POS's words as soon as the POS was asked.
            "reason": _reason(request, State.REJECTED, reveal=reveal),
            "attempt_count": request.attempts,
            "attempts": self._attempts(request.key, reveal=reveal),
            "updated_at": shown(request.updated_at),
        }


def _standing(order: OrderStanding | None, *, reveal: bool) -> dict[str, Any]:
    if order is None:
        return {"external_id": None, "reason": None, "attempt_count": 0}
    return {
        "external_id": order.external_id,
        "reason": _reason(order, order.state, reveal=reveal),
        "attempt_count": order.attempts,
        "deliver_by": shown(order.deliver_by),
        "in_doubt_since": shown(order.first_doubt),
        "created_at": shown(order.created_at),
        "updated_at": shown(order.updated_at),
    }


def _reason(
    of: OrderStanding | RecordedAttempt, kind: str, *, reveal: bool
) -> dict[str, str] | None:
    if not of.reason_code:
        return None
    if reveal:
        return {"code": of.reason_code, "message": of.reason_message or ""}
    code, message = masked_reason(kind, of.reason_code)
    return {"code": code, "message": message}


def _attempt(attempt: RecordedAttempt, action: Action, *, reveal: bool) -> dict[str, Any]:
    """An attempt, with its stages in seconds."""
    return {
        "at": shown(attempt.at),
        "did": attempt.did,
        "came": attempt.came,
        "outcome": attempt.outcome,
        "reason": _reason(attempt, attempt.reason_kind(action), reveal=reveal),
        "waited_seconds": attempt.waited,
        "claim_seconds": attempt.claim,
        "connect_seconds": attempt.connect,
        "first_byte_seconds": attempt.first_byte,
        "seconds": attempt.seconds,
        "worker": attempt.worker,
    }


def _event(message: Message, *, reveal: bool) -> dict[str, Any]:
    """An event without the order, which this is about."""
    event = from_json(message.body) if reveal else masked_event(message.body)
    return {name: value for name, value in event.items() if name not in _OF_ORDER}


_OF_ORDER = ("order", "order_id", "merchant_id", "merchant")
