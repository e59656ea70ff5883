"""Writes orders and cancel requests into the outbox, in the backend's own transaction."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pos_gateway.client.orders import CANCEL_FOR, require_submittable
from pos_gateway.client.outbox.connections import adapted
from pos_gateway.client.outbox.table import CHANNEL, TABLE, Dialect
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.runtime import failpoints
from pos_gateway.settings import setting

SUBMIT, CANCEL = "submit", "cancel"

_INSERT = f"insert into {TABLE} (action, merchant_id, order_id, body) values (?, ?, ?, ?)"
#: In one round trip. PostgreSQL sends one notification a transaction, when it commits.
_INSERT_AND_NOTIFY = (
    f"with added as ({_INSERT} returning id) select pg_notify('{CHANNEL}', '') from added"
)


def add(
    connection: Any,
    order: Order | Mapping[str, Any],
    *,
    notify: bool = True,
    max_order_bytes: int | None = None,
) -> None:
    """Submit the order if the transaction commits, and not if it is rolled back.

    Nothing leaves the database here: a relay submits the order.

    Args:
        connection: the one that the backend's other writes go through, in their transaction: an
            SQLAlchemy connection or session, Django's ``connection``, or one of psycopg, PyMySQL
            or sqlite3.
        order: the order.
        notify: have PostgreSQL wake relays at the commit. False where thousands of transactions
            commit a second: PostgreSQL commits those that notify one after the other.
        max_order_bytes: maximum bytes of an order's message, as in the workers. Default:
            ``POS_GATEWAY_MAX_ORDER_BYTES``.

    Raises:
        InvalidOrder: as ``OrderClient.submit``.
        NotInTransaction: the connection is in autocommit.
        TypeError: it is no such connection.
    """
    parsed = Order.parse(order)
    require_submittable(parsed, datetime.now(UTC), setting("max_order_bytes", max_order_bytes))
    _write(connection, SUBMIT, parsed.merchant_id, parsed.order_id, parsed.source, notify)


def cancel(
    connection: Any,
    order_id: str,
    merchant_id: str,
    *,
    deliver_by: datetime | None = None,
    notify: bool = True,
) -> None:
    """Request the order's cancellation if the transaction commits.

    It is submitted after what the outbox has of the same order.

    Args:
        connection: as ``add`` has it.
        order_id, merchant_id: which order.
        deliver_by: until when to try, with its offset; default: ``CANCEL_FOR`` from now.
        notify: as ``add`` has it.

    Raises:
        InvalidOrder: an id or ``deliver_by`` is invalid.
        NotInTransaction, TypeError: as ``add``.
    """
    until = deliver_by or datetime.now(UTC) + CANCEL_FOR
    request = CancelRequest.parse(
        {"order_id": order_id, "merchant_id": merchant_id, "deliver_by": until}
    )
    _write(connection, CANCEL, merchant_id, order_id, request.to_json(), notify)


def _write(
    connection: Any, action: str, merchant_id: str, order_id: str, body: bytes, notify: bool
) -> None:
    own = adapted(connection)
    own.require_transaction()
    notifies = notify and own.dialect is Dialect.POSTGRESQL
    statement = _INSERT_AND_NOTIFY if notifies else _INSERT
    own.execute(statement, (action, merchant_id, order_id, body))
    failpoints.reach("outbox.added")
