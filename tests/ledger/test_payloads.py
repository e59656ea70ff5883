"""Which parts of an order and of a POS's words can be read in the ledger."""

import pytest

from pos_gateway.database.schema import orders
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen, Vault, new_key

KEY = Key("m", "o-1")
WORDS = Reason("no_buns", "no buns for Ada, +1 555 0100")


def test_a_pos_message_is_encrypted_and_decrypted_for_its_order() -> None:
    payloads = Payloads(Vault(new_key()))
    sealed = payloads.seal_reason(KEY, WORDS)
    assert sealed.code == "no_buns"
    assert "for Ada" not in sealed.message
    assert payloads.open_reason(KEY, sealed) == WORDS


@pytest.mark.parametrize("other", [Key("m", "o-2"), Key("n", "o-1"), Key("m o-1", "")])
def test_a_payload_is_not_decrypted_for_another_order_or_merchant(
    other: Key,
) -> None:
    payloads = Payloads(Vault(new_key()))
    words = payloads.open_reason(other, payloads.seal_reason(KEY, WORDS))
    assert words.code == "no_buns"
    assert "for Ada" not in words.message
    order = payloads.seal(KEY, b'{"order_id":"o-1"}')
    assert payloads.open(KEY, order) == b'{"order_id":"o-1"}'
    with pytest.raises(CannotOpen):
        payloads.open(other, order)


def test_a_malformed_reason_code_is_encrypted_too() -> None:
    payloads = Payloads(Vault(new_key()))
    for code in ("4915550142857", "Ada", "a b"):
        reason = Reason(code, "no")
        sealed = payloads.seal_reason(KEY, reason)
        assert sealed.code == "other"
        assert payloads.open_reason(KEY, sealed) == reason


def test_without_a_key_payloads_are_stored_in_clear() -> None:
    payloads = Payloads(Vault())
    assert payloads.seal_reason(KEY, WORDS) == WORDS
    assert payloads.open_reason(KEY, WORDS) == WORDS


def test_a_payload_with_a_missing_key_is_reported_as_such() -> None:
    sealed = Payloads(Vault(new_key())).seal_reason(KEY, WORDS)
    left = Payloads(Vault(new_key())).open_reason(KEY, sealed)
    assert left.code == "no_buns"
    assert "which POS_GATEWAY_SECRET_KEY has not" in left.message


def test_the_longest_pos_message_fits_its_column() -> None:
    """On PostgreSQL a column with a length would refuse the ciphertext."""
    assert getattr(orders.c.reason_message.type, "length", None) is None
