"""The invariants, checked against the run's history once everything has ended."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from pos_gateway.domain.outcome import Kind, Lifecycle, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.runtime.vault import Vault
from tests.simulation.operators import KEYS

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDS = ("accepted", "rejected", "cancelled", "expired", "failed")


def violated(world: "World") -> list[str]:
    """A sentence for each violated invariant."""
    return list(_violated(world))


def _violated(world: "World") -> Iterator[str]:
    columns = "merchant_id, order_id, action, state, owner, told, reason_code, reason_message"
    columns += ", reopened, generation, deliver_by"
    payloads = Payloads(Vault(KEYS[-1]))
    rows = {}
    for (
        *of,
        state,
        owner,
        told,
        code,
        message,
        reopened,
        generation,
        deliver_by,
    ) in world.database.rows(f"select {columns} from orders"):
        merchant_id, order_id, action = of
        key = Key(merchant_id, order_id, Action(action))
        reason = payloads.open_reason(key, Reason(f"{code}", message or ""))
        why = f"{reason.code}: {reason.message}"
        rows[order_id, action] = _Row(
            State(state), owner, told, why, reopened, generation, deliver_by
        )
    for order_id in world.submitted:
        yield from (f"{order_id}: {each}" for each in _of_order(world, order_id, rows))
        yield from (f"{order_id}: {each}" for each in _of_events(world, order_id, rows))


class _Row(NamedTuple):
    state: State
    owner: str | None
    told: str | None
    reason: str
    #: How often it was reopened.
    reopened: int
    #: Of a cancel request: its order's generation.
    generation: int | None
    deliver_by: float | None


_NONE = _Row(State.NEW, None, None, "", 0, None, None)


_OPEN = (State.IN_DOUBT, State.PENDING)


def _of_order(world: "World", order_id: str, rows: Any) -> Iterator[str]:
    at_pos = world.records(order_id)
    alive = [record for record in at_pos if record.is_alive]
    is_known = not world.operators.has_pruned  # else it was undone, and is replayed
    if len(at_pos if is_known else alive) > 1:
        yield f"the POS made it {len(at_pos)} times"
    for record in at_pos:
        yield from record.wrongs
        if record.too_late and is_known:
            yield f"after an undo it was asked for {record.too_late}"
    if (order_id, "submit") not in rows:
        yield "it has no row"
        return
    state, owner, told, reason, reopened, *_ = rows[order_id, "submit"]
    cancel = rows.get((order_id, "cancel"))
    match state:
        case State.ACCEPTED:
            is_whole = any(record.status == "accepted" for record in at_pos)
            let_go = order_id in world.transport.unanswered or any(e.by_hand for e in at_pos)
            if cancel is not None:  # the last says that the POS has a part of it
                let_go |= cancel.state is State.CANCELLED or "not_undone" in cancel.reason
            if not at_pos or not (is_whole or let_go):
                yield f"accepted, but the POS has {at_pos}"
        case State.REJECTED | State.CANCELLED | State.EXPIRED | State.FAILED:
            if alive:
                yield f"{state} ({reason}), but the POS has {alive}"
        case State.IN_DOUBT | State.PENDING:
            if told != "in_doubt":
                yield f"{state} with {told} told, and no worker has it"
        case _:
            yield f"stuck as {state} with {owner}"
    if order_id in world.cancelled:
        came, latest = map(max, zip(*world.cancelled[order_id], strict=True))
        if cancel is None:
            yield "its cancel request has no row"
        elif not cancel.state.is_final:
            yield f"its cancel request is stuck as {cancel.state} with {cancel.owner}"
        elif "unknown_order" in cancel.reason and not world.operators.has_pruned:
            yield f"its cancel request failed: {cancel.reason}"
        elif cancel.state is State.FAILED and "secret_key" in cancel.reason:
            yield "its cancel request failed where there was no key, and others have it"
        elif cancel.state is State.CANCELLED and alive:
            yield f"it was cancelled, but the POS has {alive}"
        elif cancel.state is State.EXPIRED and cancel.deliver_by < latest:
            yield f"its cancel request expired at {cancel.deliver_by}, and holds until {latest}"
        elif came > world.reopened.get(order_id, inf) and (cancel.generation or 0) < reopened:
            yield "its cancel request came after it was reopened, and was taken for an earlier one"


def _of_events(world: "World", order_id: str, rows: Any) -> Iterator[str]:
    """Each generation of an order has at most one terminal event, and the last one is its row's.

    A generation ends when an operator reopens the order. Only failed, expired and in-doubt orders
    are reopened; and only an accepted order may be cancelled after that.
    """
    query = "select type, event_id from events where order_id = ? order by id"
    key = Key(world.submitted[order_id].merchant_id, order_id)
    known = {
        dehydrated(replace(key, action=action), Kind(kind), reopened=number).id: (number, action)
        for action in Action
        for number in range(1 + rows.get((order_id, action), _NONE).reopened)
        for kind in (*ENDS, "pending", "in_doubt")
    }
    stages = {
        dehydrated(key, stage, reopened=number).id: stage
        for number in range(1 + rows.get((order_id, "submit"), _NONE).reopened)
        for stage in Lifecycle
    }
    told = [
        (kind, *known.get(event_id, (-1, None)))
        for kind, event_id in world.database.rows(query, order_id)
        if event_id not in stages
    ]
    yield from _of_stages([kind for kind, _ in world.database.rows(query, order_id)])
    if any(action is None for _, _, action in told):
        yield f"events have ids of no generation: {told}"
        return
    of_order = [(number, kind) for kind, number, action in told if action is Action.SUBMIT]
    if [number for number, _ in of_order] != sorted(number for number, _ in of_order):
        yield f"events of a generation after those of the next: {told}"
    row = rows.get((order_id, "submit"))
    if row is None:
        return
    for number in range(row.reopened + 1):
        kinds = [kind for of, kind in of_order if of == number]
        ends = [kind for kind in kinds if kind in ENDS]
        if len(ends) > 1 or (ends and kinds[-1] != ends[0]):
            yield f"generation {number} was told as {kinds}"
        if number < row.reopened:
            if (ends or kinds[-1:]) not in (["failed"], ["expired"], ["in_doubt"]):
                yield f"generation {number}, told as {kinds}, was opened again"
        elif ends != ([row.state] if row.state.is_final else []):
            yield f"it is {row.state}, told as {kinds}"
    later = [kind for kind, _, action in told if action is Action.CANCEL]
    if later and (row.state is not State.ACCEPTED or {*later[:-1]} - {"accepted"}):
        yield f"after its end {row.state} it was told as {later}"


def _of_stages(told: list[str]) -> Iterator[str]:
    """A lifecycle goes forward, behind the acceptance."""
    stages = [kind for kind in told if kind in list(Lifecycle)]
    if stages != sorted(set(stages), key=list(Lifecycle).index):
        yield f"its lifecycle was told as {stages}"
    if stages and "accepted" not in told[: told.index(stages[0])]:
        yield f"{stages[0]} was told before it was accepted: {told}"
