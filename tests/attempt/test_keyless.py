"""A worker without the key to its merchants' secrets leaves their orders to other workers."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult
from pos_gateway.ledger.states import Action
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.transport.errors import NoValidReply
from tests.gate import Gate

ACCEPTED = (200, {"status": "accepted", "id": "7"})


def sealed(gate: Gate) -> None:
    """Give the merchant secrets under a key that this worker does not have."""
    auth = {"type": "bearer", "token": "a secret of theirs"}
    merchant = {"id": "m", "base_url": "https://pos.example.com", "auth": auth}
    MerchantStore(gate.database, vault=Vault(new_key())).put([Merchant.parse(merchant)])


def test_an_order_waits_for_a_worker_that_has_the_key(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    sealed(gate)
    with capture_logs() as logs:
        decided = gate.take(gate.an_order())
    [line] = [each for each in logs if each["event"] == "delivery.attempted"]
    assert (line["log_level"], line["reason"]) == ("warning", "secret_key")  # no breaker says it
    reason = decided.outcome.reason
    assert reason is not None
    assert (reason.code, decided.outcome.contact) == ("secret_key", CallResult.NONE)
    assert decided.again is not None
    assert (gate.row_state(), gate.recorded(), gate.dead(), gate.said) == ("new", [], [], [])


@pytest.mark.parametrize("action", Action)
def test_without_the_key_an_order_that_its_pos_may_have_is_unchanged(
    tmp_path: Path, action: Action
) -> None:
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply in time"))
    gate.take(gate.an_order())
    sealed(gate)
    gate.wait(20)
    said = len(gate.said)
    decided = gate.take(gate.an_order()) if action is Action.SUBMIT else gate.take_cancel()
    assert decided.again is not None
    assert (gate.row_state(), gate.recorded(), len(gate.said)) == ("in_doubt", [], said)
