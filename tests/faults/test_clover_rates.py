"""Two workers, and more orders than Clover takes in a second from one app."""

from pathlib import Path
from typing import ClassVar

from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.vendors.clover import Clover
from testkit.vendors.clover.access import App
from testkit.vendors.sellers import Sellers
from tests.faults.lab import FaultLab
from tests.faults.selling import ADA, SECRET, Case
from tests.faults.test_clover import CloverSeller

#: Orders of each busy merchant: all of them are five times what Clover takes in a second.
EACH = 5


class OfOneApp(CloverSeller):
    """A merchant of one app."""

    app: ClassVar[App]

    def open(self) -> Clover:
        clover = super().open()
        clover.access.app = self.app
        return clover

    def merchant(self, base_url: str) -> Merchant:
        return super().merchant(base_url).model_copy(update={"provider": "our app"})


def test_an_app_is_asked_no_more_than_clover_takes_and_light_merchants_first(
    lab: FaultLab, tmp_path: Path, redis_url: str
) -> None:
    app = OfOneApp.app = App()
    busy = [OfOneApp(Case("busy"), number) for number in range(6)]
    light = [OfOneApp(Case("light"), number) for number in range(6, 9)]
    market = Sellers()
    market.ways |= {each.id: each.way for each in (*busy, *light)}
    with market.served() as url:
        engine = open_database(lab.database_url)
        MerchantStore(engine, vault=Vault(SECRET)).put(
            each.merchant(url) for each in (*busy, *light)
        )
        engine.dispose()
        with (
            lab.worker("--loglevel", "info", secret_key=SECRET, redis_url=redis_url) as first,
            lab.worker("--loglevel", "info", secret_key=SECRET, redis_url=redis_url) as second,
        ):
            for worker in (first, second):
                worker.wait_for_log("fleet.joined")
            for number in range(EACH):
                for each in busy:
                    lab.place(each.id, f"{each.id}-{number}", customer=ADA)
            market.wait(lambda: sum(len(each.facts) for each in busy) >= 3)
            for each in light:
                lab.place(each.id, f"{each.id}-0", customer=ADA)
            market.wait(lambda: all(each.facts for each in light))
            with market.changed:
                made = sum(len(each.facts) for each in busy)
            lab.settle()
    events = [lab.backend.events(f"{each.id}-{n}") for each in busy for n in range(EACH)]
    assert {each[-1]["type"] for each in events} == {"order.accepted"}
    assert app.refused == 0
    assert made <= len(events) - 10
