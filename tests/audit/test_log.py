"""The audit is read without a ceiling, and no new line is missed or shown twice.

================================================  =====================================================
adversary                                         promise
================================================  =====================================================
more lines than a page, or than are asked for     all of them, the newest last
a line that becomes visible after later ones      a reader that follows has it, once
an operator's or a field's name with % or _       is no pattern
a value that looks like another field's           is a value
text that is longer than the columns              is cut, and the change is written all the same
================================================  =====================================================
"""

import pytest
from sqlalchemy import text

from pos_gateway.audit import log
from pos_gateway.audit.log import LATE, AuditFilter, AuditTail, changes_in_words
from pos_gateway.audit.note import DETAILS, REASON, By, Note, write
from pos_gateway.merchants.pauses import pauses
from tests.audit.conftest import Audit
from tests.tokens.conftest import START


def whats(lines: object) -> list[str]:
    return [each.what for each in lines]  # type: ignore[attr-defined]


def test_a_line_is_read_as_it_was_written(audit: Audit) -> None:
    changes = {"max_concurrency": (4, 8), "auth.token": "changed"}
    note = Note("merchants.set", "m", "o", "details", changes)
    audit.write(note, operator="kim", reason="slow at noon")
    [line] = audit.log.all(AuditFilter())
    assert (line.at, line.operator, line.what) == (START + 1, "kim", "merchants.set")
    assert (line.merchant_id, line.order_id, line.reason) == ("m", "o", "slow at noon")
    assert line.changes == changes
    assert line.in_words == "max_concurrency: 4 -> 8, auth.token: changed; details"


def test_a_line_of_the_release_before_has_neither_reason_nor_changes(audit: Audit) -> None:
    with audit.engine.begin() as connection:
        connection.execute(
            text(
                "insert into audit (at, operator, what, merchant_id, order_id, details)"
                " values (1.0, 'kim', 'dead.discard', 'm', 'o', 'expired: late')"
            )
        )
    [line] = audit.log.all(AuditFilter())
    assert (line.reason, line.changes, line.in_words) == (None, {}, "expired: late")


