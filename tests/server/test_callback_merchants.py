"""The merchants whose POSes call: as the database has them, at the same cost for each caller."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, update
from structlog.testing import capture_logs

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import merchants as table
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.server.callback_merchants import CallbackMerchants
from pos_gateway.server.callbacks import CallbackRoute
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.shared_reads import EVERY
from tests.adapters.callers import REST, compact, rest_body, rest_signed
from tests.server.lab import migrated

ADAPTERS: dict[str, Adapter] = {
    each.name: each for each in (RestAdapter(), SquareAdapter(), CloverAdapter())
}
VAULT = Vault(new_key())


def a_merchant(merchant_id: str, key: str | None = REST.key, **others: Any) -> Merchant:
    auth: dict[str, Any] = {"type": "none", **({"webhook_signature_key": key} if key else {})}
    record = {"id": merchant_id, "base_url": "https://pos.example.com", "auth": auth}
    return Merchant.parse({**record, **others})


def at_square(merchant_id: str, location: str, key: str = "a-key", **others: Any) -> Merchant:
    return a_merchant(merchant_id, key, adapter="square", pos={"location_id": location}, **others)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(migrated(f"sqlite:///{tmp_path}/gateway.db"))
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> MerchantStore:
    return MerchantStore(engine, vault=VAULT)


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """What is asked of the database from now on."""
    found: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    return found


def played(engine: Engine, play: Callable[[CallbackMerchants], Awaitable[None]]) -> None:
    """A server's merchants; they read with a store of their own."""

    async def play_it() -> None:
        reading = Reading()
        try:
            await play(CallbackMerchants(MerchantStore(engine, vault=VAULT), reading))
        finally:
            reading.close()

    asyncio.run(play_it())


def test_a_merchant_is_as_the_database_has_it(engine: Engine, store: MerchantStore) -> None:
    """One that is new, has another key, or has moved, an instant ago."""
    rest, square = ADAPTERS["rest"], ADAPTERS["square"]

    async def play(merchants: CallbackMerchants) -> None:
        assert await merchants.get(rest, "m1") is None
        for record in (
            a_merchant("m1"),
            a_merchant("m1", None),
            a_merchant("m1", base_url="https://elsewhere.example.com"),
        ):
            store.put([record])
            assert await merchants.get(rest, "m1") == record
        store.put([at_square("m1", "L1")])
        assert await merchants.get(rest, "m1") is None, "of another adapter now"
        assert await merchants.get(square, "m1") == at_square("m1", "L1")

    played(engine, play)


def test_a_shops_owners_are_as_the_database_has_them(
    engine: Engine, store: MerchantStore, statements: list[str]
) -> None:
    square, said = ADAPTERS["square"], a_callback("L2")
    one = at_square("m1", "L1")
    store.put([one, *(at_square(f"other-{number}", f"M{number}") for number in range(50))])

    async def play(merchants: CallbackMerchants) -> None:
        async def owners() -> dict[str, tuple[str, ...]]:
            return await merchants.owners(square, one, said)

        assert await owners() == {}
        for record in (
            at_square("m2", "L2"),
            at_square("m2", "L2", base_url="https://elsewhere.example.com"),
        ):
            store.put([record])
            assert await owners() == {"m2": (endpoint(record, square), record.endpoint)}
        store.put([at_square("m3", "L2")])
        assert set(await owners()) == {"m2", "m3"}
        store.put([at_square("m2", "L1"), at_square("m3", "L2", "another-key")])
        assert await owners() == {}
        assert set(await merchants.owners(square, one, a_callback("L1"))) == {"m1", "m2"}
        store.put([a_merchant("m2")])
        assert set(await merchants.owners(square, one, a_callback("L1"))) == {"m1"}
        store.put([one, at_square("m3", "L1")])
        assert set(await merchants.owners(square, one, a_callback("L1"))) == {"m1", "m3"}

    played(engine, play)
    reads = [
        each for each in statements if "merchants.pos" in each and "merchants.auth" not in each
    ]
    assert len([each for each in reads if "WHERE" not in each]) == 1, "all of them are read once"


