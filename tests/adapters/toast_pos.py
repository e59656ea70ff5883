"""The strict Toast as a ``send``: a restaurant with one order's menu, and a client with a token."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from testkit.vendors.http import VendorRequest
from testkit.vendors.toast import simulator
from testkit.vendors.way import VendorSend, Way

_LOGIN = {"clientId": "client", "clientSecret": "secret", "userAccessType": "TOAST_MACHINE_CLIENT"}


class ToastPos(VendorSend):
    """One restaurant. ``toast.knobs`` are its settings, ``way.troubles`` those of the way to it.

    Args:
        turns: settings that change after the prices were requested, when an order is made.
        restaurant: as for ``simulator``.
    """

    __slots__ = ("_now", "_turns", "toast")

    def __init__(self, turns: Mapping[str, Any] | None = None, **restaurant: Any) -> None:
        self._turns = turns or {}
        self._now = datetime.now(UTC)
        self.toast = simulator(self._clock, **restaurant)
        given = self.toast.tokens.login(_LOGIN)["token"]
        super().__init__(Way(self), {"Authorization": f"Bearer {given['accessToken']}"})

    def answer(self, request: VendorRequest) -> Any:
        if (request.method, request.path) == ("POST", "/orders/v2/orders"):
            for name, value in self._turns.items():
                setattr(self.toast.knobs, name, value)
        return self.toast.answer(request)

    @property
    def orders(self) -> list[dict[str, Any]]:
        """The orders as Toast has them."""
        return [each.content for each in self.toast.orders]

    @property
    def standing(self) -> list[dict[str, Any]]:
        """Those that are not voided."""
        return [each for each in self.orders if not each["voided"]]

    def _clock(self) -> datetime:
        """The time since the last look, so that Toast's rate is kept."""
        self._now += timedelta(seconds=0.05)
        return self._now
