"""One attempt: the merchant's call result, and the order's outcome."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import trustme
from greenlet import GreenletExit
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.doubt import unsettled_for
from pos_gateway.attempt.spine import Spine
from pos_gateway.attempt.submit import Submit
from pos_gateway.auth.authenticator import Authenticator
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.ledger.batch import Finishing
from pos_gateway.ledger.states import SUSPECT, Action, AttemptHistory, Claim, Key, Suspected
from pos_gateway.transport.deadline import CallContext
from pos_gateway.transport.errors import Misconfigured, NotBegun, NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.faults.adapters import BlindAdapter, QueryableAdapter
from tests.gate import Gate, deliver
from tests.orders import an_order, received

MERCHANT = Merchant(id="m", base_url="https://pos.example.com", request_timeout=8)


class Directory:
    def __init__(self, merchant: Merchant = MERCHANT) -> None:
        self.merchant = merchant
        self.paused: list[str] = []
        self.problem: Exception | None = None

    def get(self, _merchant_id: str) -> Merchant:
        return self.merchant

    def pause(self, merchant: Merchant) -> bool:
        if self.problem is not None:
            raise self.problem
        self.paused.append(merchant.id)
        return True


class StandingClock:
    """No time passes in an attempt."""

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return datetime.now(UTC)


class Transport:
    """Has one answer, and records the timeout it was given."""

    def __init__(self, answer: Reply | BaseException) -> None:
        self._answer = answer
        self.seconds = 0.0
        self.key = ""
        self.identity: Any = None

    def send(
        self,
        *_: Any,
        seconds: float,
        key: str,
        fence: Callable[[], None],
        identity: Any = None,
        **__: Any,
    ) -> Reply:
        fence()
        self.seconds, self.key, self.identity = seconds, key, identity
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Ledger:
    """A ledger in which every order is new, and which records its calls."""

    def __init__(self, **history: Any) -> None:
        self.history = AttemptHistory(**history)
        self.is_lost = False
        self.said: list[str] = []
        self.abandoned: list[bool] = []

    def claim(self, key: Key, *, send: bool, **_: Any) -> Claim:
        fresh = self.history == AttemptHistory()
        return Claim(key, "worker", 1, 1, self.history, sending=send and fresh)

    def sending(self, claim: Claim, _endpoint: str | None = None, **_: Any) -> Claim | None:
        self.said.append("sending")
        return None if self.is_lost else claim._replace(sending=True)

    def holds(self, _claim: Claim) -> bool:
        return not self.is_lost

    def abandon(self, _claim: Claim, *, sent: bool) -> None:
        self.abandoned.append(sent)


def attempt(
    transport: Transport,
    directory: Directory | None = None,
    ledger: Ledger | None = None,
    adapter: Adapter | None = None,
    **record: Any,
) -> Outcome:
    parts: Any = {
        "directory": directory or Directory(),
        "ledger": ledger or Ledger(),
        "clock": StandingClock(),
    }
    caller = Caller(transport=transport, default_concurrency=10, default_timeout=10, **parts)  # type: ignore[arg-type]
    adapters = {"rest": adapter or RestAdapter()}
    submit = Submit(adapters=adapters, caller=caller, **parts)
    others: Any = dict.fromkeys(["cancel", "unreadable", "repeating", "directory"])
    others |= {"ledger": parts["ledger"], "commit": lambda *_, **__: True}
    spine = Spine(submit=submit, **others)
    order = Order.parse(an_order("o1", "m"))
    decision = spine.attempt(Attempt(order, RawMessage(b""), **record))
    assert decision is not None
    return decision.outcome


def reply(status: int, body: bytes = b"", **headers: str) -> Reply:
    return Reply(status, headers, body)


@pytest.mark.parametrize(
    ("answer", "contact"),
    [
        (reply(201, b'{"id": "1", "status": "accepted"}'), CallResult.ANSWERED),
        (reply(422, b'{"error": {"code": "sold_out", "message": ""}}'), CallResult.ANSWERED),
        (reply(401), CallResult.FAILED),
        (reply(403), CallResult.ANSWERED),
        (reply(429), CallResult.OVERLOADED),
        (reply(503), CallResult.OVERLOADED),
        (reply(500), CallResult.FAILED),
        (reply(200, b"<html>"), CallResult.FAILED),
        (NoValidReply("timeout", "too long"), CallResult.TIMED_OUT),
        (NoValidReply("cut_short", "another order needed its slot"), CallResult.TIMED_OUT),
        (NotSent("timeout", "connecting took too long"), CallResult.TIMED_OUT),
        (NotBegun("timeout", "there was none"), CallResult.NONE),
        (NotBegun("cut_short", "another order needed its slot"), CallResult.NONE),
        (NotSent("exchange", "refused"), CallResult.FAILED),
        (NoValidReply("exchange", "reset"), CallResult.FAILED),
        (NotSent("local", "too many open files"), CallResult.NONE),
        (NotSent("look_ups", "too many look-ups are in flight"), CallResult.NONE),
        (Misconfigured("certificate", "expired"), CallResult.NONE),
    ],
)
def test_admission_gets_the_call_result(answer: Reply | Exception, contact: CallResult) -> None:
    assert attempt(Transport(answer)).contact is contact


def test_a_call_begins_once_with_its_first_exchange() -> None:
    """Until then it waits for the database, and not for its merchant."""
    begun: list[str] = []

    class Twice(RestAdapter):
        def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
            assert begun == []
            super().submit(order, merchant, send)
            return super().submit(order, merchant, send)

    attempt(Transport(reply(429)), adapter=Twice(), on_call=lambda: begun.append("begun"))
    assert begun == ["begun"]


def test_an_order_whose_token_was_refused_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The POS could not be reached with the new token: the 401 has made nothing."""

    class Refuses(Transport):
        def send(self, request: Request, *arguments: Any, **others: Any) -> Reply:
            if request.headers.get("Authorization") == "new":
                raise NotSent("connect", "refused")
            return super().send(request, *arguments, **others)

    monkeypatch.setattr(Authenticator, "instead", lambda *_: {"Authorization": "new"})
    assert attempt(Refuses(reply(401))).kind is Kind.RETRY


