"""POSes that call, over a socket: what they are told, and what is in the ledger then."""

import base64
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from sqlalchemy import Engine, select, text, update

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import callbacks, events, orders
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Entry, Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.server import schemas
from testkit.patience import PATIENCE
from tests.adapters.callers import compact, rest_signed, square_fulfilled, square_signed
from tests.server.conformance import require_described
from tests.server.lab import Server, migrated, serving
from tests.server.raw import Raw

ROOT = Path(__file__).parents[2]
SECRET = new_key()
KEY = "whsec_" + base64.b64encode(b"a key of thirty-two bytes or so.").decode()
OTHER = "whsec_" + base64.b64encode(b"another key of thirty-two bytes.").decode()
_number = itertools.count()


def merchant(merchant_id: str, key: str | None = KEY, **others: Any) -> Merchant:
    auth: dict[str, Any] = {"type": "none", **({"webhook_signature_key": key} if key else {})}
    record = {"id": merchant_id, "base_url": "https://pos.example.com", "auth": auth, **others}
    return Merchant.parse(record)


ONE = merchant("m/1")
_REST = RestAdapter()


@pytest.fixture(scope="module")
def module_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return migrated(f"sqlite:///{tmp_path_factory.mktemp('callbacks')}/gateway.db")


@pytest.fixture(scope="module")
def engine(module_database: str) -> Iterator[Engine]:
    engine = open_database(module_database)
    store = MerchantStore(engine, vault=Vault(SECRET))
    store.put([ONE, merchant("m2", OTHER), merchant("m3", None), merchant("m4", adapter="acme")])
    store.put([merchant("m5", paused=True)])
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "server.log"


@pytest.fixture(scope="module")
def server(module_url: str, module_database: str, engine: Engine, log: Path) -> Iterator[Server]:
    settings = {"POS_GATEWAY_SECRET_KEY": SECRET}
    with serving(module_url, module_database, log, settings) as server:
        yield server


def sent(
    engine: Engine,
    order_id: str,
    kind: Kind = Kind.PENDING,
    owner: Merchant = ONE,
    adapter: Adapter = _REST,
) -> Key:
    """An order that its POS has, and has decided so about."""
    ledger, key = Ledger(engine), Key(owner.id, order_id)
    where = endpoint(owner, adapter)
    claim = ledger.claim(key, send=True, order=b"{}", endpoint=where)
    assert isinstance(claim, Claim)
    event = dehydrated(key, kind)
    is_open = kind is Kind.PENDING
    entry = Entry(State(kind.value), time.time(), 1, pending=is_open, event=event)
    assert ledger.finish(claim, entry)
    ledger.close()
    return key


def body_of(kind: str, order_id: str, **others: Any) -> bytes:
    said = {"type": f"order.{kind}", "order_id": order_id, "occurred_at": "2026-01-31T12:00:00Z"}
    return compact({**said, **others})


def call(
    server: Server,
    body: bytes,
    path: str = "rest/m%2F1",
    *,
    key: str = KEY,
    headers: Mapping[str, str] | None = None,
    message_id: str | None = None,
) -> requests.Response:
    """Without a token."""
    message_id = message_id or f"msg-{next(_number)}"
    signed = rest_signed(key, "", body, time.time(), message_id)
    url = f"{server.url}/v1/callbacks/{path}"
    said = {"content-type": "application/json", **signed, **(headers or {})}
    return posted(url, body, said)


