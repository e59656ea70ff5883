"""Bodies that come slowly: those of one token leave room for another's."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pos_gateway.domain.http_limits import BATCH_BYTES
from pos_gateway.server.in_flight import BODIES, InFlight
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Role
from tests.server.lab import Server, order, serving, token_for
from tests.server.raw import Raw
from tests.server.test_abuse import head, until_true

LINES = "Content-Type: application/x-ndjson"


def test_a_tokens_unfinished_batches_keep_no_other_tokens_request_out() -> None:
    in_flight, batches = InFlight(1000), 0
    with ExitStack() as unfinished:

        def begin(token: str | None) -> None:
            unfinished.enter_context(in_flight.reading(token))(BATCH_BYTES - 1)

        with pytest.raises(Problem, match="too_many_requests") as refusal:
            while True:
                begin("hog")
                batches += 1
        assert batches == BODIES // BATCH_BYTES // 2
        assert refusal.value.status == 429
        begin("shop")  # a whole batch
        with in_flight.reading(None) as callback:
            callback(64 * 1024)
        with pytest.raises(Problem):
            begin("hog")
    with in_flight.reading("hog") as count:
        count(BODIES // 2)


def test_a_body_counts_until_its_request_ends() -> None:
    in_flight = InFlight(1)
    for _ in range(3):
        with in_flight.reading("shop") as count:
            count(BODIES // 2)
        with pytest.raises(Problem), in_flight.reading("shop") as count:
            count(BODIES // 2 + 1)


def test_half_sent_batches_of_one_token_keep_no_other_tokens_orders_out(
    module_url: str, module_database: str, tmp_path: Path
) -> None:
    token, patient = token_for(module_database, Role.BACKEND), "tests.server.serve_patient"
    served = serving(module_url, module_database, tmp_path / "log", module=patient)
    with served as shop, ExitStack() as unfinished:
        hog = Server(shop.process, shop.url, token)
        for _ in range(BODIES // BATCH_BYTES // 2):
            client = unfinished.enter_context(Raw(hog))
            length = f"Content-Length: {BATCH_BYTES}"
            client.send(head(hog, LINES, length, target="/v1/orders/batch"))
            client.send(b"\n" * (BATCH_BYTES - 1))
        # Not before: an order beside them would have the last part of a batch refused.
        until_true(lambda: not unread(hog))
        until_true(lambda: submits(hog)[0] == 429)
        assert submits(hog) == [429, 429, 429]
        assert submits(shop) == [207, 202, 202]


def unread(server: Server) -> int:
    """Bytes on the server's connections that it has not read."""
    port = f":{urlsplit(server.url).port:04X}"
    queues = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, own, peer, _, waiting, *_ = line.split()
        sent, came = (int(each, 16) for each in waiting.split(":"))
        queues += came * own.endswith(port) + sent * peer.endswith(port)
    return queues


def submits(client: Server) -> list[int]:
    """The statuses of a batch, an order and a cancel request, each of an order of its own."""
    batched, single, cancelled = (order(f"o-{os.urandom(6).hex()}") for _ in range(3))
    name, _, kind = LINES.partition(": ")
    cancel = f"/v1/merchants/m1/orders/{cancelled['order_id']}/cancel"
    replies = (
        client.post("/v1/orders/batch", data=json.dumps(batched), headers={name: kind}),
        client.post("/v1/orders", single),
        client.post(cancel, {"deliver_by": cancelled["deliver_by"]}),
    )
    return [each.status_code for each in replies]
