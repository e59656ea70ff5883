"""``pos-gateway merchants check``: what is found out about each merchant, and that no order is sent."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from pos_gateway.adapters.registry import adapters
from pos_gateway.cli.merchants_check import _outcomes
from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.runtime.vault import new_key
from testkit.hostile.peer import Peer, a_reply, peer, read_request
from testkit.vendors import square
from testkit.vendors.sellers import Sellers
from testkit.vendors.square.access import SCOPES, Token
from testkit.vendors.way import Way
from tests.adapters.vendors import TOAST, sku_of
from tests.cli.conftest import PATIENCE, Program, on_terminal
from tests.cli.test_merchants_command import entry, imported, json_lines


@pytest.fixture
def here(migrated: Program) -> Program:
    """The program, with a key for secrets, where merchants may be on this machine."""
    migrated.settings["POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES"] = "true"
    migrated.settings["POS_GATEWAY_SECRET_KEY"] = new_key()
    return migrated


@contextmanager
def pos(received: list[bytes]) -> Iterator[Peer]:
    """A POS that waits for requests, and their outcomes."""
    with peer(lambda connection: received.append(connection.recv(65536))) as seen:
        yield seen


@contextmanager
def tokens(status: str = "200 OK") -> Iterator[Peer]:
    """A token endpoint, and the requests that came to it."""
    token = json.dumps({"access_token": "t", "expires_in": 600}).encode()

    def serve(connection: socket.socket) -> None:
        while request := read_request(connection):
            seen.received.append(request)
            connection.sendall(a_reply(token, status))

    with peer(serve) as seen:
        yield seen


def client(endpoint: Peer) -> dict[str, Any]:
    secret = {"client_id": "us", "client_secret": "s3cr3t"}
    return {"type": "oauth2", "token_url": endpoint.url("/token"), **secret}


def open_merchants(program: Program, *records: dict[str, Any]) -> None:
    done = program.invoke("merchants", "import", "-", stdin=json_lines(*records))
    assert done.exit_code == 0, done.stderr


def checked(program: Program, *ids: str, **settings: str) -> tuple[int, list[str]]:
    done = program.run("merchants", "check", *ids, **settings)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections: bound, so that no other process gets it, and without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def test_merchants_that_can_be_sent_orders_are_ok_and_get_nothing(here: Program) -> None:
    received: list[bytes] = []
    with pos(received) as seen, tokens() as endpoint:
        open_merchants(
            here,
            {"id": "plain", "base_url": seen.url("/api")},
            {"id": "idle", "base_url": seen.url("/api"), "paused": True},
            {"id": "keyed", "base_url": seen.url("/api"), "auth": {"type": "bearer", "token": "?"}},
            *(
                {"id": f"t{n}", "base_url": seen.url(""), "auth": client(endpoint)}
                for n in range(9)
            ),
        )
        code, lines = checked(here)
        until = time.monotonic() + PATIENCE
        while len(received) < 12:  # each connection has a thread of its own
            assert time.monotonic() < until
            time.sleep(0.01)
    untried = "ok    keyed: its token was not tried; the POS judges it with the first order"
    assert (code, lines) == (
        0,
        ["ok    idle (paused)", untried, "ok    plain", *(f"ok    t{n}" for n in range(9))],
    )
    assert len(endpoint.received) == 1, "one token is good for all of a client's merchants"
    assert received == [b""] * 12


def test_a_vendor_is_asked_for_the_state_of_its_location(here: Program) -> None:
    market = Sellers()
    for token in ("open", "idle", "refused"):
        vendor = square.simulator(lambda: datetime.now(UTC))
        vendor.access.access[token] = Token(None, frozenset(SCOPES), is_revoked=token == "refused")
        vendor.knobs.is_active = token != "idle"
        market.ways[token] = Way(vendor)
    with market.served() as url:
        own = {"base_url": url, "adapter": "square", "pos": {"location_id": "L1"}}
        open_merchants(
            here,
            *(
                {**own, "id": token, "auth": {"type": "bearer", "token": token}}
                for token in market.ways
            ),
        )
        code, lines = checked(here)
        done = here.run("merchants", "check", "--json", "open")
    has = ["its currency is USD", "its hours are unknown"]
    has.append("no catalog: a kitchen's printers may not route its items")
    has_not = "nothing is heard of its accepted orders: set up callbacks, or pos.poll ON"
    assert (code, lines[1]) == (1, f"ok    open: {'; '.join([*has, has_not])}")
    assert lines[0].startswith("fail  idle: the location is INACTIVE at Square  -> ")
    assert lines[2].startswith("fail  refused: /oauth2/token/status: the POS answered 401")
    assert (json.loads(done.stdout)["location"], done.returncode) == (has, 0)
    assert [json.loads(done.stdout)[name] for name in ("problem", "not_tried")] == [None, None]


@pytest.mark.parametrize(
    ("adapter", "key", "poll", "outcomes"),
    [
        ("rest", None, None, ""),
        ("rest", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3", None, "callbacks"),
        ("clover", None, None, None),
        ("clover", None, "OFF", None),
        ("clover", "a key", None, "callbacks"),
        ("clover", None, "ON", "polls"),
        ("clover", "a key", "ON", "callbacks and polls"),
    ],
)
def test_how_the_gateway_hears_of_accepted_orders_is_said(
    adapter: str, key: str | None, poll: str | None, outcomes: str | None
) -> None:
    auth = {"type": "none"} | ({"webhook_signature_key": key} if key else {})
    own = {"id": "m", "base_url": "https://pos.example.com", "adapter": adapter, "auth": auth}
    merchant = Merchant.parse({**own, "pos": {"poll": poll} if poll else {}})
    assert _outcomes(merchant, adapters()[adapter]) == outcomes


def test_a_grant_that_is_refused_is_told_while_its_access_token_lasts(here: Program) -> None:
    with pos([]) as seen, tokens("401 Unauthorized") as refusing:
        pair = {"refresh_token": "s3cr3t-refresh", "access_token": "s3cr3t-access"}
        auth = {**client(refusing), **pair, "type": "oauth2_grant"}
        open_merchants(here, {"id": "m", "base_url": seen.url(""), "auth": auth})
        code, lines = checked(here)
        doctor = here.run("doctor").stdout
        exported = here.run("merchants", "export").stdout
    problem = (
        "its grant is refused (the token endpoint answered 401); its access token lasts another"
    )
    assert code == 1
    assert lines[0].startswith(f"fail  m: auth: {problem}")
    assert "  -> bring in a new grant" in lines[0]
    assert f"warn  merchants: m: {problem}" in doctor
    assert "s3cr3t" not in doctor + exported + "".join(lines)
    # What was exported is the same grant.
    again = here.invoke("merchants", "import", "-", stdin=exported)
    assert again.exit_code == 0, again.stderr
    assert "its grant is refused" in checked(here)[1][0]


def test_a_token_that_another_process_has_is_used(here: Program, redis_url: str) -> None:
    with pos([]) as seen, tokens() as endpoint:
        open_merchants(here, {"id": "m", "base_url": seen.url(""), "auth": client(endpoint)})
        for _ in range(2):
            assert checked(here, POS_GATEWAY_REDIS_URL=redis_url) == (0, ["ok    m"])
    assert len(endpoint.received) == 1


def test_what_is_wrong_is_a_sentence_with_what_would_do(here: Program) -> None:
    key = {"type": "bearer", "token": "s3cr3t-token"}
    with pos([]) as seen, tokens("401 Unauthorized") as refusing, refusing_port() as port:
        gone = f"http://127.0.0.1:{port}"
        tls = seen.url("", scheme="https")
        open_merchants(
            here,
            {"id": "gone", "base_url": gone},
            {"id": "no-tls", "base_url": tls},
            {"id": "no-token", "base_url": seen.url(""), "auth": client(refusing)},
            {"id": "ok", "base_url": seen.url("")},
            {"id": "sealed", "base_url": seen.url(""), "auth": key},
            {"id": "unnamed", "base_url": "https://pos.invalid"},
        )
        code, lines = checked(here, POS_GATEWAY_SECRET_KEY=new_key())
        assert code == 1
        by_id = {line[6:].partition(":")[0]: line for line in lines}
        assert [*by_id] == ["gone", "no-tls", "no-token", "ok", "sealed", "unnamed"]
        assert by_id["ok"] == "ok    ok"
        for merchant_id in ("no-token", "sealed"):
            assert by_id[merchant_id].startswith(
                f"fail  {merchant_id}: auth: the merchant's secrets are sealed with the key "
            )
            assert by_id[merchant_id].endswith(
                "  -> set POS_GATEWAY_SECRET_KEY as it was when the merchant was imported"
            )
        code, lines = checked(here, "unnamed", "no-token", "gone", "no-tls")
    assert code == 1
    assert lines[0].startswith(
        "fail  unnamed: base_url https://pos.invalid: cannot resolve pos.inv"
    )
    assert lines[1] == (
        "fail  no-token: auth: the token endpoint answered 401"
        "  -> are auth.token_url, auth.client_id and auth.client_secret right?"
    )
    assert lines[2].startswith(f"fail  gone: base_url {gone}: cannot connect to 127.0.0.1:")
    assert lines[2].endswith("  -> is it up, and does it let this machine in?")
    assert lines[3].startswith(f"fail  no-tls: base_url {tls}: ")


def test_an_address_that_may_not_be_called_is_said_without_calling_it(here: Program) -> None:
    with pos([]) as seen:
        open_merchants(here, {"id": "m", "base_url": seen.url("")})
        here.settings["POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES"] = "false"
        code, [line] = checked(here, POS_GATEWAY_ALLOWED_PORTS=str(seen.port))
        assert seen.connections == 0
    assert (code, line) == (
        1,
        f"fail  m: base_url {seen.url('')}: 127.0.0.1 is to be spoken to in plain HTTP, not https"
        "  -> if it is yours: POS_GATEWAY_ALLOWED_NETWORKS, POS_GATEWAY_ALLOWED_PORTS",
    )


def test_a_record_and_a_catalog_that_do_not_fit_the_adapter_are_said(
    here: Program, database_url: str
) -> None:
    with pos([]) as seen:
        toast = {"adapter": "toast", "request_timeout": 30, "pos": TOAST.record["pos"]}
        open_merchants(
            here,
            {"id": "fax", "base_url": seen.url("")},
            {"id": "square", "base_url": seen.url("")},
            {"id": "toast", "base_url": seen.url(""), **toast},
        )
        imported(here, *(entry(f"s{n}", sku_of(n), "toast") for n in range(2)))
        engine = open_database(database_url)
        with engine.begin() as connection:  # as an earlier version, or another package, left them
            for adapter in ("fax", "square"):
                change = f"UPDATE merchants SET adapter = '{adapter}' WHERE id = '{adapter}'"
                connection.exec_driver_sql(change)
            connection.exec_driver_sql("""UPDATE catalogs SET entries = '{"a": "1", "b": "2"}'""")
        engine.dispose()
        code, lines = checked(here)
        assert seen.connections == 0
    assert (code, lines) == (
        1,
        [
            "fail  fax: adapter: is not one of the adapters here: clover, hubrise, rest, square, toast "
            "(got 'fax')  -> mend the record (pos-gateway merchants import FILE)",
            "fail  square: pos.location_id: is required: the Square location's id"
            "  -> mend the record (pos-gateway merchants import FILE)",
            "fail  toast: pos_id: must be the GUIDs of the item's menu group (a modifier's: its option "
            "group) and its own: group/item (got '1') (and 1 more)"
            "  -> mend the catalog (pos-gateway merchants catalog import FILE)",
        ],
    )


def test_json_is_for_programs(here: Program) -> None:
    with pos([]) as seen, refusing_port() as port:
        bad = {"id": "bad", "base_url": f"http://127.0.0.1:{port}"}
        open_merchants(here, {"id": "good", "base_url": seen.url("")}, bad)
        done = here.run("merchants", "check", "--json", "good", "bad")
    good, bad = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1
    unknown = dict.fromkeys(["problem", "advice", "not_tried", "location", "outcomes"])
    assert good == {"id": "good", "ok": True, **unknown}
    assert (bad["id"], bad["ok"]) == ("bad", False)
    assert bad["problem"].startswith("base_url http://127.0.0.1:")
    assert bad["advice"] == "is it up, and does it let this machine in?"


def test_a_merchant_that_is_not_there_is_named_and_none_is_tried(here: Program) -> None:
    with pos([]) as seen:
        open_merchants(here, {"id": "pizza", "base_url": seen.url("")})
        done = here.run("merchants", "check", "pizza", "piza")
        assert seen.connections == 0
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pos-gateway: no merchant has the id 'piza'; did you mean 'pizza'?\n"


def test_ctrl_c_ends_it_with_what_is_known_by_then(here: Program) -> None:
    came, over = threading.Semaphore(0), threading.Event()
    open_ones: list[socket.socket] = []

    def hang(connection: socket.socket) -> None:
        open_ones.append(connection)
        connection.recv(65536)  # the beginning of a handshake
        came.release()
        if not over.is_set():
            connection.recv(1)

    with peer(hang) as seen:
        records = [{"id": f"m{n:03}", "base_url": seen.url("", "https")} for n in range(200)]
        open_merchants(here, *records)
        process = here.start("merchants", "check")
        assert came.acquire(timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        over.set()
        for each in open_ones:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (130, "")
    assert 1 <= len(stdout.splitlines()) < 200
    assert all(line.startswith("fail  m") for line in stdout.splitlines())


def test_on_a_terminal_it_shows_how_far_it_is(here: Program) -> None:
    with pos([]) as seen:
        open_merchants(here, {"id": "m", "base_url": seen.url("")})
        shown = on_terminal(here, "merchants", "check")
    assert "1 of 1, 0 wrong" in shown
    assert "ok" in shown.splitlines()[-1]
