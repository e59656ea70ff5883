"""A network namespace in which every address is this machine, with a listener on all of them.

Run inside a new network namespace: cases as JSON lines in, and for each the addresses that received
a connection, and the gateway's result.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from itertools import count
from typing import Any

from pos_gateway.runtime.addresses import networks, ports
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.resolver import STALE, Addresses, Resolver

PORTS = (80, 443, 6379, 8443)


def own_all_addresses() -> None:
    for command in (
        "link set lo up",
        "route add local 0.0.0.0/0 dev lo",
        "-6 route add local ::/0 dev lo",
    ):
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # these are not in every PATH
        subprocess.run(["ip", *command.split()], check=True, env={**os.environ, "PATH": path})


class Listener:
    """Accepts every connection to any address, at some ports; each is closed at once."""

    def __init__(self) -> None:
        self.came: list[str] = []
        for port in PORTS:
            server = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
            )
            threading.Thread(target=self._listen, args=(server,), daemon=True).start()

    def _listen(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                address = connection.getsockname()
                self.came.append(f"{address[0].removeprefix('::ffff:')} {address[1]}")
                # Only now may the client go on: its connection is in the list when it returns.
                connection.recv(1)


def play(case: dict[str, Any], listener: Listener) -> dict[str, Any]:
    """Send to the case's URL as often as its names have answers, long after one another."""
    answers = {name: list(each) for name, each in case.get("names", {}).items()}
    clock = count(step=STALE + 1)
    moment = next(clock)

    def look_up(host: str) -> Addresses:
        if host not in answers:
            return tuple(
                dict.fromkeys(
                    (family, address[0])
                    for family, _, _, _, address in socket.getaddrinfo(
                        host, None, type=socket.SOCK_STREAM
                    )
                )
            )
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return tuple((_family(address), address) for address in found)

    guard = Guard(
        networks=networks(case.get("networks", "")), ports=ports(case.get("ports", "443, 8443"))
    )
    resolver = Resolver(look_up, now=lambda: moment)
    said = []
    before = len(listener.came)
    for _ in range(case.get("times", 1)):
        transport = Transport(guard=guard, resolver=resolver)
        try:
            transport.send(Request("POST", case["url"], b"{}"), key="m", connections=1, seconds=3)
            said.append("a reply")
        except TransportError as error:
            said.append(f"{type(error).__name__} {error.code}")
        moment = next(clock)
    return {"came": listener.came[before:], "said": said}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


if __name__ == "__main__":
    own_all_addresses()
    listener = Listener()
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line), listener)), flush=True)