def test_an_attempts_log_line_has_its_durations() -> None:
    class Timed(Transport):
        def send(self, *arguments: Any, context: CallContext, **others: Any) -> Reply:
            context.connect_seconds += 0.25
            context.replied = perf_counter()
            return super().send(*arguments, **others)

    class Twice(RestAdapter):
        def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
            super().submit(order, merchant, send)
            return super().submit(order, merchant, send)

    began = perf_counter()
    with capture_logs() as logs:
        attempt(Timed(reply(429)), adapter=Twice(), received=began - 5)
        attempt(Transport(NotBegun("connect", "refused")))
    ended = perf_counter() - began
    first, failed = (each for each in logs if each["event"] == "delivery.attempted")
    assert 5 <= first["waited_seconds"] <= 5 + ended
    assert first["connect_seconds"] == 0.5
    assert 0 < first["first_byte_seconds"] < first["seconds"] < ended
    assert 0 < first["claim_seconds"] < ended
    assert failed["waited_seconds"] is failed["first_byte_seconds"] is None


def test_an_adapters_exception_message_is_not_logged() -> None:
    with capture_logs() as logs:
        outcome = attempt(Transport(ZeroDivisionError("Mrs. Smith")))
    assert outcome.kind is Kind.IN_DOUBT
    assert [line["event"] for line in logs] == ["delivery.crashed", "delivery.attempted"]
    assert "ZeroDivisionError" in str(logs)
    assert "Mrs. Smith" not in str(logs)


def test_admission_gets_the_retry_after() -> None:
    outcome = attempt(Transport(reply(429, **{"retry-after": "17"})))
    assert (outcome.kind, outcome.retry_after) == (Kind.RETRY, 17.0)


