"""Operators that race orders with the real commands, each on a machine with its own clock.

A command takes the dead letters exclusively, may be killed at any place, and is then run again, as
its documentation says. A merchant's answer about an order in doubt is true: the operator asks once
the POS had its settling time, and the answer counts only for the order as it was shown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.administration.discard import Discard
from pos_gateway.administration.extend import Extension
from pos_gateway.administration.replay import Replay
from pos_gateway.administration.resolve import Resolution
from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import AdminError, OrderChanged, PosGatewayError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.split import Split
from pos_gateway.ledger import pruning
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.resealing import reseal, reseal_events
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.vault import Vault
from tests.simulation.broker import Publisher
from tests.simulation.clock import SKEW, MachineClock
from tests.simulation.pos import LONGEST
from tests.simulation.scheduler import Process
from tests.simulation.stepped_pos import SteppedPos

if TYPE_CHECKING:
    from tests.simulation.world import World

#: The commands, and their relative frequency.
COMMANDS = {
    "replay": 10,
    "resolve": 8,
    "extend": 3,
    "discard": 2,
    "cancel": 3,
    "submit": 2,
    "prune": 2,
    "rotate": 2,
    "edit": 3,
}
#: ``POS_GATEWAY_SECRET_KEY`` as an operator changes it while orders flow.
_OLD, _NEW = (f"{letter * 43}=" for letter in "AB")
KEYS = ("", _OLD, f"{_OLD},{_NEW}", f"{_NEW},{_OLD}")
#: What a command prints or fails with instead of doing it: another one may follow.
_SAID = (SQLAlchemyError, PosGatewayError)


class Letters:
    """The dead letters, while one command consumes them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._taken = dict(enumerate(world.broker.dead))
        world.broker.dead.clear()

    def __iter__(self) -> Any:
        for tag, message in list(self._taken.items()):
            yield DeadLetter.of(
                SimpleNamespace(
                    body=message.body,
                    headers=dict(message.headers),
                    properties={"message_id": message.message_id},
                    delivery_tag=tag,
                    channel=self,
                )
            )

    def acknowledge(self, letter: DeadLetter) -> None:
        self._world.scheduler.point("acknowledge", letter.id)
        del self._taken[letter.tag]

    def close(self) -> None:
        self._world.broker.dead[:0] = self._taken.values()
        self._taken = {}


@dataclass
class Command:
    """A running command; ``close`` releases its resources however it ends."""

    process: Process
    close: Callable[[], None] = lambda: None
    #: What is run again without a check if it is killed.
    again: "Callable[[Command, MachineClock], None] | None" = None


