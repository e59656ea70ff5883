"""What every adapter must do with a callback, whatever its POS, and what is each one's own."""

import base64
import hmac
import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from pos_gateway.adapters import signatures
from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.protocol import CallbackRequest, ReadsCallbacks
from pos_gateway.adapters.registry import BUILT_IN
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.errors import ABSENT, InvalidCallback, InvalidMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle
from tests.adapters.callers import (
    CALLERS,
    CLOVER,
    NOW,
    REST,
    SQUARE,
    TOAST,
    WHEN,
    Caller,
    compact,
    rest_body,
    rest_signed,
    square_body,
    square_event,
    square_fulfilled,
    toast_body,
    toast_event,
    toast_signed,
)
from tests.adapters.vendors import VENDORS

ANOTHER = "whsec_" + base64.b64encode(b"another key").decode()
THIRD = "whsec_" + base64.b64encode(b"a third key").decode()
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


def with_key(merchant: Merchant, key: str) -> Merchant:
    auth = merchant.auth.model_dump(exclude_none=True) | {"webhook_signature_key": key}
    return Merchant.parse({"id": merchant.id, **_record(merchant), "auth": auth})


def _record(merchant: Merchant) -> dict[str, Any]:
    return {name: getattr(merchant, name) for name in ("adapter", "base_url", "pos")}


@pytest.mark.parametrize("keys", ["{new} {old}", "{old} {new}"])
def test_while_a_key_changes_both_are_valid(caller: Caller, keys: str) -> None:
    merchant = with_key(caller.merchant, keys.format(new=ANOTHER, old=caller.key))
    body = a_body(caller)
    for key in (caller.key, ANOTHER):
        assert caller.read(caller.request(body, key=key), merchant)
    assert caller.read(caller.request(body, key=THIRD), merchant) is None
    errors = VENDORS[caller.name].adapter.check(merchant)
    assert "auth.webhook_signature_key" not in [error.field for error in errors]
    assert {caller.key, ANOTHER} <= {*merchant.auth.secrets}, "neither is ever shown"
    with pytest.raises(InvalidMerchant, match="two with a blank"):
        with_key(merchant, f"{ANOTHER} {caller.key} {THIRD}")


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
        ("occurred_at", "1800000000"),
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


@pytest.mark.parametrize("key", ["not_Base64!", "whsec_", "é"])
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


# Square


def test_a_square_call_is_signed_with_its_url() -> None:
    request = SQUARE.request(square_body(Lifecycle.READY) or b"")
    assert SQUARE.read(request)
    moved = replace(request, url=request.url.replace("fast-1", "fast-2"))
    assert SQUARE.read(moved) is None, "another merchant's URL"
    assert SQUARE.read(replace(request, url=request.url + "?x=1")) is None


# The rule: Base64 of HMAC-SHA256, with the subscription's signature key, over the notification URL and
# behind it the body as it came (developer.squareup.com/docs/webhooks/step3validate). The first
# example is that page's own, the second is in the tests of Square's SDKs (WebhooksHelper).
@pytest.mark.parametrize(
    ("key", "url", "body", "published"),
    [
        (
            "asdf1234",
            "https://example.com/webhook",
            b'{"hello":"world"}',
            "2kRE5qRU2tR+tBGlDwMEw2avJ7QM4ikPYD/PJ3bd9Og=",
        ),
        (
            "Ibxx_5AKakO-3qeNVR61Dw",
            "https://webhook.site/679a4f3a-dcfa-49ee-bac5-9d0edad886b9",
            b'{"merchant_id":"MLEFBHHSJGVHD","type":"webhooks.test_notification",'
            b'"event_id":"ac3ac95b-f97d-458c-a6e6-18981597e05f",'
            b'"created_at":"2022-07-13T20:30:59.037339943Z",'
            b'"data":{"type":"webhooks","id":"bc368e64-01aa-407e-b46e-3231809b1129"}}',
            "GF4YkrJgGBDZ9NIYbNXBnMzqb2HoL4RW/S6vkZ9/2N4=",
        ),
    ],
)
def test_square_signs_as_its_documentation_does(
    key: str, url: str, body: bytes, published: str
) -> None:
    made = base64.b64encode(_hmac_sha256(key.encode(), url.encode() + body)).decode()
    assert made == published
    request = CallbackRequest(url, {"x-square-hmacsha256-signature": made}, body, NOW)
    assert SQUARE.read(request, with_key(SQUARE.merchant, key)) == []