@pytest.mark.parametrize(
    ("adapter", "status", "contact"),
    [
        (QueryableAdapter(), 404, CallResult.ANSWERED),  # looked up, and unknown to the POS
        (BlindAdapter(), 404, CallResult.NONE),  # not even looked up
    ],
)
def test_a_merchant_is_not_blamed_for_an_order_that_is_in_doubt(
    adapter: Adapter, status: int, contact: CallResult
) -> None:
    ledger = Ledger(doubt_since=datetime.now(UTC).timestamp())
    outcome = attempt(Transport(reply(status)), ledger=ledger, adapter=adapter)
    assert (outcome.kind, outcome.contact) == (Kind.IN_DOUBT, contact)


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_the_settling_time_is_not_counted_on_the_wall_clock(hours: int) -> None:
    since = StandingClock().now().timestamp() + hours * 3600
    settled = {0.0: 8.0, 7.9: 8.0 - 7.9, 8.0: 0.0, 60.0: 0.0}
    for seconds, left in settled.items():
        history = AttemptHistory(doubt_since=since, settled=seconds)
        assert unsettled_for(history, 8.0, QueryableAdapter()) == left
    assert unsettled_for(AttemptHistory(), 8.0, QueryableAdapter()) == 0.0


def test_a_merchant_is_not_blamed_for_an_order_that_was_taken_over() -> None:
    ledger = Ledger(attempts=1)
    ledger.is_lost = True
    outcome = attempt(Transport(reply(201)), ledger=ledger)
    assert (outcome.kind, outcome.contact) == (Kind.RETRY, CallResult.NONE)


@pytest.mark.parametrize(
    ("adapter", "doubt_since"),
    [
        (RestAdapter(), None),  # not processed, for certain
        (RestAdapter(), 1.0),
        (QueryableAdapter(), 1.0),  # unknown to the POS, after the settling time
    ],
)
def test_an_order_that_is_to_be_cancelled_is_not_sent_again(
    adapter: Adapter, doubt_since: float | None
) -> None:
    history: Any = {"attempts": 1, "doubt_since": doubt_since, "settled": 60.0}
    to_be_cancelled = Ledger(**history, cancelling=True)
    outcome = attempt(Transport(reply(404)), ledger=to_be_cancelled, adapter=adapter)
    assert (outcome.kind, outcome.reason and outcome.reason.code) == (Kind.RETRY, "cancelling")
    assert to_be_cancelled.said == []
    any_other = Ledger(**history)
    attempt(Transport(reply(404)), ledger=any_other, adapter=adapter)
    assert any_other.said == ["sending"]


def test_a_fresh_order_needs_no_commit_between_its_claim_and_its_first_byte() -> None:
    fresh, known = Ledger(), Ledger(attempts=1)
    for ledger in (fresh, known):
        attempt(Transport(reply(404)), ledger=ledger)
    assert (fresh.said, known.said) == ([], ["sending"])


def test_an_order_in_doubt_is_looked_up_also_while_it_is_to_be_cancelled() -> None:
    made = Transport(reply(200, b'{"id": "1", "status": "accepted"}'))
    ledger = Ledger(attempts=1, doubt_since=1.0, cancelling=True)
    assert attempt(made, ledger=ledger, adapter=QueryableAdapter()).kind is Kind.ACCEPTED
    assert ledger.said == []


def test_a_probe_has_a_part_of_the_merchants_time_limit() -> None:
    transport = Transport(reply(500))
    attempt(transport, time_limit_share=0.5)
    assert transport.seconds == 4.0
    attempt(transport)
    assert transport.seconds == 8.0


def test_a_merchant_whose_pos_answers_gone_is_paused() -> None:
    directory = Directory()
    assert attempt(Transport(reply(410)), directory=directory).kind is Kind.FAILED
    assert directory.paused == ["m"]
    attempt(Transport(reply(404)), directory=directory)
    assert directory.paused == ["m"]


