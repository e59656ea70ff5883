"""Square's refusals: ``{"errors": [{"category", "code", "detail", "field"}]}`` with an HTTP status."""

from collections.abc import Mapping, Sequence

from testkit.vendors.fields import Fault, Rule
from testkit.vendors.http import VendorReply

#: Status and category of codes other than 400 and INVALID_REQUEST_ERROR ("Handling errors").
#: *Judgement*: 409 of VERSION_MISMATCH (the document has the code only in words).
_CODES: Mapping[str, tuple[int, str]] = {
    "UNAUTHORIZED": (401, "AUTHENTICATION_ERROR"),
    "ACCESS_TOKEN_EXPIRED": (401, "AUTHENTICATION_ERROR"),
    "ACCESS_TOKEN_REVOKED": (401, "AUTHENTICATION_ERROR"),
    "INSUFFICIENT_SCOPES": (403, "AUTHENTICATION_ERROR"),
    "FORBIDDEN": (403, "AUTHENTICATION_ERROR"),
    "NOT_FOUND": (404, "INVALID_REQUEST_ERROR"),
    "METHOD_NOT_ALLOWED": (405, "INVALID_REQUEST_ERROR"),
    "VERSION_MISMATCH": (409, "INVALID_REQUEST_ERROR"),
    "UNSUPPORTED_MEDIA_TYPE": (415, "INVALID_REQUEST_ERROR"),
    "RATE_LIMITED": (429, "RATE_LIMIT_ERROR"),
    "NOT_IMPLEMENTED": (501, "API_ERROR"),
    "PAYMENT_AMOUNT_MISMATCH": (400, "PAYMENT_METHOD_ERROR"),
    "REFUND_AMOUNT_INVALID": (400, "REFUND_ERROR"),
    "PAYMENT_NOT_REFUNDABLE": (400, "REFUND_ERROR"),
}
#: Codes of broken rules. The document names the codes and not when each is used: *judgement*.
_OF_RULES: Mapping[Rule, str] = {
    Rule.UNKNOWN: "UNKNOWN_BODY_PARAMETER",
    Rule.MISSING: "MISSING_REQUIRED_PARAMETER",
    Rule.READ_ONLY: "BAD_REQUEST",
    Rule.TYPE: "INCORRECT_TYPE",
    Rule.ENUM: "INVALID_ENUM_VALUE",
    Rule.PATTERN: "INVALID_VALUE",
    Rule.SHORT: "VALUE_TOO_SHORT",
    Rule.LONG: "VALUE_TOO_LONG",
    Rule.LOW: "VALUE_TOO_LOW",
    Rule.HIGH: "VALUE_TOO_HIGH",
    Rule.FEW: "ARRAY_EMPTY",
    Rule.MANY: "ARRAY_LENGTH_TOO_LONG",
}


class Refused(Exception):
    """The request is refused, and nothing has changed."""

    def __init__(self, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.reply = _reply([(code, detail, field)])

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> "Refused":
        """For broken rules of a table: an error for each."""
        made = cls("BAD_REQUEST", "; ".join(map(str, faults)))
        made.reply = _reply([(_OF_RULES[each.rule], str(each), each.path) for each in faults])
        return made


def _reply(errors: Sequence[tuple[str, str, str | None]]) -> VendorReply:
    status = _CODES.get(errors[0][0], (400, ""))[0]
    listed = []
    for code, detail, field in errors:
        category = _CODES.get(code, (400, "INVALID_REQUEST_ERROR"))[1]
        error = {"category": category, "code": code, "detail": detail}
        listed.append({**error, "field": field} if field else error)
    return VendorReply(status, {"errors": listed})
