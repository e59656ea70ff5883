"""No reply crashes an adapter, and none says more than it does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.judge import contradicted, shown
from pos_gateway.adapters.testing.mishaps import (
    INGRESS,
    LOSSES,
    Case,
    answering,
    mistyped,
    statuses,
    unreadable,
)
from pos_gateway.adapters.testing.stand import Run, Stand, attempt, numbered, without
from pos_gateway.adapters.testing.wire import Mishap
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.transport.exchange import Reply

_FOUND = frozenset({Kind.ACCEPTED, Kind.PENDING, Kind.CANCELLED})
_OPEN = frozenset({Kind.IN_DOUBT, Kind.RETRY, Kind.FAILED})
_NONE = (
    "return no_answer(reply), or in_doubt(…), for whatever is not the POS's word about the order"
)


class ReadsReplies(Stand):
    """Each reply, in place of each reply that an order gets."""

    def test_each_status_has_an_outcome(self) -> None:
        self._judge(lambda _: statuses(self.adapter.limits), "A status alone decides as it must.")

    def test_a_success_that_cannot_be_read_is_in_doubt(self) -> None:
        self._judge(unreadable, "Anything short of one complete, valid reply is in doubt.")

    def test_a_reply_that_says_nothing_about_the_order_is_in_doubt(self) -> None:
        if not self.no_answers:
            raise without("no_answers: give the replies of your POS that leave the order open")
        self._judge(lambda _: self._no_answers(), "A reply that leaves the order open is in doubt.")

    def test_a_reply_of_wrong_types_is_no_crash_and_no_refusal(self) -> None:
        order, healthy, found = self.an_order(), self.healthy(), list[str]()
        for number, name in numbered(healthy):
            for mishap in mistyped(healthy.wire.replies[number]):
                run = self.run(order, {number: mishap})
                outcome, raised = attempt(partial(self.forward, run))
                where = f"{name} answered with {mishap.name}"
                if raised:
                    found.append(f"{where} raises {raised}")
                elif outcome is not None:
                    found += [f"{where}: {each}" for each in self._contradicted(run, outcome)]
                found += [f"{where}: {each}" for each in run.odd]
        demand(
            "A value of another type in a reply raises nothing, and ends no order that the POS has.",
            found,
            "decision(STATES, state, id) takes any values; compare types before using a value",
        )

    def test_a_reply_about_another_order_is_not_believed(self) -> None:
        """Of the first step: a later one's reply may name no order."""
        step, found = self.steps[0], list[str]()
        one, two = (self.run(self.an_order(number)) for number in (1, 2))
        for each in (one, two):
            step.run(each.walker.order, self.merchant, {}, each.wire)
        for number, name in numbered(one):
            mine, theirs = (each.wire.replies[number] for each in (one, two))
            if theirs is None or mine is None or mine.body == theirs.body:
                continue
            other = answering("a reply about another order", theirs, is_done=True)
            run, order = self.run(self.an_order(), {number: other}), self.an_order()
            outcome, raised = attempt(lambda: step.run(order, self.merchant, {}, run.wire))  # noqa: B023
            is_last = len(run.wire.requests) == number + 1
            if raised or (is_last and (outcome is None or outcome.kind not in _OPEN)):
                found.append(f"{name} answered with another order: {raised or shown(outcome)}")
        demand(
            "A reply is about this order, or in doubt.",
            found,
            "compare our reference, or the POS's id, in each reply with the order's",
        )

    def test_each_refusal_of_the_poss_own_is_a_rejection_with_its_reason(self) -> None:
        if not self.refusals:
            raise without(
                "refusals: give the refusals of your POS, with the codes of their reasons"
            )
        healthy, found = self.healthy(), list[str]()
        number = self._creating(healthy)
        for reply, code in self.refusals:
            mishap = answering("a refusal", reply, is_done=False)
            run = self.run(healthy.walker.order, {number: mishap})
            outcome, raised = attempt(partial(self.forward, run))
            said = outcome.reason if outcome is not None else None
            if (
                raised
                or said is None
                or (outcome and outcome.kind, said.code) != (Kind.REJECTED, code)
            ):
                found.append(f"{_shown(reply)}: {raised or shown(outcome)}, and not {code}")
            found += run.odd
        demand(
            "A refusal is REJECTED with its reason.",
            found,
            "look for the POS's error before its order, whatever the status: rejected(code, words)",
        )

    def test_too_many_requests_are_retried_when_the_pos_says(self) -> None:
        order, healthy, found = self.an_order(), self.healthy(), list[str]()
        number = self._creating(healthy)
        for value, seconds in (
            ("21", 21.0),
            ("0", 1.0),
            ("99999999", 900.0),
            ("soon", None),
            ("", None),
        ):
            reply = Reply(429, {"retry-after": value} if value else {}, b"")
            mishap = answering("a 429", reply, is_done=False)
            outcome, raised = attempt(partial(self.forward, self.run(order, {number: mishap})))
            if raised or outcome is None or outcome.retry_after != seconds:
                when = raised or (outcome and outcome.retry_after)
                found.append(
                    f"a 429 with Retry-After {value!r} waits for {when}, and not {seconds}"
                )
            elif outcome.contact is not CallResult.OVERLOADED:
                found.append(f"a 429 has the contact {outcome.contact}, and not OVERLOADED")
        demand(
            "A 429 is RETRY, after the seconds that the POS asks for.",
            found,
            "return by_status(reply, limits.unprocessed)",
        )

    def test_a_look_up_without_an_answer_is_in_doubt_and_never_none(self) -> None:
        found = list[str]()
        for number, step in enumerate(self.steps):
            if step.guarantee is not Guarantee.BLIND:
                found += self._unanswered(number)
        demand("None from a look-up means that the POS has never heard of the order.", found, _NONE)

    def test_an_undo_without_an_answer_has_not_cancelled(self) -> None:
        healthy = self.healthy()
        before = len(healthy.wire.requests)
        if self.cancelled(healthy).kind is not Kind.CANCELLED:
            raise without("the POS cancels nothing")
        kept, found = healthy.wire.replies[self._creating(healthy)], list[str]()
        for number in range(before, len(healthy.wire.requests)):
            for case in self._cases(healthy.wire.replies[number], kept):
                run = self.healthy()
                run.wire.mishaps[number] = case.mishap
                outcome, raised = attempt(run.walker.cancel)
                is_last = len(run.wire.requests) == number + 1
                # A reason says what is left at the POS.
                ended = outcome and (outcome.kind, outcome.reason)
                said = is_last and ended == (Kind.CANCELLED, None)
                if raised or run.odd or (said and case.mishap.name not in _ABSENT):
                    each = raised or shown(outcome)
                    found.append(
                        f"request {number + 1}, {case.mishap.name}: {each} {run.odd or ''}"
                    )
        demand(
            "CANCELLED is the POS's word, and nothing less.",
            found,
            "read the reply to a cancellation as you read that to an order",
        )

    def _judge(self, cases: Callable[[Reply | None], Iterator[Case]], promise: str) -> None:
        """Put each case in the place of each reply of an order's way."""
        __tracebackhide__ = True
        order, healthy, found, remedy = self.an_order(), self.healthy(), list[str](), ""
        for number, name in numbered(healthy):
            for case in cases(healthy.wire.replies[number]):
                run = self.run(order, {number: case.mishap})
                outcome, raised = attempt(partial(self.forward, run))
                kinds = case.kinds
                if not healthy.wire.requests[number].changes:
                    kinds |= _OPEN
                if len(run.wire.requests) > number + 1:  # the adapter has asked again
                    kinds |= _FOUND
                if self.made(run) == []:  # the request was no order
                    kinds |= {Kind.RETRY}
                where = f"{name} answered with {case.mishap.name}"
                if raised:
                    seen = [f"{where} raises {raised}"]
                elif outcome is None or outcome.kind not in kinds:
                    wanted = " or ".join(sorted(case.kinds))
                    seen = [f"{where} is {shown(outcome)}, and not {wanted}"]
                else:
                    seen = [f"{where}: {each}" for each in self._contradicted(run, outcome)]
                seen += [f"{where}: {each}" for each in run.odd]
                if seen:
                    remedy = remedy or case.remedy
                    found += seen
        demand(promise, found, remedy)

    def _contradicted(self, run: Run, outcome: Outcome) -> Iterator[str]:
        """How the POS's orders contradict an outcome with nothing left to undo."""
        made = self.made(run)
        is_retried = outcome.kind is Kind.RETRY and run.walker.is_between_steps
        if made is not None and not is_retried:
            yield from contradicted(outcome, made, run.walker.order.total)

    def _no_answers(self) -> Iterator[Case]:
        for name, reply in self.no_answers.items():
            mishap = answering(name, reply, is_done=True)
            yield Case(mishap, frozenset({Kind.IN_DOUBT, Kind.RETRY}), _NONE)

    def _creating(self, run: Run) -> int:
        """The number of the first request that may change something."""
        return next(n for n, each in enumerate(run.wire.requests) if each.changes)

    def _cases(self, healthy: Reply | None, kept: Reply | None = None) -> Iterator[Case]:
        """Replies, and losses, that say nothing about an order.

        Args:
            healthy: the reply without a mishap.
            kept: the reply of an undo that shows the order as it stands.
        """
        yield Case(INGRESS, _OPEN, _NONE)
        if kept is not None and healthy is not None and healthy.body:
            open_ = answering("a reply with the order as it was made", kept, is_done=False)
            yield Case(open_, _OPEN, _NONE)
        for case in (*statuses(self.adapter.limits), *unreadable(healthy), *self._no_answers()):
            yield case._replace(mishap=replace(case.mishap, is_done=True))
        for loss in LOSSES:
            yield Case(loss, _OPEN, _NONE)

    def _unanswered(self, number: int) -> Iterator[str]:
        """Findings of look-ups of one step, of an order that the POS has."""
        step = self.steps[number]
        look_up = step.look_up
        assert look_up is not None  # noqa: S101  (only a blind step has none)
        run = self.healthy()
        facts = run.walker.facts

        def known(mishaps: dict[int, Mishap], order: Order) -> tuple[Run, Outcome | None, str]:
            again = self.run(order, mishaps, pos=run.pos)
            outcome, raised = attempt(lambda: look_up(order, self.merchant, facts, again.wire))
            return again, outcome, raised

        healthy, found, _ = known({}, run.walker.order)
        accepted = run.walker.order.in_ledger(None, None, found.external_id if found else None)
        for order, (n, name) in product((run.walker.order, accepted), numbered(healthy)):
            for case in self._cases(healthy.wire.replies[n]):
                if case.mishap.name in _ABSENT:
                    continue
                again, outcome, raised = known({n: case.mishap}, order)
                if len(again.wire.requests) <= n:
                    continue
                kinds = _OPEN | (_FOUND if len(again.wire.requests) > n + 1 else frozenset())
                if raised or outcome is None or outcome.kind not in kinds:
                    said = raised or shown(outcome)
                    yield f"{step.name}: {name} answered with {case.mishap.name} is {said}"


#: A POS may say so that it has no such order.
_ABSENT = ("a 404", "a 410", "a 200 whose body is an empty object")


def _shown(reply: Reply) -> str:
    return f"a {reply.status} with {reply.body[:100]!r}"
