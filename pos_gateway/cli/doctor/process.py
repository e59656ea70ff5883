"""A worker's resources on this machine: file descriptors and its metrics port."""

import resource
import socket
from collections.abc import Iterator

from pos_gateway.cli.doctor.finding import Finding, ok, warn
from pos_gateway.settings import Settings

#: Files open besides merchants' connections: broker, database, logs, the interpreter's.
_OTHER_FILES = 100


def check_files(settings: Settings) -> Iterator[Finding]:
    """Every slot may have a connection in use, and as many again are kept open for the next."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * settings.slots + _OTHER_FILES
    what = f"open files: {limit} allowed, {needed} needed for {settings.slots} slots"
    if limit == resource.RLIM_INFINITY or limit >= needed:
        yield ok(what)
    else:
        yield warn(what, f"ulimit -n {needed}, or lower POS_GATEWAY_SLOTS")


def check_metrics_port(settings: Settings) -> Iterator[Finding]:
    """A worker started now can serve its metrics."""
    host, port = settings.metrics_host, settings.metrics_port
    if not port:
        yield ok("metrics: off")
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
        except OSError as error:
            yield warn(
                f"metrics: port {port} of {host} cannot be used: {error.strerror}",
                "if that is no worker, set POS_GATEWAY_METRICS_HOST or POS_GATEWAY_METRICS_PORT (0 is off)",
            )
        else:
            yield ok(f"metrics: port {port} of {host} is free")
