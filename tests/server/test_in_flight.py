"""Bodies that come slowly: those of one token leave room for another's."""

from contextlib import ExitStack

import pytest

from pos_gateway.domain.http_limits import BATCH_BYTES
from pos_gateway.server.in_flight import BODIES, InFlight
from pos_gateway.server.problems import Problem


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
