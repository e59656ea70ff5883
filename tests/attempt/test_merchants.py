"""Merchants whose address or credentials are wrong, for a while or for good."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.audit.note import By
from pos_gateway.auth.redaction import HIDDEN
from pos_gateway.auth.tokens import REFUSED, REFUSED_MAX
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, State
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply
from tests.gate import Gate


def test_a_late_410_of_its_old_address_does_not_pause_a_corrected_merchant(
    tmp_path: Path,
) -> None:
    new = {"id": "m", "base_url": "https://new.example.com", "paused": False}

    def old_pos(_: Any) -> Any:
        MerchantStore(gate.database).put([Merchant.parse(new)])  # while the call is in flight
        return 410, {}

    gate = Gate(tmp_path, old_pos)
    gate.take(gate.an_order("o1"))
    assert not MerchantStore(gate.database).get(["m"])["m"].paused
    gate.wait(2)
    gate.pos = lambda _: (410, {})
    gate.take(gate.an_order("o2"))
    assert MerchantStore(gate.database).get(["m"])["m"].paused


def test_orders_wait_for_as_long_as_a_login_is_refused(
    tmp_path: Path,
) -> None:
    keys = new_key()
    gate = Gate(
        tmp_path,
        lambda _: (200, {"status": "accepted", "id": "pos-1"}),
        settings={"secret_key": keys},
    )
    login = {"client_id": "us", "client_secret": "s3cret", "token_url": "https://toast.example"}
    record = {"id": "m", "base_url": "https://pos.example.com", "auth": {"type": "toast", **login}}
    MerchantStore(gate.database, vault=Vault(keys)).put([Merchant.parse(record)])
    answer = Reply(403, {}, b"")
    gate.caller.authenticator._transport = SimpleNamespace(send=lambda *_, **__: answer)  # type: ignore[assignment]

    order = gate.an_order("o1", seconds=600)
    for seconds in (0, REFUSED, REFUSED_MAX, 7 * REFUSED_MAX):
        assert waits(gate, order, seconds)
    gate.wait(600)
    gate.take(order)
    assert gate.recorded() == [("expired", "credential_refused")]
    token = b'{"token": {"accessToken": "T", "tokenType": "Bearer", "expiresIn": 3600}}'
    answer = Reply(200, {}, token)
    gate.wait(REFUSED_MAX)
    gate.take(gate.an_order("o2"))
    assert gate.recorded("o2") == [("accepted", None)]


def waits(gate: Gate, order: dict[str, Any], seconds: float) -> bool:
    """Whether the order waits for a credential after these seconds, with no event and no dead letter."""
    gate.wait(seconds)
    decision = gate.take(order)
    reason = decision.outcome.reason
    is_refused = reason is not None and reason.code == "credential_refused"
    is_retried = decision.again is not None and not (gate.recorded() or gate.dead())
    return is_refused and is_retried


def test_orders_wait_for_as_long_as_the_pos_refuses_the_credentials(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (401, {}))
    order = gate.an_order(seconds=1200)
    for seconds in (0, 60, 600):
        assert waits(gate, order, seconds)
    gate.wait(600)
    gate.take(order)
    assert gate.recorded() == [("expired", "credential_refused")]


SEALED = {"secret_key": new_key()}


@pytest.mark.parametrize("left", [300, -1], ids=["early", "late"])
@pytest.mark.parametrize("settings", [{}, SEALED], ids=["in clear", "sealed"])
def test_an_order_that_expires_while_it_waits_says_what_for(
    tmp_path: Path, settings: dict[str, Any], left: float
) -> None:
    """Its merchant's breaker is open, and no attempt follows the one that was refused."""
    gate = Gate(tmp_path, lambda _: (401, {}), settings=settings)
    order = gate.an_order(seconds=600)
    first = gate.take(order).outcome.reason
    gate.wait(600 - left)
    last = gate.take(order, expired=True).outcome
    assert first is not None and last.reason is not None
    assert (last.kind, last.reason.code) == (Kind.EXPIRED, "credential_refused")
    assert last.reason.message.endswith(f"; its last attempt: {first.message}")
    assert gate.recorded() == [("expired", "credential_refused")]


