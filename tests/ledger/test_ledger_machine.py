"""Workers that claim, send, finish, die, pause and lose connections, in any order.

Three workers share one database. A model has the result of each operation; what it cannot know
(whether a transaction was committed whose reply was lost) it reads in the rows.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pos_gateway.database.engine import open_database
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger import commits
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.lease import BEAT, LEASE
from pos_gateway.ledger.states import Claim, Ended, Entry, Key, LeasedElsewhere, State
from tests.ledger.breaking import BreakingCommit
from tests.ledger.lab import DAY, Rows, Worker
from tests.schema import make_tables

KEYS = [Key("m", "o1"), Key("m", "o2")]
PLACES = 3
#: Seconds that callers wait for the database; with a fault they would wait for ever.
TIMEOUT = 10.0
#: What a transaction may meet: nothing, an error before it or after it, and a long wait.
BREAKS = st.sampled_from([None, None, None, ("before", 0.0), ("after", 0.0), ("after", LEASE)])


@dataclass(eq=False)
class Attempt:
    """An attempt: what it did, and what it knows."""

    worker: Worker
    key: Key
    #: None: it never received its claim.
    claim: Claim | None
    sending: bool
    sent: bool = False
    #: Its green thread was killed, or gave up.
    abandoned: bool = False
    abandoned_at: float = 0.0
    #: The lease of its claim.
    owner: str = ""


@dataclass
class Known:
    """The state that an order's row must have."""

    epoch: int = 0
    state: State | None = None
    holder: Attempt | None = None
    doubt: bool = False
    pending: bool = False
    attempts: int = 0
    deaths: int = 0
    taken_from: frozenset[str] = frozenset()
    #: When a byte of it may have left last, if it is in doubt.
    doubt_at: float = 0.0
    told: set[str] = field(default_factory=set)


_template: list[Path] = []


def template() -> Path:
    """A file with the schema."""
    if not _template:
        path = Path(tempfile.mkdtemp(prefix="ledger-")) / "template.db"
        engine = open_database(f"sqlite:///{path}")
        make_tables(engine)
        engine.dispose()
        _template.append(path)
    return _template[0]


