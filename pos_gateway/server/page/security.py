"""What keeps other sites, and a browser's mistakes, from acting for a person who is logged in.

A cookie says who asks; it is sent from our own pages alone (SameSite=Strict). A form carries a token
besides, which no other site can read, and the browser's Origin is compared with the address. The
login form has no session yet: the Origin alone keeps another site from logging a person in as
itself. A login always makes a new secret, and ends the session that the browser had.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from pos_gateway.server.body import Scope, header
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.session_store import LASTS

#: Browsers take the first from a page behind TLS alone, and from no other host.
_SECURE_COOKIE, _COOKIE = "__Host-pos-gateway", "pos-gateway-page"
#: Likewise, of a user whom a proxy has logged in: what forms' tokens are made of.
_SECURE_USERS, _USERS = "__Host-pos-gateway-user", "pos-gateway-user"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
#: Of every reply. Without a referrer at all a browser would not say where a form is from.
HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")


def secret_of(scope: Scope) -> str | None:
    """The cookie's secret; None: there is none, or there are two, of which another site set one."""
    return _only(scope, _name(scope))


def user_secret_of(scope: Scope) -> str | None:
    """The same of a proxy's user."""
    return _only(scope, _users_name(scope))


def _only(scope: Scope, cookie: str) -> str | None:
    wanted = cookie + "="
    found: dict[str, None] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            each = (part.strip() for part in value.decode("latin-1").split(";"))
            found.update(
                (part.removeprefix(wanted), None) for part in each if part.startswith(wanted)
            )
    return next(iter(found)) if len(found) == 1 else None


def set_cookie(scope: Scope, secret: str) -> tuple[bytes, bytes]:
    """The header that logs in."""
    return _cookie(scope, _name(scope), secret, int(LASTS))


def set_user_cookie(scope: Scope, secret: str) -> tuple[bytes, bytes]:
    """The header that gives a proxy's user a secret for forms."""
    return _cookie(scope, _users_name(scope), secret, int(LASTS))


def clear_cookie(scope: Scope) -> tuple[bytes, bytes]:
    """The header that logs out."""
    return _cookie(scope, _name(scope), "", 0)


def require_same_origin(scope: Scope, public_url: str | None) -> None:
    """Refuse a form that is not from this site.

    Args:
        public_url: the address that browsers have, where a proxy changes the header Host.

    Raises:
        Problem: 403.
    """
    headers = scope["headers"]
    origin = (header(headers, b"origin") or b"").decode("latin-1").lower()
    site = header(headers, b"sec-fetch-site")
    if origin and origin in _origins(scope, public_url) and site in (None, b"same-origin"):
        return
    raise Problem(
        403,
        "other_origin",
        "the form is not from this page's address: open the page, and submit it there. Behind a proxy that "
        "changes the header Host, have it pass it on, or set POS_GATEWAY_HTTP_PUBLIC_URL",
    )


def _origins(scope: Scope, public_url: str | None) -> Iterable[str]:
    host = (header(scope["headers"], b"host") or b"").decode("latin-1").lower()
    if host:
        yield f"https://{host}"
        if scope["scheme"] != "https":  # or a proxy has TLS, and is not trusted to say so
            yield f"http://{host}"
    if public_url:
        parts = urlsplit(public_url.lower())
        yield f"{parts.scheme}://{parts.netloc}"


def _name(scope: Scope) -> str:
    return _SECURE_COOKIE if scope["scheme"] == "https" else _COOKIE


def _users_name(scope: Scope) -> str:
    return _SECURE_USERS if scope["scheme"] == "https" else _USERS


def _cookie(scope: Scope, name: str, secret: str, lasts: int) -> tuple[bytes, bytes]:
    secure = "; Secure" if scope["scheme"] == "https" else ""
    text = f"{name}={secret}; Path=/; Max-Age={lasts}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode()
