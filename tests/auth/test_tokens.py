"""OAuth2 tokens: single flight, refresh-ahead, and refusals."""

import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event, Semaphore
from typing import Any
from urllib.parse import parse_qs
from weakref import WeakSet

import pytest

from pos_gateway.auth import tokens as subject
from pos_gateway.auth.tokens import (
    EARLY,
    REFUSED,
    REFUSED_MAX,
    ROW_ENDS_AFTER,
    TOAST_RENEWED,
    TOAST_REUSED,
    Client,
    PosToken,
    PosTokens,
)
from pos_gateway.cache.refresh_ahead import JITTER, Loaded
from pos_gateway.domain.credentials import OAuth2, ToastLogin
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from testkit.patience import PATIENCE

#: Seconds for calls that should take none.
SOON = PATIENCE


def client(client_id: str = "us", **fields: Any) -> OAuth2:
    return OAuth2.model_validate(
        {
            "type": "oauth2",
            "token_url": "https://auth.example/token",
            "client_id": client_id,
            "client_secret": "s3 cr/et",
            **fields,
        }
    )


class Endpoint:
    """A token endpoint, and its clients' clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        #: By how much the time of day was moved.
        self.steps = 0.0
        self.asked = Semaphore(0)
        self.requests: list[Request] = []
        self.may_answer = Event()
        self.may_answer.set()
        self.status = 200
        self.fields: dict[str, Any] = {"token_type": "Bearer", "expires_in": 3600}
        self.problem: Exception | None = None
        self.tokens = PosTokens(self._fetch, self)

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_000_000_000 + self.seconds + self.steps, UTC)

    def get(self, credentials: Client | None = None, timeout: float = SOON) -> str:
        value = self.tokens.get(credentials or client(), timeout)
        if self.may_answer.is_set():
            self.settle()
        return value

    def instead(self, value: str) -> str | None:
        """Another token than the one that a POS has refused."""
        return self.tokens.instead(client(), value, SOON)

    def settle(self) -> None:
        """Let a background refresh end."""
        while under_way := list(self.tokens._cache._loading.values()):
            for each in under_way:
                assert each.done.wait(SOON)

    def _fetch(self, _: Client, request: Request) -> Reply:
        self.requests.append(request)
        self.asked.release()
        number = len(self.requests)
        assert self.may_answer.wait(SOON)
        if self.problem is not None:
            raise self.problem
        body = json.dumps({"access_token": f"token-{number}", **self.fields}).encode()
        return Reply(self.status, {}, body)


@pytest.fixture(autouse=True)
def on_green_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "green", lambda: True)


def test_hundreds_of_orders_share_one_token_request() -> None:
    endpoint = Endpoint()
    endpoint.may_answer.clear()
    with ThreadPoolExecutor(300) as threads:
        waiting = [threads.submit(endpoint.get) for _ in range(300)]
        endpoint.may_answer.set()
        assert {each.result(SOON) for each in waiting} == {"token-1"}
    assert len(endpoint.requests) == 1


def test_an_order_waits_for_a_token_no_longer_than_its_deadline() -> None:
    endpoint = Endpoint()
    endpoint.may_answer.clear()
    with pytest.raises(NotSent, match="within"):
        endpoint.get(timeout=0.01)
    endpoint.may_answer.set()
    assert endpoint.get() == "token-1"
    assert len(endpoint.requests) == 1


def test_a_token_is_refreshed_in_the_background_at_about_half_its_life() -> None:
    endpoint = Endpoint()
    endpoint.get()
    endpoint.seconds += (3600 - EARLY) / 2 * (1 - JITTER) - 1
    assert endpoint.get() == "token-1"
    assert len(endpoint.requests) == 1
    endpoint.seconds = 1000.0 + (3600 - EARLY) / 2
    endpoint.may_answer.clear()
    assert endpoint.get() == "token-1"  # no order waits for it
    endpoint.may_answer.set()
    endpoint.settle()
    assert endpoint.get() == "token-2"


def test_a_token_is_not_used_shortly_before_it_expires() -> None:
    endpoint = Endpoint()
    endpoint.get()
    endpoint.seconds += 3600 - EARLY
    assert endpoint.get() == "token-2"


@pytest.mark.parametrize(("life", "used_for"), [(10, 5), ("60", 30), (1e9, 24 * 3600 - EARLY)])
def test_how_long_a_token_is_used(life: Any, used_for: float) -> None:
    endpoint = Endpoint()
    endpoint.fields["expires_in"] = life
    assert endpoint.get() == "token-1"
    endpoint.seconds += used_for
    assert endpoint.get() != "token-1"


def test_a_failing_endpoint_costs_nothing_while_the_token_is_valid() -> None:
    endpoint = Endpoint()
    endpoint.get()
    endpoint.seconds, endpoint.problem = (
        endpoint.seconds + 3000,
        NoValidReply("timeout", "no reply"),
    )
    assert [endpoint.get() for _ in range(20)] == ["token-1"] * 20
    assert len(endpoint.requests) == 2  # not again for every order
    endpoint.seconds += REFUSED + 1
    endpoint.get()
    assert len(endpoint.requests) == 3


def test_one_refusal_fails_no_order_and_is_not_retried_for_every_order() -> None:
    endpoint = Endpoint()
    endpoint.status = 401
    assert [said(endpoint) for _ in range(5)] == ["NotSent: the token endpoint answered 401"] * 5
    assert len(endpoint.requests) == 1
    endpoint.seconds, endpoint.status = endpoint.seconds + REFUSED, 200
    assert endpoint.get() == "token-2"


def said(endpoint: Endpoint) -> str:
    """The token, or why there is none."""
    try:
        return endpoint.get()
    except NotSent as error:
        return f"{type(error).__name__}: {error}"


def kinds(endpoint: Endpoint, *waits: float) -> list[str]:
    """The same after each of these seconds, without the reason."""
    every = []
    for seconds in waits:
        endpoint.seconds += seconds
        every.append(said(endpoint).partition(":")[0])
    return every


def test_a_client_that_is_refused_waits_however_long_and_is_asked_less_often() -> None:
    endpoint = Endpoint()
    endpoint.status = 401
    assert set(kinds(endpoint, 0, REFUSED, *[1.0] * 3600)) == {"NotSent"}
    assert len(endpoint.requests) == 2 + 3600 // REFUSED_MAX
    endpoint.status = 200
    assert kinds(endpoint, REFUSED_MAX) != ["NotSent"]


def test_two_refusals_with_a_token_or_an_hour_between_are_not_consecutive() -> None:
    endpoint = Endpoint()
    endpoint.status = 403
    kinds(endpoint, 0, REFUSED)
    endpoint.status, endpoint.fields["expires_in"] = 200, 10
    endpoint.seconds += REFUSED_MAX
    endpoint.get()
    endpoint.seconds, endpoint.status = endpoint.seconds + 10, 403
    for seconds in (0, ROW_ENDS_AFTER + 1):
        kinds(endpoint, seconds)
        asked = len(endpoint.requests)
        kinds(endpoint, REFUSED - 1, 1)
        assert len(endpoint.requests) == asked + 1


def test_another_workers_token_ends_a_sequence_of_refusals() -> None:
    endpoint = Endpoint()
    endpoint.status = 403
    assert kinds(endpoint, 0) == ["NotSent"]
    key = client().fingerprint
    endpoint.tokens._cache._keep(
        key, Loaded(PosToken("theirs", 0.0), lifetime=10), endpoint.seconds
    )
    assert kinds(endpoint, 0, 70, REFUSED) == ["theirs", "NotSent", "NotSent"]
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("life", [None, 3600, "3600"])
def test_a_lifetime_of_null_is_none(life: object) -> None:
    """Python's and Java's writers put null for a field that is not set."""
    endpoint = Endpoint()
    endpoint.fields["expires_in"] = life
    assert endpoint.get() == "token-1"


def test_an_order_without_a_token_was_not_sent() -> None:
    for problem in (NoValidReply("timeout", "no reply"), NotSent("connect", "refused")):
        endpoint = Endpoint()
        endpoint.problem = problem
        with pytest.raises(NotSent):
            endpoint.get()


@pytest.mark.parametrize(
    "fields",
    [
        {"access_token": ""},
        {"access_token": "a\r\nX: 1"},
        {"access_token": 7},
        {"access_token": None},
        {"token_type": "mac"},
        {"expires_in": "soon"},
        {"expires_in": -1},
        {"expires_in": 0},
    ],
)
def test_an_unusable_token_is_not_used(fields: dict[str, Any]) -> None:
    endpoint = Endpoint()
    endpoint.fields |= fields
    with pytest.raises(NotSent):
        endpoint.get()


@pytest.mark.parametrize(
    "body",
    [
        b'{"access_token": "a", "expires_in": 1' + b"0" * 400 + b"}",
        b'{"access_token": "a", "expires_in": 1' + b"0" * 5000 + b"}",
        b"[" * 30_000,
        b'{"access_token": "a", "token_type": ' + b"[" * 500 + b"]" * 500 + b"}",
        b"\xff",
    ],
    ids=["no float", "no integer", "too deep", "too deep to be shown", "no text"],
)
@pytest.mark.parametrize("toasts", [False, True])
def test_no_reply_of_an_endpoint_ends_a_thread(
    body: bytes, toasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker ends with any of its threads, and the next one that needs that token would, too."""
    before, died = {*threading.enumerate()}, list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", died.append)
    if toasts:
        body = b'{"token": ' + body.replace(b"_type", b"Type").replace(b"s_in", b"sIn") + b"}"
        body = body.replace(b"access_token", b"accessToken").replace(b"token_T", b"tokenT")
    tokens = PosTokens(lambda *_: Reply(200, {}, body))
    with pytest.raises(NotSent, match=r"^no (usable )?token in the endpoint's 200$"):
        tokens.get(TOAST if toasts else client(), SOON)
    assert {each.thread for each in died} <= before  # those of other tests