def test_a_restaurants_guid_is_the_same_in_either_case(
    engine: Engine, store: MerchantStore
) -> None:
    """Some systems show GUIDs in capitals, and Toast calls back in small letters."""
    guid, toast = "0D7B2C6E-6F1A-4C58-9B7E-3A52F0C4D1AB", ToastAdapter()
    shop = a_merchant("m1", adapter="toast", pos={"restaurant": guid})
    store.put([shop, at_square("m2", "L1")])

    async def play(merchants: CallbackMerchants) -> None:
        for said in (guid, guid.lower()):
            called = Callback("1", Kind.ACCEPTED, external_id="7", account=("restaurant", said))
            assert set(await merchants.owners(toast, shop, called)) == {"m1"}
        square = ADAPTERS["square"]
        assert await merchants.owners(square, at_square("m2", "L1"), a_callback("l1")) == {}
        store.put([a_merchant("m1", adapter="toast", pos={"restaurant": guid.lower()})])
        assert set(await merchants.owners(toast, shop, called)) == {"m1"}

    played(engine, play)


def a_callback(location: str) -> Callback:
    return Callback("1", Kind.ACCEPTED, external_id="7", account=("location_id", location))


def test_a_flood_of_calls_is_a_few_reads(engine: Engine, statements: list[str]) -> None:
    async def play(merchants: CallbackMerchants) -> None:
        asked = [merchants.get(ADAPTERS["rest"], f"m{number}") for number in range(400)]
        assert set(await asyncio.gather(*asked)) == {None}

    played(engine, play)
    assert len(statements) == 1
    statements.clear()

    async def goes_on(merchants: CallbackMerchants) -> None:
        began, number = time.monotonic(), 0
        while number < 100:  # one after the other, from as many as there may be
            await asyncio.gather(
                *(merchants.get(ADAPTERS["rest"], f"n{number}-{n}") for n in range(10))
            )
            number += 1
        assert len(statements) <= 1 + (time.monotonic() - began) / EVERY

    played(engine, goes_on)


def test_one_that_gives_up_takes_no_read_from_the_others(
    engine: Engine, store: MerchantStore
) -> None:
    store.put([a_merchant("m1"), a_merchant("m2")])

    async def play(merchants: CallbackMerchants) -> None:
        rest = ADAPTERS["rest"]
        first, *others = [asyncio.ensure_future(merchants.get(rest, each)) for each in ("m1", "m2")]
        await asyncio.sleep(0)
        first.cancel()
        assert await others[0] == a_merchant("m2")
        assert await merchants.get(rest, "m1") == a_merchant("m1")

    played(engine, play)


class Intake:
    """Takes nothing: no call here is signed."""


def route(merchants: CallbackMerchants) -> CallbackRoute:
    return CallbackRoute(
        ADAPTERS,
        merchants,
        Intake(),  # type: ignore[arg-type]
        InFlight(100),
        public_url=None,
        clock=SYSTEM_CLOCK,
    )