def test_gone_in_a_look_up_pauses_no_merchant() -> None:
    directory = Directory()
    in_doubt = Ledger(attempts=1, doubt_since=1.0)
    attempt(Transport(reply(410)), directory=directory, ledger=in_doubt, adapter=QueryableAdapter())
    assert in_doubt.said == []  # looked up, not created
    assert directory.paused == []


def test_a_failure_to_pause_does_not_change_the_outcome() -> None:
    directory = Directory()
    directory.problem = OperationalError("update", {}, Exception("the database is away"))
    assert attempt(Transport(reply(410)), directory=directory).kind is Kind.FAILED


def test_connections_are_not_shared_by_merchants_or_credentials() -> None:
    keys = []
    for merchant_id, token in (("m", "a"), ("m", "b"), ("n", "a"), ("m", "a")):
        auth = {"type": "bearer", "token": token}
        merchant = Merchant.parse(
            {"id": merchant_id, "base_url": "https://pos.example", "auth": auth}
        )
        transport = Transport(reply(500))
        attempt(transport, directory=Directory(merchant))
        keys.append(transport.key)
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


def test_a_merchants_client_certificate_is_used_for_its_orders() -> None:
    authority = trustme.CA().cert_pem.bytes().decode()
    auth = {"type": "none", "tls": {"authority": authority}}
    merchant = Merchant.parse({"id": "m", "base_url": "https://pos.example", "auth": auth})
    transport = Transport(reply(500))
    attempt(transport, directory=Directory(merchant))
    assert transport.identity.authority == authority


def slow(gate: Gate, patch: pytest.MonkeyPatch, what: str, seconds: float) -> None:
    """This operation of the ledger takes this long: its database fails over."""
    do = getattr(gate.ledger, what)

    def after_a_while(*args: Any, **named: Any) -> Any:
        gate.wait(seconds)
        return do(*args, **named)

    patch.setattr(gate.ledger, what, after_a_while)


@pytest.mark.parametrize("tries", [0, 1], ids=["fresh", "with a history"])
@pytest.mark.parametrize("seconds", [2, 8.5])
def test_no_attempt_starts_after_deliver_by_however_long_its_claim_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int, seconds: float
) -> None:
    """Nor shortly before it: its reply would be too late."""
    gate = Gate(tmp_path, lambda _: (429, {}))
    order = gate.an_order(seconds=seconds)
    for _ in range(tries):
        gate.take(order)
    said = len(gate.said)
    slow(gate, monkeypatch, "claim", 8)
    gate.take(order)
    assert (len(gate.said), [kind for kind, _ in gate.recorded()]) == (said, ["expired"])


def test_an_order_in_doubt_that_expires_while_it_is_claimed_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending it once more would have no time left, and leave it in doubt."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    order = gate.an_order(seconds=10)
    gate.take(order)
    gate.pos = lambda _: (200, {"status": "accepted", "id": "pos-1"})
    slow(gate, monkeypatch, "claim", 11)
    gate.take(order)
    assert gate.said == [("POST", "/orders"), ("GET", "/orders/o1")]
    assert gate.recorded() == [("accepted", None)]


