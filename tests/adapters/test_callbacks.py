"""What every adapter must do with a callback, whatever its POS, and what is each one's own."""

import base64
import json
from typing import Any

import pytest

from pos_gateway.adapters.protocol import CallbackRequest, ReadsCallbacks
from pos_gateway.adapters.registry import BUILT_IN
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.errors import ABSENT, InvalidCallback
from pos_gateway.domain.outcome import Kind, Lifecycle
from tests.adapters.callers import CALLERS, NOW, REST, Caller, compact, rest_body, rest_signed
from tests.adapters.vendors import VENDORS

ANOTHER = "whsec_" + base64.b64encode(b"another key").decode()
MEANINGS: list[Kind | Lifecycle] = [Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, *Lifecycle]


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest) -> Caller:
    return CALLERS[request.param]


def a_body(caller: Caller) -> bytes:
    return next(body for each in MEANINGS if (body := caller.body(each)) is not None)


def test_every_adapter_that_reads_callbacks_is_in_this_suite() -> None:
    assert {each.name for each in BUILT_IN if isinstance(each, ReadsCallbacks)} == set(CALLERS)


def test_what_a_pos_says_is_read(caller: Caller) -> None:
    for meaning in MEANINGS:
        body = caller.body(meaning)
        if body is None:
            continue
        found = caller.read(caller.request(body))
        assert found, meaning
        [callback] = found
        assert callback.meaning is meaning
        assert callback.event_id
        assert (callback.order_id, callback.external_id) == (caller.order_id, caller.external_id)
        assert callback.occurred_at == pytest.approx(NOW, abs=1)


def test_a_call_that_another_key_has_signed_is_refused(caller: Caller) -> None:
    body = a_body(caller)
    assert caller.read(caller.request(body, key=ANOTHER)) is None


def test_a_merchant_without_a_key_is_called_by_no_pos(caller: Caller) -> None:
    merchant = caller.merchant
    without = merchant.model_copy(
        update={"auth": merchant.auth.model_copy(update={"webhook_signature_key": None})}
    )
    assert caller.read(caller.request(a_body(caller)), without) is None
    bare = CallbackRequest("https://x", {}, a_body(caller), NOW)
    assert caller.read(bare, without) is None
    assert VENDORS[caller.name].adapter.check(without) == []


def test_a_call_without_a_signature_is_refused(caller: Caller) -> None:
    request = caller.request(a_body(caller))
    for name in request.headers:
        for value in ("", " ", "v1,", "é", "=" * 5000):
            altered = CallbackRequest(
                request.url, {**request.headers, name: value}, request.body, NOW
            )
            assert caller.read(altered) is None, (name, value)
    assert caller.read(CallbackRequest(request.url, {}, request.body, NOW)) is None


def test_a_call_that_was_altered_is_refused(caller: Caller) -> None:
    if not caller.signs_body:
        pytest.skip("its POS signs no body")
    request = caller.request(a_body(caller))
    body = request.body
    for altered in (
        *(body[:n] + bytes([body[n] ^ 1]) + body[n + 1 :] for n in range(0, len(body), 7)),
        body + b" ",
        body[:-1],
        b"",
    ):
        call = CallbackRequest(request.url, request.headers, altered, NOW)
        assert caller.read(call) is None, altered


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'{"type":7}', b"[" * 9000])
def test_a_signed_call_that_makes_no_sense_is_of_no_use(caller: Caller, body: bytes) -> None:
    try:
        assert caller.read(caller.request(body)) in ([], None)
    except InvalidCallback as error:
        assert error.errors
        assert caller.name == "rest", "a vendor would take offence, and end the subscription"


def test_a_call_that_is_not_text_is_of_no_use(caller: Caller) -> None:
    try:
        assert caller.read(caller.request(b'{"a":"\xff"}')) in ([], None)
    except InvalidCallback:
        assert caller.name == "rest"


# The reference API


def rest(body: Any, **signing: Any) -> Any:
    text = body if isinstance(body, bytes) else compact(body)
    headers = rest_signed(signing.pop("key", REST.key), "", text, **signing)
    return REST.read(CallbackRequest("", headers, text, NOW))


def test_a_rest_call_is_refused_after_five_minutes() -> None:
    body = rest_body(Kind.ACCEPTED)
    for at in (NOW - 301, NOW + 301, 0, 10**12 - 1):
        assert rest(body, at=at) is None
    for at in (NOW - 299, NOW + 299):
        assert rest(body, at=at)


@pytest.mark.parametrize("at", ["x", "-1", "1e9", "nan", f"{NOW}.5", "9" * 400, f" {NOW}"])
def test_a_rest_calls_time_is_a_whole_number(at: str) -> None:
    body = rest_body(Kind.ACCEPTED) or b""
    headers = {**rest_signed(REST.key, "", body), "webhook-timestamp": at}
    assert REST.read(CallbackRequest("", headers, body, NOW)) is None


def test_a_rest_calls_id_is_signed() -> None:
    body = rest_body(Kind.ACCEPTED) or b""
    headers = {**rest_signed(REST.key, "", body), "webhook-id": "msg_2"}
    assert REST.read(CallbackRequest("", headers, body, NOW)) is None


def test_a_rest_pos_that_changes_its_key_signs_with_both() -> None:
    body = rest_body(Kind.ACCEPTED) or b""
    new, old = (rest_signed(key, "", body) for key in (ANOTHER, REST.key))
    both = f"{new['webhook-signature']} {old['webhook-signature']}"
    assert REST.read(CallbackRequest("", {**old, "webhook-signature": both}, body, NOW))
    many = " ".join([new["webhook-signature"]] * 100 + [old["webhook-signature"]])
    assert REST.read(CallbackRequest("", {**old, "webhook-signature": many}, body, NOW)) is None


def test_a_rest_call_has_all_of_it() -> None:
    why = {"code": "sold_out", "message": "no\nsoup"}
    [callback] = rest(json.loads(rest_body(Kind.REJECTED, external_id="7", reason=why) or b""))
    assert (callback.event_id, callback.external_id) == ("msg_1", "7")
    assert callback.reason is not None
    assert (callback.reason.code, callback.reason.message) == ("sold_out", "no soup")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order_id", None),
        ("order_id", ""),
        ("order_id", "../x"),
        ("order_id", 7),
        ("external_id", "two words"),
        ("occurred_at", 1_800_000_000),
        ("occurred_at", "2026-01-31T12:00:00"),
        ("reason", "why"),
        ("type", None),
    ],
)
def test_a_rest_call_that_breaks_the_contract_names_the_field(field: str, value: Any) -> None:
    said = {**json.loads(rest_body(Kind.ACCEPTED) or b""), field: value}
    with pytest.raises(InvalidCallback) as error:
        rest(said)
    assert error.value.field.startswith(field)


def test_a_rest_type_that_is_not_known_is_of_no_use() -> None:
    said = {**json.loads(rest_body(Kind.ACCEPTED) or b""), "type": "order.shipped", "courier": 7}
    assert rest(said) == []


@pytest.mark.parametrize("key", ["not Base64!", "whsec_", "é"])
def test_a_rest_key_that_cannot_sign_is_refused_at_import(key: str) -> None:
    merchant = REST.merchant
    auth = merchant.auth.model_copy(update={"webhook_signature_key": _Secret(key)})
    [error] = RestAdapter().check(merchant.model_copy(update={"auth": auth}))
    assert error.field == "auth.webhook_signature_key"
    assert error.value is ABSENT, "it may be a secret"


class _Secret:
    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value