def test_clients_do_not_share_tokens() -> None:
    endpoint = Endpoint()
    assert endpoint.get(client("a")) != endpoint.get(client("b"))
    assert endpoint.get(client("a")) == "token-1"


def test_a_refused_token_is_renewed_but_not_its_successor() -> None:
    endpoint = Endpoint()
    assert endpoint.get() == "token-1"
    endpoint.seconds += REFUSED_MAX
    assert endpoint.instead("token-1") == "token-2"
    assert endpoint.get() == "token-2"
    endpoint.seconds += REFUSED_MAX
    assert endpoint.instead("token-1") == "token-2"  # a late answer
    assert len(endpoint.requests) == 2


def test_others_use_the_refused_token_while_another_is_fetched() -> None:
    """They are other merchants' orders, whose POSes may take it: only the refused one waits."""
    endpoint = Endpoint()
    endpoint.get()
    endpoint.seconds += REFUSED_MAX
    endpoint.may_answer.clear()
    with ThreadPoolExecutor(20) as threads:
        refused = [threads.submit(endpoint.instead, "token-1") for _ in range(20)]
        assert endpoint.asked.acquire(timeout=SOON)
        assert [endpoint.get() for _ in range(20)] == ["token-1"] * 20
        assert not any(each.done() for each in refused)
        endpoint.may_answer.set()
        assert {each.result(SOON) for each in refused} == {"token-2"}
    assert len(endpoint.requests) == 2


