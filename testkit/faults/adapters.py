"""Adapters for POSes that offer less than the reference API or take an order in steps; one kills its worker.

Workers find them as they find any other package's: through entry points, in a folder on their
``PYTHONPATH``. The simulated merchants behind them do not honour a key (``{"keyed": false}``): every
POST makes another order.
"""

import os
import signal
from pathlib import Path

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.registry import GROUP
from pos_gateway.adapters.replies import in_doubt
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Send
from testkit.steps.adapters import PaidAdapter, PrintedAdapter

ROOT = Path(__file__).resolve().parents[2]

#: The adapter by which a simulated merchant is spoken to, for each guarantee.
ADAPTERS = {
    Guarantee.KEYED: "rest",
    Guarantee.QUERYABLE: "queryable",
    Guarantee.BLIND: "blind",
}


class QueryableAdapter(RestAdapter):
    """A POS that can be asked by our order id, and has no key."""

    name = "queryable"
    guarantee = Guarantee.QUERYABLE


class BlindAdapter(RestAdapter):
    """A POS that has no key and does not know our order ids."""

    name = "blind"
    guarantee = Guarantee.BLIND

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        return in_doubt("this POS does not know our ids")


class PoisonAdapter(RestAdapter):
    """Speaks the reference API, but orders whose id begins with ``poison`` kill the process."""

    name = "poison"

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        if order.order_id.startswith("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(order, merchant, send)


def install(folder: Path) -> str:
    """Put these adapters there, as a package of their own; a worker's ``PYTHONPATH`` that has it."""
    about = folder / "adapters" / "pos_gateway_faults-1.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pos-gateway-faults\nVersion: 1\n")
    entries = "".join(
        f"{each.name} = {each.__module__}:{each.__name__}\n"
        for each in (QueryableAdapter, BlindAdapter, PoisonAdapter, PaidAdapter, PrintedAdapter)
    )
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    paths = (str(about.parent), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, paths))
