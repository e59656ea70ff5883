"""Orders over HTTP: what a backend is told, and what is in the broker then."""

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from kombu import Connection
from sqlalchemy import insert, select, update

from pos_gateway.broker.topology import orders_queue
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit, orders
from pos_gateway.tokens.token import Role
from tests.server.lab import SOON, Server, order, token_for


def queued(url: str) -> list[Any]:
    """The messages in the queue of orders, taken out."""
    found = []
    with Connection(url) as connection:
        queue = orders_queue.bind(connection.default_channel)
        while (message := queue.get()) is not None:
            message.ack()
            found.append(message)
    return found


@pytest.fixture(autouse=True)
def _empty(server: Server, module_url: str) -> None:
    queued(module_url)


def test_a_202_means_that_the_broker_has_the_bytes(
    server: Server, module_url: str, order_id: str
) -> None:
    text = json.dumps(order(order_id, notes="zwölf"), indent=1, ensure_ascii=False).encode()
    reply = server.post("/v1/orders", data=text, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()) == (
        202,
        {"order_id": order_id, "merchant_id": "m1", "state": "submitted"},
    )
    [message] = queued(module_url)
    assert message.body.startswith(f"[[{text.decode()}],{{}},")
    assert message.properties["message_id"] == order_id
    assert message.headers["task"] == "pos_gateway.submit_order"


def test_the_same_order_again_is_taken_again(
    server: Server, module_url: str, order_id: str
) -> None:
    """The first may have been lost on its way; workers know it if not."""
    same = order(order_id)
    assert [server.post("/v1/orders", same).status_code for _ in range(3)] == [202] * 3
    relaid = dict(reversed(same.items()))
    assert server.post("/v1/orders", relaid).status_code == 202
    assert len(queued(module_url)) == 4


def test_the_same_id_with_other_content_is_a_conflict(
    server: Server, module_url: str, order_id: str
) -> None:
    server.post("/v1/orders", order(order_id))
    reply = server.post("/v1/orders", order(order_id, total=999))
    assert (reply.status_code, reply.json()["code"]) == (409, "order_differs")
    assert reply.headers["content-type"] == "application/problem+json"
    assert len(queued(module_url)) == 1


def test_an_order_that_has_ended_is_200_with_its_state(
    server: Server, module_url: str, module_database: str, order_id: str
) -> None:
    ended(module_database, order_id, "rejected")
    reply = server.post("/v1/orders", order(order_id))
    assert (reply.status_code, reply.json()["state"]) == (200, "rejected")
    assert not queued(module_url)


def test_an_order_in_doubt_is_taken_again(
    server: Server, module_url: str, module_database: str, order_id: str
) -> None:
    ended(module_database, order_id, "in_doubt")
    reply = server.post("/v1/orders", order(order_id))
    assert (reply.status_code, reply.json()["state"]) == (202, "in_doubt")
    assert len(queued(module_url)) == 1


def ended(database_url: str, order_id: str, state: str) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.execute(
            insert(orders).values(
                merchant_id="m1",
                order_id=order_id,
                action="submit",
                state=state,
                ticket=1,
                epoch=1,
                attempts=1,
                deaths=0,
                pending=False,
                reopened=0,
                created_at=1.0,
                updated_at=1.0,
            )
        )
    engine.dispose()


def test_an_order_past_its_time_is_taken_only_if_it_came_before(
    server: Server, module_url: str, order_id: str
) -> None:
    now = datetime.now(UTC)
    late = order(
        order_id,
        placed_at=(now - timedelta(hours=1)).isoformat(),
        deliver_by=(now - timedelta(seconds=1)).isoformat(),
    )
    reply = server.post("/v1/orders", late)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_order")
    assert "deliver_by" in reply.json()["detail"]
    assert not queued(module_url)


def test_wrong_fields_are_named(server: Server, order_id: str) -> None:
    wrong = order(order_id, currency="euro", items=[], total="12")
    reply = server.post("/v1/orders", wrong)
    assert reply.status_code == 422
    assert {each["field"] for each in reply.json()["errors"]} == {"currency", "items", "total"}


def test_a_batch_has_a_result_for_each_order_in_order(
    server: Server, module_url: str, order_id: str
) -> None:
    ids = [f"{order_id}-{n}" for n in range(3)]
    batch = [order(ids[0]), {}, order(ids[1]), order(ids[0], total=1), order(ids[2])]
    reply = server.post("/v1/orders/batch", batch)
    assert reply.status_code == 207
    assert [each["status"] for each in reply.json()] == [202, 422, 202, 409, 202]
    assert [m.properties["message_id"] for m in queued(module_url)] == ids


