"""Who may ask Toast, and how often: a machine client's tokens, and rates in fixed slices.

Of the guides ("Authentication", "Rate limiting"): a login with ``TOAST_MACHINE_CLIENT`` returns a bearer
token, which ends; 401 for an unknown or ended one; 20 requests a second and 10,000 in fifteen minutes
for a location, in slices that begin at fixed times, 5 a second for ``ordersBulk`` and 1 for ``menus``;
each reply names the nearest limit. Judgement: a refused request does not count; logins are counted, not
limited: "no more than twice in an hour" is kept by Toast's staff.
"""

import math
from collections.abc import Callable
from datetime import datetime, timedelta

from testkit.vendors.http import VendorRequest
from testkit.vendors.toast.menu import Body
from testkit.vendors.toast.rules import Refused, shaped

#: Kind, requests, and the seconds of their slice.
_GLOBAL = (("GLOBAL", 20, 1), ("GLOBAL", 10_000, 900))
_ENDPOINTS = {"ordersBulk": (("ENDPOINT", 5, 1),), "menus": (("ENDPOINT", 1, 1),)}


class Tokens:
    """A client's tokens. ``logins`` counts what it asked for; ``client`` is its id and secret, ``lifetime`` that of new ones."""

    def __init__(
        self,
        client: tuple[str, str],
        clock: Callable[[], datetime],
        guid: Callable[[], str],
        lifetime: timedelta = timedelta(days=1),
    ) -> None:
        self.logins = 0
        self.client, self.lifetime = client, lifetime
        self._clock, self._guid = clock, guid
        self._until: dict[str, datetime] = {}

    def login(self, body: object) -> Body:
        """Raises Refused."""
        asked = shaped("Login", body)
        self.logins += 1
        if (asked["clientId"], asked["clientSecret"]) != self.client:
            raise Refused("the credentials in your request are not valid", 401)
        token = self._guid()
        self.give(token)
        given: Body = {
            "tokenType": "Bearer",
            "accessToken": token,
            "scope": None,
            "refreshToken": None,
        }
        given |= {"expiresIn": int(self.lifetime.total_seconds())}
        return {"@class": ".SuccessfulResponse", "token": given, "status": "SUCCESS"}

    def give(self, token: str) -> None:
        """Have this token for its lifetime, as a login has another."""
        self._until[token] = self._clock() + self.lifetime

    def end(self) -> None:
        """End each token that there is."""
        self._until.clear()

    def check(self, request: VendorRequest) -> None:
        """Raises Refused: the request has no token that is good."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or self._until.get(token, self._clock()) <= self._clock():
            raise Refused("the authentication token is unknown, or has expired", 401)


class Rates:
    """What one location has been asked in the slices of now."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, int], tuple[int, int]] = {}

    def count(self, endpoint: str) -> tuple[bool, dict[str, str]]:
        """Whether a request is within each limit, and the headers of the nearest one."""
        now = self._clock().timestamp()
        left: list[tuple[int, int, str]] = []
        counted: dict[tuple[str, int], tuple[int, int]] = {}
        for kind, most, seconds in (*_GLOBAL, *_ENDPOINTS.get(endpoint, ())):
            key = (endpoint if kind == "ENDPOINT" else kind, seconds)
            slice_, count = self._counts.get(key, (0, 0))
            count = count + 1 if slice_ == now // seconds else 1
            counted[key] = (int(now // seconds), count)
            left.append((most - count, -(int(now // seconds) + 1) * seconds, kind))
        remaining, reset, kind = min(left)
        headers = {
            "X-Toast-RateLimit-By": kind,
            "X-Toast-RateLimit-Remaining": str(max(0, remaining)),
            "X-Toast-RateLimit-Reset": str(-reset),
        }
        if remaining < 0:
            return False, {**headers, "Retry-After": str(math.ceil(-reset - now))}
        self._counts |= counted
        return True, headers
