"""``pos-gateway doctor``: a server at ``POS_GATEWAY_HTTP_URL``, as a backend meets it."""

import ssl
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import requests

from pos_gateway.cli.findings import Finding, fail, ok, warn
from pos_gateway.domain.errors import InvalidSettings, PosGatewayError, Unauthorized
from pos_gateway.http_client import HttpOrderClient
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, shown
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import DAY, Settings

#: Seconds for each of the two requests.
_TIMEOUT = 5.0
#: Seconds by which clocks may differ: a reply's date has whole ones, and it was on its way.
_CLOCKS = 10.0
#: Days before its end that a certificate is to be replaced.
_RENEW = 14


def check_server(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Iterator[Finding]:
    """Looks up an order that does not exist: TLS, the token and the database, in one request."""
    if settings.http_url is None:
        return
    name = f"server: {mask_url(settings.http_url)}"
    token = settings.token.get_secret_value() if settings.token else None
    with requests.Session() as session:
        try:
            client = HttpOrderClient(settings.http_url, token, timeout=_TIMEOUT, session=session)
            client.find("doctor", "doctor")
        except InvalidSettings as error:
            yield fail(f"server: {error}", "pos-gateway tokens create makes a token")
            return
        except Unauthorized as error:
            yield fail(f"{name}: {error}", "pos-gateway tokens list")
        except PosGatewayError as error:
            yield fail(
                str(error),
                "pos-gateway serve, whose log says more; the PEM file of an authority that the "
                "system does not know goes into REQUESTS_CA_BUNDLE",
            )
            return
        else:
            yield ok(f"{name} accepts the token")
        yield from _read(session, settings.http_url.rstrip("/"), name, clock)


def _read(session: requests.Session, url: str, name: str, clock: Clock) -> Iterator[Finding]:
    """What one of its replies says beside its content."""
    try:
        with session.get(
            f"{url}/readyz", timeout=_TIMEOUT, allow_redirects=False, stream=True
        ) as reply:
            certificate = _certificate(reply)
            is_ready = _is_ready(reply)
    except requests.RequestException as error:
        yield warn(f"{name}: {type(error).__name__} at its second request", "run doctor again")
        return
    now = clock.now()
    if is_ready is False:
        yield fail(f"{name} takes no orders", "/readyz of its metrics port says why")
    if certificate:
        ends = ssl.cert_time_to_seconds(certificate["notAfter"])
        if ends - now.timestamp() < _RENEW * DAY:
            yield warn(f"{name}: its certificate ends at {shown(ends)}", "replace it")
    date = reply.headers.get("Date")
    ahead = (parsedate_to_datetime(date) - now).total_seconds() if date else 0.0
    if abs(ahead) > _CLOCKS:
        yield warn(
            f"{name}: its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this "
            "one's: orders expire by it",
            "run NTP on both",
        )


def _certificate(reply: requests.Response) -> Any:
    """None over plain HTTP."""
    tls = getattr(reply.raw.connection, "sock", None)
    return tls.getpeercert() if isinstance(tls, ssl.SSLSocket) else None


def _is_ready(reply: requests.Response) -> bool | None:
    """None: a proxy does not let the page through."""
    try:
        return bool(reply.json()["ready"])
    except (ValueError, KeyError, TypeError):
        return None
