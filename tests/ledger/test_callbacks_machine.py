"""Attempts, look-ups, cancel requests and callbacks, in any order: what a backend is told of it.

Callbacks come twice, late, out of their order, about orders in any state, and contradict the POS's
replies. The rules are read from the events alone.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import partial

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine

from pos_gateway.database.schema import metadata
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Claim, Ended, Entry, EventRow, Key, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import DAY, Rows, Worker

KEYS = [Key("m", "o1"), Key("m", "o2")]
HERE = "the POS"
ENDS = [Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED]
TERMINAL = {kind.value for kind in ENDS}
SAID: list[Kind | Lifecycle] = [Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, *Lifecycle]
FORWARD = [each.value for each in Lifecycle]


class CallbackMachine(RuleBasedStateMachine):
    """In every history each order has one end, and its lifecycle goes forward."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        with engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
        self.rows = Rows(engine)
        self.workers = [Worker(engine) for _ in range(2)]
        self.ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, self.workers[0].clock)
        self.hands: list[tuple[Worker, Claim]] = []
        self.ends: dict[Key, str] = {}
        self.stored: set[str] = set()

    def teardown(self) -> None:
        self.every_order_ends_once()
        for each in self.workers:
            each._writer.close()
        self.ledger.close()

    # Workers

    @rule(place=st.integers(0, 1), key=st.sampled_from(KEYS), send=st.booleans())
    def claim(self, place: int, key: Key, send: bool) -> None:
        """An attempt, or a look-up."""
        worker = self.workers[place]
        claimed = worker.claim(key, send=send, endpoint=HERE, order=b"{}")
        if isinstance(claimed, Claim):
            self.hands.append((worker, claimed))
        elif isinstance(claimed, Ended):
            assert claimed.state == self.ends[key]

    @rule(n=st.integers(0, 9))
    def send(self, n: int) -> None:
        worker, claim = self._one(n)
        if claim is not None and not claim.sending and claim.key.action is Action.SUBMIT:
            sending = worker.sending(claim, HERE)
            self.hands[self.hands.index((worker, claim))] = worker, sending or claim

    @rule(n=st.integers(0, 9), kind=st.sampled_from([*ENDS, Kind.PENDING, Kind.IN_DOUBT, None]))
    def finish(self, n: int, kind: Kind | None) -> None:
        """The POS's reply, or that there was none."""
        worker, claim = self._one(n)
        if claim is None:
            return
        self.hands.remove((worker, claim))
        if claim.key.action is Action.CANCEL:
            self._finish_request(worker, claim, kind)
            return
        before = self.rows.order(claim.key)
        history = claim.history
        doubt = DAY if kind is Kind.IN_DOUBT else history.doubt_since if kind is None else None
        pending = kind is Kind.PENDING or (kind is None and history.pending)
        state = State(kind.value) if kind else State.NEW
        if kind is None and (doubt or pending):
            state = State.IN_DOUBT if doubt else State.PENDING
        entry = Entry(state, DAY, 1, doubt, pending, event=self._event(claim.key, kind))
        written = worker.finish(claim, entry)
        holds = before.epoch == claim.epoch and before.state in ("claimed", "sending")
        assert written is holds
        if written and kind in ENDS:
            assert claim.key not in self.ends
            self.ends[claim.key] = kind.value

    def _finish_request(self, worker: Worker, claim: Claim, kind: Kind | None) -> None:
        before = self.rows.order(claim.key)
        is_cancelled = kind is Kind.CANCELLED and self.ends.get(self._order(claim)) == "accepted"
        state = State.CANCELLED if is_cancelled else State.NEW
        event = self._event(claim.key, Kind.CANCELLED) if is_cancelled else None
        written = worker.finish(claim, Entry(state, DAY, 1, event=event))
        assert written is (before.epoch == claim.epoch and not State(before.state).is_final)

    @rule(place=st.integers(0, 1), key=st.sampled_from(KEYS), sent=st.booleans())
    def ask_to_cancel(self, place: int, key: Key, sent: bool) -> None:
        worker = self.workers[place]
        request = replace(key, action=Action.CANCEL)
        claimed = worker.claim(request, send=False, deliver_by=DAY + 900)
        if isinstance(claimed, Claim):
            sending = worker.sending(claimed) if sent else claimed
            assert sending is not None
            self.hands.append((worker, sending))

    @rule(n=st.integers(0, 9), sent=st.booleans())
    def kill_its_green_thread(self, n: int, sent: bool) -> None:
        worker, claim = self._one(n)
        if claim is not None:
            self.hands.remove((worker, claim))
            worker.abandon(claim, sent=claim.sending and sent)
            worker.clock.advance(3)
            worker.beat()

    @rule(place=st.integers(0, 1))
    def take_over(self, place: int) -> None:
        """The other worker stands still until its lease has expired."""
        worker = self.workers[place]
        for _ in range(5):
            worker.clock.advance(LEASE / 4)
            worker.beat()

    # The POS

    @rule(
        said=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from(SAID), st.integers(0, 3)),
            min_size=1,
            max_size=4,
        )
    )
    def callbacks(self, said: list[tuple[Key, Kind | Lifecycle, int]]) -> None:
        """A group of them; those with one number are the same message."""
        received = [
            Received(
                "rest",
                "m",
                Callback(f"{key.order_id}-{meaning}-{number}", meaning, key.order_id),
                {"m": (HERE,)},
            )
            for key, meaning, number in said
        ]
        before = {key: self.rows.order(key) for key in KEYS}
        events = len(self.rows.events())
        results = self.ledger.apply(received)
        assert len(self.rows.events()) - events == sum(len(each.events) for each in results)
        for each, applied in zip(received, results, strict=True):
            event_id = each.callback.event_id
            assert (applied.result is CallbackResult.DUPLICATE) is (event_id in self.stored)
            self.stored.add(event_id)
            assert bool(applied.events) is (applied.result is CallbackResult.APPLIED)
            assert each.key is not None
            row = before[each.key]
            if row is None or (row.state in ("new", "claimed") and not row.endpoint):
                may_be_there = row is not None and (row.doubt_since or row.pending)
                assert may_be_there or not applied.events, "it was never sent"
            [end, *_] = [*(kind for kind in applied.events if kind in ENDS), None]
            if end is not None and each.key not in self.ends:
                self.ends[each.key] = end.value
        for key, row in before.items():
            if row is not None and State(row.state).is_leased:
                ended = State(self.rows.order(key).state).is_final
                assert ended is (self.rows.order(key).epoch > row.epoch), "its claim is lost"

    # What has to hold

    @invariant()
    def an_order_has_one_end_and_goes_forward(self) -> None:
        for key in KEYS:
            told = self._told(key)
            ends = [each for each in told if each in TERMINAL]
            # A cancel request's end is its own: it comes after the order's.
            assert len(ends) <= 1 or ends == ["accepted", "cancelled"], told
            assert not {"accepted", "rejected"} <= set(ends), told
            row = self.rows.order(key)
            if row is not None:
                assert State(row.state).is_final is bool(ends), told
                assert self.ends.get(key) == (row.state if ends else None)
            after = [each for each in told if each in FORWARD]
            assert after == sorted(set(after), key=FORWARD.index), told
            if after:
                assert told.index("accepted") < told.index(after[0])
                assert row.lifecycle == after[-1]
            if "cancelled" in ends[1:]:
                assert told[-1] == "cancelled" or told[-1] == "cancelled_by_pos", told

    def every_order_ends_once(self) -> None:
        """Once all leases have expired, another worker looks up what is open."""
        last = self.workers[0]
        for _ in range(8):
            last.clock.advance(LEASE / 2)
            last.beat()
        for worker, claim in self.hands:
            if worker is last:
                last.abandon(claim, sent=claim.sending)
        self.hands.clear()
        for key in KEYS:
            claimed = last.claim(key, send=False)
            if isinstance(claimed, Claim):
                event = self._event(key, Kind.REJECTED)
                assert last.finish(claimed, Entry(State.REJECTED, DAY, 1, event=event))
                self.ends[key] = "rejected"
            assert sum(Counter(self._own(key)).values()) == 1
        self.an_order_has_one_end_and_goes_forward()

    def _one(self, n: int) -> tuple[Worker, Claim | None]:
        return self.hands[n % len(self.hands)] if self.hands else (self.workers[0], None)

    def _order(self, claim: Claim) -> Key:
        return replace(claim.key, action=Action.SUBMIT)

    def _told(self, key: Key) -> list[str]:
        return [row.type for row in self.rows.events() if row.order_id == key.order_id]

    def _own(self, key: Key) -> list[str]:
        """The order's own terminal events, without its cancel request's."""
        ids = {dehydrated(key, kind).id for kind in ENDS}
        return [row.type for row in self.rows.events() if row.event_id in ids]

    def _event(self, key: Key, kind: Kind | None) -> EventRow | None:
        """No decision records the same event twice."""
        if kind is None:
            return None
        event = dehydrated(key, kind)
        known = {row.event_id for row in self.rows.events()}
        return None if event.id in known else event


def test_what_a_backend_is_told_is_one_end_and_a_lifecycle(engine: Engine) -> None:
    is_slow = engine.dialect.name == "postgresql"
    run_state_machine_as_test(
        partial(CallbackMachine, engine),
        settings=settings(
            max_examples=int(os.environ.get("EXAMPLES", "24")) // (4 if is_slow else 1),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=list(Phase) if "SHRINK" in os.environ else [Phase.generate],
            derandomize=bool(os.environ.get("HUNT")),
            database=None,
        ),
    )
