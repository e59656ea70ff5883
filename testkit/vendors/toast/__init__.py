"""A strict simulator of Toast.

Written from Toast's orders definition (2.9.0) and its guides on doc.toasttab.com: "Authentication",
"Scopes", "Rate limiting", "API responses and errors", "Creating orders", "Order details based on the
order dining option", "Specifying modifiers and instructions for menu item selections", "Order prices",
"Working with order discounts", "Scheduling future orders", "Void an order", "Orders webhook", "Message
signing", "Restaurant availability"; the menus, stock and restaurants definitions. Each module says what
is documented, and what is judgement. Never tried against Toast's own system.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from testkit.vendors.toast.api import Toast
from testkit.vendors.toast.menu import read
from testkit.vendors.toast.restaurant import Charge, Restaurant


def simulator(
    clock: Callable[[], datetime],
    *,
    menu: Iterable[Mapping[str, Any]],
    client: tuple[str, str] = ("client", "secret"),
    service_charges: Mapping[str, Mapping[str, Any]] | None = None,
    discounts: Mapping[str, Mapping[str, Any]] | None = None,
    **restaurant: Any,
) -> Toast:
    """Toast with one restaurant, from JSON values.

    Args:
        menu: see ``menu.read``.
        client: id and secret of the machine client.
        service_charges, discounts: by GUID, with the fields of ``Charge``.
        restaurant: further fields of ``Restaurant``.
    """
    place = Restaurant(
        menu=read(map(dict, menu)),
        service_charges={guid: Charge(**each) for guid, each in (service_charges or {}).items()},
        discounts={guid: Charge(**each) for guid, each in (discounts or {}).items()},
        **restaurant,
    )
    [client_id, secret] = client
    return Toast(place, (client_id, secret), clock)
