"""What is said of a broker that cannot be used: its own words, and what helps."""

import pytest

from pos_gateway.broker.unreachable import unreachable

URL = "amqp://kim:hunter2@broker:5672/v"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("(0, 0): (403) ACCESS_REFUSED - Login was refused", "set them in POS_GATEWAY_BROKER_URL"),
        (
            "Queue.declare: (403) ACCESS_REFUSED - access to queue 'q' in vhost 'v' refused for user 'kim'",
            "grant this user configure (rabbitmqctl set_permissions)",
        ),
        (
            "Basic.consume: (403) ACCESS_REFUSED - access to queue 'q' in vhost 'v' refused for user 'kim'",
            "grant this user read (",
        ),
        ("Connection.open: (530) NOT_ALLOWED - vhost v not found", "rabbitmqctl add_vhost"),
        ("Basic.get: (541) INTERNAL_ERROR - noproc", "its log says why"),
        ("(506) RESOURCE_ERROR - out of descriptors", "its log says why"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "its port for TLS (5671)?"),
        ("[Errno 111] Connection refused", "start RabbitMQ there"),
    ],
)
def test_each_cause_has_its_remedy(said: str, remedy: str) -> None:
    shown = str(unreachable(URL, said))
    assert remedy in shown and "hunter2" not in shown
    assert ("start RabbitMQ" in shown) == ("Errno" in said), "it runs if it refuses"