def _hmac_sha256(key: bytes, message: bytes) -> bytes:
    """As RFC 2104 defines it, for keys of up to a block."""
    block = key.ljust(64, b"\0")
    inner = sha256(bytes(each ^ 0x36 for each in block) + message).digest()
    return sha256(bytes(each ^ 0x5C for each in block) + inner).digest()


@pytest.mark.parametrize(
    "body",
    [
        square_event("updated"),
        square_event("updated", state="DRAFT"),
        square_event("updated", state="COMPLETED"),  # paid, and cancelled or with the guest
        square_event("created", state="CANCELED"),
        square_event("updated", state="CANCELED", order_id=None),
        square_event("updated", state="CANCELED", location_id="two words"),
        square_event("fulfillment.updated", fulfillment_update=[{"new_state": "PROPOSED"}]),
        square_event("fulfillment.updated", fulfillment_update=["RESERVED"]),
        square_event("fulfillment.updated", fulfillment_update={}),
    ],
)
def test_what_square_says_besides_is_of_no_use(body: bytes) -> None:
    assert SQUARE.read(SQUARE.request(body)) == []


def test_a_square_order_that_is_cancelled_is_not_prepared() -> None:
    body = square_fulfilled("PREPARED", state="CANCELED")
    found = SQUARE.read(SQUARE.request(body))
    assert found is not None
    assert [(each.meaning, each.account) for each in found] == [
        (Kind.CANCELLED, ("location_id", "L1"))
    ]


def test_a_square_fulfillment_that_has_failed_is_a_cancelled_order_with_its_reason() -> None:
    found = SQUARE.read(SQUARE.request(square_fulfilled("FAILED")))
    assert found is not None
    [(meaning, reason)] = [(each.meaning, each.reason) for each in found]
    assert meaning is Kind.CANCELLED
    assert reason is not None
    assert "failed at Square" in reason.message


@pytest.mark.parametrize("state", ["CANCELED", "FAILED"])
def test_a_paid_order_that_square_completes_without_a_fulfillment_is_cancelled(state: str) -> None:
    found = SQUARE.read(SQUARE.request(square_fulfilled(state, state="COMPLETED")))
    assert [each.meaning for each in found or []] == [Kind.CANCELLED]


# Toast


def test_a_toast_call_is_signed_with_its_time() -> None:
    body = toast_body(Kind.ACCEPTED) or b""
    other = CallbackRequest("", toast_signed(TOAST.key, "", body, "2026-01-01"), body, NOW)
    assert TOAST.read(other) is None
    without = body.replace(b'"timestamp"', b'"timestamps"')
    assert TOAST.read(CallbackRequest("", toast_signed(TOAST.key, "", without, ""), without, NOW))


