"""``pos-gateway declare``: the broker's exchanges and queues."""

import click


@click.command()
def declare() -> None:
    """Declare the exchanges and queues that workers need, delays' too. Harmless if they are there.

    Its broker user (POS_GATEWAY_BROKER_URL) needs the rights configure, write and read; that of workers
    and servers then does without configure.

    \b
    Example:
      POS_GATEWAY_BROKER_URL=amqp://admin:secret@rabbit:5672/ pos-gateway declare
    """
    from pos_gateway.broker import topology
    from pos_gateway.broker.connection import AnsweredConnection
    from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS
    from pos_gateway.broker.unreachable import said_and_remedy
    from pos_gateway.domain.errors import BrokerUnavailable
    from pos_gateway.runtime.urls import mask_url
    from pos_gateway.settings import Settings

    url = Settings.from_environment().broker_url
    connection = AnsweredConnection(url, connect_timeout=CONNECT_TIMEOUT)
    try:
        connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
        topology.declare_all(connection)
        connection.release()
    except CONNECTION_ERRORS as error:
        why, remedy = said_and_remedy(str(error))
        raise BrokerUnavailable(f"cannot declare at {mask_url(url)}: {why}; {remedy}") from error
    finally:
        connection.collect(socket_timeout=1)
    click.echo(f"{mask_url(url)} has all exchanges and queues")