def test_a_pos_that_refuses_every_token_costs_a_request_a_minute() -> None:
    """Whether it takes the repetition, so that its breaker stays closed, or not."""
    endpoint = Endpoint()
    endpoint.get()
    for _ in range(600):
        endpoint.seconds += 1
        endpoint.instead(endpoint.get())
    assert len(endpoint.requests) == 1 + 600 // REFUSED_MAX


@pytest.mark.parametrize("status", [200, 401])
def test_a_refusal_costs_no_token_that_the_endpoint_cannot_replace(status: int) -> None:
    endpoint = Endpoint()
    endpoint.get()
    endpoint.seconds += REFUSED_MAX
    endpoint.status = status
    if status == 200:
        endpoint.problem = NoValidReply("timeout", "no reply")
    assert [endpoint.instead("token-1") for _ in range(100)] == [None] * 100
    assert endpoint.get() == "token-1"
    assert len(endpoint.requests) == 2
    endpoint.status, endpoint.problem = 200, None
    endpoint.seconds += REFUSED
    endpoint.get()
    assert endpoint.get() == "token-3"


def test_a_refused_token_from_a_clock_that_was_ahead_is_renewed() -> None:
    endpoint = Endpoint()
    endpoint.get()
    endpoint.steps -= 3600
    assert endpoint.instead("token-1") == "token-2"


def test_the_client_authenticates_as_its_vendor_requires() -> None:
    endpoint = Endpoint()
    for style in ("basic", "form", "json"):
        endpoint.get(client(style, style=style, scope="orders.write", audience="pos"))
    basic, form, as_json = endpoint.requests
    assert basic.headers["Authorization"] == "Basic YmFzaWM6czMlMjBjciUyRmV0"
    assert parse_qs((basic.body or b"").decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["orders.write"],
        "audience": ["pos"],
    }
    assert parse_qs((form.body or b"").decode())["client_secret"] == ["s3 cr/et"]
    assert json.loads(as_json.body or b"")["client_secret"] == "s3 cr/et"
    assert all("s3 cr/et" not in str(request.headers) for request in endpoint.requests)


TOAST = ToastLogin.model_validate(
    {
        "type": "toast",
        "token_url": "https://toast.example/authentication/v1/authentication/login",
        "client_id": "us",
        "client_secret": "s3cret",
    }
)
DAY = 86_400


