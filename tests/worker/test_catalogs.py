"""A worker sends items under the ids that their merchant's POS currently has for them."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testkit.hostile.peer import a_reply, peer, read_request
from tests.adapters.vendors import SQUARE_PAID
from tests.orders import an_order
from tests.worker.lab import Lab


@contextmanager
def square(lab: Lab) -> Iterator[list[dict[str, Any]]]:
    """A merchant ``m`` at a Square that accepts every order; yields the line items it received."""
    items: list[dict[str, Any]] = []

    def take(connection: socket.socket) -> None:
        made: dict[str, Any] = {}
        while request := read_request(connection):
            path, _, content = request.partition(b"\r\n\r\n")
            if path.startswith(b"POST /v2/orders "):
                order = json.loads(content)["order"]
                items.extend(order["line_items"])
                total = {"amount": 1700, "currency": "EUR"}  # of ``an_order``
                known = {"id": f"S{len(items)}", "state": "OPEN", "total_money": total}
                made = {**order, **known}
            elif path.startswith(b"POST /v2/payments "):
                made |= SQUARE_PAID
            connection.sendall(a_reply(json.dumps({"order": made}).encode()))

    with peer(take) as seen:
        pos = {"location_id": "L1"}
        lab.open_merchants("m", adapter="square", base_url=seen.url(""), pos=pos)
        yield items


@pytest.mark.parametrize("flags", [(), ("-P", "prefork", "-c", "1")])
def test_a_running_worker_sees_a_catalog_import(lab: Lab, flags: tuple[str, ...]) -> None:
    app = "pos_gateway" if flags else "pos_gateway.gcelery"
    with square(lab) as items, lab.worker(*flags, app=app):

        def name_of_next(number: int) -> str:
            lab.submit("m", f"o{number}")
            [event] = lab.events(1)
            assert event["type"] == "order.accepted"
            assert event["order"]["items"] == an_order()["items"]
            [item] = items
            items.clear()
            return str(item.get("catalog_object_id") or item["name"])

        assert name_of_next(0) == "Burger"
        number, names = 0, ["Burger"]
        for known_as in ("V1", "V2"):
            lab.import_catalog("m", burger=known_as)
            # Within a second or so; the test's time limit ends the loop.
            while names[-1] != known_as:
                number += 1
                names.append(name_of_next(number))
        assert list(dict.fromkeys(names)) == ["Burger", "V1", "V2"]
