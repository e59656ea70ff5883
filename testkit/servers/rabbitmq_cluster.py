"""A RabbitMQ cluster of three nodes of our own, whose nodes can be killed, frozen and cut off."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import unquote

from testkit.servers.rabbitmq import RabbitMQ, binary

NODES = 3
#: What the nodes know each other by; one that knows another by something else does not talk to it.
_COOKIE, _ANOTHER = "pos-gateway", "cut-off"

_MINORITY = "{cluster_partition_handling, pause_minority}"
_IS_RUNNING_AGAIN = "{rabbit:is_running(), whereis(rabbit_outside_app_process)}"
_EVERY_QUEUE_HAS_A_LEADER = (
    "rabbit:is_running() andalso lists:all(fun(Queue) -> {Name, _} = amqqueue:get_pid(Queue), "
    "lists:any(fun(State) -> lists:member(element(2, State), [leader, follower]) end, "
    "ets:lookup(ra_state, Name)) end, [Queue || Queue <- rabbit_amqqueue:list(), amqqueue:is_quorum(Queue)])"
)


class Node(RabbitMQ):
    """One of the nodes; all but the first share that one's epmd.

    A minority stops rather than go on by itself, and a node that falls silent is noticed within some
    seconds instead of a minute.
    """

    _leaders: ClassVar[str] = _EVERY_QUEUE_HAS_A_LEADER

    def __init__(self, first: "Node | None" = None) -> None:
        super().__init__(configuration=[_MINORITY])
        self._first = first

    @property
    def name(self) -> str:
        return self._node()

    def meet(self, others: Sequence["Node"], cookie: str) -> None:
        """Know the others by this from now on."""
        for other in others:
            self.eval(f"erlang:set_cookie('{other.name}', '{cookie}')")

    def leave(self, others: Sequence["Node"]) -> None:
        """Lose the connections to the others, all at once.

        Told of one loss while another connection is left, the node at its end would leave the third,
        too: Erlang's ``global`` sees to it that partitions do not overlap.
        """
        names = ", ".join(f"'{other.name}'" for other in others)
        self.eval(f"[erlang:disconnect_node(Node) || Node <- [{names}]]")

    def is_alone(self) -> bool:
        """Has it neither a connection to another node, nor gone on without one?"""
        return self.eval("{nodes(), rabbit:is_running()}") == "{[],false}"

    def wait_until_running(self, *, running: bool = True) -> None:
        """Wait until it takes requests; or until it has stopped to, being in a minority.

        It runs only once it has done with its pause: until then it hears of no other node's loss.
        """
        wanted = "{true,undefined}" if running else "false"
        asked = _IS_RUNNING_AGAIN if running else "rabbit:is_running()"
        self._wait_for(
            lambda: self.eval(asked) == wanted and (not running or self._answers()),
            self._running(),
            f"is not {'running' if running else 'paused'}",
        )

    def _prepare(self) -> None:
        if self._first is not None:  # it joins that one when it starts for the first time
            first = f"{{cluster_nodes, {{['{self._first.name}'], disc}}}}"
            self._configuration = [*self._configuration, first]
        super()._prepare()

    def _start_epmd(self) -> None:
        if self._first is None:
            super()._start_epmd()
        else:
            self._epmd_port = self._first._epmd_port

    def _environment(self) -> Mapping[str, str]:
        environment = dict(super()._environment())
        environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += (
            f" -setcookie {_COOKIE} -kernel net_ticktime 4"
        )
        return environment


class RabbitMQCluster:
    """Three nodes that are one broker."""

    def __init__(self) -> None:
        first = Node()
        self.nodes = [first, *(Node(first) for _ in range(NODES - 1))]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes, and remove their data."""
        for node in reversed(self.nodes):
            node.close()

    def add_vhost(self) -> str:
        """Add a virtual host; the nodes' URLs for it, with ``;`` between them."""
        name = self.nodes[0].add_vhost().rpartition("/")[2]
        return ";".join(node.url_of(name) for node in self.nodes)

    def leader(self, url: str, queue: str) -> Node:
        """The node that leads a quorum queue at present."""
        name = self._asked(_LEADER.format(queue=_resource(url, queue))).strip("'")
        return next(node for node in self.nodes if node.name == name)

    def members(self, url: str, queue: str) -> int:
        """How many nodes have a quorum queue's messages."""
        return int(self._asked(_MEMBERS.format(queue=_resource(url, queue))))

    @contextmanager
    def cut_off(self, node: Node) -> Iterator[None]:
        """Have no node and this one hear of each other: neither connects to the other any more.

        Only this node's idea of the cookie changes: with another that both have, they talk again.
        """
        others = [each for each in self.nodes if each is not node]
        node.meet(others, _ANOTHER)
        node.leave(others)
        node.wait_until_running(running=False)
        try:
            yield
            assert node.is_alone(), f"{node.name} hears of the others, which it was cut off from"
        finally:
            node.meet(others, _COOKIE)
            node.wait_until_running()

    def _asked(self, expression: str) -> str:
        return self.nodes[0].eval(expression)


_LEADER = "{{ok, Queue}} = rabbit_amqqueue:lookup({queue}), element(2, amqqueue:get_pid(Queue))"
_MEMBERS = (
    "{{ok, Queue}} = rabbit_amqqueue:lookup({queue}), "
    "length(maps:get(nodes, amqqueue:get_type_state(Queue)))"
)


def _resource(url: str, queue: str) -> str:
    vhost = unquote(url.rpartition("/")[2])
    return f"rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})"
