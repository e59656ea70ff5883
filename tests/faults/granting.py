"""A merchant whose tokens end mid-shift, and whose grant is revoked: the scenery of a test for each vendor."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.patience import PATIENCE
from testkit.vendors.http import VendorRequest
from testkit.vendors.sellers import Sellers
from testkit.vendors.serving import Simulator
from testkit.vendors.way import Carried, Way
from tests.faults.lab import FaultLab
from tests.faults.selling import ACCEPTED, ADA, SECRET, Json

MERCHANT = "m1"


class GrantingShop(Sellers, ABC):
    """The only seller of a vendor, whatever the token, and merchant of the gateway."""

    adapter: ClassVar[str]
    #: Path of the token endpoint, and the merchant's type of ``auth``.
    tokens: ClassVar[str]
    kind: ClassVar[str] = "oauth2_grant"
    #: Fields of an order that the vendor takes.
    order: ClassVar[Json] = {}

    def __init__(self) -> None:
        super().__init__()
        self.vendor: Simulator = self.open()
        self._way = Way(self.vendor)
        #: Requests to the token endpoint.
        self.asked = 0

    @abstractmethod
    def open(self) -> Simulator:
        """The vendor."""

    @abstractmethod
    def grant(self) -> Json:
        """What an operator brings in after the merchant has granted access: fields of ``auth``."""

    @abstractmethod
    def end_access(self) -> None:
        """End the access tokens, before the time that was said of them."""

    @abstractmethod
    def revoke(self) -> None:
        """The merchant takes the grant back."""

    @property
    @abstractmethod
    def pos(self) -> Mapping[str, str]:
        """The merchant's ``pos``."""

    def carried(self, request: VendorRequest) -> Carried:
        with self.changed:
            self.asked += request.path == self.tokens
            carried = self._way.carry(request)
            self.changed.notify_all()
        return carried

    def merchant(self, url: str) -> Merchant:
        """The gateway's record with another grant."""
        known = {"type": self.kind, "token_url": f"{url}{self.tokens}"}
        with self.changed:
            auth = {**known, **self.grant()}
        own: dict[str, Any] = {"id": MERCHANT, "base_url": url, "auth": auth}
        return Merchant.parse({"adapter": self.adapter, "pos": dict(self.pos), **own})


def work_a_shift(lab: FaultLab, shop: GrantingShop) -> None:
    """Orders go on while tokens end; with a revoked grant an order waits for another one."""
    with serving(lab, shop) as renew:
        place_and_wait(lab, shop, "first")
        assert shop.asked == 0, "the operator's access token is good for a while"
        with shop.changed:
            shop.end_access()
        place_and_wait(lab, shop, "second", "third")
        assert shop.asked == 1
        wait_for_another_grant(lab, shop, renew)


def wait_for_another_grant(lab: FaultLab, shop: GrantingShop, renew: Callable[[], object]) -> None:
    """An order waits, once the grant is revoked, and is accepted with another one."""
    with shop.changed:
        shop.revoke()
    lab.place(MERCHANT, "late", customer=ADA, **shop.order)
    until = time.monotonic() + PATIENCE
    while lab.ledger(MERCHANT, "late") != ("new", CREDENTIAL_REFUSED):
        assert time.monotonic() < until, lab.ledger(MERCHANT, "late")
        time.sleep(0.02)
    renew()
    wait_for_acceptance(lab, "late")


@contextmanager
def serving(lab: FaultLab, shop: GrantingShop) -> Iterator[Callable[[], object]]:
    """The vendor and a worker that knows the merchant; yields what brings in another grant."""
    engine = open_database(lab.database_url)
    store = MerchantStore(engine, vault=Vault(SECRET))
    with shop.served() as url:
        store.put([shop.merchant(url)])
        with lab.worker(secret_key=SECRET):
            yield lambda: store.put([shop.merchant(url)])
    engine.dispose()


def place_and_wait(lab: FaultLab, shop: GrantingShop, *order_ids: str) -> None:
    """Place orders, and wait until they are accepted."""
    lab.place(MERCHANT, *order_ids, customer=ADA, **shop.order)
    wait_for_acceptance(lab, *order_ids)


def wait_for_acceptance(lab: FaultLab, *order_ids: str) -> None:
    for each in order_ids:
        lab.wait_for_events(each, 1)
        assert tuple(event["type"] for event in lab.backend.events(each)) == ACCEPTED
