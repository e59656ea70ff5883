"""The document says what the server does: compared with its code, its replies, and by schemathesis."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator

from pos_gateway.broker import wire
from pos_gateway.server import asyncapi, views
from pos_gateway.server.openapi import OPERATIONS, codes, document
from tests.server.lab import Server, order

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pos_gateway" / "server"


def test_the_server_serves_the_document_that_is_checked_in(server: Server) -> None:
    served = server.get("/openapi.json").json()
    assert served == json.loads((ROOT / "docs" / "openapi.json").read_text()) == document()


@pytest.mark.parametrize("described", [document(), asyncapi.document()], ids=["open", "async"])
def test_every_reference_has_its_target(described: dict[str, Any]) -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(described)):
        target: Any = described
        for part in reference.split("/"):
            target = target[part]
        assert target


def test_messages_are_as_the_other_document_has_them() -> None:
    described = yaml.safe_load((ROOT / "docs" / "asyncapi.yaml").read_text())
    assert described == json.loads(json.dumps(asyncapi.document()))
    message = wire.submit_message("o1", json.dumps(order()).encode(), routing_key="orders")
    components = described["components"]
    payload = {**components["messages"]["order"]["payload"], "components": components}
    Draft202012Validator(payload).validate(json.loads(message.body))
    Draft202012Validator(components["messages"]["order"]["headers"]).validate(dict(message.headers))


def test_every_code_of_a_problem_is_documented() -> None:
    documented = {name for each in OPERATIONS for names in codes(each).values() for name in names}
    raised = {
        found
        for path in CODE.glob("*.py")
        for found in re.findall(r'(?:Problem|_refusal)\(\s*\d{3},\s*"([a-z_]+)"', path.read_text())
    }
    assert raised - documented == {"not_found", "http_error"} & (raised - documented)
    assert len(raised) > 15


def test_replies_are_as_described(server: Server, order_id: str) -> None:
    """Strictly: a field that is not described fails."""
    same = order(order_id)
    reply = server.post("/v1/orders", same)
    views.SubmittedView.model_validate(reply.json())
    batch = server.post("/v1/orders/batch", [same, {}]).json()
    views.BatchSubmittedView.model_validate(batch[0])
    views.ProblemView.model_validate(batch[1])
    path = f"/v1/merchants/m1/orders/{order_id}"
    views.CancellingView.model_validate(server.post(path + "/cancel").json())
    views.OrderView.model_validate(server.get(path).json())
    views.EventPage.model_validate(server.get("/v1/events").json())
    views.HealthView.model_validate(server.get("/healthz").json())
    views.ReadyView.model_validate(server.get("/readyz").json())


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
schema = schemathesis.openapi.from_dict(document(), config=CONFIG)


@schema.exclude(path="/v1/events/stream").parametrize()
@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_schemathesis_finds_nothing(case: Any, server: Server) -> None:
    if isinstance(case.query, dict):
        case.query.pop("wait", None)  # it would be waited for
    case.call_and_validate(
        base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=60
    )
