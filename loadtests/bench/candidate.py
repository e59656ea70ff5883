"""The workers that are compared."""

from dataclasses import dataclass

from loadtests.baselines import plain_celery
from loadtests.bench.orders import PlacedOrder
from loadtests.bench.world import World
from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker to run: its command line, its environment and its messages."""

    name: str
    #: What follows ``celery``.
    arguments: tuple[str, ...]
    #: Orders that it can have under way at once.
    slots: int
    #: Its processes that work, each of which can fill a core.
    processes: int = 1
    #: It is the gateway: it tells what came of every order, and is held to account for it.
    accountable: bool = False

    def message(self, order: PlacedOrder) -> Message:
        """The message that asks it to deliver the order."""
        message = wire.submit_message(
            order.order_id, order.json, routing_key=topology.orders_queue.name
        )
        if self.accountable:
            return message
        headers = {**message.headers, "task": plain_celery.TASK}
        return Message(
            message.exchange, message.routing_key, message.body, message.message_id, headers
        )

    def environment(self, world: World, timeout: float) -> dict[str, str]:
        """What it is told; ``timeout`` is that of one exchange with a merchant, in seconds."""
        if self.accountable:
            return {**world.environment, "POS_GATEWAY_REQUEST_TIMEOUT": str(timeout)}
        return {
            "PLAIN_BROKER_URL": world.broker_url,
            "PLAIN_MERCHANTS_URL": world.merchants.base_url("").rstrip("/"),
            "PLAIN_TIMEOUT": str(timeout),
        }


_PLAIN = ("-A", plain_celery.__name__, "worker", "-P", "gevent", "-c", "200")

#: The gateway as it is meant to be run: no flags at all.
OURS = Candidate("gateway", ("-A", "pos_gateway.gcelery", "worker"), slots=200, accountable=True)
#: The gateway the way to move back to: synchronous, as before the seed's change.
SYNCHRONOUS = Candidate(
    "gateway, prefork -c 4",
    ("-A", "pos_gateway", "worker", "-P", "prefork", "-c", "4"),
    slots=4,
    processes=4,
    accountable=True,
)
#: The seed's worker with every flag that an expert would give it.
PLAIN = Candidate(
    "plain Celery",
    (*_PLAIN, "--without-gossip", "--without-mingle", "--without-heartbeat"),
    slots=200,
)
#: The seed's worker without them: Celery 5.7 then starts ten orders a second.
PLAIN_WITHOUT_FLAGS = Candidate("plain Celery, no flags", _PLAIN, slots=200)