def posted(url: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    """The reply, which has to be as the OpenAPI document has it."""
    hooks = {"response": require_described}
    return requests.post(url, data=body, headers=dict(headers), timeout=PATIENCE, hooks=hooks)


def state_of(engine: Engine, key: Key) -> Any:
    with engine.connect() as connection:
        query = select(orders).where(orders.c.order_id == key.order_id)
        return connection.execute(query).one()


def told(engine: Engine, key: Key) -> list[str]:
    with engine.connect() as connection:
        query = select(events.c.type).where(events.c.order_id == key.order_id)
        return list(connection.scalars(query.order_by(events.c.id)))


def logged(log: Path, event: str) -> list[str]:
    """The log's lines about it, once there is one."""
    until = time.monotonic() + PATIENCE
    while not (lines := [line for line in log.read_text().splitlines() if event in line]):
        assert time.monotonic() < until
        time.sleep(0.02)
    return lines


def test_what_a_pos_says_is_stored_before_it_is_answered(
    server: Server, engine: Engine, order_id: str
) -> None:
    key = sent(engine, order_id)
    for kind, result in (
        ("accepted", "applied"),
        ("accepted", "known"),
        ("ready", "applied"),
        ("preparing", "late"),
        ("cancelled", "applied"),
    ):
        reply = call(server, body_of(kind, order_id))
        assert (reply.status_code, reply.json()) == (200, {"results": [result]})
        schemas.CallbackView.model_validate(reply.json())
    assert told(engine, key) == ["pending", "accepted", "ready", "cancelled_by_pos"]
    assert (state_of(engine, key).state, state_of(engine, key).lifecycle) == (
        "accepted",
        "cancelled_by_pos",
    )


def test_what_follows_is_logged(server: Server, engine: Engine, order_id: str, log: Path) -> None:
    sent(engine, order_id, Kind.REJECTED)
    sent(engine, f"{order_id}-2")
    assert call(server, body_of("ready", order_id)).json() == {"results": ["contradiction"]}
    assert call(server, body_of("ready", f"{order_id}-2")).json() == {"results": ["applied"]}
    for event, of in (("callback.contradiction", order_id), ("callback.applied", f"{order_id}-2")):
        line = json.loads(logged(log, f'"{of}"')[0])
        assert (line["event"], line["meaning"]) == (event, "ready")


def test_the_order_shows_its_lifecycle_events(
    server: Server, engine: Engine, order_id: str
) -> None:
    sent(engine, order_id)
    assert call(server, body_of("ready", order_id)).json() == {"results": ["applied"]}
    with engine.begin() as connection:  # as the pipeline does
        for row in connection.execute(select(events.c.id).where(events.c.position.is_(None))).all():
            connection.execute(
                text("update events set position = :id where id = :id"), {"id": row.id}
            )
        connection.execute(
            text(
                "insert or replace into pipeline (id, epoch, assigned, published) values (1,1,:n,:n)"
            ),
            {"n": 10**6},
        )
    shown = server.get(f"/v1/merchants/m%2F1/orders/{order_id}").json()
    assert [event["type"] for event in shown["events"]] == [
        "order.pending",
        "order.accepted",
        "order.ready",
    ]


def test_a_message_that_comes_again_is_answered_and_counts_once(
    server: Server, engine: Engine, order_id: str
) -> None:
    key = sent(engine, order_id)
    body = body_of("rejected", order_id, reason={"code": "sold_out", "message": "no soup"})
    replies = [call(server, body, message_id=f"again-{order_id}").json() for _ in range(3)]
    assert replies == [{"results": ["applied"]}, *[{"results": ["duplicate"]}] * 2]
    assert told(engine, key) == ["pending", "rejected"]


def test_a_call_about_an_order_that_is_not_known_is_stored(
    server: Server, engine: Engine, order_id: str
) -> None:
    """A refusal would have the POS repeat it, and a vendor end the subscription."""
    reply = call(server, body_of("ready", order_id), message_id=f"unknown-{order_id}")
    assert (reply.status_code, reply.json()) == (200, {"results": ["unknown"]})
    with engine.connect() as connection:
        query = select(callbacks.c.result).where(callbacks.c.event_id == f"unknown-{order_id}")
        assert connection.scalar(query) == "unknown"


def test_every_refusal_is_the_same(server: Server, engine: Engine, order_id: str) -> None:
    key = sent(engine, order_id)
    body = body_of("accepted", order_id)
    refused = {
        "another merchant's key": call(server, body, key=OTHER),
        "another merchant's call": call(server, body, "rest/m2"),
        "no such merchant": call(server, body, "rest/m9"),
        "a merchant without a key": call(server, body, "rest/m3"),
        "a merchant of another adapter": call(server, body, "rest/m4"),
        "another adapter": call(server, body, "square/m%2F1"),
        "no such adapter": call(server, body, "acme/m4"),
        "no signature": call(server, body, headers={"webhook-signature": ""}),
        "an old time": call(server, body, headers={"webhook-timestamp": "1700000000"}),
        "another body": call(server, body + b" ", headers=rest_signed(KEY, "", body, time.time())),
        "a token": call(
            server, body, key=OTHER, headers={"authorization": f"Bearer {server.token}"}
        ),
    }
    seen = {}
    for what, reply in refused.items():
        names = sorted(set(map(str.lower, reply.headers)) - {"date"})
        seen[what] = (reply.status_code, reply.content, names)
    assert {status for status, _, _ in seen.values()} == {403}
    assert len({content for _, content, _ in seen.values()}) == 1, seen
    assert told(engine, key) == ["pending"]


def test_a_header_that_comes_twice_is_none(server: Server, engine: Engine, order_id: str) -> None:
    """A proxy may have checked the other one."""
    sent(engine, order_id)
    body = body_of("accepted", order_id)
    signed = rest_signed(KEY, "", body, time.time())
    lines = [f"{name}: {value}" for name, value in signed.items()]
    head = ["POST /v1/callbacks/rest/m%2F1 HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    for twice, status in (([], 200), (lines[:1], 403)):
        with Raw(server) as raw:
            raw.send("\r\n".join([*head, *lines, *twice, "", ""]).encode() + body)
            reply = raw.reply()
            assert reply is not None
            assert reply.status == status


def test_a_signed_call_that_breaks_the_contract_names_the_field(server: Server) -> None:
    reply = call(server, compact({"type": "order.ready", "order_id": "o"}))
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_callback")
    assert [each["field"] for each in reply.json()["errors"]] == ["occurred_at"]


def test_a_call_that_is_of_no_use_is_answered(server: Server) -> None:
    reply = call(server, body_of("shipped", "o1"))
    assert (reply.status_code, reply.json()) == (200, {"results": []})


def test_a_paused_merchants_pos_is_heard(server: Server, engine: Engine, order_id: str) -> None:
    """Its orders are parked; those that it has go on."""
    key = sent(engine, order_id, owner=merchant("m5"))
    assert call(server, body_of("ready", order_id), "rest/m5").json() == {"results": ["applied"]}
    assert told(engine, key) == ["pending", "accepted", "ready"]


def test_two_servers_take_the_same_call_once(
    server: Server,
    module_url: str,
    module_database: str,
    engine: Engine,
    order_id: str,
    tmp_path: Path,
) -> None:
    keys = [sent(engine, f"{order_id}-{number}") for number in range(20)]
    settings = {"POS_GATEWAY_SECRET_KEY": SECRET}
    with serving(module_url, module_database, tmp_path / "log", settings) as other:

        def called(number: int) -> str:
            one = (server, other)[number % 2]
            order = keys[number // 2].order_id
            while True:
                reply = call(one, body_of("ready", order), message_id=f"both-{order}")
                if reply.status_code == 200:  # 503: the other one is writing the order
                    return str(reply.json()["results"])

        with ThreadPoolExecutor(40) as pool:
            results = list(pool.map(called, range(40)))
    assert sorted(results) == ["['applied']"] * 20 + ["['duplicate']"] * 20
    for key in keys:
        assert told(engine, key) == ["pending", "accepted", "ready"]


def test_the_body_has_64_kib_at_most(server: Server, engine: Engine, order_id: str) -> None:
    sent(engine, order_id)
    most = body_of("ready", order_id)
    most += b" " * (64 * 1024 - len(most))
    assert call(server, most).status_code == 200
    assert call(server, most + b" ").status_code == 413


@pytest.mark.parametrize("path", ["", "rest", "rest/", "/m1", "rest/m1/x"])
def test_another_path_is_none(server: Server, path: str) -> None:
    assert call(server, b"{}", path).status_code == 404


@pytest.mark.parametrize("merchant_id", ["%00", "..%2Fx", "x" * 200, "%FF", "m%201"])
def test_an_id_that_no_merchant_can_have_is_refused_like_an_unknown_one(
    server: Server, merchant_id: str
) -> None:
    assert call(server, b"{}", f"rest/{merchant_id}").status_code == 403


def test_the_documents_table_of_adversaries_names_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    table = page.partition("## Callbacks that are wrong")[2].partition("\n## ")[0]
    named = {*re.findall(r"`(test_\w+)`", table)}
    files = ROOT.glob("tests/*/test_callback*.py")
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 30
    assert named <= there


def test_it_takes_post_only(server: Server) -> None:
    assert server.get("/v1/callbacks/rest/m2").status_code == 405


def test_an_edit_is_seen_at_once(server: Server, engine: Engine, order_id: str) -> None:
    """Two servers, and what edits them, share nothing but the database."""
    sent(engine, order_id)
    store = MerchantStore(engine, vault=Vault(SECRET))
    body = body_of("ready", order_id)
    assert call(server, body).status_code == 200
    store.put([merchant("m/1", OTHER)])
    try:
        assert call(server, body, key=OTHER).status_code == 200
        assert call(server, body).status_code == 403
    finally:
        store.put([ONE])
    assert call(server, body).status_code == 200
    assert call(server, body, f"rest/{order_id}").status_code == 403
    store.put([merchant(order_id)])
    reply = call(server, body_of("ready", "o1"), f"rest/{order_id}")
    assert reply.json() == {"results": ["unknown"]}


def test_secrets_that_this_server_cannot_read_have_the_pos_call_again(
    server: Server, engine: Engine, order_id: str, log: Path
) -> None:
    MerchantStore(engine, vault=Vault(new_key())).put([merchant(order_id)])
    reply = call(server, body_of("ready", "o1"), f"rest/{order_id}")
    assert (reply.status_code, reply.json()["code"]) == (503, "secrets_unreadable")
    assert reply.headers["retry-after"] == "10"
    [line] = logged(log, "callback.unreadable_secrets")
    assert json.loads(line)["merchant_id"] == order_id


def test_refusals_are_logged_once_a_second_without_what_came(
    server: Server, log: Path, order_id: str
) -> None:
    before = log.read_text().count("callback.refused")
    began = time.monotonic()
    for _ in range(40):
        call(server, body_of("ready", order_id), key=OTHER)
    lines = logged(log, "callback.refused")
    assert len(lines) - before <= time.monotonic() - began + 2
    assert order_id not in "".join(lines)
    assert json.loads(lines[-1])["merchant_id"]


def test_many_at_once_are_each_answered(server: Server, engine: Engine, order_id: str) -> None:
    keys = [sent(engine, f"{order_id}-{number}") for number in range(60)]

    def ready(key: Key) -> Any:
        return call(server, body_of("ready", key.order_id)).json()

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ready, keys)) == [{"results": ["applied"]}] * 60
    assert all(told(engine, key) == ["pending", "accepted", "ready"] for key in keys)


def test_a_database_that_is_away_has_the_pos_call_again(
    server: Server, engine: Engine, order_id: str
) -> None:
    key = sent(engine, order_id)
    with engine.begin() as connection:
        connection.execute(text("alter table callbacks rename to elsewhere"))
    try:
        reply = call(server, body_of("accepted", order_id))
        assert (reply.status_code, reply.json()["code"]) == (503, "database_unavailable")
        assert reply.headers["retry-after"] == "1"
    finally:
        with engine.begin() as connection:
            connection.execute(text("alter table elsewhere rename to callbacks"))
    assert told(engine, key) == ["pending"]
    assert call(server, body_of("accepted", order_id)).status_code == 200


# Vendors: one URL for an application's merchants

SQUARE_KEY = "asdf1234"


def at_square(merchant_id: str, location: str, key: str = SQUARE_KEY) -> Merchant:
    return merchant(merchant_id, key, adapter="square", pos={"location_id": location})


@pytest.fixture(scope="module")
def _square(engine: Engine) -> None:
    brands = [at_square("s1", "L1"), at_square("s2", "L2"), at_square("s3", "L1", "another")]
    clover = merchant("c1", "a-code", adapter="clover", pos={"merchant_id": "M1"})
    MerchantStore(engine, vault=Vault(SECRET)).put([*brands, clover])


def known_at_square(engine: Engine, order_id: str, owner: Merchant) -> str:
    """Square's id of an order that it has accepted."""
    key, external_id = (
        sent(engine, order_id, Kind.ACCEPTED, owner, SquareAdapter()),
        f"at-{order_id}",
    )
    with engine.begin() as connection:
        change = update(orders).where(orders.c.order_id == key.order_id)
        connection.execute(change.values(external_id=external_id))
    return external_id


def square_call(server: Server, external_id: str, location: str, **others: Any) -> Any:
    body = square_fulfilled("COMPLETED", order_id=external_id, location_id=location)
    body = body.replace(b"b3adf364", b"%08d" % next(_number))  # in its event_id
    path = "/v1/callbacks/square/s1"
    url = others.get("url", f"https://{server.url.removeprefix('http://')}{path}")
    headers = square_signed(SQUARE_KEY, url, body)
    return posted(server.url + path, body, headers)


@pytest.mark.usefixtures("_square")
def test_an_order_is_found_by_the_poss_id_at_any_merchant_with_its_key(
    server: Server, engine: Engine, order_id: str
) -> None:
    known_as = known_at_square(engine, order_id, at_square("s2", "L2"))
    others = known_at_square(engine, f"{order_id}-3", at_square("s3", "L1", "another"))
    reply = square_call(server, known_as, "L2")
    assert reply.json() == {"results": ["applied"]}
    assert told(engine, Key("s2", order_id)) == ["accepted", "completed"]
    for external_id, location in ((others, "L1"), (known_as, "L1"), ("none", "L1")):
        reply = square_call(server, external_id, location)
        assert (reply.status_code, reply.json()) == (200, {"results": ["unknown"]})
    assert told(engine, Key("s3", f"{order_id}-3")) == ["accepted"]
    with engine.connect() as connection:
        query = select(callbacks.c.result).where(callbacks.c.adapter == "square")
        assert list(connection.scalars(query)) == ["applied"], "a shop's own orders are not stored"


@pytest.mark.usefixtures("_square")
def test_a_call_that_is_faster_than_the_workers_commit_is_applied_after_it(
    server: Server, engine: Engine, order_id: str
) -> None:
    owner, key = at_square("s2", "L2"), Key("s2", order_id)
    known_as = f"at-{order_id}"
    ledger = Ledger(engine)
    claim = ledger.claim(key, send=True, order=b"{}", endpoint=endpoint(owner, SquareAdapter()))
    assert isinstance(claim, Claim)
    assert square_call(server, known_as, "L2").json() == {"results": ["waiting"]}
    assert square_call(server, known_as, "L1").json() == {"results": ["unknown"]}
    event = dehydrated(key, Kind.ACCEPTED)
    entry = Entry(State.ACCEPTED, time.time(), 1, external_id=known_as, event=event)
    assert ledger.finish(claim, entry)
    ledger.close()
    until = time.monotonic() + PATIENCE
    while told(engine, key) != ["accepted", "completed"]:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.usefixtures("_square")
def test_a_url_that_the_pos_was_not_given_is_another(server: Server) -> None:
    square_call(server, "none", "L1")
    elsewhere = "https://elsewhere.example.com/v1/callbacks/square/s1"
    assert square_call(server, "none", "L1", url=elsewhere).status_code == 403


@pytest.mark.usefixtures("_square")
def test_the_url_may_be_set(module_url: str, module_database: str, tmp_path: Path) -> None:
    public = "https://orders.example.com/pos/"
    settings = {"POS_GATEWAY_SECRET_KEY": SECRET, "POS_GATEWAY_HTTP_PUBLIC_URL": public}
    with serving(module_url, module_database, tmp_path / "log", settings) as server:
        assert square_call(server, "none", "L1").status_code == 403
        url = f"{public}v1/callbacks/square/s1"
        assert square_call(server, "none", "L1", url=url).status_code == 200


@pytest.mark.usefixtures("_square")
def test_clovers_code_is_answered_and_logged_for_the_operator(server: Server, log: Path) -> None:
    code = {"verificationCode": "ce7643c1-83ea-4218-abe6-da876c9c7a0a"}
    began = time.monotonic()
    for number in range(20):  # anyone may call, and name any merchant
        url = f"{server.url}/v1/callbacks/clover/m9-{number}"
        assert (
            requests.post(url, json={"verificationCode": "x"}, timeout=PATIENCE).status_code == 200
        )
    assert requests.post(url, json={}, timeout=PATIENCE).status_code == 403
    url = f"{server.url}/v1/callbacks/clover/c1"
    assert requests.post(url, json=code, timeout=PATIENCE).status_code == 200
    lines = [json.loads(each) for each in logged(log, code["verificationCode"])]
    assert [each["merchant_id"] for each in lines] == ["c1"]
    others = [each for each in logged(log, "callback.verification_code") if "m9-" in each]
    assert 1 <= len(others) <= time.monotonic() - began + 1