class Operators:
    """All operators; their plan follows from the seed alone."""

    def __init__(self, world: "World", seed: int) -> None:
        self._world, self._scheduler = world, world.scheduler
        self._plans = Random(f"operators {seed}")
        #: Commands that are planned or running.
        self.busy = 0
        self.running: list[Command] = []
        #: The current list of keys, and whether anything was encrypted with one.
        self.keys = 0
        self.has_pruned = False
        #: When the last one ends at the latest.
        self.until = 0.0
        self._number = 0

    def plan(self) -> None:
        """Plan commands at random moments of this run, if any."""
        plans = self._plans
        if plans.random() < 0.25:
            return
        self.keys = plans.choice((0, 0, 1))
        # Some runs plan only a few commands of these: rare races of the same two are not so rare
        # then.
        names = plans.sample(list(COMMANDS), plans.randint(1, len(COMMANDS)))
        weights = [COMMANDS[name] for name in names]
        for _ in range(plans.choice((4, 8, 16, 24))):
            name = plans.choices(names, weights)[0]
            spans = ((0, 60), (0, 60), (60, 900), (900, 6000))
            at = plans.choice([plans.uniform(*span) for span in spans])
            self._at(at, name, getattr(self, f"_{name}"))

    def sweep(self) -> bool:
        """Look for rows that broken-off commands left, as documented; whether there were any."""
        stuck = {
            Key(*row)
            for row in self._world.database.rows(
                "select merchant_id, order_id from orders where action = 'submit' and state = 'new'"
            )
        }
        letters = any(
            Key(letter.merchant_id or "", letter.order_id or "") in stuck
            for letter in self._letters_there()
        )
        if letters:
            self._at(
                0.0, "sweep", lambda command, clock: self._replay_all(command, clock, minutes=5)
            )
        for key in stuck:
            self._at(0.0, "sweep", lambda _, clock, key=key: self._not_sent_again(key, clock))
        return bool(stuck)

    def killed(self, process: Process) -> None:
        """A command died where it was."""
        command = next(each for each in self.running if each.process is process)
        self.running.remove(command)
        command.close()
        self.busy -= 1
        if command.again is not None and not process.is_alive:
            self._at(self._scheduler.random.uniform(0.1, 20), "again", command.again)

    # Commands.

    def _replay(self, command: Command, clock: MachineClock) -> None:
        random = self._scheduler.random
        self._wait_for(lambda: bool(self._world.broker.dead))
        minutes = random.choice((None, *(random.uniform(0.1, longest) for longest in (1, 10, 20))))
        self._replay_all(command, clock, minutes)

    def _replay_all(self, command: Command, clock: MachineClock, minutes: float | None) -> None:
        until = None if minutes is None else clock.now() + timedelta(minutes=minutes)
        letters = Letters(self._world)
        command.close = letters.close
        replaying = Replay(
            self._admin(clock),
            publish=self._publisher().publish,
            acknowledge=letters.acknowledge,
            operator=command.process.name,
            split=Split(),
            until=until,
            largest=262_144,
            dry_run=False,
            clock=clock,
        )
        for letter in letters:
            was_unwanted = self._is_unwanted(letter)
            self._scheduler.say(f"replays {letter.id} ({letter.code})")
            why_not = replaying.replay(letter)
            self._scheduler.say(f"{letter.id}: {why_not or 'replayed'}")
            if why_not is None and letter.order_id is not None:
                self._world.reopened[letter.order_id] = self._scheduler.time
            if why_not is None and was_unwanted:
                self._world.violations.append(f"{letter.id} is replayed, and was to be cancelled")

    def _resolve(self, command: Command, clock: MachineClock) -> None:
        """Show, wait, ask the merchant, decide; check that the order is still as it was shown."""
        random, order_admin = self._scheduler.random, self._admin(clock)
        doubtful = (State.IN_DOUBT, State.CLAIMED, State.SENDING)
        found: list[OrderStanding] = []

        def looks() -> bool:
            found[:] = [each for each in order_admin.orders(states=doubtful) if each.is_in_doubt]
            return bool(found)

        self._wait_for(looks)
        if not found:
            return
        seen = random.choice(sorted(found, key=lambda each: each.order_id))
        self._scheduler.sleep(LONGEST + random.choice((0, random.uniform(0, 60))))
        self._mend(seen.key)
        records = self._world.records(seen.order_id)
        has_it = any(record.status == "accepted" for record in records)
        is_undone = all(
            each.status == "cancelled" and each.decides_as != "cancelled" for each in records
        )
        if not has_it and not is_undone:
            return  # undecided, or turned down: the merchant will report it
        if any(record.by_hand for record in records) and not seen.was_made:
            return  # the POS had it, and the shop will report that
        until = None
        if not has_it and random.random() < 0.5:
            until = clock.now() + timedelta(seconds=random.choice((20, 120, 600)))
        self._scheduler.say(f"asks for {seen.order_id}: {'there' if has_it else 'not there'}")
        self._scheduler.sleep(random.choice((0, random.uniform(0, 30))))  # a long call
        since = random.choice((None, datetime.fromtimestamp(int(seen.updated_at), UTC)))
        decide = partial(self._decide, seen, has_it=has_it, until=until, since=since)
        if since is not None:
            command.again = decide
        for _ in range(random.choice((1, 1, 2))):
            decide(command, clock)

    def _mend(self, key: Key) -> None:
        """Have the merchant's people complete, or end, an order that is left to them in part."""
        world = self._world
        query = (
            "select step, told, reason_code from orders where order_id = ? and state = 'in_doubt'"
        )
        for step, told, code in world.database.rows(query, key.order_id):
            is_printing = str(step).endswith(" print") and told == "in_doubt"
            is_made = is_printing and self._scheduler.random.random() < 0.5
            for pos in world.poses.values():
                if isinstance(pos, SteppedPos) and (is_printing or code == "not_undone"):
                    (pos.complete if is_made else pos.end)(key.order_id)

    def _decide(
        self,
        seen: OrderStanding,
        command: Command,
        clock: MachineClock,
        *,
        has_it: bool,
        until: datetime | None,
        since: datetime | None,
    ) -> None:
        order_admin = self._admin(clock)
        publisher, name = self._publisher(), command.process.name
        resolving = Resolution(order_admin, publisher, name, Split(), clock, since=since)
        order = order_admin.one(seen.key)
        assert order is not None
        if since is None and (order.last_event, order.reopened) != (seen.last_event, seen.reopened):
            return  # without the command's check the operator must check: it is looked up again
        done = (
            resolving.accepted(order, f"by-{seen.order_id}" if seen.attempts % 2 else None)
            if has_it
            else resolving.not_sent(order, until)
        )
        self._scheduler.say(f"{order.order_id} {done}")
        self._world.reopened[order.order_id] = self._scheduler.time

    def _extend(self, command: Command, clock: MachineClock) -> None:
        order_admin = self._admin(clock)
        orders = order_admin.orders(states=(State.NEW, State.PENDING))
        if orders:
            order = self._scheduler.random.choice(sorted(orders, key=lambda each: each.order_id))
            until = clock.now() + timedelta(seconds=self._scheduler.random.choice((20, 120, 600)))
            done = Extension(order_admin, command.process.name, clock).extend(order, until)
            self._scheduler.say(f"{order.order_id} {done}")

    def _discard(self, command: Command, clock: MachineClock) -> None:
        self._wait_for(lambda: bool(self._world.broker.dead))
        letters = Letters(self._world)
        command.close = letters.close
        discarding = Discard(
            self._admin(clock), letters.acknowledge, command.process.name, False, clock=clock
        )
        for letter in letters:
            why_not = discarding.discard(letter)
            self._scheduler.say(f"{letter.id}: {why_not or 'discarded'}")

    def _not_sent_again(self, key: Key, clock: MachineClock) -> None:
        """The same command again, for an order that was resolved before."""
        order_admin = self._admin(clock)
        order = order_admin.one(key)
        if order is not None and order.state is State.NEW and order.reason_code == "resolved":
            Resolution(order_admin, self._publisher(), "sweep", Split(), clock).not_sent(
                order, None
            )

    def _cancel(self, _command: Command, clock: MachineClock) -> None:
        """The backend cancels an order, perhaps twice, the second time with a later deadline."""
        order_id = self._any_order()
        seconds = self._scheduler.random.choice((10, 120, 900))
        request = CancelRequest(
            order_id=order_id,
            merchant_id=self._world.submitted[order_id].merchant_id,
            deliver_by=clock.now() + timedelta(seconds=seconds),
        )
        self._world.note_cancel_request(request, self._scheduler.time)
        self._insist(wire.cancel_message(order_id, request.to_json(), routing_key="orders"))

    def _submit(self, _command: Command, _clock: MachineClock) -> None:
        """The backend submits an order again, whatever its outcome."""
        order = self._world.submitted[self._any_order()]
        self._insist(wire.submit_message(order.order_id, order.source, routing_key="orders"))

    def _prune(self, _command: Command, clock: MachineClock) -> None:
        random = self._scheduler.random
        self.has_pruned = True
        before = clock.now().timestamp() - random.uniform(1, 60)
        for emptied, removed, _ in pruning.prune(self._world.database.engine, before, batch=3):
            self._scheduler.say(f"empties {emptied}, removes {removed}")

    def _rotate(self, _command: Command, _clock: MachineClock) -> None:
        """Rotate the keys for workers that start from now on; finally encrypt everything anew."""
        if self.keys < len(KEYS) - 1:
            self.keys += 1
            return
        payloads = Payloads(Vault(KEYS[-1]))
        for reseal_some in (reseal, reseal_events):
            for done in reseal_some(self._world.database.engine, payloads, 3):
                self._scheduler.say(f"seals {done.sealed} of {done.looked_at} anew")
                if done.unopened:
                    self._world.violations.append(done.unopened[0])

    def _edit(self, _command: Command, _clock: MachineClock) -> None:
        """Move a merchant's orders to its other POS from now on."""
        edits = self._world.merchants[self._scheduler.random.choice([*self._world.merchants])]
        _, merchant = edits[-1]
        host = (
            f"{merchant.id}-2" if merchant.base_url.endswith(f"{merchant.id}/pos") else merchant.id
        )
        moved = Merchant(id=merchant.id, adapter=merchant.adapter, base_url=f"https://{host}/pos")
        self._scheduler.say(f"moves {merchant.id} to {host}")
        edits.append((self._scheduler.time, moved))

    # What they need.

    def secret_keys(self) -> str:
        """The keys of a process that starts now; a retired key may return in an old list."""
        return KEYS[max(0, self.keys - (self._scheduler.random.random() < 0.3))]

    def _at(
        self, at: float, name: str, do: Callable[[Command, MachineClock], None], again: int = 3
    ) -> None:
        self._number += 1
        self.busy += 1
        process = Process(f"operator-{self._number}")
        command = Command(process)
        plans = self._plans
        clock = MachineClock(
            self._scheduler,
            zero=plans.uniform(0, 1e6),
            skew=plans.choice((0.0, plans.uniform(-SKEW, SKEW))),
            stands_still=False,
        )

        def run() -> None:
            self._scheduler.sleep(at)
            self.running.append(command)
            self.until = self._scheduler.time
            try:
                do(command, clock)
            except _SAID as error:
                self._scheduler.say(f"FAILS: {error}")
                if again and not isinstance(error, AdminError | OrderChanged):
                    self._at(self._scheduler.random.uniform(1, 60), name, do, again - 1)
            if command in self.running:  # it was not killed
                self.killed(process)

        self._scheduler.spawn(process, name, run)

    def _admin(self, clock: MachineClock) -> OrderAdmin:
        return OrderAdmin(self._world.database.engine, Payloads(Vault(self.secret_keys())), clock)

    def _publisher(self) -> Publisher:
        return Publisher(self._world.broker, lambda: self._world.happens("confirm"))

    def _wait_for(self, it: Callable[[], bool]) -> None:
        """Poll a few times until there is work."""
        for _ in range(6):
            if it():
                return
            self._scheduler.sleep(self._scheduler.random.uniform(1, 200))

    def _any_order(self) -> str:
        return self._scheduler.random.choice(list(self._world.submitted))

    def _insist(self, message: Message) -> None:
        """Publish as a backend does: until it is confirmed."""
        while self._world.broker.is_away:
            self._scheduler.sleep(0.5)
        self._world.broker.store(message)

    def _is_unwanted(self, letter: DeadLetter) -> bool:
        query = (
            "select 1 from orders as cancel join orders as submission using (merchant_id, order_id) "
            "where order_id = ? and cancel.action = 'cancel' and submission.action = 'submit' "
            "and submission.state in ('failed', 'expired')"
        )
        is_order = letter.headers.get("task") == wire.SUBMIT_ORDER
        return is_order and bool(self._world.database.rows(query, letter.order_id))

    def _letters_there(self) -> list[DeadLetter]:
        letters = Letters(self._world)
        there = list(letters)
        letters.close()
        return there
