"""The way from a client, or from an adapter's ``send``, to a simulated vendor, and its troubles."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.vendors.http import Vendor, VendorReply, VendorRequest


@dataclass(slots=True)
class Trouble:
    """Trouble for the next requests of a method and path.

    Args:
        what: the reply is lost ``before`` or ``after`` the vendor carried out the request; a ``slow``
            vendor answers after ``seconds``; the request arrives ``twice``.
        method: of the requests; empty: any.
        path: a regular expression for the whole path.
        times: how many requests.
        status: of a proxy's reply in place of the lost reply; None: the connection ends.
    """

    what: Literal["before", "after", "slow", "twice"]
    method: str = ""
    path: str = ".*"
    times: int = 1
    status: int | None = None
    seconds: float = 0

    def matches(self, request: VendorRequest) -> bool:
        """Whether the trouble is for this request."""
        is_method = self.method in ("", request.method)
        return self.times > 0 and is_method and bool(re.fullmatch(self.path, request.path))


class Carried(NamedTuple):
    """The reply, None for a connection that ends, and the seconds until then."""

    reply: VendorReply | None
    seconds: float = 0


class Way:
    """The way to one vendor. A request meets the first trouble of the list that matches."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.troubles: list[Trouble] = []

    def carry(self, request: VendorRequest) -> Carried:
        """Take the request to the vendor, and the answer back, as the troubles allow."""
        trouble = next((each for each in self.troubles if each.matches(request)), None)
        if trouble is None:
            return Carried(self.vendor.answer(request))
        trouble.times -= 1
        lost = None if trouble.status is None else VendorReply(trouble.status)
        if trouble.what == "before":
            return Carried(lost)
        reply = self.vendor.answer(request)
        if trouble.what == "after":
            return Carried(lost)
        if trouble.what == "twice":
            return Carried(self.vendor.answer(request))
        return Carried(reply, trouble.seconds)


class VendorSend(Send):
    """An adapter's ``send`` without a socket. A slow reply is a timeout: nothing waits here.

    Args:
        way: to the vendor.
        headers: added to each request: the gateway's authentication.
    """

    __slots__ = ("headers", "requests", "way")

    def __init__(self, way: Way, headers: Mapping[str, str] | None = None) -> None:
        self.way, self.headers = way, dict(headers or {})
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        sent = request.adding(self.headers)
        carried = self.way.carry(arrived(sent.method, sent.url, sent.headers, sent.body or b""))
        if carried.reply is None:
            raise NoValidReply("reset", "the connection was reset")
        if carried.seconds:
            raise NoValidReply("timeout", f"no reply within {carried.seconds:.3g} s")
        headers = {name.lower(): value for name, value in carried.reply.headers.items()}
        return Reply(carried.reply.status, headers, written(carried.reply))


def arrived(method: str, url: str, headers: Mapping[str, str], body: bytes) -> VendorRequest:
    """A request as the vendor sees the request."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    names = {name.lower(): value for name, value in headers.items()}
    return VendorRequest(method, unquote(parts.path), query, names, body)


def written(reply: VendorReply) -> bytes:
    """The reply's body in bytes."""
    return b"" if reply.body is None else json.dumps(reply.body).encode()
