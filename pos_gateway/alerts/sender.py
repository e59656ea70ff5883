"""Sends a message to the receiver: one exchange under one deadline, no redirect, a bounded reply.

The URL is the operator's own, so it may be in a private network, where it may be plain HTTP. Link-local
addresses, which have the clouds' metadata services, stay refused.
"""

from ipaddress import ip_network
from urllib.parse import urlsplit

from pos_gateway.alerts.message import AlertMessage, headers_of, problem_of
from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.runtime.clock import Clock
from pos_gateway.settings import Settings
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard

#: Seconds for one message, connecting included.
TIMEOUT = 10.0
_PRIVATE = tuple(
    ip_network(each)
    for each in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
        *("127.0.0.0/8", "::1/128"),
    )
)
_PORTS = {"http": 80, "https": 443}


class AlertSender:
    """Sends to one URL. For one thread at a time.

    Args:
        url: where to.
        secret: that signs, as ``whsec_…`` or plain base64.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
    """

    def __init__(self, url: str, secret: str, clock: Clock, *, ca_file: str | None = None) -> None:
        self._url, self._secret, self._clock = url, secret, clock
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        self.host = f"{parts.hostname}:{port}"
        guard = Guard(networks=_PRIVATE, ports=frozenset({port}))
        self._transport = Transport(guard=guard, ca_file=ca_file)

    def unreachable(self) -> str | None:
        """Why no connection to the receiver can be made, TLS included; None: one can. Sends nothing."""
        try:
            self._transport.reach(self._url)
        except TransportError as error:
            return str(error)
        finally:
            self._transport.close()
        return None

    def send(self, message: AlertMessage) -> str | None:
        """Why the receiver has not confirmed it; None: it has, with a 2xx."""
        headers = headers_of(message, self._secret, self._clock.now())
        request = Request("POST", self._url, message.body, headers)
        try:
            reply = self._transport.send(request, key="alerts", connections=1, seconds=TIMEOUT)
        except TransportError as error:
            return str(error)
        finally:
            self._transport.close()  # the next message is minutes away
        if 200 <= reply.status < 300:
            return None
        if 300 <= reply.status < 400:
            return f"it answered {reply.status}, and redirects are not followed: set the URL that it leads to"
        return f"it answered {reply.status}"


def sender_of(settings: Settings, clock: Clock) -> AlertSender | None:
    """The sender of these settings; None: alerts are off.

    Raises:
        InvalidSettings: there is no secret, or none that can be read, or it is none.
    """
    if settings.alert_url is None:
        return None
    field, secret = "POS_GATEWAY_ALERT_SECRET", None
    if settings.alert_secret is not None:
        secret = settings.alert_secret.get_secret_value()
    elif settings.alert_secret_file is not None:
        field = "POS_GATEWAY_ALERT_SECRET_FILE"
        try:
            secret = settings.alert_secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is not UTF-8"
            raise _invalid(field, f"{settings.alert_secret_file}: {why}") from None
    if secret is None:
        raise _invalid(
            field, "is needed with POS_GATEWAY_ALERT_URL: the receiver knows messages by it"
        )
    if problem := problem_of(secret):
        raise _invalid(field, problem)
    return AlertSender(
        settings.alert_url.get_secret_value(), secret, clock, ca_file=settings.ca_file
    )


def _invalid(field: str, problem: str) -> InvalidSettings:
    return InvalidSettings([FieldError(field, problem)])
