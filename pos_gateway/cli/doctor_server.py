"""``pos-gateway doctor``: a server at ``POS_GATEWAY_HTTP_URL``, as a backend meets it."""

import json
import ssl
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from pos_gateway.cli.findings import CheckResult, fail, ok, warn
from pos_gateway.domain.errors import InvalidSettings, PosGatewayError, Unauthorized
from pos_gateway.http_client import HttpOrderClient
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, shown
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import DAY, Settings
from pos_gateway.transport.urllib3_internals import content_of, deadline, new_session, send

#: Seconds for each of the two requests, and most bytes of the second one's reply.
_TIMEOUT, _BYTES = 5.0, 64 * 1024
#: Seconds by which clocks may differ: a reply's date has whole ones, and it was on its way.
_CLOCKS = 10.0
#: Days before its end that a certificate is to be replaced.
_RENEW = 14


def check_server(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Iterator[CheckResult]:
    """Looks up an order that does not exist: TLS, the token and the database, in one request."""
    if settings.http_url is None:
        return
    name = f"server: {mask_url(settings.http_url)}"
    token = settings.token.get_secret_value() if settings.token else None
    with new_session(settings.http_url) as session:
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


def _read(session: requests.Session, url: str, name: str, clock: Clock) -> Iterator[CheckResult]:
    """What one of its replies says beside its content."""
    try:
        request = requests.Request("GET", f"{url}/readyz")
        with deadline(_TIMEOUT), send(session, request, (_TIMEOUT, _TIMEOUT)) as reply:
            certificate = _certificate(reply)
            is_ready = _is_ready(content_of(reply, _BYTES))
    except (OSError, HTTPError) as error:  # requests' are OSErrors
        yield warn(f"{name}: {type(error).__name__} at its second request", "run doctor again")
        return
    now = clock.now()
    if is_ready is False:
        yield fail(f"{name} takes no orders", "/readyz of its metrics port says why")
    if certificate:
        ends = ssl.cert_time_to_seconds(certificate["notAfter"])
        if ends - now.timestamp() < _RENEW * DAY:
            yield warn(f"{name}: its certificate ends at {shown(ends)}", "replace it")
    ahead = _ahead(reply.headers.get("Date", ""), now)
    if abs(ahead) > _CLOCKS:
        yield warn(
            f"{name}: its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this "
            "one's: orders expire by it",
            "run NTP on both",
        )


def _ahead(date: str, now: datetime) -> float:
    """The seconds by which a reply's clock is ahead; 0: a proxy has left its date out, or broken."""
    try:
        return (parsedate_to_datetime(date) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _certificate(reply: requests.Response) -> Any:
    """None over plain HTTP."""
    certificate_of = getattr(getattr(reply.raw.connection, "sock", None), "getpeercert", None)
    return certificate_of and certificate_of()


def _is_ready(content: bytes) -> bool | None:
    """None: a proxy does not let the page through."""
    try:
        return bool(json.loads(content)["ready"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
