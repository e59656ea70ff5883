"""Merchants whose address or credentials are wrong, for a while or for good."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pos_gateway.audit.note import By
from pos_gateway.auth.redaction import HIDDEN
from pos_gateway.auth.tokens import APART, REFUSED
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import State
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


def test_a_login_refused_once_fails_no_order_and_one_refused_for_good_does(
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
    gate.caller._authenticator._transport = SimpleNamespace(send=lambda *_, **__: answer)  # type: ignore[assignment]

    def taken(order_id: str, seconds: float) -> tuple[Kind, str | None]:
        gate.wait(seconds)
        outcome = gate.take(gate.an_order(order_id)).outcome
        return outcome.kind, outcome.reason and outcome.reason.code

    assert taken("o1", 0) == (Kind.RETRY, "token")
    assert taken("o1", REFUSED) == (Kind.RETRY, "token")
    assert taken("o1", APART) == (Kind.FAILED, "token")
    assert taken("o2", 1) == (Kind.RETRY, "token")
    token = b'{"token": {"accessToken": "T", "tokenType": "Bearer", "expiresIn": 3600}}'
    answer = Reply(200, {}, token)
    assert taken("o2", 1800) == (Kind.ACCEPTED, None)


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
