"""A RabbitMQ node of our own."""

import itertools
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote

from testkit.servers import spare_vhosts
from testkit.servers.process import Server, end, free_port, program

_BIN = Path("/usr/lib/rabbitmq/bin")
_ERLANG = Path("/usr/lib/erlang/lib")
_WITHOUT_BOOT_STEPS = (
    *(
        "asn1",
        "compiler",
        "crypto",
        "inets",
        "os_mon",
        "public_key",
        "ssl",
        "syntax_tools",
        "tools",
    ),
    "xmerl",
)
_MODULES = re.compile(r"\{\s*modules\s*,\s*\[.*?\]\s*\}", re.DOTALL)

_LOG = '{log, [{console, [{enabled, false}]}, {file, [{file, "rabbitmq.log"}]}]}'

_EVERY_QUEUE_HAS_ITS_LEADER = (
    "lists:all(fun(Queue) -> {Name, _} = amqqueue:get_pid(Queue), "
    "[leader] =:= [element(2, State) || State <- ets:lookup(ra_state, Name)] end, "
    "[Queue || Queue <- rabbit_amqqueue:list(), amqqueue:is_quorum(Queue)])"
)
#: RabbitMQ 3.10 cannot recover a quorum queue that was being declared when it crashed, which then has
#: no leader, for ever; and it notes a new one's name on disk three seconds late, before which a crash
#: costs the queue and all it holds. Queues in production are older. So no queue is declared from here
#: to the kill, if each has its leader; and what there is, is on disk. (A table may be closed between
#: two calls.)
_DECLARE_NO_MORE = """
Self = self(), Is = make_ref(),
spawn(fun() -> mnesia:transaction(fun() ->
  mnesia:read_lock_table(rabbit_durable_queue),
  case {leaders} of
    true ->
      [catch dets:sync(Table) || Table <- dets:all()],
      Self ! {{Is, true}},
      timer:sleep(infinity);
    false -> Self ! {{Is, false}}
  end end) end),
receive {{Is, Answer}} -> Answer after 5000 -> false end
""".replace("\n", " ")
#: The coordinator of streams knows of each how far it is with writing down its leader.
_LEADER_IS_WRITTEN_DOWN = (
    "{{ok, Stream}} = rabbit_amqqueue:lookup({name}), "
    "Id = maps:get(name, amqqueue:get_type_state(Stream)), "
    "{{ok, {{_, Known}}, _}} = "
    "ra:local_query({{rabbit_stream_coordinator, node()}}, fun(State) -> State end), "
    "lists:keymember(updated, 1, [Each || Each <- tuple_to_list(maps:get(Id, element(2, Known))), "
    "is_tuple(Each)])"
)


