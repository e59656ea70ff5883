"""Texts of orders and POSes are read back unchanged, and no text fails an order."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.states import Ended, Key
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed
from tests.orders import an_order

Workers = Callable[..., Worker]

TEXTS = {
    "nul, written out": '{"a": "\\u0000"}',
    "four bytes": '{"a": "\U0001f355\U0001f996"}',
    "right to left": '{"a": "\u202eabc\u05d0"}',
    "combining": '{"a": "e\u0301\ufeff\ufffd\U0010ffff"}',
    "quotes": """{"a": "it's \\"quoted\\" ` $$ $1"}""",
    "placeholders": '{"a": "%s %(rows)s :rows ? {} {0}"}',
    "backslashes": '{"a": "\\\\\\\\ \\n \\u2028"}',
    "lines": '{\n\r\t"a": 1}',
    "json in json": '{"a": "{\\"b\\": [1, null]}"}',
    "statements": '{"a": "\'; drop table orders; --"}',
    "long": '{"a": "' + "\u00fc" * 100_000 + '"}',
}


@pytest.mark.parametrize("said", TEXTS.values(), ids=TEXTS.keys())
def test_a_payload_is_read_back_unchanged(worker: Workers, said: str) -> None:
    one = worker()
    claimed(one.claim(KEY, send=True, order=said.encode()))
    assert one.order(KEY) == said.encode()
    assert one.order(Key("m", "no-such")) is None


def test_a_database_may_have_another_encoding(postgres_url: str) -> None:
    server = open_database(postgres_url)
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(
            text("create database old encoding 'LATIN1' locale 'C' template template0")
        )
    engine = open_database(server.url.set(database="old").render_as_string(False))
    try:
        upgrade(engine)
        one = Worker(engine)
        claim = claimed(one.claim(KEY, send=True, order='{"a": "Größe"}'.encode()))
        assert one.order(KEY) == '{"a": "Größe"}'.encode()
        assert one.finish(claim, an_entry(external_id="Nr. ü"))
        assert Rows(engine).order().external_id == "Nr. ü"
        one.close()
    finally:
        engine.dispose()
        with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("drop database old with (force)"))
        server.dispose()


def test_an_order_with_any_text_is_stored(worker: Workers) -> None:
    one = worker()
    notes = "".join(map(chr, [*range(0x100), 0x2028, 0xFFFD, 0xFFFF, 0x1F355]))
    order = Order.parse({**an_order("o1", "m"), "notes": notes})
    claimed(one.claim(KEY, send=True, order=order.to_json()))
    kept = one.order(KEY)
    assert kept == order.to_json()
    assert Order.parse_json(kept).notes == notes


def test_ids_may_have_every_allowed_character(worker: Workers) -> None:
    one = worker()
    printable = "".join(map(chr, range(0x21, 0x7F)))
    keys = [Key("m", printable), Key(printable, "o"), Key("m" * 128, "o" * 128), Key("M", "O")]
    for key in keys:
        claim = claimed(one.claim(key, send=True, order=b"{}"))
        assert one.finish(claim, an_entry(key=key))
        ended = one.claim(key, send=True)
        assert isinstance(ended, Ended)


NASTY = ["\x00", "a\x00b", "\ud800", "\udfff\ud800", "a\nb\u2028c", "x" * 5000, "\U0001f355" * 600]


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_external_id_or_pos_message_blocks_an_order(
    worker: Workers, rows: Rows, text: str
) -> None:
    """All of it must be written, and later read."""
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    reason = Reason(text, text)
    assert one.finish(claim, an_entry(Kind.REJECTED, external_id=text, reason=reason))
    ended = one.claim(KEY, send=True)
    assert isinstance(ended, Ended)
    for said, longest in ((rows.order().external_id, 256), (rows.order().reason_message, 512)):
        assert said.isprintable()
        assert len(said) <= longest
    (event,) = rows.events()
    assert event.external_id == rows.order().external_id
    assert event.reason_message == rows.order().reason_message
