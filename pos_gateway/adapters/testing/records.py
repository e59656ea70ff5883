"""An adapter names what is wrong in a merchant's record, and takes every record that it finds right."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pos_gateway.adapters.pos_fields import POS_ID
from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.stand import Stand, attempt
from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Reply, Request

#: Values of a field of ``pos``: each can be in a record.
_ODD = ("-", "0", "x" * 128, "%00", "a/b", "~", "[]", "'--", "{0}")
#: Where errors of a record may be.
_FIELDS = ("pos", "auth", "base_url", "max_concurrency", "request_timeout", "provider", POS_ID)


class ChecksRecords(Stand):
    """``check`` and ``limits``."""

    def test_the_record_of_this_suite_is_right(self) -> None:
        demand(
            "check finds nothing wrong in a record that is right.",
            [str(each) for each in self.adapter.check(self.merchant)],
            "is the record of this test as your merchants' are? else mend check",
        )

    def test_each_wrong_field_of_a_record_is_named_and_check_never_raises(self) -> None:
        demand(
            "check returns a FieldError for each wrong field, and raises nothing.",
            self._misnamed(),
            "use problems(merchant, FIELDS, limits), with a PosField for each field of pos",
        )

    def test_a_record_that_check_takes_can_be_delivered_to(self) -> None:
        demand(
            "An order can be sent to every merchant in whose record check finds nothing wrong.",
            self._undeliverable(),
            "have check name the field: a PosField is required, and has a pattern",
        )

    def test_limits_are_kept_by_records(self) -> None:
        demand(
            "limits are positive numbers, and check names a setting of a record beyond them.",
            self._limitless(),
            "mend limits, or use problems(merchant, FIELDS, limits)",
        )

    def _variants(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Records with one field changed: the field, and the change."""
        pos = self.merchant.pos
        yield "pos.conformance", {"pos": {**pos, "conformance": "1"}}
        for name in pos:
            yield f"pos.{name}", {"pos": {each: pos[each] for each in pos if each != name}}
            for odd in _ODD:
                yield f"pos.{name}", {"pos": {**pos, name: odd}}
        for auth in ({"type": "none"}, {"type": "bearer", "token": "t"}):
            yield "auth", {"auth": auth}
        yield "pos", {"pos": {}}
        yield "max_concurrency", {"max_concurrency": 10_000}
        yield "request_timeout", {"request_timeout": None}
        yield "request_timeout", {"request_timeout": 0.1}

    def _merchants(self) -> Iterator[tuple[str, Merchant, list[FieldError], str]]:
        """Those whom the gateway takes: changed field, merchant, errors, and what check has raised."""
        for field, change in self._variants():
            try:
                merchant = self.merchant_of(change)
            except InvalidMerchant:
                continue
            yield field, merchant, *self._checked(merchant)
        for pos_id in ("", "x", "é" * 400, "\x00", "a/b/c"):
            merchant = self.merchant.with_catalog({"sku": pos_id})
            yield POS_ID, merchant, *self._checked(merchant)

    def _checked(self, merchant: Merchant) -> tuple[list[FieldError], str]:
        try:
            return list(self.adapter.check(merchant)), ""
        except Exception as error:  # noqa: BLE001  (an adapter may raise anything)
            return [], f"{type(error).__name__}: {error}"

    def _misnamed(self) -> Iterator[str]:
        for field, merchant, errors, raised in self._merchants():
            changed = f"with {field} changed to {_value(merchant, field)!r}"
            if raised:
                yield f"{changed}, check raises {raised}"
            for each in errors:
                if not isinstance(each, FieldError) or each.field.split(".")[0] not in _FIELDS:
                    yield f"{changed}, check returns {each!r}, which names no field of a record"
            if field == "pos.conformance" and field not in [each.field for each in errors]:
                yield "check does not name pos.conformance, a field that the adapter never reads"
            if (
                field.startswith("pos.")
                and errors
                and not any(each.field == field for each in errors)
            ):
                yield f"{changed}, check names {errors[0].field} instead"

    def _undeliverable(self) -> Iterator[str]:
        order = self.an_order()
        for field, merchant, errors, refused in self._merchants():
            if not errors and not refused:
                run = self.run(order, pos=_away, merchant=merchant)
                _, raised = attempt(partial(self.forward, run))
                if raised:
                    yield f"{field} is {_value(merchant, field)!r}, and delivering raises {raised}"

    def _limitless(self) -> Iterator[str]:
        limits = self.adapter.limits
        counted = ("concurrency", "per_second", "app_concurrency", "app_per_second")
        for name in ("longest_reply", *counted, "request_bytes"):
            value = getattr(limits, name)
            if value is not None and not value > 0:
                yield f"limits.{name} is {value}"
        if limits.sustained is not None and not min(limits.sustained) > 0:
            yield f"limits.sustained is {limits.sustained}: requests, and seconds"
        if limits.longest_reply is not None and limits.longest_reply > 120:
            yield f"limits.longest_reply is {limits.longest_reply}: a request may take 120 s"
        if not all(400 <= status < 600 for status in limits.unprocessed):
            yield f"limits.unprocessed is {sorted(limits.unprocessed)}: refusals are 400 to 599"
        number = len(self.healthy().wire.requests)
        is_counted = limits.per_second or limits.sustained or limits.app_per_second
        if is_counted and number > limits.requests:
            yield f"limits.requests is {limits.requests}, and an order takes {number}"
        beyond = {
            "max_concurrency": limits.concurrency and limits.concurrency + 1,
            "request_timeout": limits.longest_reply and limits.longest_reply / 2,
        }
        for field, value in beyond.items():
            if value is not None:
                errors, raised = self._checked(self.merchant_of({field: value}))
                if raised or field not in [each.field for each in errors]:
                    yield f"{field} is {value}, and check names {[str(each) for each in errors]}"


def _away(_: Request) -> Reply:
    return Reply(500, {}, b"")


def _value(merchant: Merchant, field: str) -> object:
    name, _, inner = field.partition(".")
    if name == POS_ID:
        return dict(merchant.catalog)
    return merchant.pos.get(inner) if inner else getattr(merchant, name)
