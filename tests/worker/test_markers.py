"""Names, phone numbers and secrets on every path of an order: where they must not appear.

Secrets: only in the requests to their merchant, even if the POS repeats them. A customer's name,
phone and card: in the order itself, which is in the event and in a dead letter's body, and in the
words of the POS that rejected it, which are the reason in that event (docs/wire-format.md) and in
the ledger. Not in logs, metrics and listings: output, metrics, dead letters' headers, commands,
database.
"""

import base64
import json
import os
import socket
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import urlopen

import pytest

from pos_gateway.runtime.vault import new_key
from testkit.hostile.peer import Peer, a_reply, peer, read_request
from testkit.servers.process import free_port
from tests.cli import preloaded
from tests.orders import an_order
from tests.worker.lab import PATIENCE, Lab

NAME, PHONE, CARD = "Quackenbush", "4915550142857", "4012888888881881"
PERSONAL = (NAME, PHONE, CARD)
CUSTOMER = {"customer": {"name": NAME, "phone": PHONE}, "notes": f"card {CARD}"}
KEY = new_key()
SECRETS = {
    kind: f"marker-{kind}/0a1b2c" for kind in ("key", "password", "bearer", "client", "token")
}
BASIC = base64.b64encode(f"us:{SECRETS['password']}".encode()).decode()
ALL_SECRETS = (
    *(*SECRETS.values(), BASIC, KEY),
    *(quote(secret, "") for secret in SECRETS.values()),
    *(base64.b64encode(secret.encode()).decode()[:20] for secret in SECRETS.values()),
)

ECHO = f"no {NAME}, {PHONE}, {CARD}"
#: How the POS of each name treats an order.
REPLIES = {
    "accepts": a_reply(b'{"id":"7","status":"accepted"}', "201 Created"),
    "rejects": a_reply(json.dumps({"error": {"code": PHONE, "message": ECHO}}).encode(), "422 No"),
    "redirects": a_reply(b"", "302 Found", Location=f"https://pos.example/{NAME}?x={PHONE}"),
    "no-json": a_reply(f'{{"status":"accepted", {ECHO}'.encode()),
    "odd-status": a_reply(json.dumps({"status": ECHO}).encode()),
    "no-http": f"HTTP/1.1 {ECHO}\r\n\r\n".encode(),
    "odd-chunk": f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{ECHO}\r\n".encode(),
    "odd-header": f"HTTP/1.1 200 OK\r\n{ECHO}\r\n\r\n".encode(),
    "odd-length": f"HTTP/1.1 200 OK\r\nContent-Length: {PHONE}, 1\r\n\r\n".encode(),
    "breaks": f"HTTP/1.1 500 {ECHO}\r\nX: {ECHO}\r\nContent-Length: 0\r\n\r\n".encode(),
    "token": a_reply(json.dumps({"access_token": SECRETS["token"], "expires_in": 600}).encode()),
}


def repeated(request: bytes, name: str) -> bytes:
    """The request's credentials, verbatim and encoded, everywhere a POS can repeat them."""
    lines = request.decode().split("\r\n")
    [secret] = [line for line in lines if line.startswith(("X-Api-Key: ", "Authorization: "))]
    secret = secret.split(" ")[-1]
    if name == "tells":
        return a_reply(json.dumps({"id": secret, "status": "accepted"}).encode(), "201 Created")
    words = f"{secret} {secret.upper()} {quote(secret, '')} "
    words += base64.b64encode(f"us:{secret}".encode()).decode()
    long = f"{'x' * (490 - len(words))} {words} {secret}"
    return a_reply(json.dumps({"error": {"code": secret, "message": long}}).encode(), "422 No")


#: Merchants whose orders are in doubt when they expire, and one that cannot be reached.
EXPIRED = (
    *("no-json", "odd-status", "no-http", "odd-chunk", "odd-header", "odd-length", "breaks"),
    *("resets", "hangs", "closed"),
)


