"""Requests to an OAuth2 token endpoint, and checks of all answers. No I/O."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from pos_gateway.domain.credentials import OAuth2, OAuth2Grant, basic
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.transport.errors import Misconfigured
from pos_gateway.transport.exchange import Reply, Request

#: Lifetime of a token without a stated lifetime, in seconds.
DEFAULT_LIFETIME = 300.0
#: Maximum characters of a token: a header has no place for more.
MAX_TOKEN = 4096
#: An error code (RFC 6749, 5.2); the rest of an answer may repeat a secret.
_CODE = re.compile(r"[a-z_]{1,40}")


def token_request(credentials: OAuth2 | OAuth2Grant, fields: Mapping[str, str]) -> Request:
    """A token request with these fields, and with the client's authentication."""
    sent, known = {**fields}, credentials.client_secret
    secret = None if known is None else known.get_secret_value()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if credentials.style == "basic" and secret is not None:
        # RFC 6749, 2.3.1: both parts are form-encoded first.
        headers["Authorization"] = basic(quote(credentials.client_id, ""), quote(secret, ""))
    else:
        sent |= {"client_id": credentials.client_id}
        sent |= {} if secret is None else {"client_secret": secret}
    body = urlencode(sent).encode()
    if credentials.style == "json":
        headers["Content-Type"], body = "application/json", json.dumps(sent).encode()
    return Request("POST", credentials.token_url, body, headers)


def require_taken(reply: Reply) -> None:
    """Raises Misconfigured if the endpoint refuses the client, or the client's refresh token."""
    if reply.status in (400, 401, 403):
        said = f"the token endpoint answered {reply.status}"
        raise Misconfigured(CREDENTIAL_REFUSED, f"{said} {_code(reply)}".rstrip())


def is_usable(token: Any) -> bool:
    """Whether a header can have this token."""
    is_short = isinstance(token, str) and 0 < len(token.strip()) <= len(token) <= MAX_TOKEN
    return is_short and token.isascii() and token.isprintable()


def _code(reply: Reply) -> str:
    try:
        said = json.loads(reply.body)["error"]
    except Exception:  # noqa: BLE001  (untrusted)
        return ""
    return said if isinstance(said, str) and _CODE.fullmatch(said) else ""
