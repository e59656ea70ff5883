"""Faults to plant in the product one at a time: each breaks a rule, and some seed must show it."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True)
class Fault:
    rule: str
    module: str
    right: str
    wrong: str
    #: The first seed that shows it; ``python -m tests.simulation --faults`` finds it anew.
    seed: int = 0


FAULTS = [
    Fault(
        "SENDING is durable before the first byte",
        "attempt.steps",
        "if known is None and not number:",
        "if False:",
    ),
    Fault(
        "a claim of an order with an attempt history is not SENDING yet",
        "ledger.batch",
        "self._claim(each, row.epoch + 1, standing)",
        "self._claim(each, row.epoch + 1, standing, sending=True)",
    ),
    Fault(
        "a worker that lost its lease sends nothing more",
        "attempt.call",
        "if not self._caller.ledger.holds(self._attempt.claims[0]):",
        "if False:",
        seed=44,
    ),
    Fault(
        "a lease expires for its holder before it does for others",
        "ledger.lease",
        "now >= beat.at + self.seconds - MARGIN:",
        "now >= beat.at + 4 * self.seconds:",
        seed=94,
    ),
    Fault(
        "no worker takes over from a live one",
        "ledger.lease",
        "return self._silent_for(lease_id, 1)",
        "return True",
        seed=38,
    ),
    Fault(
        "an unknown lease is read",
        "ledger.ledger",
        "if now - self._looked_at >= LOOK or not self._peers.know(owners):",
        "if now - self._looked_at >= LOOK:",
        seed=528,
    ),
    Fault(
        "a dead worker's orders are taken over",
        "ledger.lease",
        "return self._silent_for(lease_id, 1)",
        "return False",
        seed=4,
    ),
    Fault(
        "taking over a dead worker's order counts a death",
        "ledger.batch",
        "if others.may_have_died(row.owner):",
        "if False:",
        seed=9,
    ),
    Fault(
        "an order that its worker died sending is in doubt",
        "ledger.batch",
        "history = self._in_doubt(row)",
        "history = row.history",
        seed=15,
    ),
    Fault(
        "an order whose green thread was killed sending it is in doubt",
        "ledger.batch",
        "if not self._abandoned[row.ticket].sent:",
        "if True:",
        seed=7,
    ),
    Fault(
        "a killed green thread's sending is remembered",
        "attempt.spine",
        "sent=attempt.sent and number == 0)",
        "sent=False)",
        seed=3,
    ),
    Fault(
        "a killed green thread's claim is abandoned",
        "attempt.spine",
        "if not attempt.is_committed:",
        "if False:",
        seed=5,
    ),
    Fault(
        "a claim stays abandoned until its takeover is committed",
        "ledger.batch",
        "self._resuming[claiming.ticket] = row.ticket\n"
        "        if not self._abandoned[row.ticket].sent:",
        "if not self._abandoned.pop(row.ticket).sent:",
        seed=459,
    ),
    Fault(
        "a write under an earlier claim changes nothing",
        "ledger.statements",
        "_UNDER_CLAIM\n    + \" and orders.state in ('claimed', 'sending')\"",
        "_THIS",
        seed=3,
    ),
    Fault(
        "an order is taken over only if it is unchanged",
        "ledger.batch",
        '"epoch": row.epoch,\n                    **_history(standing)',
        '"epoch": row.epoch + 1,\n                    **_history(standing)',
    ),
    Fault(
        "a claim whose reply was lost holds",
        "ledger.batch",
        "if row.ticket == claiming.ticket:",
        "if False:",
        seed=5,
    ),
    Fault(
        "a terminal order is not claimed again",
        "ledger.batch",
        "if row.state.is_final:",
        "if False:",
    ),
    Fault(
        "a write waits for the database",
        "ledger.commits",
        "self._waiting.extendleft(reversed(batch))",
        "pass",
        seed=3,
    ),
    Fault(
        "every caller gets the result of its operation",
        "ledger.batch",
        "return [results.get(id(each)) for each in operations]",
        "return list(results.values())",
    ),
    Fault(
        "a look-up does not count before the settling time",
        "attempt.doubt",
        "return max(0.0, longest - history.settled)",
        "return 0.0",
        seed=35,
    ),
    Fault(
        "the settling time is not counted on a wall clock",
        "ledger.batch",
        "settling, now = history.settling, self._lease.clock()",
        "return replace(history, settled=self._now - history.doubt_since)",
        seed=947,
    ),
    Fault(
        "another worker's clock is not compared with the own one",
        "ledger.batch",
        "settled = 0.0 if clock is None else max(0.0, clock - settling.since)",
        "settled = max(0.0, now - settling.since)",
        seed=943,
    ),
    Fault(
        "the settling time restarts when the order is sent again",
        "ledger.batch",
        "if claim.sending or claim.history.settling is None:",
        "if claim.history.settling is None:",
        seed=4,
    ),
    Fault(
        "a worker whose clock stood still holds no claim",
        "ledger.lease",
        "return abs(self._clock.now().timestamp() - now - beat.zero) >= STEP",
        "return False",
        seed=45,
    ),
    Fault(
        "an order in doubt is looked up before it is sent again",
        "attempt.steps",
        "(history.pending or ask_first or self._attempt.late)",
        "(history.pending or self._attempt.late)",
        seed=1,
    ),
    Fault(
        "a pending order is not sent again",
        "attempt.steps",
        "(history.pending or ask_first or self._attempt.late)",
        "(ask_first or self._attempt.late)",
        seed=2,
    ),
    Fault(
        "an order in doubt at a POS without look-up is not sent again",
        "attempt.steps",
        "if step.look_up is None and history.may_be_there:",
        "if False:",
    ),
    Fault(
        "a step that is done is not taken again",
        "attempt.steps",
        "for number in range(place, len(self._steps)):",
        "for number in range(len(self._steps)):",
    ),
    Fault(
        "a step that is refused and stands is undone, too",
        "attempt.steps",
        "standing = number if stands else number - 1",
        "standing = number - 1",
        seed=12,
    ),
    Fault(
        "an order that is being undone goes on with that",
        "attempt.steps",
        "if history.step.is_undo:\n                return self._back",
        "if False:\n                return self._back",
    ),
    Fault(
        "every step of an order that has ended is undone",
        "attempt.steps",
        "        for number in range(place, -1, -1):\n"
        "            if self._steps[number].undo is COVERED:\n"
        "                continue\n"
        "            if history",
        "        for number in range(place, max(place - 1, -1), -1):\n"
        "            if self._steps[number].undo is COVERED:\n"
        "                continue\n"
        "            if history",
    ),
    Fault(
        "an order that is not undone has not ended",
        "attempt.steps",
        "return self._not_undone(number, outcome, because)",
        "return because",
    ),
    Fault(
        "an expired order that its POS may have is in doubt",
        "attempt.submit",
        "if not history.may_be_there:\n            return Outcome(Kind.EXPIRED",
        "if True:\n            return Outcome(Kind.EXPIRED",
        seed=7,
    ),
    Fault(
        "a poison order is sent no more",
        "attempt.submit",
        "history.possible_deaths >= POISONOUS",
        "False",
        seed=9,
    ),
    Fault(
        "no reply leaves an order in doubt",
        "attempt.call",
        "return Outcome(Kind.IN_DOUBT, reason, contact=_contact(error))",
        "return Outcome(Kind.RETRY, reason, contact=_contact(error))",
    ),
    Fault(
        "that the POS has an order is remembered",
        "attempt.decision",
        "after = replace(history, pending=True, doubt_since=None)",
        "after = history",
        seed=2,
    ),
    Fault(
        "an order in doubt has not failed",
        "attempt.decision",
        "FOLLOWS[outcome.kind][history.may_be_there]",
        "FOLLOWS[outcome.kind][False]",
        seed=766,
    ),
    Fault(
        "doubt is durable",
        "attempt.decision",
        "doubt_since=self.at if newly or claim.sending else since",
        "doubt_since=None",
    ),
    Fault(
        "a failed attempt is retried",
        "attempt.decision",
        "messages.append(again)",
        "pass",
        seed=1,
    ),
    Fault(
        "an order that is cancelled before it was sent is never sent",
        "attempt.decision",
        "self._entry(State.CANCELLED, submission)",
        "self._entry(State.NEW, submission)",
        seed=1,
    ),
    Fault(
        "a cancel request releases the order that it could not cancel",
        "attempt.decision",
        "entries = self._released_submission()",
        "entries: list[Any] = []",
        seed=5,
    ),
    Fault(
        "a cancel request's look-up does not count before the settling time",
        "attempt.cancel",
        "if wait > 0:",
        "if False:",
        seed=183,
    ),
    Fault(
        "an outcome is committed before its messages are published",
        "attempt.commit",
        "        for claim, entry in decision.entries:",
        "        self._store(decision.messages)\n        for claim, entry in decision.entries:",
        seed=1,
    ),
    Fault(
        "a message whose order is leased elsewhere is retried",
        "attempt.commit",
        "                return False",
        "                return True",
        seed=748,
    ),
    Fault(
        "a message is acknowledged after its follow-ups are stored",
        "worker.in_flight",
        "                if not self._spine.commit(attempt, follows):",
        "                request.tell_acknowledged()\n"
        "                if not self._spine.commit(attempt, follows):",
        seed=2,
    ),
    Fault(
        "a waiting retry is not acknowledged",
        "worker.in_flight",
        "            request.again = again  #",
        "            request.again = again\n            request.tell_acknowledged()  #",
        seed=3,
    ),
    Fault(
        "an order that was to be cancelled is not replayed",
        "administration.replay",
        "if order.cancellation is not None and would_be_sent:",
        "if False:",
        seed=3,
    ),
    Fault(
        "a dead letter is acknowledged after its replay is stored",
        "administration.replay",
        "        self._publish(plan.message.following(TraceContext.of(letter.headers)))\n"
        "        self._acknowledge(letter)",
        "        self._acknowledge(letter)\n"
        "        self._publish(plan.message.following(TraceContext.of(letter.headers)))",
        seed=21,
    ),
    Fault(
        "an operator's decision waits until no worker sends",
        "administration.resolve",
        "if order.last_event != Kind.IN_DOUBT:",
        "if False:",
        seed=136,
    ),
    Fault(
        "an order that was to be cancelled is not sent after a decision",
        "administration.resolve",
        "if _is_unwanted(order):",
        "if False:",
        seed=105,
    ),
    Fault(
        "an order that cannot be decrypted prints no traceback",
        "administration.resolve",
        "except CannotOpen as error:",
        "except ZeroDivisionError as error:",
        seed=813,
    ),
    Fault(
        "a reopened order has a new event",
        "ledger.order_admin",
        '"reopened": seen.reopened + 1',
        '"reopened": seen.reopened',
    ),
    Fault(
        "an order in doubt is looked up and sent at its endpoint",
        "attempt.submit",
        "if may_be_there and has_moved(history, merchant, adapter):",
        "if False:",
        seed=19,
    ),
    Fault(
        "a refusal says nothing about earlier attempts",
        "attempt.steps",
        "if is_refused and history.in_doubt and not was_asked:",
        "if False:",
        seed=309,
    ),
    Fault(
        "the endpoint is durable before the first byte",
        "attempt.submit",
        "            endpoint=where,",
        "            endpoint=None,",
    ),
    Fault(
        "an order is cancelled at its endpoint",
        "attempt.cancel",
        "if moved or is_blind:",
        "if is_blind:",
        seed=35,
    ),
    Fault(
        "a cancel request with a later deadline has it",
        "ledger.batch",
        "has_more_time and row.state in (State.EXPIRED, State.FAILED)",
        "False",
    ),
    Fault(
        "a cancellation in doubt is looked up before its outcome is recorded",
        "attempt.cancel",
        "if not claim.history.in_doubt:",
        "if True:",
        seed=49,
    ),
    Fault(
        "an unreadable order is cancelled by a worker that can read it",
        "attempt.cancel",
        'return Outcome(Kind.RETRY, Reason.of("secret_key"',
        'return Outcome(Kind.FAILED, Reason.of("secret_key"',
        seed=133,
    ),
    Fault(
        "an order that was undone is not replayed",
        "administration.replay",
        "if row.was_undone:",
        "if False:",
        seed=1,
    ),
    Fault(
        "a callback accepts no order before its last step",
        "ledger.callback_rules",
        "elif received.steps and meaning is Kind.ACCEPTED:",
        "elif False:",
        seed=1,
    ),
    Fault(
        "a callback ends no order that has ended",
        "ledger.callback_rules",
        "elif order.state.is_final:",
        "elif False:",
        seed=30,
    ),
    Fault(
        "callbacks that come in another order take no order back",
        "ledger.callback_rules",
        "if is_earlier or not to.is_after(order.lifecycle):",
        "if is_earlier or to is order.lifecycle:",
        seed=1,
    ),
]


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The product has the fault inside the block.

    The module is compiled anew, and its existing functions get the new code, so references to them
    have the fault, too.
    """
    module = importlib.import_module(f"pos_gateway.{fault.module}")
    source = inspect.getsource(module)
    if fault.right not in source:
        raise AssertionError(f"{fault.rule}: {fault.module} has no {fault.right!r} any more")
    faulty = ModuleType(module.__name__)
    faulty.__dict__["__file__"] = module.__file__
    text = source.replace(fault.right, fault.wrong, 1)
    exec(compile(text, module.__file__ or "", "exec"), faulty.__dict__)
    undo: list[Callable[[], None]] = []
    _graft(module, faulty, undo)
    try:
        yield
    finally:
        for each in undo:
            each()


def _graft(old: Any, new: Any, undo: list[Callable[[], None]]) -> None:
    """Give the old functions the new ones' code, and the old module the new one's strings."""
    for name, value in vars(new).items():
        known = vars(old).get(name)
        if isinstance(value, type) and isinstance(known, type):
            if value is not known and name != "__class__":  # its own, not imported
                _graft(known, value, undo)
        elif isinstance(value, str) and isinstance(old, ModuleType) and not name.startswith("__"):
            undo.append(partial(setattr, old, name, known))
            setattr(old, name, value)
        elif (function := _function(value)) and (before := _function(known)):
            undo.append(partial(setattr, before, "__code__", before.__code__))
            before.__code__ = function.__code__


def _function(value: Any) -> FunctionType | None:
    """The function beneath a property, a static method, a context manager."""
    value = value.fget if isinstance(value, property) else value
    value = getattr(value, "__func__", value)
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, FunctionType) else None
