"""Parts a batch's body into its orders."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from pos_gateway.broker import wire
from pos_gateway.domain.http_limits import BATCH
from pos_gateway.server.problems import Problem

#: Maximum bytes and values of a batch in one list, which is parsed in one go: at worst 40 ms of the
#: event loop. A thread would take as long from it: the parser keeps the GIL.
_LIST_BYTES, _VALUES = 8 * 2**20, 100_000


def orders_in(body: bytes) -> Sequence[Any]:
    """A batch's orders: the lines' bytes, or the list's elements. Raises Problem."""
    if body.lstrip()[:1] == b"[":
        parts = body.count(b"{") + body.count(b"[")
        if len(body) > _LIST_BYTES or parts > wire.PARTS * 4 or body.count(b",") > _VALUES:
            detail = (
                f"a list has {_LIST_BYTES // 2**20} MiB and {_VALUES} values at most: send lines "
                "(application/x-ndjson)"
            )
            raise Problem(413, "too_many_values", detail)
        orders = json_of(body)
    else:
        if body.count(b"\n") > BATCH * 100:  # nearly all of them blank
            raise _batch_too_large()
        orders = [line for line in body.split(b"\n") if line.strip()]
    if not orders:
        raise Problem(400, "empty_batch", "the batch has no order")
    if len(orders) > BATCH:
        raise _batch_too_large()
    found: Sequence[Any] = orders
    return found


def _batch_too_large() -> Problem:
    return Problem(413, "too_many_orders", f"a batch has {BATCH} orders at most")


def json_of(body: bytes) -> Any:
    """The body's JSON. Raises Problem."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "not_json", f"the request's body is not JSON: {error}") from None