@pytest.mark.parametrize("settings", [{}, SEALED], ids=["in clear", "sealed"])
def test_a_cancel_request_that_expires_while_it_waits_says_what_for(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    gate = Gate(tmp_path, lambda _: (200, {"status": "accepted", "id": "pos-1"}), settings=settings)
    gate.take(gate.an_order())
    gate.pos = lambda _: (401, {})
    request = gate.a_request(seconds=600)
    waiting = gate.take(request, Action.CANCEL)
    assert waiting.outcome.reason is not None
    gate.wait(601)
    last = gate.take(request, Action.CANCEL).outcome.reason
    assert last is not None
    assert last.code == "cancel_expired"
    assert last.message.endswith(f"; its last attempt: {waiting.outcome.reason.message}")


def test_an_order_that_an_operator_had_sent_again_expires_for_no_decision_of_theirs(
    tmp_path: Path,
) -> None:
    """Else it would pass for one that the operator has ended."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply in time"))
    order = gate.an_order(seconds=60)
    gate.take(order)
    with gate.database.begin() as connection:  # as ``orders resolve --not-sent`` does
        connection.exec_driver_sql(
            "update orders set state = 'new', doubt_since = null, settling = null, told = null, "
            "reason_code = 'resolved', reopened = 1, epoch = epoch + 1"
        )
    gate.wait(61)
    gate.take(order, expired=True)
    assert gate.recorded() == [("expired", "expired")]


def test_an_order_that_waited_for_a_credential_is_accepted_with_the_next_one(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path, lambda _: (401, {}))
    order = gate.an_order()
    assert waits(gate, order, 0)
    gate.pos = lambda _: (200, {"status": "accepted", "id": "pos-1"})
    gate.wait(60)
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]


def test_an_order_in_doubt_stays_so_while_the_credentials_are_refused(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply in time"))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    gate.pos = lambda _: (401, {})
    for seconds in (60, 700):
        gate.wait(seconds)
        assert gate.take(order).again is not None
        assert (gate.row_state(), gate.recorded()) == ("in_doubt", [])


def test_orders_of_a_removed_merchant_fail_or_stay_in_doubt(tmp_path: Path) -> None:
    """What ``merchants remove --force`` says of them."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply in time"))
    in_doubt = gate.an_order("o1")
    assert gate.take(in_doubt).outcome.kind is Kind.IN_DOUBT
    admin = MerchantAdmin(gate.database, Vault(), lambda _: [], gate.clock)
    open_orders = admin.remove("m", By("kim"), force=True)
    assert open_orders == {State.IN_DOUBT: 1}
    gate.wait(2)
    gate.take(gate.an_order("o2"))
    gate.take(in_doubt)
    orders = OrderAdmin(gate.database, Payloads(Vault()))
    new = orders.find("o2", "m")
    assert (new.state, new.reason_code) == (State.FAILED, "unknown_merchant")
    assert gate.dead() == ["unknown_merchant"]
    assert orders.find("o1", "m").state is State.IN_DOUBT


def test_an_outcome_repeats_no_secret_that_a_pos_has_quoted(tmp_path: Path) -> None:
    """Of its outcome the ledger's row is made, and the event that the backend gets."""
    keys = new_key()
    gate = Gate(tmp_path, quoting, settings={"secret_key": keys})
    auth = {"type": "api_key", "header": "X-Key", "key": "s3cret-of-m"}
    record = {"id": "m", "base_url": "https://pos.example.com", "auth": auth}
    MerchantStore(gate.database, vault=Vault(keys)).put([Merchant.parse(record)])
    outcome = gate.take(gate.an_order()).outcome
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    assert outcome.reason.message == f"the key {HIDDEN} may not order"


def quoting(request: Any) -> Any:
    """A POS that quotes the key that it was sent."""
    words = f"the key {request.headers['X-Key']} may not order"
    return 422, {"error": {"code": "rejected", "message": words}}
