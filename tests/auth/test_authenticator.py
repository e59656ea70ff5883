"""The credentials in a request, and the reaction to a 401."""

import base64
import hashlib
import hmac
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.auth.tokens import REFUSED_MAX
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.credentials import UnreadableCredentials
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.states import AttemptHistory, Claim, Key
from pos_gateway.transport.errors import Misconfigured
from pos_gateway.transport.exchange import Reply, Request, Send, Transport
from pos_gateway.transport.guard import Guard
from testkit.hostile.peer import a_reply, answers, peer

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDER = Request("POST", "https://pos.example/orders", b'{"a":1}', {"Idempotency-Key": "order-7"})


class Pos:
    """Answers requests, and issues tokens."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.seen: list[Request] = []
        self.tokens = 0
        #: What its callers' clocks say.
        self.seconds = 100.0
        clock: Any = SimpleNamespace(
            now=lambda: NOW + timedelta(seconds=self.seconds), monotonic=lambda: self.seconds
        )
        #: Whether the claim still holds before each request.
        self.holds: list[bool] = []
        self.ledger: Any = SimpleNamespace(holds=lambda _: not self.holds or self.holds.pop(0))
        parts: Any = {"directory": None, "transport": self, "ledger": self.ledger, "clock": clock}
        self.caller = Caller(default_concurrency=1, default_timeout=10.0, **parts)

    def send(self, request: Request, fence: Any = None, **_: Any) -> Reply:
        if request.url.endswith("/token"):
            self.tokens += 1
            body = {"access_token": f"token-{self.tokens}", "expires_in": 3600}
            return Reply(200, {}, json.dumps(body).encode())
        fence()
        self.seen.append(request)
        return Reply(self.statuses.pop(0) if self.statuses else 201, {}, b"{}")

    def submit(self, auth: dict[str, Any]) -> Reply:
        [reply] = self.replies(merchant_with(auth))
        return reply

    def replies(self, merchant: Merchant) -> list[Reply]:
        """The replies of a call with one request."""
        replies: list[Reply] = []

        def converse(send: Send) -> Outcome:
            replies.append(send(ORDER))
            return Outcome(Kind.ACCEPTED)

        claim = Claim(Key("m", "order-7"), "worker", 1, 1, AttemptHistory(), sending=True)
        attempt = Attempt[Any](None, RawMessage(b""), claims=[claim])
        self.outcome = self.caller.call(merchant, attempt, converse)
        return replies


def merchant_with(auth: dict[str, Any]) -> Merchant:
    return Merchant.parse({"id": "m", "base_url": "https://pos.example", "auth": auth})


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"type": "api_key", "key": "k"}, "X-Api-Key", "k"),
        ({"type": "api_key", "header": "Key", "key": "k"}, "Key", "k"),
        (
            {"type": "basic", "username": "üser", "password": "p:w"},
            "Authorization",
            "Basic w7xzZXI6cDp3",
        ),
        ({"type": "bearer", "token": "t"}, "Authorization", "Bearer t"),
    ],
)
def test_static_credentials_are_added_to_every_request(
    auth: dict[str, Any], name: str, value: str
) -> None:
    pos = Pos()
    pos.submit(auth)
    assert pos.seen[0].headers == {**ORDER.headers, name: value}
    assert pos.seen[0].body == ORDER.body


def test_without_authentication_nothing_is_added() -> None:
    pos = Pos()
    pos.submit({})
    assert pos.seen == [ORDER]


def test_the_signature_follows_standard_webhooks() -> None:
    pos = Pos()
    key = b"a key of twenty-four byt"
    pos.submit({"type": "hmac", "secret": f"whsec_{base64.b64encode(key).decode()}"})
    headers = pos.seen[0].headers
    signed = f"order-7.{int(NOW.timestamp() + 100)}.".encode() + (ORDER.body or b"")
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-id"] == "order-7"
    assert headers["webhook-timestamp"] == str(int(NOW.timestamp() + 100))
    assert headers["webhook-signature"] == f"v1,{digest}"


OAUTH = {
    "type": "oauth2",
    "token_url": "https://auth.example/token",
    "client_id": "us",
    "client_secret": "s",
}


def test_a_refused_token_is_renewed_once() -> None:
    pos = Pos(201, 401, 201)
    pos.submit(OAUTH)
    pos.seconds += REFUSED_MAX
    assert pos.submit(OAUTH).status == 201
    assert [r.headers["Authorization"] for r in pos.seen] == [
        "Bearer token-1",
        "Bearer token-1",
        "Bearer token-2",
    ]


def test_a_request_with_another_token_needs_the_claim_as_well() -> None:
    pos = Pos(201, 401, 201)
    pos.submit(OAUTH)
    pos.seconds += REFUSED_MAX
    pos.holds = [True, False]
    assert pos.replies(merchant_with(OAUTH)) == []
    assert (len(pos.seen), pos.outcome.kind) == (2, Kind.RETRY)


def test_a_pos_that_refuses_the_new_token_gets_no_third_request() -> None:
    pos = Pos(201, 401, 401, 201)
    pos.submit(OAUTH)
    pos.seconds += REFUSED_MAX
    assert pos.submit(OAUTH).status == 401
    assert (pos.tokens, len(pos.seen)) == (2, 3)


def test_a_new_token_that_is_refused_is_not_renewed() -> None:
    """The next one would be refused, too, and other merchants may have the same client."""
    pos = Pos(*[401] * 10)
    assert {pos.submit(OAUTH).status for _ in range(10)} == {401}
    assert (pos.tokens, len(pos.seen)) == (1, 10)


def test_a_refused_key_is_not_retried() -> None:
    pos = Pos(401, 201)
    assert pos.submit({"type": "bearer", "token": "t"}).status == 401
    assert len(pos.seen) == 1


def test_without_credentials_nothing_is_sent() -> None:
    merchant = Merchant.parse({"id": "m", "base_url": "https://pos.example"})
    merchant = merchant.model_copy(
        update={"auth": UnreadableCredentials(problem="sealed with another key")}
    )
    pos = Pos()
    assert (pos.replies(merchant), pos.seen) == ([], [])
    assert pos.outcome.kind is Kind.RETRY
    assert pos.outcome.reason is not None and "another key" in pos.outcome.reason.message


def test_a_client_certificate_is_sent_for_the_merchant_that_has_it() -> None:
    ca = trustme.CA()
    ours = ca.issue_cert("gateway.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority = ca.cert_pem.bytes().decode()
    tls = {
        "authority": authority,
        "certificate": "".join(pem.bytes().decode() for pem in ours.cert_chain_pems),
        "key": ours.private_key_pem.bytes().decode(),
    }
    transport = Transport(guard=Guard(allow_all=True))
    subjects: list[Any] = []

    def script(connection: socket.socket) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        subjects.append(connection.getpeercert())
        answers(a_reply())(connection)

    def call(auth: dict[str, Any], port: int) -> Reply:
        record = {"id": "m", "base_url": f"https://127.0.0.1:{port}", "auth": auth}
        merchant = Merchant.parse(record)
        return transport.send(
            Request("POST", merchant.base_url, b"{}"),
            key=merchant.auth.fingerprint,
            connections=1,
            seconds=5,
            identity=merchant.auth.tls,
        )

    with peer(script, tls=context) as seen:
        assert call({"type": "none", "tls": tls}, seen.port).status == 200
        assert subjects[0]["subjectAltName"] == (("DNS", "gateway.example"),)
        with pytest.raises(Misconfigured):
            call({"type": "none", "tls": {"authority": authority}}, seen.port)
