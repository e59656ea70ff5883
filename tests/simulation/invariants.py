"""What is promised, held against what happened once nothing happens any more."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pos_gateway.ledger.states import State

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDS = ("accepted", "rejected", "cancelled", "expired", "failed")


def violated(world: "World") -> list[str]:
    """A sentence for each thing that is not as promised."""
    return list(_violated(world))


def _violated(world: "World") -> Iterator[str]:
    columns = "order_id, action, state, owner, told, reason_code, reason_message"
    rows = {
        (order_id, action): (State(state), owner, told, f"{code}: {message}")
        for order_id, action, state, owner, told, code, message in world.database.rows(
            f"select {columns} from orders"
        )
    }
    written = world.database.rows("select order_id, type from events order by id")
    for order_id in world.submitted:
        yield from (f"{order_id}: {each}" for each in _of_order(world, order_id, rows))
        told = [kind for whose, kind in written if whose == order_id]
        if not _is_sensible(told):
            yield f"{order_id}: events were written as {told}"
        if not any(kind in ENDS for kind in told) and rows[order_id, "submit"][0] not in _OPEN:
            yield f"{order_id}: no end was told"


_OPEN = (State.IN_DOUBT, State.PENDING)


def _of_order(world: "World", order_id: str, rows: Any) -> Iterator[str]:
    order = world.submitted[order_id]
    pos = world.poses[order.merchant_id]
    at_pos = pos.of(order_id)
    alive = [record for record in at_pos if record.is_alive]
    if len(at_pos) > 1:
        yield f"the POS made it {len(at_pos)} times"
    if (order_id, "submit") not in rows:
        yield "it has no row"
        return
    state, owner, told, reason = rows[order_id, "submit"]
    cancel = rows.get((order_id, "cancel"))
    match state:
        case State.ACCEPTED:
            let_go = cancel is not None and cancel[0] in (State.CANCELLED, State.EXPIRED)
            if not at_pos or not (alive or let_go):
                yield f"accepted, but the POS has {at_pos}"
        case State.REJECTED | State.CANCELLED | State.EXPIRED | State.FAILED:
            if alive:
                yield f"{state} ({reason}), but the POS has {alive}"
        case State.IN_DOUBT | State.PENDING:
            if told != "in_doubt":
                yield f"{state} with {told} told, and nobody goes on with it"
        case _:
            yield f"stuck as {state} with {owner}"
    if order_id in world.cancelled:
        if cancel is None:
            yield "the wish to cancel it has no row"
        elif not cancel[0].is_final:
            yield f"the wish to cancel it is stuck as {cancel[0]} with {cancel[1]}"
        elif "unknown_order" in cancel[3]:
            yield f"the wish to cancel it failed: {cancel[3]}"
        elif cancel[0] is State.CANCELLED and alive:
            yield f"it was cancelled, but the POS has {alive}"


def _is_sensible(kinds: list[str]) -> bool:
    """One end; before it what says that it is still open, after it what a cancel came to."""
    ends = [at for at, kind in enumerate(kinds) if kind in ENDS]
    if not ends:
        return True
    after = kinds[ends[0] + 1 :]
    if not after:
        return True
    return kinds[ends[0]] == "accepted" and after in (["cancelled"], ["accepted"])
