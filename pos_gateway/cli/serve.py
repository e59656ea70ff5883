"""``pos-gateway serve``: the HTTP server."""

import os
from pathlib import Path

import click

from pos_gateway.cli.failure import Failure

_PEM = click.Path(exists=True, dir_okay=False, path_type=Path)


def _address(_ctx: click.Context, _param: click.Parameter, host: str) -> str:
    if not host.strip():  # else it would be all of them
        raise click.BadParameter("should be an address; 0.0.0.0 is every one of this machine")
    return host


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    callback=_address,
    help="Address to listen on.",
)
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: a free one."
)
@click.option("--certificate", type=_PEM, help="PEM file with its certificate, for TLS.")
@click.option("--key", type=_PEM, help="PEM file with the certificate's key.")
def serve(host: str, port: int, certificate: Path | None, key: Path | None) -> None:
    """Take orders over HTTP, and serve their events, until SIGTERM or Ctrl-C.

    For backends without AMQP. Any number may run beside the workers; none keeps anything but in
    broker and database. Every request needs a token: pos-gateway tokens create.

    \b
    Examples:
      pos-gateway tokens create backend --role backend > token
      pos-gateway serve
      curl -H "Authorization: Bearer $(cat token)" --json @order.json http://127.0.0.1:8080/v1/orders
      curl -H "Authorization: Bearer $(cat token)" http://127.0.0.1:8080/v1/events

    Exit code: 0. Requests in flight are finished first, for ten seconds at most; a second SIGTERM or
    Ctrl-C ends it at once.
    """
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together")
    if certificate is not None and key is not None:
        _require_pair(certificate, key)
    try:
        from pos_gateway.server.serving import listening
        from pos_gateway.server.serving import serve as run
    except ModuleNotFoundError as error:
        raise Failure(
            f"it needs the package {error.name}: pip install 'pos-gateway[worker]'"
        ) from None
    import structlog

    from pos_gateway.cli.database import database
    from pos_gateway.server.site import Site
    from pos_gateway.settings import Settings
    from pos_gateway.telemetry import log

    settings = Settings.from_environment()
    if settings.broker_url.startswith("memory:"):
        raise Failure(
            "POS_GATEWAY_BROKER_URL is memory:, the broker of one process: no worker would get the "
            "orders; name a RabbitMQ, or try pos-gateway demo --serve"
        )
    with database():
        pass  # says what is missing
    log.configure(lines=settings.log_buffer)
    log.report_crashes()

    def ready(address: str, bound: int) -> None:
        structlog.get_logger(__name__).info("server.listening", address=address, port=bound)

    try:
        listener = listening(host, port)
    except OSError as error:
        raise Failure(
            f"cannot listen at {host} port {port}: {_why(error)}; --port chooses another, 0 a free one"
        ) from None
    with listener:
        run(Site(settings), listener, certificate=certificate, key=key, on_ready=ready)


def _why(error: OSError) -> object:
    """The system's words for it; a name that was not found has a negative number, and its own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error


def _require_pair(certificate: Path, key: Path) -> None:
    import ssl

    def passphrase() -> str:
        raise Failure(
            f"--key {key} is encrypted, and a server asks for no passphrase; decrypt it: "
            f"openssl pkey -in {key} -out FILE"
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, passphrase)
    except ssl.SSLError as error:
        raise Failure(f"--certificate and --key are no certificate and its key: {error}") from None
    except OSError as error:
        raise Failure(f"--certificate or --key cannot be read: {error.strerror}") from None