class LedgerMachine(RuleBasedStateMachine):
    """In every history, an order has one worker at a time, and every sent order is remembered."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-", dir=memory))
        url = f"sqlite:///{shutil.copy(template(), self.folder / 'ledger.db')}"
        self.engine = open_database(url)
        self.rows = Rows(self.engine)
        self.model = {key: Known() for key in KEYS}
        self.hands: list[Attempt] = []
        self.asleep: set[int] = set()
        #: Paused workers whose machine's clock stands still with them.
        self.suspended: set[int] = set()
        self.time = 0.0
        self.workers: list[Worker] = []
        self.timeout = commits.RETRY_AFTER, module.CLAIM_TIMEOUT
        commits.RETRY_AFTER = (0.0, 0.0)

    @initialize()
    def begin(self) -> None:
        self.workers = [Worker(self.engine) for _ in range(PLACES)]

    def teardown(self) -> None:
        self.no_order_is_lost()
        commits.RETRY_AFTER, module.CLAIM_TIMEOUT = self.timeout
        for worker in self.workers:
            worker._writer.close()
        self.engine.dispose()
        shutil.rmtree(self.folder)

    # What an attempt does

    @rule(place=st.integers(0, PLACES - 1), key=st.sampled_from(KEYS), send=st.booleans())
    def claim(self, place: int, key: Key, send: bool) -> None:
        self._claim(self.workers[place], key, send=send)

    @rule(
        place=st.integers(0, PLACES - 1),
        key=st.sampled_from(KEYS),
        send=st.booleans(),
        met=BREAKS,
        gives_up=st.booleans(),
    )
    def claim_in_an_outage(
        self, place: int, key: Key, send: bool, met: tuple[str, float] | None, gives_up: bool
    ) -> None:
        worker, began = self.workers[place], self.time
        self._meet(worker, met)
        module.CLAIM_TIMEOUT = 0.0 if gives_up else TIMEOUT
        try:
            self._claim(worker, key, send=send, may_lapse=met is not None)
        except LedgerUnavailable:
            self._find_out_about_a_claim(worker, key, began)

    def _claim(self, worker: Worker, key: Key, *, send: bool, may_lapse: bool = False) -> None:
        known, began = self.model[key], self.time
        result = worker.claim(key, send=send)
        if known.state is not None and known.state.is_final:
            assert isinstance(result, Ended)
            assert result.state is known.state
            return
        holder = known.holder
        if isinstance(result, LeasedElsewhere):
            assert holder is not None, "no attempt has it"
            assert holder.worker is not worker or not holder.abandoned, "it was given up"
            return
        assert isinstance(result, Claim)
        history = result.history
        if holder is not None:
            self._taken_over(key, holder, worker, at=began)
        if result.epoch == known.epoch + 2:  # it was claimed without a reply, and the lease expired
            assert may_lapse
            known.epoch, known.state = known.epoch + 1, State.CLAIMED
        assert (history.in_doubt, history.pending) == (known.doubt, known.pending)
        assert history.attempts == known.attempts
        if history.in_doubt:
            assert history.settled <= self.time - known.doubt_at + 1e-6, "its POS had less time"
        self._find_out_about_deaths(key)
        assert (history.deaths, set(history.taken_from)) == (known.deaths, known.taken_from)
        assert result.sending is (send and known.state is None)
        known.epoch += 1
        assert result.epoch == known.epoch
        assert worker.holds(result), "a claim is not its worker's"
        attempt = Attempt(worker, key, result, result.sending, owner=result.owner)
        known.holder = attempt
        known.state = State.SENDING if result.sending else State.CLAIMED
        self.hands.append(attempt)

    def _taken_over(self, key: Key, holder: Attempt, taker: Worker, *, at: float) -> None:
        """What the new owner must know of the old one."""
        known = self.model[key]
        if holder.worker is taker:
            assert holder.abandoned, "it was taken from a green thread of the same worker"
            if holder.sent:
                known.doubt, known.doubt_at = True, at
            return
        if holder in self.hands:
            assert holder.claim is not None
            assert not holder.worker.holds(holder.claim), "it was taken from its holder"
        if holder.sending:
            known.doubt, known.doubt_at = True, at
        # A released lease is no death, nor one that is unknown by now, nor one whose worker was
        # seen to go on under a later one, at the new owner's last read.
        owner = holder.owner
        if owner in (leases := self.rows.leases()):
            seen = {*leases, *taker._peers._seen}
            row = self.rows.order(key)
            is_noted = owner in (row.taken_from or "").split() or row.deaths > known.deaths
            assert is_noted or any(_is_later(each, owner) for each in seen)
        known.taken_from |= {owner}

    def _find_out_about_deaths(self, key: Key) -> None:
        """A worker that is silent for long has died; one that went on, or stopped, has not."""
        known, row = self.model[key], self.rows.order(key)
        taken_from = frozenset((row.taken_from or "").split())
        assert taken_from <= known.taken_from
        assert 0 <= row.deaths - known.deaths <= len(known.taken_from - taken_from)
        if row.deaths > known.deaths:
            awake = {w for place, w in enumerate(self.workers) if place not in self.asleep}
            lively = [w for w in awake if self._beat_lately(w)]
            gone = known.taken_from - taken_from
            of_the_living = {each for each in gone for w in lively if w.lease.is_ours(each)}
            assert len(gone - of_the_living) >= row.deaths - known.deaths, "it lives"
        known.deaths, known.taken_from = row.deaths, taken_from

    def _beat_lately(self, worker: Worker) -> bool:
        return worker.lease.holds(worker.lease.id)

    def _find_out_about_a_claim(self, worker: Worker, key: Key, began: float) -> None:
        """Whether a claim without a reply was committed."""
        known, row = self.model[key], self.rows.order(key)
        if row is None or row.epoch == known.epoch:
            return
        assert row.epoch == known.epoch + 1
        if known.holder is not None:
            self._taken_over(key, known.holder, worker, at=began)
        self._find_out_about_deaths(key)
        known.epoch, known.state = row.epoch, State(row.state)
        is_sending = known.state is State.SENDING
        known.holder = Attempt(worker, key, None, is_sending, abandoned=True, owner=row.owner)

    def _find_out_about_releases(self) -> None:
        """Whether renewals have released abandoned claims."""
        for key, known in self.model.items():
            row, holder = self.rows.order(key), known.holder
            if row is None or row.epoch == known.epoch:
                continue
            assert (row.epoch, row.owner) == (known.epoch + 1, None)
            assert holder is not None
            assert holder.abandoned, "it was released, and a green thread has it"
            known.epoch, known.holder = row.epoch, None
            if holder.sent:
                known.doubt, known.doubt_at = True, holder.abandoned_at
            is_open = State.PENDING if known.pending else State.NEW
            known.state = State.IN_DOUBT if known.doubt else is_open

    @rule(n=st.integers(0, 9), met=BREAKS)
    def mark_as_sending(self, n: int, met: tuple[str, float] | None) -> None:
        attempt = self._attempt(n)
        if attempt is None or attempt.claim is None or attempt.sending:
            return
        module.CLAIM_TIMEOUT = TIMEOUT
        known = self.model[attempt.key]
        self._meet(attempt.worker, met)
        sending = attempt.worker.sending(attempt.claim)
        assert (sending is not None) is (known.holder is attempt)
        if sending is not None:
            attempt.claim, attempt.sending, known.state = sending, True, State.SENDING
        else:
            self.hands.remove(attempt)

    @rule(n=st.integers(0, 9))
    def send(self, n: int) -> None:
        """The first byte, if the fence allows it."""
        attempt = self._attempt(n)
        if attempt is None or attempt.claim is None or not attempt.sending:
            return
        if attempt.worker.holds(attempt.claim):
            assert self.model[attempt.key].holder is attempt, "another attempt has it"
            attempt.sent = True

    @rule(
        n=st.integers(0, 9),
        kind=st.sampled_from(["accepted", "rejected", "expired", "pending", "in_doubt", "new"]),
        met=BREAKS,
        gives_up=st.booleans(),
    )
    def finish(self, n: int, kind: str, met: tuple[str, float] | None, gives_up: bool) -> None:
        attempt = self._attempt(n)
        if attempt is None or attempt.claim is None:
            return
        known, state = self.model[attempt.key], State(kind)
        in_doubt, pending = state is State.IN_DOUBT, state is State.PENDING
        event = None if state is State.NEW else dehydrated(attempt.key, Kind(kind))
        if event is not None and event.id in known.told:  # no decision records it twice
            event = None
        entry = Entry(
            state, DAY, known.attempts + 1, DAY if in_doubt else None, pending, event=event
        )
        self.hands.remove(attempt)
        began = self.time
        self._meet(attempt.worker, met)
        try:
            with attempt.worker.using(attempt.claim):
                timeout = 0.0 if gives_up else TIMEOUT
                written = attempt.worker.finish(attempt.claim, entry, timeout=timeout)
        except LedgerUnavailable:
            row = self.rows.order(attempt.key)
            written = row.epoch == attempt.claim.epoch and row.state == state
            attempt.abandoned, attempt.sent = True, attempt.claim.sending
            attempt.abandoned_at = self.time
        else:
            assert written is (known.holder is attempt)
        if written:
            known.holder, known.state = None, state
            if in_doubt and (attempt.claim.sending or not known.doubt):
                known.doubt_at = began
            known.doubt, known.pending = in_doubt, pending
            known.attempts = entry.attempts
            known.told |= set() if event is None else {event.id}

    @rule(n=st.integers(0, 9))
    def kill_its_green_thread(self, n: int) -> None:
        attempt = self._attempt(n)
        if attempt is not None and attempt.claim is not None:
            attempt.worker.abandon(attempt.claim, sent=attempt.sent)
            attempt.abandoned, attempt.abandoned_at = True, self.time
            self.hands.remove(attempt)

    # What a worker does, and time

    @rule(place=st.integers(0, PLACES - 1))
    def beat(self, place: int) -> None:
        if place not in self.asleep:
            self.workers[place].beat()

    @rule(place=st.integers(0, PLACES - 1))
    def kill(self, place: int) -> None:
        self._replace(place)

    @rule(place=st.integers(0, PLACES - 1), is_done=st.booleans())
    def stop(self, place: int, is_done: bool) -> None:
        """It releases its lease, perhaps while a green thread still has a claim."""
        worker = self.workers[place]
        worker.close()
        for attempt in self.hands:
            if attempt.worker is worker and attempt.claim is not None:
                assert not worker.holds(attempt.claim), "its lease was given back"
        self._replace(place, keep=not is_done)

    @rule(place=st.integers(0, PLACES - 1), stands_still=st.booleans())
    def pause_or_continue(self, place: int, stands_still: bool) -> None:
        """Perhaps with its machine, whose monotonic clock may stand still then."""
        self.suspended -= {place}
        if place not in self.asleep and stands_still:
            self.suspended |= {place}
        self.asleep ^= {place}

    @rule(seconds=st.sampled_from([0.1, 1.0, BEAT, 5.9, 6.1, LEASE]))
    def time_passes(self, seconds: float) -> None:
        """And no worker does anything."""
        self._advance(seconds)

    @rule(times=st.integers(1, 6))
    def time_passes_with_renewals(self, times: int) -> None:
        """The workers that run renew their leases."""
        for _ in range(times):
            self._advance(BEAT)
            for place, worker in enumerate(self.workers):
                if place not in self.asleep:
                    worker.beat()

    @rule(place=st.integers(0, PLACES - 1), hours=st.sampled_from([-1, 1]))
    def step_the_time_of_day(self, place: int, hours: int) -> None:
        self.workers[place].clock.of_day += hours * 3600

    def _advance(self, seconds: float) -> None:
        self.time += seconds
        still = {self.workers[place].clock for place in self.suspended}
        clocks = {each.clock for each in self.workers} | {each.worker.clock for each in self.hands}
        for clock in clocks - still:
            clock.advance(seconds)
        for clock in still:
            clock.of_day += seconds

    def _replace(self, place: int, *, keep: bool = False) -> None:
        gone = self.workers[place]
        gone._writer.close()
        if not keep:
            self.hands = [each for each in self.hands if each.worker is not gone]
        self.workers[place] = Worker(self.engine)
        self.asleep.discard(place)
        self.suspended.discard(place)

    def _attempt(self, n: int) -> Attempt | None:
        """An attempt whose worker runs."""
        awake = [
            each
            for each in self.hands
            if not any(self.workers[place] is each.worker for place in self.asleep)
        ]
        return awake[n % len(awake)] if awake else None

    def _meet(self, worker: Worker, met: tuple[str, float] | None) -> None:
        if met is not None:
            when, seconds = met
            BreakingCommit(worker, when).then = lambda: self._advance(seconds)

    # What has to hold

    @invariant()
    def an_order_is_one_attempts_at_a_time(self) -> None:
        for key, known in self.model.items():
            holding = [
                each
                for each in self.hands
                if each.key == key and each.claim is not None and each.worker.holds(each.claim)
            ]
            assert all(each is known.holder for each in holding), "two have it, or the wrong one"

    @invariant()
    def the_rows_are_as_the_model_has_them(self) -> None:
        self._find_out_about_releases()
        for key, known in self.model.items():
            row = self.rows.order(key)
            if row is None:
                assert known.epoch == 0
                continue
            assert (row.epoch, row.state) == (known.epoch, known.state)
            assert (row.doubt_since is not None) == known.doubt

    @invariant()
    def each_event_is_recorded_once_with_its_outcome(self) -> None:
        told = [row.event_id for row in self.rows.events()]
        assert len(told) == len(set(told))
        assert set(told) == set().union(*(known.told for known in self.model.values()))

    def no_order_is_lost(self) -> None:
        """When all workers are dead, a new one gets every order that is not terminal."""
        for place in range(len(self.workers)):
            self._replace(place)
        if not self.workers:
            return
        module.CLAIM_TIMEOUT = TIMEOUT
        last = self.workers[0]
        last.beat()
        last.clock.advance(LEASE)
        last.beat()
        for key, known in self.model.items():
            before = known.epoch
            self._claim(last, key, send=True)
            assert known.epoch > before or (known.state is not None and known.state.is_final)


def _is_later(lease: str, than: str) -> bool:
    """Whether it is a later lease of the same worker."""
    (worker, _, number), (other, _, before) = lease.rpartition("-"), than.rpartition("-")
    return worker == other and int(number) > int(before)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = hypothesis_settings(
    max_examples=int(os.environ.get("EXAMPLES", "24")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # An example of forty steps can be read; shrinking it takes longer than a run of all tests.
    phases=list(Phase) if "SHRINK" in os.environ else [Phase.generate],
    derandomize=bool(os.environ.get("HUNT")),
    database=None,
)
