"""A message, by the Standard Webhooks specification: its body, and the headers that sign it."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from pydantic_core import to_json
from standardwebhooks import Webhook

from pos_gateway.alerts.condition import RULES
from pos_gateway.alerts.rules import Alert, AlertState
from pos_gateway.runtime.clock import from_unix

#: What a secret in the specification's form begins with, and how many bytes it has.
PREFIX, SMALLEST, LARGEST = "whsec_", 24, 64


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """What is sent."""

    #: The same in every attempt: a receiver may know it already.
    id: str
    body: bytes


def message_of(alert: Alert, public_url: str | None) -> AlertMessage:
    """That the alert fires, or has ended.

    Args:
        alert: of which.
        public_url: where the operations page is, for a link.
    """
    rule = RULES[alert.condition]
    data = {
        "alert": alert.condition,
        "subject": alert.subject,
        "incident": alert.incident,
        "says": alert.says,
        "count": alert.count,
        "since": from_unix(alert.since),
        "remedy": rule.remedy,
        "runbook": f"docs/runbook.md#{rule.runbook}",
        "link": f"{public_url.rstrip('/')}{rule.path}" if public_url else None,
    }
    is_over = alert.state is AlertState.RESOLVED
    at = alert.clear_since if is_over and alert.clear_since is not None else alert.since
    return _message(
        f"{alert.incident}_{alert.state}", "resolved" if is_over else "firing", at, data
    )


def trial_message(now: datetime) -> AlertMessage:
    """One that says that it is a test."""
    data = {"alert": "test", "subject": "test", "says": "This is a test: pos-gateway alerts test"}
    return _message(f"{uuid4().hex}_test", "test", now.timestamp(), data)


def headers_of(message: AlertMessage, secret: str, now: datetime) -> Mapping[str, str]:
    """The headers of one attempt."""
    return {
        "content-type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(message.id, now, message.body.decode()),
    }


def problem_of(secret: str) -> str | None:
    """Why it is no secret, without a letter of it; None: it is one."""
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return f"should be base64, with {PREFIX} before it or not"
    if not SMALLEST <= size <= LARGEST:
        return f"should be {SMALLEST} to {LARGEST} bytes in base64, and has {size}"
    return None


def _message(key: str, what: str, at: float, data: Mapping[str, object]) -> AlertMessage:
    body = {"type": f"alert.{what}", "timestamp": from_unix(at), "data": data}
    return AlertMessage(f"msg_{key}", to_json(body))