async def called(
    route: CallbackRoute, path: str, body: bytes, key: str = REST.key
) -> tuple[int, str]:
    headers = rest_signed(key, "", body, time.time())
    scope = {
        "path": f"/v1/callbacks/{path}",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        return (await route(scope, receive)).status, ""
    except Problem as problem:
        return problem.status, problem.code


def test_each_call_that_is_refused_costs_the_same_work(
    engine: Engine,
    store: MerchantStore,
    statements: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its time would tell which merchants there are, and whose POSes call."""
    other = "whsec_" + "A" * 44
    store.put([a_merchant("busy"), a_merchant("idle"), a_merchant("keyless", None)])
    store.put([at_square("square", "L1"), *(a_merchant(f"more-{n}") for n in range(20))])
    macs: list[Any] = []
    new = hmac.new

    def noting(*arguments: Any, **named: Any) -> Any:
        macs.append(arguments)
        return new(*arguments, **named)

    async def play(merchants: CallbackMerchants) -> None:
        one, work = route(merchants), {}
        body = rest_body(Kind.ACCEPTED) or b""
        for _ in range(3):
            assert (await called(one, "rest/busy", b"{}", REST.key))[0] == 422, "it is signed"
        monkeypatch.setattr(hmac, "new", noting)
        for merchant_id in ("busy", "idle", "keyless", "square", "none", "none", "idle"):
            statements.clear()
            macs.clear()
            answer = await called(one, f"rest/{merchant_id}", body, other)
            work[merchant_id, len(work)] = answer, list(statements), len(macs)
        assert len({str(each) for each in work.values()}) == 1, work
        [(answer, asked, signed), *_] = work.values()
        assert answer == (403, "unsigned")
        assert (len(asked), signed) == (1, 1)

    played(engine, play)


def test_while_the_database_is_away_all_are_asked_to_call_again(
    engine: Engine, store: MerchantStore
) -> None:
    store.put([a_merchant("m1")])

    async def play(merchants: CallbackMerchants) -> None:
        one, body = route(merchants), rest_body(Kind.ACCEPTED) or b""
        with engine.begin() as connection:
            connection.exec_driver_sql("alter table merchants rename to elsewhere")
        for merchant_id in ("m1", "none"):
            assert await called(one, f"rest/{merchant_id}", body) == (503, "database_unavailable")

    played(engine, play)


def test_secrets_that_cannot_be_read_have_the_pos_call_again(
    engine: Engine, store: MerchantStore
) -> None:
    """The signature may be right: a refusal would be for good."""
    lost = MerchantStore(engine, vault=Vault(new_key()))
    one = at_square("s1", "L1")
    store.put([one])
    lost.put([a_merchant("m1"), at_square("s2", "L2")])

    async def play(merchants: CallbackMerchants) -> None:
        answer = await called(route(merchants), "rest/m1", rest_body(Kind.ACCEPTED) or b"")
        assert answer == (503, "secrets_unreadable")
        with pytest.raises(Problem) as problem:
            await merchants.owners(ADAPTERS["square"], one, a_callback("L2"))
        assert (problem.value.status, problem.value.code) == (503, "secrets_unreadable")
        assert problem.value.retry_after
        store.put([at_square("s2", "L2")])
        assert set(await merchants.owners(ADAPTERS["square"], one, a_callback("L2"))) == {"s2"}

    played(engine, play)


def test_after_a_restore_the_accounts_are_as_the_database_has_them(
    engine: Engine, store: MerchantStore
) -> None:
    """Its last edit is an earlier one than the last that was read."""
    square, said = ADAPTERS["square"], a_callback("L1")
    one = at_square("m1", "L1")
    store.put([one, at_square("m2", "L1")])

    async def play(merchants: CallbackMerchants) -> None:
        assert set(await merchants.owners(square, one, said)) == {"m1", "m2"}
        with engine.begin() as connection:
            connection.execute(delete(table).where(table.c.id == "m2"))
            before = connection.scalar(select(table.c.updated_at)) - timedelta(hours=1)
            connection.execute(update(table).values(pos={"location_id": "L2"}, updated_at=before))
        assert await merchants.owners(square, one, said) == {}

    played(engine, play)


def test_a_flood_of_codes_hides_no_merchants(engine: Engine, store: MerchantStore) -> None:
    """Anyone may send one, to any merchant; an operator waits for the line of the right one."""
    store.put([a_merchant("c1", adapter="clover", pos={"merchant_id": "M1"})])

    async def play(merchants: CallbackMerchants) -> None:
        one = route(merchants)
        with capture_logs() as lines:
            for number in range(10):
                for merchant_id in (f"none-{number}", "c1"):
                    body = compact({"verificationCode": f"{merchant_id}-{number}"})
                    assert await called(one, f"clover/{merchant_id}", body) == (200, "")
        shown = {each["code"] for each in lines if each["event"] == "callback.verification_code"}
        assert {"none-0-0", "c1-0"} <= shown

    played(engine, play)


def test_ids_that_no_database_takes_are_refused(engine: Engine, store: MerchantStore) -> None:
    clover = a_merchant("c1", "a-code", adapter="clover", pos={"merchant_id": "M1"})
    store.put([clover])
    body = compact({"merchants": {"M\0": [{"objectId": "O:1", "type": "DELETE", "ts": 1}]}})

    async def play(merchants: CallbackMerchants) -> None:
        scope = {
            "path": "/v1/callbacks/clover/c1",
            "query_string": b"",
            "headers": [(b"x-clover-auth", b"a-code")],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        with pytest.raises(Problem) as problem:
            await route(merchants)(scope, receive)
        assert (problem.value.status, problem.value.code) == (422, "invalid_callback")
        assert [each.field for each in problem.value.errors] == ["account"]

    played(engine, play)
