"""Tokens in the database: the same on SQLite and on PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import Engine, Table, event, select, update

from pos_gateway.database import schema
from pos_gateway.domain.errors import AdminError, UnknownToken
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role, Token, digest, is_well_formed, new_token
from tests.tokens.conftest import START, HandClock


def rows(engine: Engine, table: Table) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def test_a_token_is_created_once_and_only_its_digest_is_kept(
    store: TokenStore, engine: Engine
) -> None:
    token = store.create("shop", Role.BACKEND, 50, operator="kim")
    assert is_well_formed(token)
    expected = Token("shop", Role.BACKEND, 50, digest(token), START, None, None)
    assert store.list() == [expected]
    assert store.all_valid() == {digest(token): expected}
    kept = repr([rows(engine, table) for table in schema.metadata.tables.values()])
    assert digest(token) in kept
    assert token not in kept
    assert token[4:20] not in kept


def test_tokens_are_listed_by_name(store: TokenStore) -> None:
    for name in ("b", "a", "c"):
        store.create(name, Role.VIEWER, operator="kim")
    assert [each.name for each in store.list()] == ["a", "b", "c"]
    assert store.list()[0].rate is None


def test_a_name_that_is_in_use_is_refused(store: TokenStore, engine: Engine) -> None:
    first = store.create("shop", Role.BACKEND, operator="kim")
    with pytest.raises(AdminError, match="'shop': choose another"):
        store.create("shop", Role.VIEWER, operator="kim")
    assert store.all_valid().keys() == {digest(first)}
    assert len(rows(engine, schema.audit)) == 1


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\n", "ü"])
def test_an_invalid_name_is_refused(store: TokenStore, name: str) -> None:
    with pytest.raises(AdminError, match="1 to 128 letters"):
        store.create(name, Role.BACKEND, operator="kim")
    with pytest.raises(AdminError, match="1 to 128 letters"):
        store.revoke(name, operator="kim")
    assert store.list() == []


@pytest.mark.parametrize("rate", [0, -1, 1_000_001])
def test_an_invalid_rate_is_refused(store: TokenStore, rate: int) -> None:
    with pytest.raises(AdminError, match="1 to 1000000 requests"):
        store.create("shop", Role.BACKEND, rate, operator="kim")


def test_a_revoked_token_stays_listed_and_keeps_its_name(
    store: TokenStore, clock: HandClock
) -> None:
    store.create("shop", Role.BACKEND, operator="kim")
    other = store.create("other", Role.BACKEND, operator="kim")
    clock.seconds += 5
    assert store.revoke("shop", operator="kim").revoked_at == START + 5
    assert store.all_valid().keys() == {digest(other)}
    assert [each.revoked_at for each in store.list()] == [None, START + 5]
    with pytest.raises(AdminError, match="has, or had, the name 'shop'"):
        store.create("shop", Role.BACKEND, operator="kim")


def test_the_first_revocation_counts(store: TokenStore, engine: Engine, clock: HandClock) -> None:
    store.create("shop", Role.BACKEND, operator="kim")
    first = store.revoke("shop", operator="kim")
    clock.seconds += 5
    assert store.revoke("shop", operator="lee") == first
    assert [row["operator"] for row in rows(engine, schema.audit)] == ["kim", "kim"]


def test_an_unknown_name_can_not_be_revoked(store: TokenStore, engine: Engine) -> None:
    with pytest.raises(UnknownToken, match="no token has the name 'shop'"):
        store.revoke("shop", operator="kim")
    assert rows(engine, schema.audit) == []


def test_every_act_is_in_the_audit(store: TokenStore, engine: Engine, clock: HandClock) -> None:
    store.create("shop", Role.BACKEND, 50, operator="kim")
    clock.seconds += 5
    store.revoke("shop", operator="lee")
    nothing = {"merchant_id": "", "order_id": "", "reason": None, "changes": None}
    created, revoked = (
        {name: value for name, value in row.items() if name != "id"}
        for row in rows(engine, schema.audit)
    )
    assert created == nothing | {
        "at": START,
        "operator": "kim",
        "what": "tokens.create",
        "details": "shop, backend, 50 requests a second",
    }
    assert revoked == nothing | {
        "at": START + 5,
        "operator": "lee",
        "what": "tokens.revoke",
        "details": "shop",
    }


def test_a_use_only_moves_forward(store: TokenStore) -> None:
    first, second = (
        digest(store.create(name, Role.BACKEND, operator="kim")) for name in ("a", "b")
    )
    store.note_use({})
    store.note_use({first: START + 10})
    store.note_use({first: START + 3, second: START + 4, digest("no such"): START})
    assert [each.used_at for each in store.list()] == [START + 10, START + 4]


def test_servers_write_the_same_uses_in_the_same_order(store: TokenStore, engine: Engine) -> None:
    """In different ones, PostgreSQL would end one of them for a deadlock."""
    digests = [digest(store.create(f"t{n}", Role.BACKEND, operator="kim")) for n in range(20)]
    written = list[str]()

    def note(_conn: object, _cursor: object, _statement: str, rows: Any, *_: object) -> None:
        values = (row.values() if isinstance(row, dict) else row for row in rows)
        written.extend(next(each for each in row if each in digests) for row in values)

    event.listen(engine, "before_cursor_execute", note)
    store.note_use(dict.fromkeys(digests, START))
    assert written == sorted(digests)


def test_it_is_empty_while_no_token_is_valid(store: TokenStore) -> None:
    assert store.is_empty()
    store.create("shop", Role.BACKEND, operator="kim")
    assert not store.is_empty()
    store.revoke("shop", operator="kim")
    assert store.is_empty()


def test_a_later_versions_role_does_not_fail_the_other_tokens(
    store: TokenStore, engine: Engine
) -> None:
    token = store.create("shop", Role.BACKEND, operator="kim")
    store.create("later", Role.BACKEND, operator="kim")
    tokens = schema.tokens
    with engine.begin() as connection:
        connection.execute(update(tokens).where(tokens.c.name == "later").values(role="auditor"))
    assert store.all_valid().keys() == {digest(token)}
    assert [each.name for each in store.list()] == ["shop"]
    with pytest.raises(UnknownToken):
        store.revoke("later", operator="kim")


def test_no_message_repeats_a_token_given_as_a_name(store: TokenStore) -> None:
    token = new_token()
    with pytest.raises(AdminError) as created:
        store.create(token, Role.BACKEND, operator="kim")
    with pytest.raises(AdminError) as revoked:
        store.revoke(token, operator="kim")
    assert token[4:] not in f"{created.value}{revoked.value}"
