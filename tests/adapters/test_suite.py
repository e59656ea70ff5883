"""The conformance suite finds what an adapter does wrong: faults planted in the skeleton's adapter."""

from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NamedTuple
from unittest import SkipTest

import pytest

from pos_gateway.adapters.skeleton.test_skeleton import TestSkeleton as _Suite
from pos_gateway.adapters.testing import BrokenPromise, Conformance
from tests.planting import ROOT

SOURCE = (ROOT / "pos_gateway/adapters/skeleton/adapter.py").read_text()


class Planted(NamedTuple):
    """A fault in the skeleton's adapter."""

    what: str
    right: str
    wrong: str
    #: A part of the name of the test that finds it.
    by: str
    #: A part of the finding.
    seen: str


SUBMIT = '        return self._decided(send(_post("order", body, merchant)), order)\n'
FAULTS = [
    Planted(
        "has another guarantee than its POS",
        "Guarantee.QUERYABLE",
        "Guarantee.KEYED",
        "a_key_makes_one",
        "sent twice",
    ),
    Planted(
        "changes bytes from call to call",
        '"ref": _reference(order),\n        "cur',
        '"at": str(__import__("uuid").uuid4()), "ref": _reference(order),\n        "cur',
        "the_same_order_makes",
        "another body",
    ),
    Planted(
        "keeps an order between two calls",
        "        body = lines.request(order, self.limits, lambda: _written(order))\n",
        '        self.last = order\n        send(Request("GET", _url("order", merchant, ref="x")))\n        order = self.last\n        body = lines.request(order, self.limits, lambda: _written(order))\n',
        "two_threads",
        "another body",
    ),
    Planted(
        "drops modifiers",
        "enumerate(item.modifiers)\n",
        "enumerate(())\n",
        "no_field_of_an_order",
        "onions",
    ),
    Planted(
        "drops an item's notes",
        'lines.text(item.notes, TEXT, f"{path}.notes")',
        '""',
        "no_field_of_an_order",
        "well done",
    ),
    Planted(
        "refuses a tip without a name for it",
        '"tip: this POS takes no tips"',
        '"no"',
        "no_field_of_an_order",
        "tip",
    ),
    Planted(
        "cuts a note",
        'lines.text(item.notes, TEXT, f"{path}.notes")',
        "lines.shortened(item.notes, TEXT)",
        "a_long_text",
        "items[0].notes",
    ),
    Planted(
        "rounds money",
        'return f"{Decimal(minor).scaleb(-2):f}"',
        'return f"{minor / 100:.1f}0"',
        "money_is_exact",
        "price_mismatch",
    ),
    Planted(
        "takes all currencies for hundredths",
        "if order.currency not in CURRENCIES:",
        "if False:",
        "no_currency_is_taken",
        "17.01",
    ),
    Planted(
        "accepts at any price",
        "    reason = lines.mispriced(order, total)\n",
        "    reason = None\n",
        "prices_otherwise",
        "accepted",
    ),
    Planted(
        "leaves an order at another price",
        'facts = None if outcome.kind is Kind.CANCELLED else {"no": str(outcome.external_id)}',
        "facts = None",
        "prices_otherwise",
        "is_cancelled=False",
    ),
    Planted(
        "says accepted on an error in a 200",
        'if said.get("ok") is True and "error" not in said:',
        "if True:",
        "each_refusal",
        "and not item_unavailable",
    ),
    Planted(
        "refuses an order on any error in a 200",
        'if refusal else in_doubt(f"error {code}: {words}")',
        "if refusal else rejected(Rejection.OTHER, words)",
        "says_nothing",
        "rejected",
    ),
    Planted(
        "swallows a TransportError",
        SUBMIT,
        "        try:\n    "
        + SUBMIT
        + "        except Exception:\n            return rejected(Rejection.OTHER, 'no')\n",
        "without_a_reply",
        "rejected",
    ),
    Planted(
        "takes a loss for a retry",
        SUBMIT,
        "        try:\n    "
        + SUBMIT
        + "        except Exception:\n            return Outcome(Kind.RETRY)\n",
        "after_one_loss",
        "standing orders",
    ),
    Planted(
        "says absent when it could not tell",
        "            return replace(said, kind=Kind.IN_DOUBT)\n",
        "            return None\n",
        "never_none",
        "never heard",
    ),
    Planted(
        "takes a foreign order for ours",
        'if not isinstance(found, dict) or found.get("ref") != _reference(order):',
        "if not isinstance(found, dict):",
        "about_another",
        "accepted",
    ),
    Planted(
        "believes JSON that two readers read differently",
        "said = json_object(reply)",
        "said = json.loads(reply.body or b'{}')",
        "cannot_be_read",
        "raises JSONDecodeError",
    ),
    Planted(
        "reads only the status of a cancellation",
        "        if cancels:\n",
        "        if cancels:\n            return Outcome(Kind.CANCELLED)\n",
        "has_not_cancelled",
        "cancelled",
    ),
    Planted(
        "leaks the guest's name in a reason",
        '"tip: this POS takes no tips"',
        'f"tip of {order.customer.name}"',
        "no_field_of_an_order",
        "reveals the guest's",
    ),
    Planted(
        "leaks the key in a reason",
        "return by_status(reply, self.limits.unprocessed)",
        'return in_doubt(f"{reply.status}: a-secret-key")',
        "each_status",
        "reveals a secret",
    ),
    Planted(
        "retries what the POS has no time for at once",
        "return by_status(reply, self.limits.unprocessed)",
        "return replace(by_status(reply), retry_after=None)",
        "too_many_requests",
        "waits for None",
    ),
    Planted(
        "takes every failure for not processed",
        "return by_status(reply, self.limits.unprocessed)",
        "return Outcome(Kind.RETRY)",
        "each_status",
        "a 408 is retry",
    ),
    Planted(
        "has an id that is no text",
        "known_as = str(number) if",
        "known_as = number if",
        "is_accepted",
        "in_doubt",
    ),
    Planted(
        "trips over a value of a wrong type",
        'total = _minor(found.get("sum"))',
        "total = int(float(found['sum']) * 100)",
        "wrong_types",
        "raises",
    ),
    Planted(
        "checks no record",
        "found = problems(merchant, FIELDS, self.limits)",
        "found = []",
        "each_wrong_field",
        "pos.conformance",
    ),
    Planted(
        "checks no form of a field",
        '"the shop\'s number at the POS", r"[0-9]{1,9}"',
        '"the shop\'s number at the POS", required=False',
        "can_be_delivered",
        "KeyError",
    ),
    Planted(
        "calls another host",
        'return f"{merchant.base_url}/{path}',
        'return f"https://elsewhere.example.com/{path}',
        "go_to_the_merchant",
        "goes elsewhere",
    ),
    Planted(
        "cannot cancel what it has cancelled",
        "is_kept = outcome.kind in (Kind.ACCEPTED, Kind.PENDING)",
        "is_kept = True",
        "once_and_for_all",
        "in_doubt",
    ),
]


def adapter_with(fault: Planted) -> Any:
    """The skeleton's adapter with the fault in it."""
    assert fault.right in SOURCE, "the fault cannot be planted any more"
    module = ModuleType("planted")
    exec(SOURCE.replace(fault.right, fault.wrong), vars(module))
    return module.SkeletonAdapter()


def found_by(suite: Conformance, part: str) -> str:
    """The message of the only test with this in its name; empty: it passes."""
    [name] = [each for each in dir(suite) if each.startswith("test_") and part in each]
    try:
        getattr(suite, name)()
    except BrokenPromise as broken:
        return str(broken)
    except SkipTest:
        pass
    return ""


def test_orders_are_placed_during_their_test() -> None:
    """A POS refuses orders of hours ago, and a run can take hours."""
    started = datetime.now(UTC).replace(microsecond=0)
    order = _Suite().an_order()
    assert order.placed_at >= started


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_in_an_adapter_is_found_and_named(fault: Planted) -> None:
    suite = type("Suite", (_Suite,), {"adapter": adapter_with(fault)})()
    said = found_by(suite, fault.by)
    assert fault.seen in said
    assert "\n  do: " in said
    assert found_by(_Suite(), fault.by) == ""