class Toast(Endpoint):
    """Toast's login, as its documentation has it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = DAY

    def get(self, credentials: Client | None = None, timeout: float = 10.0) -> str:
        return super().get(credentials or TOAST, timeout)

    def _fetch(self, _: Client, request: Request) -> Reply:
        self.requests.append(request)
        token = {"tokenType": "Bearer", "scope": None, "expiresIn": self.left}
        token["accessToken"] = f"token-{len(self.requests)}"
        return Reply(self.status, {}, json.dumps({"token": token, "status": "SUCCESS"}).encode())


def test_a_merchants_record_may_use_toasts_login() -> None:
    record = {"id": "m", "base_url": "https://toast.example", "auth": TOAST.reveal()}
    merchant = Merchant.parse(record)
    assert merchant.auth == TOAST
    assert merchant.auth.secrets == ("s3cret",)


def test_toasts_login_follows_its_documentation() -> None:
    toast = Toast()
    assert toast.get() == "token-1"
    [request] = toast.requests
    assert (request.method, request.url) == ("POST", TOAST.token_url)
    assert request.headers == {"Content-Type": "application/json"}
    assert json.loads(request.body or b"") == {
        "clientId": "us",
        "clientSecret": "s3cret",
        "userAccessType": "TOAST_MACHINE_CLIENT",
    }


def test_toasts_token_is_refreshed_in_its_last_minute_and_not_before() -> None:
    toast = Toast()
    toast.get()
    toast.seconds += DAY - TOAST_RENEWED - 1
    assert (toast.get(), len(toast.requests)) == ("token-1", 1)
    toast.seconds += 1
    assert (toast.get(), len(toast.requests)) == ("token-1", 2)
    assert toast.get() == "token-2"


def test_toasts_token_is_used_for_half_an_hour_even_if_it_is_refused() -> None:
    toast = Toast()
    for _ in range(int(TOAST_REUSED)):
        assert toast.tokens.instead(TOAST, toast.get(), SOON) is None
        toast.seconds += 1
    assert len(toast.requests) == 1
    assert toast.tokens.instead(TOAST, "token-1", SOON) == "token-2"


def test_one_refusal_of_toasts_login_costs_seconds() -> None:
    toast = Toast()
    toast.status = 403
    assert kinds(toast, 0, REFUSED - 1) == ["NotSent", "NotSent"]
    toast.status = 200
    assert kinds(toast, 1) == ["token-2"]


def test_a_client_that_toast_refuses_is_retried_with_backoff_and_its_orders_wait() -> None:
    """Five logins in the first hour, then two an hour."""
    toast = Toast()
    toast.status = 401
    told = kinds(toast, *[1.0] * 3600)
    assert len(toast.requests) == 5
    assert set(told) == {"NotSent"}
    kinds(toast, *[10.0] * 720)
    assert len(toast.requests) == 9


def test_toasts_short_lived_token_is_not_requested_for_every_order() -> None:
    toast = Toast()
    toast.left = 45
    assert [toast.get() for _ in range(3)] == ["token-1"] * 3
    assert len(toast.requests) == 1


@pytest.mark.parametrize(
    "body", [b'{"token": 7}', b'{"token": {}}', b'{"access_token": "x"}', b"[]"]
)
def test_an_invalid_token_of_toasts_is_not_used(body: bytes) -> None:
    tokens = PosTokens(lambda *_: Reply(200, {}, body))
    with pytest.raises(NotSent, match="no token"):
        tokens.get(TOAST, SOON)


def test_a_used_token_is_redacted_for_as_long_as_a_pos_may_repeat_it() -> None:
    endpoint = Endpoint()
    assert endpoint.tokens.known(client()) == ()
    endpoint.get()
    endpoint.seconds += REFUSED_MAX
    endpoint.instead("token-1")
    assert endpoint.tokens.known(client()) == ("token-2", "token-1")


def test_a_reissued_token_evicts_no_other() -> None:
    endpoint = Endpoint()
    for value in ("first", "same", "same"):
        endpoint.fields["access_token"] = value
        endpoint.instead(endpoint.get())
        endpoint.seconds += REFUSED_MAX
    endpoint.instead(endpoint.get())
    assert len(endpoint.requests) == 4
    assert endpoint.tokens.known(client()) == ("same", "first")


def test_remembered_clients_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "MAX_TOKENS", 2)
    endpoint = Endpoint()
    for each in ("one", "two", "three"):
        endpoint.get(client(each))
    known = [endpoint.tokens.known(client(each)) for each in ("one", "two", "three")]
    assert known == [(), ("token-2",), ("token-3",)]
    assert endpoint.get(client("one")) == "token-4"


class Held:
    """What an attempt holds while it asks for a token."""


def test_a_refusal_keeps_nothing_of_the_attempts_that_it_fails() -> None:
    endpoint, held = Endpoint(), WeakSet[Held]()
    endpoint.status = 401

    def attempt() -> None:
        holds = Held()
        held.add(holds)
        with pytest.raises(NotSent):
            endpoint.get()

    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            attempt()
        assert not held
    finally:
        gc.enable()