def test_a_toast_call_is_hashed_once_however_many_times_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anyone may send a megabyte of them."""
    hashed = []
    new = hmac.new
    monkeypatch.setattr(signatures.hmac, "new", lambda *a, **k: hashed.append(1) or new(*a, **k))
    body = toast_event(approvalStatus="APPROVED", checks=[{"timestamp": str(n)} for n in range(99)])
    assert TOAST.read(CallbackRequest("", {"toast-signature": "x"}, body, NOW)) is None
    assert len(hashed) == 1


def test_a_toast_calls_time_is_found_wherever_it_is() -> None:
    said = json.loads(toast_body(Kind.ACCEPTED) or b"")
    at = said.pop("timestamp")
    said["details"]["order"]["checks"] = [{"timestamp": "yesterday"}]
    body = json.dumps({**said, "timestamp": at}, indent=1).encode()
    request = CallbackRequest("", toast_signed(TOAST.key, "", body, at), body, NOW)
    found = TOAST.read(request)
    assert found is not None
    assert found[0].occurred_at == NOW


@pytest.mark.parametrize(
    ("said_at", "seconds"),
    [
        ("2026-11-28T16:00:00.123+0000", 1795881600.123),
        ("2026-11-28T17:00:00.123456789+01:00", 1795881600.123456),
        ("2026-11-28T16:00:00Z", 1795881600),
        *((each, None) for each in ("2026-11-28T16:00:00", "1795881600", "20261128160000", "", 7)),
    ],
)
def test_a_vendors_time_is_no_number(said_at: Any, seconds: float | None) -> None:
    assert signatures.unix_time(said_at) == seconds


@pytest.mark.parametrize(
    "body",
    [
        toast_event(approvalStatus="NEEDS_APPROVAL"),
        toast_event(approvalStatus=None),
        toast_event(approvalStatus="APPROVED", guid=None),
        toast_event(approvalStatus="APPROVED").replace(b'"order_updated"', b'"stock"'),
        toast_event(approvalStatus="APPROVED").replace(b"restaurantGuid", b"restaurant"),
    ],
)
def test_what_toast_says_besides_is_of_no_use(body: bytes) -> None:
    assert TOAST.read(TOAST.request(body)) == []


def toast_meaning(*items: str, voided_items: int = 0, **fields: Any) -> Kind | Lifecycle | None:
    """What an order_updated means, with items of these statuses and voided ones that wait."""
    gone = [{"fulfillmentStatus": "NEW", "voided": True}] * voided_items
    selections = [*gone, *({"fulfillmentStatus": each, "voided": False} for each in items)]
    checks = [{"selections": selections, "paymentStatus": "CLOSED"}]
    body = toast_event(**{"approvalStatus": "APPROVED", "checks": checks, **fields})
    found = TOAST.read(TOAST.request(body))
    assert found is not None
    return found[0].meaning if found else None


@pytest.mark.parametrize(
    ("meaning", "items", "fields"),
    [
        (Kind.ACCEPTED, "", {}),
        (Kind.ACCEPTED, "NEW HOLD", {}),
        (Kind.ACCEPTED, "NEW", {"guestOrderStatus": "RECEIVED"}),
        (Lifecycle.PREPARING, "NEW SENT", {}),
        (Lifecycle.PREPARING, "READY NEW", {}),
        (Lifecycle.READY, "READY READY", {}),
        (Lifecycle.READY, "READY", {"voided_items": 1}),
        (Lifecycle.READY, "READY", {"guestOrderStatus": "IN_PREPARATION"}),
        (Lifecycle.READY, "SENT", {"guestOrderStatus": "READY_FOR_PICKUP"}),
        (Lifecycle.COMPLETED, "READY", {"guestOrderStatus": "CLOSED"}),
        (Kind.CANCELLED, "READY", {"guestOrderStatus": "VOIDED"}),
        (Kind.CANCELLED, "READY", {"deleted": True, "voided": True}),
        (None, "READY", {"deleted": True}),  # combined with another order
        (Kind.REJECTED, "SENT", {"approvalStatus": "NOT_APPROVED"}),
        (None, "SENT", {"approvalStatus": "NEEDS_APPROVAL"}),
    ],
)
def test_toast_says_how_far_its_kitchen_is(
    meaning: Kind | Lifecycle | None, items: str, fields: dict[str, Any]
) -> None:
    assert toast_meaning(*items.split(), **fields) is meaning


def test_a_toast_order_that_is_paid_is_not_completed_by_that() -> None:
    """It was paid before: its check and the order are closed from the beginning."""
    assert toast_meaning("NEW", closedDate=WHEN, paidDate=WHEN) is Kind.ACCEPTED


def test_the_items_of_a_deleted_check_say_nothing_of_a_toast_order() -> None:
    ready, new = ({"selections": [{"fulfillmentStatus": each}]} for each in ("READY", "NEW"))
    assert toast_meaning(checks=[ready, new]) is Lifecycle.PREPARING
    assert toast_meaning(checks=[ready, {**new, "deleted": True}]) is Lifecycle.READY


def test_odd_items_of_a_toast_order_say_nothing() -> None:
    for checks in (None, {}, ["x"], [{"selections": "x"}], [{"selections": ["x", {}]}]):
        assert toast_meaning(checks=checks) is Kind.ACCEPTED


def paid(*amounts: float, total: float = 17.0, status: str = "CLOSED", **more: Any) -> Any:
    """A check of these payments."""
    payments = [{"amount": each, "tipAmount": 3.0, **more} for each in amounts]
    return [{"totalAmount": total, "paymentStatus": status, "payments": payments}]


def a_collector() -> Merchant:
    """A merchant whose staff collects: orders have no payment."""
    pos = {name: value for name, value in TOAST.merchant.pos.items() if name != "payment"}
    return TOAST.merchant.model_copy(update={"pos": pos})


@pytest.mark.parametrize("of", ["the payer's URL", "the collector's URL"])
@pytest.mark.parametrize(
    ("checks", "is_heard"),
    [
        pytest.param(paid(17.0), True, id="paid"),
        pytest.param(paid(10.1, 6.9), True, id="paid by two"),
        pytest.param(paid(0.0, total=0.0, status="OPEN"), True, id="nothing to pay"),
        pytest.param(paid(17.0, total=12.0), False, id="an item taken off"),
        pytest.param(paid(17.0, total=22.0, status="OPEN"), False, id="an item added"),
        pytest.param(paid(17.0, status="OPEN"), False, id="not taken"),
        pytest.param(paid(17.0, voidInfo={"voidDate": WHEN}), False, id="voided"),
        pytest.param([*paid(17.0), *paid(17.0, total=12.0)], False, id="one of two checks"),
        pytest.param(
            [*paid(17.0), {**paid(status="OPEN")[0], "deleted": True}], True, id="deleted"
        ),
    ],
)
@pytest.mark.parametrize("status", [None, "IN_PREPARATION", "READY_FOR_PICKUP", "CLOSED"])
def test_a_toast_order_that_lists_payments_is_heard_if_they_are_its_total(
    of: str, checks: Any, is_heard: bool, status: str | None
) -> None:
    """Whichever merchant's URL it came to: one is for all merchants of an application."""
    merchant = TOAST.merchant if of == "the payer's URL" else a_collector()
    body = toast_event(approvalStatus="APPROVED", guestOrderStatus=status, checks=checks)
    heard = TOAST.read(TOAST.request(body), merchant)
    assert bool(heard) is (is_heard or status is not None)
    assert [each.only_accepted for each in heard or []] == [not is_heard] * len(heard or [])