def test_more_than_a_page_is_read_to_the_end(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGE", 3)
    for number in range(7):
        audit.write(Note(f"n{number}"))
    expected = [f"n{number}" for number in range(7)]
    assert whats(audit.log.all(AuditFilter())) == expected
    last = audit.log.last(AuditFilter(), 2)
    assert whats(last) == expected[-2:]
    assert whats(audit.log.last(AuditFilter(), 4, before=last[0].id)) == expected[1:5]


def test_lines_are_narrowed_down_by_all_that_is_given(audit: Audit) -> None:
    audit.write(Note("merchants.pause", "m"), Note("merchants.pause", "n"))
    audit.write(Note("orders.cancel", "m", "o"), operator="shop")
    audit.write(Note("merchantsx.pause", "m"), Note("merchants", "m"))

    def found(**wanted: object) -> list[tuple[str, str]]:
        lines = audit.log.all(AuditFilter(**wanted))  # type: ignore[arg-type]
        return [(each.what, each.merchant_id) for each in lines]

    assert found(what="merchants") == [("merchants.pause", "m"), ("merchants.pause", "n"), ("merchants", "m")]  # fmt: skip
    assert found(what="merchants.pause", merchant_id="n") == [("merchants.pause", "n")]
    assert found(order_id="o") == found(operator="shop") == [("orders.cancel", "m")]
    assert found(since=START + 4) == [("merchantsx.pause", "m"), ("merchants", "m")]
    assert found(merchant_id="m", operator="shop", what="merchants") == []
    for pattern in ("%", "merchant_", "m%"):
        assert found(what=pattern) == found(operator=pattern) == found(merchant_id=pattern) == []


def test_what_is_too_long_is_cut(audit: Audit) -> None:
    url = "https://pos.example.com/" + "x" * 2000
    note = Note("merchants.set", "m", details="d" * 5000, changes={"base_url": (url, None)})
    audit.write(note, reason="r" * 5000)
    [line] = audit.log.all(AuditFilter())
    assert (len(line.details), len(line.reason or "")) == (DETAILS, REASON)
    assert line.changes == {"base_url": (url, None)}


def test_changes_are_said_in_words() -> None:
    changes = {"paused": (False, True), "provider": ("a", None), "pos.shop": (None, "7")}
    said = "paused: no -> yes, provider: a -> (none), pos.shop: (none) -> 7"
    assert changes_in_words(changes) == said


# Following.


def test_new_lines_are_shown_once(audit: Audit) -> None:
    audit.write(Note("a"), Note("b"))
    listed = audit.log.last(AuditFilter(), 1)
    tail = AuditTail(audit.log, AuditFilter(), listed, audit.clock)
    assert tail.look() == []
    audit.write(Note("c"), Note("d"))
    assert whats(tail.look()) == ["c", "d"]
    for _ in range(5):
        audit.clock.seconds += LATE / 2
        assert tail.look() == []
        audit.write(Note("e"))
        assert whats(tail.look()) == ["e"]


def test_what_was_written_between_the_list_and_the_first_look_is_shown(audit: Audit) -> None:
    audit.write(Note("a"))
    listed = audit.log.last(AuditFilter(), 10)
    audit.write(Note("b"))
    assert whats(AuditTail(audit.log, AuditFilter(), listed, audit.clock).look()) == ["b"]


def test_nothing_listed_is_nothing_shown_but_what_is_new(audit: Audit) -> None:
    audit.write(Note("a", "other"))
    tail = AuditTail(audit.log, AuditFilter(merchant_id="m"), (), audit.clock)
    assert tail.look() == []
    audit.write(Note("b", "m"), Note("c", "other"))
    assert whats(tail.look()) == ["b"]


@pytest.mark.parametrize("looks_before", [0, 1, 3])
def test_a_line_that_becomes_visible_late_is_shown_once(audit: Audit, looks_before: int) -> None:
    """Its transaction began before those of later ids, and ended after them."""
    if audit.engine.dialect.name == "sqlite":
        return  # one writer at a time
    audit.write(Note("first"))
    tail = AuditTail(audit.log, AuditFilter(), audit.log.last(AuditFilter(), 10), audit.clock)
    for _ in range(looks_before):
        assert tail.look() == []
    with audit.engine.connect() as late:
        write(late, [Note("late")], by=By("kim"), at=START)
        audit.write(Note("later"))
        assert whats(tail.look()) == ["later"]
        audit.clock.seconds += LATE * 0.9
        assert tail.look() == []
        late.commit()
    assert whats(tail.look()) == ["late"]
    assert tail.look() == []


def test_a_lower_id_that_comes_within_a_minute_is_shown_once(audit: Audit) -> None:
    audit.write(Note("first"))
    tail = AuditTail(audit.log, AuditFilter(), audit.log.last(AuditFilter(), 10), audit.clock)

    def insert(number: int) -> None:
        row = f"({number}, 1.0, 'kim', 'n{number}', '', '', '')"
        names = "(id, at, operator, what, merchant_id, order_id, details)"
        with audit.engine.begin() as connection:
            connection.execute(text(f"insert into audit {names} values {row}"))

    insert(20)
    assert whats(tail.look()) == ["n20"]
    for number in (15, 19, 12):
        audit.clock.seconds += LATE / 4
        insert(number)
        assert whats(tail.look()) == [f"n{number}"]
    assert tail.look() == []


# Why merchants are paused.


def test_the_last_change_of_paused_says_why(audit: Audit) -> None:
    paused, resumed = {"paused": (False, True)}, {"paused": (True, False)}
    audit.write(Note("merchants.pause", "m", changes=paused), reason="first")
    audit.write(Note("merchants.resume", "m", changes=resumed))
    audit.write(Note("merchants.pause", "m", changes=paused), reason="second")
    audit.write(Note("merchants.set", "m", changes={"provider": (None, "x")}), reason="other")
    audit.write(Note("orders.cancel", "m", "o", changes=paused), reason="not it")
    audit.write(
        Note("merchants.pause", "n", changes=paused), Note("merchants.resume", "n", changes=resumed)
    )
    with audit.engine.connect() as connection:
        why = pauses(connection, ["m", "n", "unknown"])
    assert {name: each.reason for name, each in why.items()} == {"m": "second"}


@pytest.mark.parametrize("value", ['"paused":', '{"paused": [false, true]}', "paused", "%"])
def test_a_value_that_looks_like_paused_is_a_value(audit: Audit, value: str) -> None:
    audit.write(Note("merchants.set", "m", changes={"provider": (None, value)}))
    audit.write(Note("merchants.set", "m", changes={"pos.paused": (None, value)}))
    with audit.engine.connect() as connection:
        assert pauses(connection, ["m"]) == {}