class RabbitMQ(Server):
    """One node with an epmd (Erlang's name server) of its own.

    The node's Erlang shell is held open on its standard input. An expression there takes a
    millisecond where every `rabbitmqctl` takes a second, and the node ends when the shell's input
    does, that is with us.
    """

    package: ClassVar[str] = "rabbitmq-server"
    #: The expression whose value is whether it can serve each of its quorum queues.
    _leaders: ClassVar[str] = _EVERY_QUEUE_HAS_ITS_LEADER

    def __init__(self, *, configuration: Sequence[str] = ()) -> None:
        """`configuration` has Erlang's terms for the application `rabbit`."""
        super().__init__()
        self._configuration = configuration
        self._distribution_port = 0
        self._epmd_port = 0
        self._epmd: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        #: Virtual hosts whose deletion may not be over yet.
        self._deleting: list[str] = []
        #: One that was given back: its name, its number, and the process that empties it. There is
        #: one at most, because each makes a restart longer.
        self._spare: tuple[str, int, int] | None = None

    @property
    def url(self) -> str:
        """The default virtual host, as Celery and kombu write it."""
        return self.url_of("/")

    def add_vhost(self, name: str | None = None) -> str:
        """Add a virtual host that guest may use, and return its URL.

        Without a name, it may be one that was given back: empty but for Celery's delay queues.
        """
        if name is None and (spare := self._usable_spare()):
            return self.url_of(spare)
        name = name or f"v{next(self._numbers)}"
        vhost = binary(name)
        self.eval(
            f'ok = rabbit_vhost:add({vhost}, <<"tests">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, {vhost}, '
            '<<".*">>, <<".*">>, <<".*">>, <<"tests">>)'
        )
        return self.url_of(quote(name, safe=""))

    def delete_vhost(self, url: str) -> None:
        """Delete the virtual host behind a URL of `add_vhost`, in the background."""
        name = unquote(url.rpartition("/")[2])
        self._deleting.append(name)
        self.eval(f'spawn(fun() -> rabbit_vhost:delete({binary(name)}, <<"tests">>) end)')

    def give_back(self, url: str) -> None:
        """Empty the virtual host behind a URL of `add_vhost`, in the background, for another's use."""
        if self._spare is not None:
            self.delete_vhost(url)
            return
        name, number = unquote(url.rpartition("/")[2]), next(self._numbers)
        self.eval(spare_vhosts.emptying(binary(name), number))
        self._spare = (name, number, self.pid)

    def _usable_spare(self) -> str | None:
        """The one that was given back, if it is empty and without a client; else it is deleted."""
        if self._spare is None:
            return None
        name, number, pid = self._spare
        state = spare_vhosts.state(binary(name), number)
        if pid == self.pid:
            self._wait_for(
                lambda: spare_vhosts.UNDECIDED not in self.eval(state),
                self._running(),
                f"did not empty the virtual host {name}",
            )
            if self.eval(state) == spare_vhosts.USABLE:
                self._spare = None
                return name
        self._delete_spare()
        return None

    def _delete_spare(self) -> None:
        if self._spare is not None:
            url, self._spare = self.url_of(self._spare[0]), None
            self.delete_vhost(url)

    def add_user(
        self, name: str, url: str, *, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> str:
        """Add a user with these rights in the virtual host behind a URL; the URL for it, password and all.

        One that is there has these rights from now on.
        """
        vhost, rights = unquote(url.rpartition("/")[2]), (configure, write, read)
        self.set_password(name, name)
        self.eval(
            f"rabbit_auth_backend_internal:set_permissions({binary(name)}, {binary(vhost)}, "
            f'{", ".join(binary(each) for each in rights)}, <<"tests">>)'
        )
        return url.replace("guest:guest@", f"{name}:{name}@", 1)

    def set_password(self, name: str, password: str) -> None:
        """Have the user log in with this from now on; one that is not there yet is added."""
        self.eval(
            f"rabbit_auth_backend_internal:put_user(#{{name => {binary(name)}, "
            f'password => {binary(password)}, tags => <<"">>}}, <<"tests">>)'
        )

    def drop_connections(self) -> None:
        """Have the broker close every client's connection."""
        self.eval(
            '[catch rabbit_networking:close_connection(C, "dropped by a test") '  # it may be gone
            "|| C <- rabbit_networking:connections()]"
        )

    def lose_leader(self, url: str, queue: str) -> None:
        """Leave a stream with no leader, as a crash seconds after its making can."""
        vhost = unquote(url.rpartition("/")[2])
        name = f"rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})"
        # Who leads a new stream is written down a moment after it was declared, over what is gone.
        self._wait_for(
            lambda: self.eval(_LEADER_IS_WRITTEN_DOWN.format(name=name)) == "true",
            self._running(),
            f"did not write down who leads {queue}",
        )
        self.eval(f"mnesia:dirty_delete(rabbit_queue, {name})")

    @contextmanager
    def memory_alarm(self) -> Iterator[None]:
        """Keep the memory alarm raised, which blocks every connection that publishes."""
        before = self.eval("vm_memory_monitor:get_vm_memory_high_watermark()")
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)")
        # It is raised, and every connection has heard of it, once they have answered.
        self.eval(
            "[_ | _] = rabbit_alarm:get_alarms(), "
            "[catch rabbit_reader:info(Each, [state]) || Each <- rabbit_networking:connections()]"
        )
        try:
            yield
        finally:
            self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({before})")

    @contextmanager
    def consumer_timeout(self, seconds: float) -> Iterator[None]:
        """Have it close channels over messages that are unacknowledged for so long.

        It looks at a channel once in a tick, a minute by default.
        """
        names = ("channel_tick_interval", "consumer_timeout")
        before = [self.eval(f"element(2, application:get_env(rabbit, {name}))") for name in names]
        self._set(names, (500, int(seconds * 1000)))
        try:
            yield
        finally:
            self._set(names, before)

    def _set(self, names: Sequence[str], values: Sequence[object]) -> None:
        for name, value in zip(names, values, strict=True):
            self.eval(f"application:set_env(rabbit, {name}, {value})")

    def eval(self, expression: str) -> str:
        """Evaluate an Erlang expression in the node, and return its value as Erlang writes it."""
        shell = self._running().stdin
        assert shell is not None
        reply, written = self.folder / "reply", self.folder / "reply.written"
        # Renaming makes the reply appear whole or not at all.
        shell.write(
            f"(fun() -> Reply = try {{ok, begin {expression} end}} "
            "catch Kind:Reason -> {Kind, Reason} end, "
            f'ok = file:write_file("{reply}", io_lib:format("~0tp~n~0tp", '
            "[element(1, Reply), element(2, Reply)])), "
            f'ok = file:rename("{reply}", "{written}") end)().\n'.encode()
        )
        shell.flush()
        self._wait_for(written.exists, self._running(), f"did not evaluate `{expression}`")
        outcome, _, value = written.read_text().partition("\n")
        written.unlink()
        if outcome != "ok":
            raise RuntimeError(f"`{expression}` raised {outcome}: {value}")
        return value

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node, which takes a second, and return its output."""
        command = self._program("rabbitmqctl")
        return self._run([command, "--quiet", "--node", self._node(), *arguments])

    def kill(self) -> None:
        """End the node at once, as a crash does."""
        if self._process is not None and not self._paused:
            self._delete_spare()
            self._finish_deleting()
            complaint = "has a queue without a leader"
            self._wait_for(self._is_fit_to_crash, self._running(), complaint)
        super().kill()

    def close(self) -> None:
        """End the node and its epmd, and remove its data."""
        super().close()
        if self._epmd is not None:
            end(self._epmd, signal.SIGKILL)
            self._epmd = None

    def _prepare(self) -> None:
        self._distribution_port = free_port()
        (self.folder / "enabled_plugins").write_text("[].\n")
        # To translate a rabbitmq.conf takes a third of a second of CPU of every start.
        terms = ", ".join([_LOG, *self._configuration])
        (self.folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        # Reading what its sixty plugins and their libraries are takes it more, and has none enabled.
        (self.folder / "plugins").mkdir()
        for each in _BIN.parent.glob("lib/*/plugins/*"):
            if not each.name.startswith("rabbitmq_") or each.name.startswith("rabbitmq_prelaunch-"):
                (self.folder / "plugins" / each.name).symlink_to(each)
        self._hide_modules()
        self._start_epmd()

    def _hide_modules(self) -> None:
        """Describe Erlang's own applications without their modules, which a node would load at its start.

        It looks in every module of every application for its boot steps. None of these has one, and the
        two hundred modules would be a quarter of a start's CPU. What is called is loaded then.
        """
        (self.folder / "applications").mkdir()
        for name in _WITHOUT_BOOT_STEPS:
            for each in _ERLANG.glob(f"{name}-*/ebin/{name}.app"):
                description = _MODULES.sub("{modules, []}", each.read_text(), count=1)
                (self.folder / "applications" / each.name).write_text(description)

    def _start_epmd(self) -> None:
        self._epmd_port = free_port()
        # In the foreground and as our child; the one that a node starts outlives the node.
        self._epmd = self._spawn([program("epmd", "erlang-base")])
        self._wait_for(
            lambda: _listens(self._epmd_port), self._epmd, "has an epmd that did not answer"
        )

    def _command(self) -> Sequence[str | Path]:
        return [self._program("rabbitmq-server")]

    def _stdin(self) -> int:
        return subprocess.PIPE

    def _environment(self) -> Mapping[str, str]:
        folder = self.folder
        return {
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_ALLOW_INPUT": "true",  # the shell; and no process between us and the node
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(folder / "no-conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PLUGINS_DIR": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODENAME": self._node(),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            # Two schedulers, and none that spins while it has nothing to do: it shares the
            # machine with what it is there to test.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -start_epmd false "
                f"-pa {folder / 'applications'}"
            ),
            "TERM": "dumb",
        }

    def _answers(self) -> bool:
        """Whether it greets an AMQP client and every quorum queue has its leader.

        After a restart the greeting comes first, and the leaders half a second later.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(client.recv(1)) and self._has_leaders()

    def _finish_deleting(self) -> None:
        """Wait for virtual hosts to be gone: half of one is more than a node recovers from."""
        gone = " andalso ".join(
            f"not rabbit_vhost:exists({binary(each)})" for each in self._deleting
        )
        if gone:
            complaint = "did not delete its virtual hosts"
            self._wait_for(lambda: self.eval(gone) == "true", self._running(), complaint)
        self._deleting.clear()

    def _has_leaders(self) -> bool:
        return self.eval(self._leaders) == "true"

    def _is_fit_to_crash(self) -> bool:
        return self.eval(_DECLARE_NO_MORE.format(leaders=self._leaders)) == "true"

    def _node(self) -> str:
        return f"pos-gateway-{self.port}@localhost"

    def _program(self, name: str) -> Path:
        return program(name, self.package, _BIN)

    def url_of(self, vhost: str) -> str:
        """A virtual host's, whose name is quoted."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def binary(name: str) -> str:
    """A name as an Erlang binary that needs no quoting rules."""
    return f"<<{','.join(map(str, name.encode()))}>>"
