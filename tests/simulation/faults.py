"""Faults to plant in the product one at a time: each breaks one rule, which some seed must notice."""

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
        "processing.delivery",
        "if not claim.sending and not self._ledger.sending(claim, self._endpoint(merchant)):",
        "if False:",
    ),
    Fault(
        "a claim of an order with a past is not SENDING yet",
        "ledger.batch",
        "ticket, standing, sending=False",
        "ticket, standing, sending=True",
    ),
    Fault(
        "whoever was held up sends nothing more",
        "processing.call",
        "if not self._ledger.holds(claim):",
        "if False:",
        seed=44,
    ),
    Fault(
        "a lease is over for its holder before it is for others",
        "ledger.lease",
        "beat, beat.at + self.seconds - MARGIN",
        "beat, beat.at + 4 * self.seconds",
        seed=94,
    ),
    Fault(
        "nobody takes over from a worker that lives",
        "ledger.lease",
        "return self._silent_for(lease_id, 1)",
        "return True",
        seed=38,
    ),
    Fault(
        "a lease that is not known yet is looked for",
        "ledger.ledger",
        "if now - self._looked_at >= LOOK or not self._others.know(owners):",
        "if now - self._looked_at >= LOOK:",
        seed=528,
    ),
    Fault(
        "somebody takes over from a worker that is dead",
        "ledger.lease",
        "return self._silent_for(lease_id, 1)",
        "return False",
        seed=4,
    ),
    Fault(
        "who had a dead worker's order counts its deaths",
        "ledger.batch",
        "if others.may_have_died(row.owner):",
        "if False:",
        seed=9,
    ),
    Fault(
        "an order that its worker died sending is in doubt",
        "ledger.batch",
        "past = self._in_doubt(row)",
        "past = row.past",
        seed=15,
    ),
    Fault(
        "an order whose green thread was killed sending it is in doubt",
        "ledger.batch",
        "return self._in_doubt(row) if self._abandoned[row.ticket].sent else row.past",
        "return row.past",
        seed=7,
    ),
    Fault(
        "whether a killed green thread had sent is remembered",
        "processing.call",
        "sent=sending.begun)",
        "sent=False)",
        seed=7,
    ),
    Fault(
        "what a killed green thread had is given up",
        "ledger.ledger",
        "        if kind is not None:\n            self._ledger.abandon",
        "        if False:\n            self._ledger.abandon",
        seed=22,
    ),
    Fault(
        "an abandoned claim is one until it has been taken over for good",
        "ledger.batch",
        "self._resuming[ticket] = row.ticket\n        return self._in_doubt(row) if self._abandoned[row.ticket].sent",
        "return self._in_doubt(row) if self._abandoned.pop(row.ticket).sent",
        seed=459,
    ),
    Fault(
        "what is written under an earlier claim changes nothing",
        "ledger.statements",
        "_UNDER_CLAIM\n    + \" and orders.state in ('claimed', 'sending')\"",
        "_THIS",
        seed=3,
    ),
    Fault(
        "an order is taken over only as it was found",
        "ledger.batch",
        '"epoch": row.epoch,\n                    **_past(standing)',
        '"epoch": row.epoch + 1,\n                    **_past(standing)',
    ),
    Fault(
        "a claim that was written, and the answer lost, holds",
        "ledger.batch",
        "if row.ticket == ticket:",
        "if False:",
        seed=5,
    ),
    Fault(
        "an order that has come to its end is not begun again",
        "ledger.batch",
        "if row.state.is_final:",
        "if False:",
    ),
    Fault(
        "what is to be written waits for the database to be back",
        "ledger.commits",
        "self._waiting.extendleft(reversed(batch))",
        "pass",
        seed=3,
    ),
    Fault(
        "everybody gets the result of what he wrote",
        "ledger.batch",
        "return [results.get(id(each)) for each in operations]",
        "return list(results.values())",
    ),
    Fault(
        "a look-up is not believed before the POS had the time",
        "processing.delivery",
        "return max(0.0, longest - past.settled)",
        "return 0.0",
        seed=35,
    ),
    Fault(
        "the time that a POS has had is of no worker's time of day",
        "ledger.batch",
        "settling, now = past.settling, self._lease.clock()",
        "return replace(past, settled=self._now - past.doubt_since)",
        seed=256,
    ),
    Fault(
        "another worker's clock is not one's own",
        "ledger.batch",
        "settled = 0.0 if clock is None else max(0.0, clock - settling.since)",
        "settled = max(0.0, now - settling.since)",
        seed=136,
    ),
    Fault(
        "the time that a POS has had begins anew when it is sent the order again",
        "ledger.batch",
        "if claim.sending or claim.past.settling is None:",
        "if claim.past.settling is None:",
        seed=4,
    ),
    Fault(
        "whoever's clock stood still holds nothing any more",
        "ledger.lease",
        "return abs(self._clock.now().timestamp() - now - self._beaten.zero) >= STEP",
        "return False",
        seed=45,
    ),
    Fault(
        "a POS that can be asked is asked before an order in doubt is sent again",
        "processing.delivery",
        "if past.pending or ask_first or late:",
        "if past.pending or late:",
        seed=1,
    ),
    Fault(
        "an order that the POS has and has not decided about is not sent again",
        "processing.delivery",
        "if past.pending or ask_first or late:",
        "if ask_first or late:",
        seed=2,
    ),
    Fault(
        "an order in doubt at a POS that cannot be asked is not sent again",
        "processing.delivery",
        "if past.in_doubt and adapter.guarantee is Guarantee.BLIND:",
        "if False:",
    ),
    Fault(
        "an order that is too late and may be there is in doubt",
        "processing.delivery",
        "if past.may_be_there:\n        return Outcome(",
        "if False:\n        return Outcome(",
        seed=2,
    ),
    Fault(
        "an order that kills its workers is sent no more",
        "processing.delivery",
        "past.possible_deaths >= POISONOUS",
        "False",
        seed=9,
    ),
    Fault(
        "no reply leaves an order in doubt",
        "processing.call",
        "return Outcome(Kind.IN_DOUBT, Reason.of(error.code, error)",
        "return Outcome(Kind.RETRY, Reason.of(error.code, error)",
    ),
    Fault(
        "that the POS has an order is remembered",
        "processing.decision",
        "after = replace(past, pending=True, doubt_since=None)",
        "after = past",
        seed=2,
    ),
    Fault(
        "an order in doubt has not failed",
        "processing.decision",
        "FOLLOWS[outcome.kind][past.may_be_there]",
        "FOLLOWS[outcome.kind][False]",
        seed=766,
    ),
    Fault(
        "doubt is written down",
        "processing.decision",
        "doubt_since=self._at if newly or claim.sending else since",
        "doubt_since=None",
    ),
    Fault(
        "an attempt that came to nothing is followed by another",
        "processing.decision",
        "messages.append(self._again(delay, resolve=delay >= self._left))",
        "pass",
        seed=1,
    ),
    Fault(
        "what is cancelled before it was sent is never sent",
        "processing.decision",
        "self._entry(State.CANCELLED, submission)",
        "self._entry(State.NEW, submission)",
        seed=1,
    ),
    Fault(
        "a cancellation lets go of the order that it could not cancel",
        "processing.decision",
        "entries = self._let_go()",
        "entries: list[Any] = []",
        seed=5,
    ),
    Fault(
        "the POS has time to make an order before it is believed that there is none to cancel",
        "processing.cancellation",
        "if wait > 0:",
        "if False:",
        seed=35,
    ),
    Fault(
        "an outcome is written before it is told",
        "processing.gateway",
        "        with ExitStack() as claims:\n",
        "        self.store(decision.messages)\n        with ExitStack() as claims:\n",
        seed=3,
    ),
    Fault(
        "a message whose order somebody else has comes again",
        "processing.gateway",
        "                    return False",
        "                    return True",
        seed=659,
    ),
    Fault(
        "nothing is acknowledged before what follows from it is stored",
        "worker.dispatcher",
        "            is_ours = self._gate.settle(",
        "            request.tell_acknowledged()\n            is_ours = self._gate.settle(",
        seed=2,
    ),
    Fault(
        "an order that waits in the worker for its next attempt is not acknowledged",
        "worker.dispatcher",
        "            request.retry_here(again)\n",
        "            request.retry_here(again)\n            request.tell_acknowledged()\n",
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
        "a letter is there until its order is stored",
        "administration.replay",
        "        self._publish(plan.message.following(TraceContext.of(letter.headers)))\n"
        "        self._acknowledge(letter)",
        "        self._acknowledge(letter)\n"
        "        self._publish(plan.message.following(TraceContext.of(letter.headers)))",
        seed=21,
    ),
    Fault(
        "an operator decides when no worker sends any more",
        "administration.resolve",
        "if order.told != Kind.IN_DOUBT:",
        "if False:",
        seed=136,
    ),
    Fault(
        "an operator decides about the order that the merchant was asked about",
        "administration.resolve",
        "if self._since is not None and",
        "if False and",
        seed=1228,
    ),
    Fault(
        "an order that was to be cancelled is not sent after a decision",
        "administration.resolve",
        "if _is_unwanted(order):",
        "if False:",
        seed=105,
    ),
    Fault(
        "an order that no key opens is no traceback",
        "administration.resolve",
        "except CannotOpen as error:",
        "except ZeroDivisionError as error:",
        seed=813,
    ),
    Fault(
        "what comes of an order that is opened again is told anew",
        "ledger.order_admin",
        '"reopened": seen.reopened + 1',
        '"reopened": seen.reopened',
    ),
    Fault(
        "an order in doubt is asked for and sent where it may be",
        "processing.delivery",
        "if past.may_be_there and has_moved(past, merchant, adapter):",
        "if False:",
        seed=19,
    ),
    Fault(
        "a refusal says nothing of what was sent before",
        "processing.delivery",
        "if is_refused and past.in_doubt and not ask_first:",
        "if False:",
        seed=309,
    ),
    Fault(
        "which POS is sent an order is written before the first byte",
        "processing.delivery",
        "endpoint=None if merchant is None else self._endpoint(merchant),",
        "endpoint=None,",
    ),
    Fault(
        "an order is cancelled where it may be",
        "processing.cancellation",
        "if moved or is_blind:",
        "if is_blind:",
        seed=35,
    ),
    Fault(
        "an order that a POS says it has is not in doubt",
        "processing.decision",
        "after = replace(past, pending=True, doubt_since=None)",
        "after = replace(past, pending=True, doubt_since=past.doubt_since or 1.0)",
    ),
    Fault(
        "a request to cancel an order that asks for more time has it",
        "ledger.batch",
        "has_more_time and row.state in (State.EXPIRED, State.FAILED)",
        "False",
    ),
    Fault(
        "an order that was opened again can be cancelled again",
        "ledger.batch",
        "return row.is_overtaken or",
        "return",
    ),
    Fault(
        "a cancellation in doubt is looked up before its end is told",
        "processing.cancellation",
        "if not claim.past.in_doubt:",
        "if True:",
        seed=49,
    ),
    Fault(
        "an order that cannot be read here is cancelled where it can be",
        "processing.cancellation",
        'return Outcome(Kind.RETRY, Reason.of("secret_key"',
        'return Outcome(Kind.FAILED, Reason.of("secret_key"',
        seed=133,
    ),
]


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The product has the fault inside the block.

    The module is compiled anew, and every function of it runs the new code: so whoever holds one
    already has the fault too.
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
    """Give the old functions the new ones' code, and the old module the new one's texts."""
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
