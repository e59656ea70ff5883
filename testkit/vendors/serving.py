"""A simulated vendor on a loopback port: ``python -m testkit.vendors.serving VENDOR PORT OPTIONS``.

VENDOR is a package of ``testkit.vendors`` with a function ``simulator(clock, **options)``. Below
``/_/`` is the control channel of ``VendorServer``.
"""

import json
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from testkit.patience import PATIENCE
from testkit.vendors.http import Vendor, VendorRequest
from testkit.vendors.way import Carried, Trouble, Way, arrived, written
from testkit.vendors.webhooks import Notification, Webhooks

#: Seconds until a refused notification is delivered again.
_REDELIVERY = 0.2
#: Closing a socket that lingers for 0 seconds resets the connection.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Simulator(Vendor, Protocol):
    """A vendor with controls for tests."""

    #: A dataclass of settings.
    knobs: Any
    webhooks: Webhooks
    #: Acts of the shop, the vendor or an operator, by name; arguments and results are JSON.
    acts: Mapping[str, Callable[..., object]]

    def facts(self) -> object:
        """The truth, as JSON."""
        ...


class Played(Protocol):
    """What a server serves: requests, and a control channel. Safe from threads."""

    def carried(self, request: VendorRequest) -> Carried: ...

    def control(self, method: str, target: str, body: bytes) -> object:
        """Answer the control channel. Raises ValueError, TypeError or KeyError for a mistake."""
        ...


class Clock:
    """The time, moved ahead by a test."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the time ahead."""
        self._ahead += timedelta(seconds=seconds)


class _Played:
    """The simulator behind one lock, and the number of changes to the facts."""

    def __init__(self, simulator: Simulator, clock: Clock) -> None:
        self.simulator, self.way = simulator, Way(simulator)
        self.changed = threading.Condition()
        self.version = 0
        self._acts = {
            **simulator.acts,
            "advance": clock.advance,
            "trouble": lambda **trouble: self.way.troubles.append(Trouble(**trouble)),
        }

    def control(self, method: str, target: str, body: bytes) -> object:
        url = urlsplit(target)
        given = json.loads(body) if body else {}
        with self.changed:
            if method == "GET":
                after = int(parse_qs(url.query).get("after", ["-1"])[0])
                self.changed.wait_for(lambda: self.version > after, PATIENCE)
                return {"version": self.version, "facts": self.simulator.facts()}
            name = url.path.removeprefix("/_/")
            if name in ("knobs", "webhooks"):
                result: object = _set(getattr(self.simulator, name), given)
            else:
                result = self._acts[name](**given)
            self._change()
            return result

    def carried(self, request: VendorRequest) -> Carried:
        with self.changed:
            carried = self.way.carry(request)
            self._change()
            return carried

    def _change(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def deliver(self) -> None:
        """Deliver notifications, for ever; refused notifications again, after newer ones."""
        webhooks, again = self.simulator.webhooks, list[Notification]()
        while True:
            with self.changed:
                if again:
                    self.changed.wait(_REDELIVERY)
                    webhooks.pending += again
                self.changed.wait_for(lambda: webhooks.pending and not webhooks.held)
                taken = webhooks.take()
            statuses = [_posted(each, webhooks.timeout) for each in taken]
            with self.changed:
                answers = zip(taken, statuses, strict=True)
                again = [next_ for each in answers for next_ in webhooks.again(*each)]
                self._change()


def _set(target: Any, values: Mapping[str, object]) -> list[str]:
    """Set fields of a dataclass; returns the names. Raises ValueError for an unknown field."""
    assert is_dataclass(target)
    unknown = set(values) - {each.name for each in fields(target)}
    if unknown:
        raise ValueError(f"{type(target).__name__} has no {', '.join(sorted(unknown))}")
    for name, value in values.items():
        setattr(target, name, value)
    return list(values)


def _posted(notification: Notification, timeout: float) -> int:
    """The status of the subscriber's answer; 0 without an answer in time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url, headers, body, _ = notification
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    try:
        with opener.open(request, timeout=timeout) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def handler(played: Played) -> type[BaseHTTPRequestHandler]:
    """The handler of a server's connections."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # a reply in a single write
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.startswith("/_/"):
                self._control(body)
                return
            headers = dict(self.headers.items())
            reply, seconds = played.carried(arrived(self.command, self.path, headers, body))
            threading.Event().wait(seconds)
            if reply is None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                self.close_connection = True
            else:
                self._reply(reply.status, written(reply), reply.headers)

        def _control(self, body: bytes) -> None:
            try:
                result = played.control(self.command, self.path, body)
            except (ValueError, TypeError, KeyError) as error:
                self._reply(400, repr(error).encode(), {})
            else:
                self._reply(200, json.dumps(result).encode(), {})

        def _reply(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response_only(status)  # without a date: a vendor has its own
            length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in {**length, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):  # any method
                return self._handle
            raise AttributeError(name)

    return Handler


class VendorHTTPServer(ThreadingHTTPServer):
    """Serves each connection from a thread."""

    daemon_threads = True
    request_queue_size = 1024


def main(vendor: str, port: int, options: Mapping[str, Any]) -> None:
    """Serve until the process is ended."""
    clock = Clock()
    simulator = import_module(f"testkit.vendors.{vendor}").simulator(clock, **options)
    played = _Played(simulator, clock)
    threading.Thread(target=played.deliver, daemon=True).start()
    VendorHTTPServer(("127.0.0.1", port), handler(played)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
