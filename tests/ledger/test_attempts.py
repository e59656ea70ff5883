"""The attempts that an order's row keeps: written with each outcome, read by operators."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger import attempts
from pos_gateway.ledger.attempts import MAX_ATTEMPTS, MAX_LENGTH, MESSAGE_LIMIT, RecordedAttempt
from pos_gateway.ledger.batch import Finishing
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune_orders
from pos_gateway.ledger.resealing import count_stale, reseal
from pos_gateway.ledger.states import Action, CallRecord, Claim, Entry, Key
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event
from tests.ledger.test_failover import Standby

Workers = Callable[..., Worker]
AWAY = Reason("connect", "cannot connect to Ada's till")
WORDS = Reason("no_buns", "no buns for Ada, +1 555 0100")


def recorded(engine: Engine, key: Key = KEY, vault: Vault | None = None) -> list[RecordedAttempt]:
    return OrderAdmin(engine, Payloads(vault or Vault())).attempts(key)


def outcomes(engine: Engine, key: Key = KEY) -> list[str]:
    return [each.outcome for each in recorded(engine, key)]


def counted(claim: Claim, kind: Kind = Kind.RETRY, **fields: Any) -> Entry:
    """The entry of an outcome that counts as an attempt."""
    number = claim.history.attempts + 1
    if kind is Kind.RETRY:
        return without_event(attempts=number, outcome=kind, **fields)
    return an_entry(kind, key=claim.key, attempts=number, outcome=kind, **fields)


def attempt(ledger: Ledger, kind: Kind = Kind.RETRY, key: Key = KEY, **fields: Any) -> None:
    claim = claimed(ledger.claim(key, send=key.action is Action.SUBMIT, order=b"{}"))
    assert ledger.finish(claim, counted(claim, kind, **fields))


def test_an_order_that_was_retried_twice_has_three_attempts_in_order(
    worker: Workers, engine: Engine
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    call, reason = (
        CallRecord(0.25, 0.5, 0.125, None, 1.0, "timeout"),
        Reason("timeout", "no reply in time"),
    )
    assert one.finish(claim, counted(claim, reason=reason, call=call))
    sending = one.sending(claimed(one.claim(KEY, send=True)))
    assert sending is not None
    call, reason = (
        CallRecord(None, 0.5, 0.0, 0.25, 0.5, 503),
        Reason("http_503", "the POS answered 503"),
    )
    assert one.finish(sending, counted(sending, reason=reason, call=call))
    claim = claimed(one.claim(KEY, send=True))
    call = CallRecord(0.0, 0.0, 0.0, 0.75, 1.0, 200)
    assert one.finish(claim, counted(claim, Kind.ACCEPTED, at=DAY + 5, call=call))
    owner = one.lease.id
    assert recorded(engine) == [
        RecordedAttempt(
            *(DAY - 1, "send", 0.25, 0.5, 0.125, None, 1.0, "timeout", "retry"),
            *("timeout", "no reply in time", owner),
        ),
        RecordedAttempt(
            *(DAY - 0.5, "send", None, 0.5, 0.0, 0.25, 0.5, 503, "retry"),
            *("http_503", "the POS answered 503", owner),
        ),
        RecordedAttempt(
            *(DAY + 4, "look_up", 0.0, 0.0, 0.0, 0.75, 1.0, 200, "accepted"),
            *(None, None, owner),
        ),
    ]


def test_of_many_attempts_the_last_are_kept(worker: Workers, engine: Engine) -> None:
    one = worker()
    for number in range(MAX_ATTEMPTS + 1):
        attempt(one, at=DAY + number, reason=Reason("connect", f"line\nbreak, number {number}"))
    assert [each.at - DAY for each in recorded(engine)] == list(range(1, MAX_ATTEMPTS + 1))
    assert recorded(engine)[-1].reason_message == f"line break, number {MAX_ATTEMPTS}"


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_row_has_a_bounded_size_whatever_the_reasons_are(
    engine: Engine, rows: Rows, is_sealed: bool
) -> None:
    vault = Vault(new_key() if is_sealed else None)
    ledger = Ledger(engine, Payloads(vault))
    for number in range(MAX_ATTEMPTS + 2):
        reason = Reason("x" * 64, chr(0x1F600 + number) * 500)
        attempt(ledger, at=DAY + number, reason=reason)
        assert len(rows.order().attempt_history) <= MAX_LENGTH
    last = recorded(engine, vault=vault)[-1]
    assert (last.reason_code, last.reason_message) == ("x" * 64, reason.message[:MESSAGE_LIMIT])


def test_an_outcome_that_is_no_attempt_adds_none(worker: Workers, engine: Engine) -> None:
    one = worker()
    attempt(one)
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, without_event(attempts=1, keeps_reason=True))
    assert outcomes(engine) == ["retry"]


def test_a_cancel_request_has_attempts_of_its_own(worker: Workers, engine: Engine) -> None:
    one, cancel = worker(), replace(KEY, action=Action.CANCEL)
    attempt(one, Kind.ACCEPTED)
    attempt(one, key=cancel)
    claim = claimed(one.claim(cancel, send=False, deliver_by=DAY))
    assert one.finish(claim, counted(claim, Kind.EXPIRED))
    claim = claimed(one.claim(cancel, send=False, deliver_by=DAY + 60))  # reopened by a later one
    assert claim.history.attempts == 0
    assert one.finish(claim, counted(claim, Kind.CANCELLED))
    assert outcomes(engine) == ["accepted"]
    assert outcomes(engine, cancel) == ["retry", "expired", "cancelled"]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_takeover_records_the_attempt_that_was_lost(
    worker: Workers, engine: Engine, is_sent: bool
) -> None:
    dead, one = worker(), worker()
    attempt(dead)
    claim = claimed(dead.claim(KEY, send=True))
    assert not is_sent or dead.sending(claim)
    one.beat()
    one.clock.advance(9)
    claim = claimed(one.claim(KEY, send=True))
    lost = recorded(engine)[-1]
    assert (lost.at, lost.seconds, lost.came) == (DAY, None, None)
    assert (lost.reason_code, lost.worker) == ("worker_lost", dead.lease.id)
    assert (lost.did, lost.outcome) == (("send", "in_doubt") if is_sent else (None, "retry"))
    assert one.finish(claim, counted(claim, Kind.ACCEPTED))
    assert outcomes(engine) == ["retry", "in_doubt" if is_sent else "retry", "accepted"]


@pytest.mark.parametrize("is_released", [False, True])
def test_an_abandoned_attempt_that_may_have_sent_the_order_is_recorded(
    worker: Workers, engine: Engine, is_released: bool
) -> None:
    one = worker()
    one.abandon(claimed(one.claim(KEY, send=True)), sent=True)
    if is_released:
        one.clock.advance(3)
        one.beat()
    claim = claimed(one.claim(KEY, send=True))
    assert claim.history.in_doubt
    assert one.finish(claim, counted(claim, Kind.ACCEPTED))
    assert outcomes(engine) == ["in_doubt", "accepted"]
    assert recorded(engine)[0].reason_code == "abandoned"


@pytest.mark.parametrize("is_row_lost", [False, True])
def test_a_restored_outcome_has_all_attempts(
    worker: Workers, engine: Engine, is_row_lost: bool
) -> None:
    one = worker()
    one.beat()
    before = Standby(engine)
    attempt(one)
    before = before if is_row_lost else Standby(engine)
    attempt(one)
    one.clock.advance(11)  # the journal has forgotten them
    claim = claimed(one.claim(KEY, send=True))
    before.promote(one)
    assert one.finish(claim, counted(claim, Kind.ACCEPTED))
    assert outcomes(engine) == ["retry", "retry", "accepted"]


def test_a_restored_claim_has_the_attempts_before_it(worker: Workers, engine: Engine) -> None:
    """Its own outcome is no attempt."""
    one = worker()
    one.beat()
    before = Standby(engine)
    attempt(one)
    one.clock.advance(11)
    claim = claimed(one.claim(KEY, send=True))
    before.promote(one)
    assert one.finish(claim, without_event(attempts=1))
    assert outcomes(engine) == ["retry"]


def test_a_reopened_order_keeps_its_attempts(worker: Workers, engine: Engine) -> None:
    one, order_admin = worker(), OrderAdmin(engine, Payloads(Vault()))
    attempt(one, Kind.FAILED)
    seen = order_admin.one(KEY)
    assert seen is not None
    again = without_event(attempts=0)
    order_admin.change(seen, again, operator="kim", what="x", details="", reopen=True)
    assert outcomes(engine) == ["failed"]
    attempt(one, Kind.ACCEPTED)
    assert outcomes(engine) == ["failed", "accepted"]


def test_pruning_removes_attempts(worker: Workers, engine: Engine, rows: Rows) -> None:
    attempt(worker(), Kind.REJECTED, reason=WORDS)
    list(prune_orders(engine, DAY + 10))
    assert rows.order().attempt_history is None
    assert recorded(engine) == []


def test_the_poses_words_are_sealed(engine: Engine, rows: Rows) -> None:
    vault = Vault(new_key())
    ledger = Ledger(engine, Payloads(vault))
    attempt(ledger, reason=Reason("Ada", "for Ada"))
    attempt(ledger, reason=Reason("no_buns", "for Ada, " + "please " * 60))
    attempt(ledger, Kind.REJECTED, reason=WORDS)
    # With a blank, which no sealed text has.
    assert "for Ada" not in rows.order().attempt_history
    first, long, last = recorded(engine, vault=vault)
    assert (first.reason_code, first.reason_message) == ("Ada", "for Ada")
    assert long.reason_message == ("for Ada, " + "please " * 60)[:MESSAGE_LIMIT]
    assert (last.reason_code, last.reason_message) == (WORDS.code, WORDS.message)
    unread = recorded(engine)[-1]  # without the key
    assert unread.reason_code == "no_buns"
    assert "which POS_GATEWAY_SECRET_KEY has not" in (unread.reason_message or "")


def test_attempts_can_be_read_after_a_rotation_of_keys(engine: Engine, rows: Rows) -> None:
    old, new = new_key(), new_key()
    attempt(Ledger(engine), reason=AWAY)  # in clear
    attempt(Ledger(engine, Payloads(Vault(old))), reason=WORDS)
    rotated = Payloads(Vault(f"{new},{old}"))
    late = Ledger(engine, Payloads(Vault(f"{old},{new}")))  # a worker that is not restarted yet
    claim = claimed(late.claim(KEY, send=True))
    assert [each.unopened for each in reseal(engine, rotated)] == [()]
    assert count_stale(engine, rotated) == 0
    history = rows.order().attempt_history
    assert "for Ada" not in history and "Ada's till" not in history
    assert late.finish(claim, counted(claim))  # without a reason: only its attempts are stale
    assert count_stale(engine, rotated) == 1
    list(reseal(engine, rotated))
    assert count_stale(engine, rotated) == 0
    attempt(Ledger(engine, rotated), reason=AWAY)
    assert count_stale(engine, rotated) == 0
    messages = [each.reason_message for each in recorded(engine, vault=Vault(new))]
    assert messages == [AWAY.message, WORDS.message, None, AWAY.message]


def test_a_message_cannot_pass_for_another(engine: Engine) -> None:
    """What a POS says is never taken for the beginning of another message."""
    vault, said = Vault(new_key()), ',"clear:x",\n[,"sealed:0.x'
    payloads = Payloads(vault)
    attempt(Ledger(engine), reason=Reason("x", said))
    assert recorded(engine)[0].reason_message == said.replace("\n", " ")
    assert count_stale(engine, payloads) == 1
    list(reseal(engine, payloads))
    assert count_stale(engine, payloads) == 0
    assert recorded(engine, vault=vault)[0].reason_message == said.replace("\n", " ")


def test_an_attempt_of_a_later_release_can_be_read(worker: Workers, engine: Engine) -> None:
    claim = claimed(worker().claim(KEY, send=True))
    text = json.loads(attempts.with_outcome(claim, counted(claim), None))
    text[0].append("more")
    text[0][2] = [1_000_000, 0, 0, 0, 2_000_000, 7]
    text[0][4] = "delegated"
    [read] = attempts.read(json.dumps(text), KEY, Payloads(Vault()))
    assert (read.waited, read.seconds, read.outcome) == (1.0, 2.0, "delegated")


def test_a_row_of_the_release_before_has_no_attempts(worker: Workers, engine: Engine) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    assert one.together(Finishing(claim, counted(claim))) == [True]
    assert recorded(engine) == []
    attempt(one)
    claim = claimed(one.claim(KEY, send=True))
    assert one.together(Finishing(claim, counted(claim))) == [True]
    attempt(one, Kind.ACCEPTED)
    assert outcomes(engine) == ["retry", "accepted"]
