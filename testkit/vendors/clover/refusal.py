"""How Clover refuses: a message, and perhaps details."""

from typing import Any

from testkit.vendors.http import VendorReply

Body = dict[str, Any]


class Refusal(Exception):
    """Clover's reply to a request that is not carried out.

    Documented: 400s have a message and, of an unknown record, the record's id as details. Bodies of the
    others are as integrators report them.
    """

    def __init__(self, status: int, message: str, details: str = "", **headers: str) -> None:
        super().__init__(message, details)
        body = {"message": message, **({"details": details} if details else {})}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.reply = VendorReply(status, body, named)
