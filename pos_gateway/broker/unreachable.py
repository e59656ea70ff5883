"""Why a broker cannot be used, in words, and the remedy: a broker that refuses runs."""

from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.runtime.urls import mask_url

_URL = "POS_GATEWAY_BROKER_URL (amqp://user:password@host:5672/vhost)"

#: The right for a request refused by RabbitMQ; to bind takes two.
_RIGHTS = {
    "declare": "configure",
    "bind": "write on it, and read on the exchange",
    "consume": "read",
}


def unreachable(broker_url: str, error: object) -> BrokerUnavailable:
    """The error to raise for the broker's or the system's words; the password is masked."""
    why, remedy = said_and_remedy(str(error))
    return BrokerUnavailable(f"cannot reach the broker at {mask_url(broker_url)}: {why}; {remedy}")


def said_and_remedy(said: str) -> tuple[str, str]:
    """The broker's or the system's words, and the remedy."""
    if right := _refused_right(said):
        return said, right
    if "ACCESS_REFUSED" in said:  # RabbitMQ does not say whether user or password is wrong
        return (
            "it refuses this user or password (ACCESS_REFUSED)",
            f"set them in {_URL}; RabbitMQ lets guest in from its own machine alone",
        )
    if "NOT_ALLOWED" in said:
        return said, f"rabbitmqctl add_vhost and set_permissions, or set the vhost in {_URL}"
    if "INTERNAL_ERROR" in said or "RESOURCE_ERROR" in said:
        return said, "it runs, and cannot do this now: its log says why"
    if "SSL" in said:
        return said, f"is that its port for TLS (5671)? Without TLS it is amqp://; {_URL}"
    return said, f"start RabbitMQ there, or set {_URL}"


def with_right(error: object) -> str:
    """The broker's words, and the right to grant after a refusal."""
    return "; ".join(filter(None, (str(error), _refused_right(str(error)))))


def _refused_right(said: str) -> str | None:
    if "ACCESS_REFUSED" not in said or "refused for user" not in said:  # the login, perhaps
        return None
    request = said.partition(":")[0].partition(".")[2]
    return f"grant this user {_RIGHTS.get(request, 'the right')} (rabbitmqctl set_permissions)"
