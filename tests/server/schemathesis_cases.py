"""What schemathesis tries on the server: imported by its test alone, since it takes a second."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, settings, strategies
from schemathesis.checks import load_all_checks
from schemathesis.pytest.lazy import get_all_tests

from pos_gateway.domain.http_limits import LONGEST_WAIT
from pos_gateway.server.openapi import document
from testkit.patience import PATIENCE
from tests.server.lab import Server, order

STREAM = "/v1/events/stream"
#: It needs a signature, which ``test_callbacks.py`` has.
CALLBACKS = "/v1/callbacks/{adapter}/{merchant_id}"

#: As schemathesis has it, and 413: a body that is too long is refused before it is read; 207: each
#: order of a batch is refused by itself.
REFUSED = [207, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429]
#: And 422: a schema cannot say that deliver_by is after placed_at.
TAKEN = [200, 202, 207, 404, 409, 413, 422]
CONFIG = schemathesis.Config.from_dict(
    {
        "checks": {
            "negative_data_rejection": {"expected-statuses": REFUSED},
            "positive_data_acceptance": {"expected-statuses": TAKEN},
        }
    }
)
bounded = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer("application/x-ndjson")
def as_it_is(_context: Any, value: Any) -> Any:
    """Lines, which the strategy makes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


FIRST = json.dumps(order()).encode()
LINES = strategies.lists(strategies.one_of(strategies.just(FIRST), strategies.binary()))
schemathesis.openapi.media_type(
    "application/x-ndjson", LINES.map(lambda lines: b"\n".join([FIRST, *lines]))
)


def loaded() -> Any:
    """The document, as schemathesis reads it."""
    load_all_checks()
    return schemathesis.openapi.from_dict(document(), config=CONFIG)


def is_awaited(wait: Any) -> bool:
    """Whether the server would wait for so long."""
    try:
        return 0 < float(wait) <= LONGEST_WAIT
    except (TypeError, ValueError, OverflowError):
        return False


def replies(case: Any, server: Server, session: requests.Session) -> None:
    if isinstance(case.query, dict) and is_awaited(case.query.get("wait")):
        case.query["wait"] = 0.01
    headers = {"Authorization": f"Bearer {server.token}"}
    case.call_and_validate(base_url=server.url, session=session, headers=headers, timeout=60)


def streams(case: Any, server: Server, session: requests.Session) -> None:
    """A stream has no end: of one that begins, the head alone is looked at."""
    headers = {"Authorization": f"Bearer {server.token}"}
    request = case.as_transport_kwargs(base_url=server.url, headers=headers)
    with session.request(**request, timeout=PATIENCE, stream=True) as reply:
        if reply.status_code != 200:
            case.validate_response(reply)


def tests(document: Any) -> Iterator[tuple[str, Callable[..., None]]]:
    """Each operation's test by its method and path, as schemathesis's own plugin makes them."""
    for some, test in (
        (document.exclude(path=[STREAM, CALLBACKS]), replies),
        (document.include(path=STREAM), streams),
    ):
        for made in get_all_tests(schema=some, test_func=test, settings=bounded, given_kwargs={}):
            operation, run = made.ok()
            yield operation.label, run
