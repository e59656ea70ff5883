"""Publishes a batch of rows through the backend's client, and sorts them by their results."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pos_gateway.client.outbox.adding import CANCEL, SUBMIT
from pos_gateway.client.outbox.store import PendingRow, RefusedRow
from pos_gateway.client.protocols import SubmittingClient
from pos_gateway.domain.errors import FieldError, InvalidOrder, MessageTooLarge, OrderDiffers
from pos_gateway.domain.order import CancelRequest, Order

#: Seconds after which the rest of a batch's cancel requests, which go one by one, waits for the next
#: batch: the database ends a transaction that takes a minute.
LONGEST = 20.0
#: The row itself is at fault: the same again has the same result.
_REFUSALS = (InvalidOrder, OrderDiffers, MessageTooLarge)


@dataclass(slots=True)
class Published:
    """The results of a batch."""

    #: The gateway has confirmed them.
    confirmed: list[int] = field(default_factory=list)
    #: They can never be published.
    refused: list[RefusedRow] = field(default_factory=list)
    #: They may or may not be stored, and are published again.
    unconfirmed: list[PendingRow] = field(default_factory=list)
    #: Why they are not confirmed.
    problem: str = ""

    def note(self, row: PendingRow, error: Exception | None) -> None:
        """Note the result of a row."""
        if error is None:
            self.confirmed.append(row.id)
        elif isinstance(error, _REFUSALS):
            self.refused.append(RefusedRow(row.id, _sentence(error)))
        else:
            self.unconfirmed.append(row)
            self.problem = _sentence(error)


def _sentence(error: Exception) -> str:
    """The error in words that a log and every database take: a reply that it quotes may be any text.

    PostgreSQL's texts have no NUL, and no encoding has surrogates.
    """
    text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\0")


def publish(
    client: SubmittingClient,
    rows: Sequence[PendingRow],
    clock: Callable[[], float] = time.monotonic,
) -> Published:
    """Publish the rows, of which an order has one at most; or some, if they take long."""
    published, ends = Published(), clock() + LONGEST
    _submit(client, [row for row in rows if row.action == SUBMIT], published)
    for row in (row for row in rows if row.action != SUBMIT):
        if clock() >= ends and (published.confirmed or published.unconfirmed):
            break
        if published.unconfirmed:  # the gateway is away: each would take the client's timeout
            published.unconfirmed.append(row)
            continue
        try:
            if row.action != CANCEL:
                raise InvalidOrder([FieldError("action", "should be submit or cancel", row.action)])
            request = CancelRequest.parse_json(row.body)
            _require_of(row, request)
            client.cancel(row.order_id, row.merchant_id, deliver_by=request.deliver_by)
        except Exception as error:  # noqa: BLE001  (as below)
            published.note(row, error)
        else:
            published.note(row, None)
    return published


def _require_of(row: PendingRow, body: Order | CancelRequest) -> None:
    """Raises InvalidOrder unless it is the row's order, by whose ids rows follow one another."""
    errors = [
        FieldError(name, f"should be that of its row, {of_row!r}", of_body)
        for name, of_row, of_body in (
            ("order_id", row.order_id, body.order_id),
            ("merchant_id", row.merchant_id, body.merchant_id),
        )
        if of_row != of_body
    ]
    if errors:
        raise InvalidOrder(errors)


def _submit(client: SubmittingClient, rows: Sequence[PendingRow], published: Published) -> None:
    orders: list[tuple[PendingRow, Order]] = []
    for row in rows:
        try:
            order = Order.parse_json(row.body)
            _require_of(row, order)
        except InvalidOrder as error:  # added by another version, or in another language
            published.note(row, error)
        else:
            orders.append((row, order))
    if not orders:
        return
    errors: Sequence[Exception | None]
    try:
        # Its deliver_by may have passed in the outbox: the order's event says so.
        results = client.submit_many([order for _, order in orders], again=True)
        errors = [each.error for each in results]
    except Exception as error:  # noqa: BLE001
        # Any error: a row that always raises one must not hold up the others for ever.
        errors = [error] * len(orders)
    for (row, _), each in zip(orders, errors, strict=True):
        published.note(row, each)