def test_a_toast_order_that_staff_collects_for_is_accepted_by_a_look_up() -> None:
    """Staff may have changed it before they approved it: the callback does not know the order's total."""
    body = toast_event(approvalStatus="APPROVED", checks=paid(status="OPEN"))
    assert TOAST.read(TOAST.request(body), a_collector()) == []
    body = toast_event(
        approvalStatus="APPROVED", guestOrderStatus="READY_FOR_PICKUP", checks=paid(status="OPEN")
    )
    [callback] = TOAST.read(TOAST.request(body), a_collector()) or []
    assert (callback.meaning, callback.only_accepted) == (Lifecycle.READY, True)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("IN_PREPARATION", Lifecycle.PREPARING),
        ("READY_FOR_PICKUP", Lifecycle.READY),
        ("CLOSED", Lifecycle.COMPLETED),
    ],
)
def test_a_toast_order_that_is_not_paid_is_followed_once_it_is_accepted(
    status: str, meaning: Lifecycle
) -> None:
    """However far the kitchen is: the total may be another one, which a look-up compares."""
    body = toast_event(
        approvalStatus="APPROVED", guestOrderStatus=status, checks=paid(status="OPEN")
    )
    [callback] = TOAST.read(TOAST.request(body)) or []
    assert (callback.meaning, callback.only_accepted) == (meaning, True)


def test_toast_may_say_600_kilobytes() -> None:
    many = [{"guid": "x" * 36, "displayName": "Soup", "quantity": 1}] * 10_000
    body = toast_event(approvalStatus="APPROVED", checks=[{"selections": many}])
    assert 600_000 < len(body) < VENDORS["toast"].adapter.limits.callback_bytes
    assert TOAST.read(TOAST.request(body))


# Clover


def test_clover_says_several_things_of_several_merchants() -> None:
    one = {"objectId": "O:A", "type": "DELETE", "ts": NOW * 1000}
    others = [
        {**one, "type": "UPDATE"},
        {**one, "objectId": "I:B"},
        {**one, "objectId": "O:a b"},
        7,
    ]
    body = compact({"merchants": {"M1": [one, *others], "M2": [{**one, "ts": "x"}], "M3": 7}})
    found = CLOVER.read(CLOVER.request(body))
    assert found is not None
    assert [(each.external_id, each.account, each.occurred_at) for each in found] == [
        ("A", ("merchant_id", "M1"), NOW),
        ("A", ("merchant_id", "M2"), None),
    ]


def test_clovers_verification_code_is_read_without_its_auth_code() -> None:
    read = CloverAdapter().verification_code
    assert read(b' {"verificationCode": "ce7643c1-83ea"}\n') == "ce7643c1-83ea"
    for body in (b"", b"{}", b'{"verificationCode":"a\\nb"}', b'{"verificationCode":"x","y":1}'):
        assert read(body) is None
    long = compact({"verificationCode": "x" * 65})
    assert read(long) is None