def test_a_batch_of_lines_keeps_their_bytes(server: Server, module_url: str, order_id: str) -> None:
    lines = [json.dumps(order(f"{order_id}-{n}"), separators=(", ", " : ")) for n in range(2)]
    reply = server.post(
        "/v1/orders/batch",
        data="\n".join([*lines, "", "nonsense"]),
        headers={"content-type": "application/x-ndjson"},
    )
    assert [each["status"] for each in reply.json()] == [202, 202, 422]
    bodies = [message.body for message in queued(module_url)]
    assert [line in body for line, body in zip(lines, bodies, strict=True)] == [True, True]


@pytest.mark.parametrize("count", [0, 1001])
def test_a_batch_has_1_to_1000_orders(server: Server, count: int) -> None:
    assert server.post("/v1/orders/batch", [{}] * count).status_code in (400, 413)


def test_a_cancel_request_is_taken_for_an_order_that_is_not_there_yet(
    server: Server, module_url: str, order_id: str
) -> None:
    reply = server.post(f"/v1/merchants/m1/orders/{order_id}/cancel")
    assert reply.status_code == 202
    [message] = queued(module_url)
    assert message.headers["task"] == "pos_gateway.cancel_order"
    [[request], *_] = json.loads(message.body)
    assert (request["order_id"], request["merchant_id"]) == (order_id, "m1")
    assert server.get(f"/v1/merchants/m1/orders/{order_id}").status_code == 404


def test_a_cancel_request_is_soon_in_the_audit(
    server: Server, module_database: str, order_id: str
) -> None:
    server.post(f"/v1/merchants/m1/orders/{order_id}/cancel")
    engine = open_database(module_database)
    query = select(audit.c.operator, audit.c.what, audit.c.details).where(
        audit.c.order_id == order_id
    )
    until = datetime.now(UTC) + timedelta(seconds=SOON)
    found = None
    while found is None:  # written every two seconds
        assert datetime.now(UTC) < until
        with engine.connect() as connection:
            found = connection.execute(query).one_or_none()
    engine.dispose()
    assert found.operator.startswith("backend-")
    assert (found.what, found.details) == ("orders.cancel", "over HTTP, from 127.0.0.1")


def test_ids_with_slashes_and_percents_are_taken_as_they_are(
    server: Server, module_url: str
) -> None:
    merchant_id, order_id = "a/b%2f", f"{uuid.uuid4()}/cancel"
    assert server.post("/v1/orders", order(order_id, merchant_id)).status_code == 202
    path = "/v1/merchants/a%2Fb%252f/orders/" + order_id.replace("/", "%2F")
    reply = server.get(path)
    assert (reply.status_code, reply.json()["order_id"]) == (200, order_id)
    assert server.post(path + "/cancel").status_code == 202


def test_an_order_can_be_read_as_soon_as_it_is_taken(server: Server, order_id: str) -> None:
    server.post("/v1/orders", order(order_id))
    reply = server.get(f"/v1/merchants/m1/orders/{order_id}")
    assert reply.status_code == 200
    assert reply.json()["state"] == "submitted"
    assert reply.json()["events"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/orders"),
        ("POST", "/v1/orders/batch"),
        ("POST", "/v1/merchants/m1/orders/o1/cancel"),
        ("GET", "/v1/merchants/m1/orders/o1"),
        ("GET", "/v1/events"),
        ("GET", "/v1/events/stream"),
    ],
)
def test_no_route_but_health_answers_without_a_token(
    server: Server, method: str, path: str
) -> None:
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic YTpi"}):
        reply = requests.request(method, server.url + path, headers=headers, timeout=SOON)
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized")
        assert reply.headers["www-authenticate"].startswith("Bearer")
    assert requests.get(server.url + "/healthz", timeout=SOON).status_code == 200


def test_a_viewer_may_not_submit(server: Server, module_database: str, order_id: str) -> None:
    viewer = {"Authorization": f"Bearer {token_for(module_database, Role.VIEWER)}"}
    until = datetime.now(UTC) + timedelta(seconds=SOON)
    while True:  # tokens are read every two seconds
        reply = requests.post(
            server.url + "/v1/orders", json=order(order_id), headers=viewer, timeout=SOON
        )
        if reply.status_code != 401 or datetime.now(UTC) > until:
            break
    assert (reply.status_code, reply.json()["code"]) == (403, "not_allowed")


def test_a_state_of_the_ledger_is_shown(
    server: Server, module_database: str, order_id: str
) -> None:
    server.post("/v1/orders", order(order_id))
    ended(module_database, order_id, "new")
    engine = open_database(module_database)
    with engine.begin() as connection:
        values = {"state": "accepted", "external_id": "pos-7"}
        connection.execute(update(orders).where(orders.c.order_id == order_id).values(values))
    engine.dispose()
    found = server.get(f"/v1/merchants/m1/orders/{order_id}").json()
    assert (found["state"], found["external_id"]) == ("accepted", "pos-7")
    assert server.post("/v1/orders", order(order_id)).status_code == 409, "placed at another time"