def test_an_order_is_not_sent_if_the_ledger_left_no_time_for_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in doubt, and the merchant blamed for it."""
    gate = Gate(tmp_path, lambda _: (429, {}), request_timeout=5)
    order = gate.an_order()
    gate.take(order)  # it has an attempt history now
    said = len(gate.said)
    with monkeypatch.context() as patch:
        slow(gate, patch, "sending", 4.5)
        outcome = gate.take(order).outcome
    assert (outcome.kind, outcome.reason and outcome.reason.code) == (Kind.RETRY, "timeout")
    assert (outcome.contact, gate.row_state(), len(gate.said)) == (CallResult.NONE, "new", said)
    slow(gate, monkeypatch, "sending", 3.9)
    gate.take(order)
    assert len(gate.said) == said + 1


@pytest.mark.parametrize("action", Action)
def test_a_suspect_is_called_once_the_release_of_the_one_before_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    """Else both would have been in flight at the next death."""
    gate = Gate(tmp_path, lambda _: (503, {}))
    gate.promise(Guarantee.QUERYABLE)
    first, second = gate.an_order("o1"), gate.an_order("o2")
    gate.take(first)
    if action is Action.CANCEL:
        gate.pos = lambda _: (200, {"status": "accepted", "id": "pos-1"})
        gate.take(second)
        gate.pos, second = lambda _: (503, {}), gate.a_request("o2")
    gate.take(second, action)
    with gate.database.begin() as connection:
        connection.exec_driver_sql(f"update orders set deaths = {SUSPECT}")
    before = deliver(gate, received(first))
    claim, queued = gate.ledger.claim, list[Any]()

    def claim_as_the_first_ends(key: Key, **named: Any) -> Any:
        claimed = claim(key, **named)
        if isinstance(claimed, Suspected):  # its turn begins next
            queued.extend(Finishing(*each) for each in before.entries)
        return claimed

    def commit(operation: Any, **_: Any) -> Any:
        """In order: what is queued is written first."""
        written = gate.ledger._write([*queued, operation])
        queued.clear()
        return written[-1]

    def pos(_: Any) -> Any:
        states.append(gate.row_state("o1"))
        return 503, {}

    states: list[str | None] = []
    gate.pos = pos
    monkeypatch.setattr(gate.ledger, "claim", claim_as_the_first_ends)
    monkeypatch.setattr(gate.ledger, "_commit", commit)
    deliver(gate, received(second), action)
    assert states == ["in_doubt"]


def test_a_suspect_that_waits_for_its_turn_is_in_no_worker_s_hands(tmp_path: Path) -> None:
    """Else it would have been in flight, too, at the death that the one before it causes."""
    gate = Gate(tmp_path, lambda _: (503, {}))
    first, second = gate.an_order("o1"), gate.an_order("o2")
    for each in (first, second):
        gate.take(each)
    with gate.database.begin() as connection:
        connection.exec_driver_sql(f"update orders set deaths = {SUSPECT}")
    seen: list[Any] = []

    def pos(_: Any) -> Any:
        if not seen:
            outcome = gate.take(second).outcome
            seen.extend([outcome.reason and outcome.reason.code, *owners()])
        return 200, {"status": "accepted", "id": "pos-1"}

    def owners() -> list[bool]:
        with gate.database.connect() as connection:
            rows = connection.exec_driver_sql("select owner from orders order by order_id")
            return [owner is not None for (owner,) in rows]

    gate.pos = pos
    assert gate.take(first).outcome.kind is Kind.ACCEPTED
    assert seen == ["suspect", True, False]
    assert gate.take(second).outcome.kind is Kind.ACCEPTED


def test_a_merchant_with_a_short_time_limit_has_at_least_half_of_it() -> None:
    merchant = MERCHANT.model_copy(update={"request_timeout": 0.2})
    transport = Transport(reply(500))
    attempt(transport, directory=Directory(merchant))
    assert transport.seconds == 0.2


@pytest.mark.parametrize("has_left", [False, True], ids=["before the first byte", "after it"])
def test_an_order_whose_attempt_is_killed_is_in_doubt_once_a_byte_may_have_left(
    has_left: bool,
) -> None:
    class Killed(Transport):
        def send(self, *arguments: Any, fence: Callable[[], None], **others: Any) -> Reply:
            return super().send(*arguments, fence=fence if has_left else lambda: None, **others)

    ledger = Ledger()
    with pytest.raises(GreenletExit):
        attempt(Killed(GreenletExit()), ledger=ledger)
    assert ledger.abandoned[0] is has_left  # the first word counts
