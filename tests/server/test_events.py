"""Events over HTTP, from an order that a worker delivers to the client that waits for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import requests

from pos_gateway.http_client import HttpOrderClient
from pos_gateway.server.schemas import EventView
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.tokens.token import Role
from tests.server.conformance import require_described
from tests.server.lab import SOON, Server, order, serving, token_for
from tests.server.raw import Raw
from tests.worker.lab import Lab

#: Enough for several pages and for two batches of the pipeline.
COUNT = 30
#: With characters at which a line of text ends.
NAME = "Zoë\u2028of\u2029room\x857"


@pytest.fixture
def lab(
    broker_url: str, database_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[Lab]:
    simulated_merchants.reset()
    lab = Lab(broker_url, database_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()


def streamed(reply: requests.Response, count: int) -> list[tuple[int, dict[str, Any]]]:
    """This many events of a stream, with their ids, by a client that splits lines as text does."""
    found: list[tuple[int, dict[str, Any]]] = []
    position = None
    reply.encoding = "utf-8"
    for line in reply.iter_lines(decode_unicode=True):
        name, _, value = line.partition(": ")
        if name == "id":
            position = int(value)
        elif name == "data" and position is not None:
            found.append((position, json.loads(value)))
            if len(found) == count:
                break
    return found


def test_events_reach_pollers_and_streams_in_order_without_a_gap(lab: Lab, tmp_path: Path) -> None:
    lab.open_merchants("m1", "m2")
    ids = [f"o{n}" for n in range(COUNT)]
    viewer = token_for(lab.database_url, Role.VIEWER)  # a running server sees it later
    with serving(lab.broker_url, lab.database_url, tmp_path / "server.log") as server:
        polled: list[dict[str, Any]] = []
        polling = threading.Thread(target=poll, args=(server, polled))
        polling.start()
        stream = server.get("/v1/events/stream", stream=True)
        assert stream.headers["content-type"].startswith("text/event-stream")
        with lab.worker(events_to_broker="false"):
            for number, order_id in enumerate(ids):
                placed = order(order_id, f"m{number % 2 + 1}", customer={"name": NAME})
                laid_out = json.dumps(placed, indent=1, ensure_ascii=False).encode()
                json_type = {"content-type": "application/json"}
                reply = server.post("/v1/orders", data=laid_out, headers=json_type)
                assert reply.status_code == 202, reply.text
            seen = streamed(stream, COUNT)
            stream.close()
            polling.join(SOON)
        assert lab.queued("order-events") == 0, "no backend would take them from there"
        assert [position for position, _ in seen] == list(range(1, COUNT + 1))
        assert [event["position"] for event in polled] == list(range(1, COUNT + 1))
        assert [event for _, event in seen] == polled
        with HttpOrderClient(server.url, server.token) as client:
            assert list(islice(client.events(), COUNT)) == polled
            assert next(client.events(COUNT - 1)) == polled[-1]
        assert {event["type"] for event in polled} == {"order.accepted"}
        assert sorted(event["order_id"] for event in polled) == sorted(ids)
        assert all(event["order"]["customer"]["name"] == NAME for event in polled)
        for event in polled:
            EventView.model_validate_json(json.dumps(event), strict=True)

        resumed = server.get(
            "/v1/events/stream", stream=True, headers={"Last-Event-ID": str(COUNT - 3)}
        )
        assert [position for position, _ in streamed(resumed, 3)] == [COUNT - 2, COUNT - 1, COUNT]
        resumed.close()

        shown = server.get("/v1/merchants/m1/orders/o0").json()
        assert shown["state"] == "accepted"
        assert [event["type"] for event in shown["events"]] == ["order.accepted"]
        assert shown["external_id"] == shown["events"][0]["external_id"] is not None
        [attempt] = shown["attempts"]
        assert (attempt["outcome"], attempt["came"]) == ("accepted", 201)
        assert attempt["seconds"] > 0
        assert server.post("/v1/orders", order("o0", "m1", total=9)).status_code == 409

        headers = {"Authorization": f"Bearer {viewer}"}
        masked = requests.get(server.url + "/v1/events", headers=headers, timeout=SOON)
        assert masked.status_code == 200
        require_described(masked)
        assert "Zoë" not in json.dumps(masked.json(), ensure_ascii=False)
        assert masked.json()["events"][0]["order"]["total"] == 500


def poll(server: Server, into: list[dict[str, Any]]) -> None:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {server.token}"
    after = 0
    while len(into) < COUNT:
        reply = session.get(
            f"{server.url}/v1/events?after={after}&limit=7&wait=20", timeout=2 * SOON
        )
        assert reply.status_code == 200, reply.text
        page = reply.json()
        into += page["events"]
        assert page["next"] == (into[-1]["position"] if into else 0)
        after = page["next"]


def test_a_long_poll_without_news_ends_empty(server: Server) -> None:
    reply = server.get("/v1/events?after=1000000&wait=0.2")
    assert reply.json() == {"events": [], "next": 1000000}


@pytest.mark.parametrize("path", ["/v1/events", "/v1/events/stream"])
@pytest.mark.parametrize(
    ("query", "field", "problem"),
    [
        ("afer=4711", "afer", "is no parameter of this request"),
        ("=false", "", "is no parameter of this request"),
        ("after=1&after=2", "after", "is given twice"),
    ],
)
def test_a_parameter_that_is_misspelled_or_given_twice_is_refused(
    server: Server, path: str, query: str, field: str, problem: str
) -> None:
    """It would else be left out, and ``after`` be 0: all events again."""
    with server.get(f"{path}?{query}", stream=True) as reply:
        assert reply.status_code == 422
        assert reply.json()["code"] == "invalid_request"
        assert reply.json()["errors"] == [{"field": field, "problem": problem}]


@pytest.mark.parametrize("path", ["/v1/events?after=x", "/v1/merchants/%20/orders/%20"])
def test_the_token_is_asked_for_before_the_parameters(server: Server, path: str) -> None:
    assert server.get(path).status_code == 422
    assert requests.get(server.url + path, timeout=SOON).status_code == 401


def test_a_stop_ends_streams_and_polls(
    module_url: str, module_database: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(module_url, module_database, tmp_path / "server.log"))
        stream = server.get("/v1/events/stream", stream=True)
        lines = stream.iter_lines()
        assert next(lines) == b"retry: 1000"
        asking = "GET {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + server.token + "\r\n\r\n"
        poll = stack.enter_context(Raw(server))
        # In one packet: with the first one's reply, the second one has begun.
        poll.send("".join(map(asking.format, ("/healthz", "/v1/events?wait=50"))).encode())
        assert poll.reply() is not None
        assert server.stop() == 0
        assert b": this server stops; reconnect" in list(lines)
        [reply] = poll.replies()
        assert json.loads(reply.body)["events"] == []