@pytest.fixture
def pos() -> Iterator[tuple[Peer, list[bytes]]]:
    """A POS for each name, and a token endpoint; and the requests that they received."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            requests.append(request)
            name = request.split(b"/")[1].split(b" ")[0].decode()
            if name == "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return
            if name == "hangs":
                connection.recv(1)
                return
            repeats = name in ("repeats", "tells")
            connection.sendall(repeated(request, name) if repeats else REPLIES[name])

    with peer(script) as seen:
        yield seen, requests


def auths(seen: Peer) -> list[dict[str, Any]]:
    return [
        {"type": "api_key", "key": SECRETS["key"]},
        {"type": "basic", "username": "us", "password": SECRETS["password"]},
        {"type": "bearer", "token": SECRETS["bearer"]},
        {
            "type": "oauth2",
            "token_url": seen.url("/token"),
            "client_id": "us",
            "client_secret": SECRETS["client"],
            "style": "form",
        },
    ]


def command(lab: Lab, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[bytes]":
    """A command of ``pos-gateway``."""
    environment = {
        **os.environ,
        "POS_GATEWAY_BROKER_URL": lab.broker_url,
        "POS_GATEWAY_DATABASE_URL": lab.database_url,
        "POS_GATEWAY_SECRET_KEY": KEY,
    }
    return preloaded.run(words, stdin.encode(), environment, PATIENCE)


def import_merchants(lab: Lab, records: Iterable[dict[str, Any]]) -> str:
    """The output of ``pos-gateway merchants import``, and of one with an invalid record."""
    said = ""
    right = list(records)
    for lines in ([{**right[0], "auth": {**right[0]["auth"], "type": "x"}}], right):
        done = command(lab, "merchants", "import", "-", stdin="\n".join(map(json.dumps, lines)))
        said += (done.stdout + done.stderr).decode()
    assert f"{len(right)} merchants imported" in said
    return said


def operators_see(lab: Lab) -> str:
    """The output of every listing command, and of the one that shows an order."""
    said = ""
    for words in (
        *(("dead", "list", *how) for how in ((), ("--json",))),
        *(("orders", "list", *how) for how in ((), ("--json",))),
        *(("orders", "show", f"o-{name}") for name in ("rejects", "hangs", "accepts-0")),
        *(("dead", "show", letter) for letter in ("o-late", "o-unknown", "x")),
        ("dead", "replay", "--all", "--dry-run", "--as", "kim"),
        ("doctor",),
    ):
        done = command(lab, *words)
        assert done.stdout
        said += (done.stdout + done.stderr).decode()
    assert "undecodable" in said
    assert "o-rejects" in said
    return said


def publish_no_orders(lab: Lab) -> int:
    """Publish messages with a customer in them that are invalid in many ways; returns how many."""
    task = {"task": "pos_gateway.submit_order", "id": "x"}
    order = an_order("none", "accepts-0", **CUSTOMER)
    body = json.dumps([[order], {}, {}]).encode()
    celery = {"argsrepr": repr(order)[-200:], "kwargsrepr": f"{{'name': '{NAME}'}}"}

    def typed(kind: str) -> bytes:
        return json.dumps([[{"__type__": kind, "__value__": ECHO}], {}, {}]).encode()

    bad: list[tuple[bytes, dict[str, Any]]] = [
        (body[:-1], task),
        (body.replace(NAME.encode(), b"\xff" + NAME.encode()), task),
        (body, {"task": "celery.map", "id": "x", **celery}),
        (body, celery),
        (body, {**task, "compression": "gzip"}),
        (zlib.compress(body), {**task, "compression": "gzip"}),
        (json.dumps(order).encode(), {**task, **celery}),
        (body.replace(b"{}, {}]", b'{}, {"chain": [1]}]'), task),
        (body + b" " * 300_000, task),
        (json.dumps({"task": [NAME], "id": PHONE, "args": [order]}).encode(), {}),
        *((typed(kind), task) for kind in ("datetime", "uuid", "decimal", "nonsense")),
        (json.dumps([[{**order, "customer": {"name": [NAME], "phone": int(PHONE)}}], {}, {}]).encode(), task),
        (json.dumps([[{**order, "total": CARD, "currency": NAME, "merchant_id": ""}], {}, {}]).encode(), task),
    ]  # fmt: skip
    for data, headers in bad:
        lab.publish_raw(data, headers)
    lab.publish_raw(body, task, correlation_id=b"\xff" + NAME.encode())
    return len(bad) + 1


def found(text: str, markers: Iterable[str]) -> list[str]:
    return [marker for marker in markers if marker in text]


def test_secrets_and_customers_appear_only_where_they_must(
    lab: Lab, pos: tuple[Peer, list[bytes]], tmp_path: Path
) -> None:
    seen, requests = pos
    names = ["rejects", "redirects", *EXPIRED]
    merchants = [
        *({"id": f"accepts-{n}", "auth": auth} for n, auth in enumerate(auths(seen))),
        *({"id": name, "auth": auths(seen)[n % 4]} for n, name in enumerate(names)),
        *(
            {"id": f"{name}-{n}", "auth": auth}
            for name in ("repeats", "tells")
            for n, auth in enumerate(auths(seen))
        ),
        {"id": "paused", "paused": True, "auth": auths(seen)[0]},
    ]
    for record in merchants:
        name = str(record["id"]).rstrip("-0123")
        closed = "http://127.0.0.1:1/closed"
        record["base_url"] = closed if name == "closed" else seen.url(f"/{name}")
        record["request_timeout"] = 0.5 if name == "hangs" else 5
    said = import_merchants(lab, merchants)
    port = free_port()
    events: list[dict[str, Any]] = []
    dead: list[dict[str, Any]] = []
    with lab.worker("-l", "DEBUG", metrics_port=port, secret_key=KEY) as worker:
        lab.wait_for_worker()
        for record in merchants:
            expired = record["id"] in EXPIRED
            lab.submit(record["id"], f"o-{record['id']}", seconds=8 if expired else 300, **CUSTOMER)
        lab.submit("unknown", "o-unknown", **CUSTOMER)
        then = datetime.now(UTC) - timedelta(hours=2)
        late = {
            "placed_at": then.isoformat(),
            "deliver_by": (then + timedelta(hours=1)).isoformat(),
        }
        body = json.dumps([[an_order("o-late", "accepts-0", **CUSTOMER, **late)], {}, {}]).encode()
        lab.publish_raw(body, {"task": "pos_gateway.submit_order", "id": "o-late"})
        # Of the expired orders, the POS may have all but one.
        letters = publish_no_orders(lab) + len(("closed", "redirects", "unknown", "late"))
        # The paused merchant's order has no attempt; the invalid one has its order id.
        ends = len(merchants) - 1 + len(("unknown", "late", "none"))

        def all_has_come() -> bool:
            return len(dead) >= letters and len({each["order_id"] for each in events}) >= ends

        lab.wait_until_queued("orders.dead", letters)
        lists = operators_see(lab)
        lab.outcomes(events, dead, all_has_come)
        # The paused merchant's, and those that are looked up.
        lab.wait_until_parked(1, len(EXPIRED))
        pages = ""
        for path in ("metrics", "readyz", "debug/merchants"):
            with urlopen(f"http://127.0.0.1:{port}/{path}") as page:
                pages += page.read().decode()
    judge(worker.log + said + pages + lists, events, dead)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("pos_gateway.db*"))
    assert b"accepts-0" in stored
    assert found(stored.decode("latin-1"), (*ALL_SECRETS, *PERSONAL)) == []
    # Proves that the markers were there: each was shown to a POS, and only there.
    shown = unquote(b"\n".join(requests).decode())
    assert found(shown, (*SECRETS.values(), BASIC)) == [
        *(secret for kind, secret in SECRETS.items() if kind != "password"),
        BASIC,
    ]
    assert found(shown, PERSONAL) == list(PERSONAL)


def judge(output: str, events: list[dict[str, Any]], dead: list[dict[str, Any]]) -> None:
    assert found(output, (*ALL_SECRETS, *PERSONAL)) == []
    assert found(json.dumps([events, dead]), ALL_SECRETS) == []
    assert found(json.dumps([letter["headers"] for letter in dead]), PERSONAL) == []
    for event in events:
        order = event.pop("order")
        assert found(json.dumps(order), PERSONAL) == list(PERSONAL) or "none" in event["order_id"]
        if event["type"] != "order.rejected":
            assert found(json.dumps(event), PERSONAL) == []
    assert sum("[secret]" in json.dumps(event) for event in events) == 2 * 4
    [rejected] = [each for each in events if each["order_id"] == "o-rejects"]
    assert found(rejected["reason"]["message"], PERSONAL) == list(PERSONAL)
