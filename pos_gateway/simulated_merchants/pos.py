"""The POS API of every merchant, each under ``/m/{merchant_id}``."""

import json
from random import Random
from urllib.parse import unquote

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.call import CallKind, SimulatedCall
from pos_gateway.simulated_merchants.connection import Exchange
from pos_gateway.simulated_merchants.profiles import Profile
from pos_gateway.simulated_merchants.records import Records, SimulatedMerchant
from pos_gateway.simulated_merchants.scenario import Scenario, matches

_NO_KEY = replies.error_reply(400, "bad_request", "no Idempotency-Key and no order_id")
_NOT_JSON = replies.error_reply(400, "bad_request", "the body is not JSON")


class PointOfSale:
    """Plays all merchants."""

    def __init__(self, scenario: Scenario, records: Records, seed: int) -> None:
        self.scenario = scenario
        self.records = records
        self.hanging: set[SimulatedCall] = set()
        self._seed = seed

    def handle(self, exchange: Exchange) -> None:
        """Begin a call on a merchant, or say what is wrong with the request."""
        match (exchange.method, exchange.target.split(b"/")[2:]):
            case (b"POST", [merchant, b"orders"]):
                self._create(exchange, self.merchant(_text(merchant)))
            case (b"GET", [merchant, b"orders", order]):
                self._begin(exchange, self.merchant(_text(merchant)), CallKind.LOOKUP, _text(order))
            case (b"POST", [merchant, b"orders", order, b"cancel"]):
                self._begin(exchange, self.merchant(_text(merchant)), CallKind.CANCEL, _text(order))
            case (_, [_, b"orders", *_]):
                exchange.answer(replies.NOT_ALLOWED)
            case _:
                exchange.answer(replies.NOT_FOUND)

    def merchant(self, merchant_id: str) -> SimulatedMerchant:
        """The merchant of that id; any id has one."""
        merchant = self.records.merchants.get(merchant_id)
        if merchant is None:
            group, profile = self.scenario.cast(merchant_id)
            # Its own chance: what one merchant does never depends on the traffic of another.
            chance = Random(f"{self._seed}/{merchant_id}")
            merchant = SimulatedMerchant(merchant_id, group, profile, chance)
            self.records.merchants[merchant_id] = merchant
        return merchant

    def switch(self, pattern: str, profile: Profile, *, release: bool = False) -> None:
        """Give merchants another profile; ``release`` treats by it the calls that hang now."""
        self.scenario.override(pattern, profile)
        for merchant in self.records.merchants.values():
            if matches(pattern, merchant.id):
                merchant.profile = profile
        if release:
            for call in [each for each in self.hanging if matches(pattern, each.merchant.id)]:
                call.release()

    def reset(self) -> None:
        """Begin anew, as after a start: no records, no overrides, the same chances."""
        self.scenario.reset()
        self.records.reset()
        self.hanging.clear()

    def _create(self, exchange: Exchange, merchant: SimulatedMerchant) -> None:
        order_id = exchange.key.decode("latin-1") or _order_id(exchange.body)
        if not order_id:
            self.records.malformed += 1
            exchange.answer(_NO_KEY)
        elif merchant.profile.checks_body and not _is_json(exchange.body):
            self.records.malformed += 1
            exchange.answer(_NOT_JSON)
        else:
            self._begin(exchange, merchant, CallKind.CREATE, order_id)

    def _begin(
        self, exchange: Exchange, merchant: SimulatedMerchant, action: CallKind, order_id: str
    ) -> None:
        SimulatedCall(self.records, self.hanging, exchange, merchant, action, order_id).begin()


def _text(part: bytes) -> str:
    return unquote(part.decode("latin-1"))


def _order_id(body: bytes) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    return str(value.get("order_id", "")) if isinstance(value, dict) else ""


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True
