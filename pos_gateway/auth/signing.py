"""The headers that credentials add to a request. No I/O."""

import base64
from collections.abc import Mapping
from datetime import datetime
from uuid import uuid4

from standardwebhooks import Webhook

from pos_gateway.domain.credentials import ApiKey, Basic, Bearer, Credentials, Signature
from pos_gateway.transport.exchange import Request


def headers_for(credentials: Credentials, request: Request, now: datetime) -> Mapping[str, str]:
    """The headers that authenticate the request; none for credentials that need a token."""
    match credentials:
        case ApiKey():
            return {credentials.header: credentials.key.get_secret_value()}
        case Basic():
            return {
                "Authorization": basic(
                    credentials.username, credentials.password.get_secret_value()
                )
            }
        case Bearer():
            return {"Authorization": f"Bearer {credentials.token.get_secret_value()}"}
        case Signature():
            return _signature(credentials, request, now)
    return {}


def basic(user: str, password: str) -> str:
    """The value of an Authorization header (RFC 7617, in UTF-8)."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _signature(credentials: Signature, request: Request, now: datetime) -> Mapping[str, str]:
    # A retry of the same order is the same message.
    message_id = request.headers.get("Idempotency-Key") or f"msg_{uuid4().hex}"
    body = (request.body or b"").decode()
    signature = Webhook(credentials.secret.get_secret_value()).sign(message_id, now, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
