"""Run the simulated merchants: ``python -m pos_gateway.simulated_merchants``."""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import ssl
import sys
from pathlib import Path

from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.orders import NEAR
from pos_gateway.simulated_merchants.scenario import Scenario
from pos_gateway.simulated_merchants.server import MerchantServer

_STOPS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Listen, say where in one line of JSON, and play until SIGTERM or SIGINT."""
    arguments = _parser().parse_args()
    try:
        scenario = Scenario.read(arguments.scenario) if arguments.scenario else Scenario()
    except ScenarioError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    _allow_many_connections()
    # A full collection walks every order that is kept, and the pause would pass for a merchant's
    # latency. What becomes garbage here is young (asyncio leaves a cycle for each connection).
    gc.set_threshold(2000, 10, 1_000_000)
    asyncio.run(_serve(scenario, arguments))
    for number in _STOPS:  # the interpreter, ending, puts handlers back to what kills
        signal.signal(number, signal.SIG_IGN)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pos_gateway.simulated_merchants", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one")
    parser.add_argument("--seed", type=int, default=0, help="what all chances come from")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="who behaves how, as JSON")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key")
    parser.add_argument("--keep-bodies", action="store_true", help="keep each order's last body")
    parser.add_argument(
        "--near", type=int, default=NEAR, help="orders in memory; the others are in a file"
    )
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process ends")
    return parser


async def _serve(scenario: Scenario, arguments: argparse.Namespace) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending already
            loop.call_soon_threadsafe(stopped.set)

    for number in _STOPS:
        # Not the loop's own handlers, which end with it: a second signal would then kill.
        signal.signal(number, stop)
    if arguments.parent:
        _stop_with(arguments.parent, stopped)
    server = MerchantServer(
        scenario,
        seed=arguments.seed,
        host=arguments.host,
        port=arguments.port,
        tls=_tls(arguments.tls_cert, arguments.tls_key),
        keep_bodies=arguments.keep_bodies,
        near=arguments.near,
    )
    async with server:
        print(json.dumps({"port": server.port}), flush=True)
        await stopped.wait()


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def _stop_with(parent: int, stopped: asyncio.Event) -> None:
    """Stop when the process ends, however it ends: no server stays behind a killed test run."""
    if not hasattr(os, "pidfd_open"):
        return  # only Linux has it; elsewhere a killed starter leaves the server behind
    try:
        process = os.pidfd_open(parent)  # readable once the process is no more
    except ProcessLookupError:
        stopped.set()
    else:
        asyncio.get_running_loop().add_reader(process, stopped.set)


def _allow_many_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS has a limit below the one that it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
