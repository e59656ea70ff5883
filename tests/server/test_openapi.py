"""The document says what the server does: compared with its code, its replies, and by schemathesis."""

import json
import re
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from pos_gateway.server import examples, schemas
from pos_gateway.server.api import application
from pos_gateway.server.openapi import OPERATIONS, OUTSIDE, PROBLEMS, Operation, document
from pos_gateway.tokens.token import Role
from tests.server.conformance import require_described, require_references
from tests.server.lab import SOON, Server, order, token_for

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pos_gateway" / "server"
STREAM = "/v1/events/stream"
#: It needs a signature, which ``test_callbacks.py`` has.
CALLBACKS = "/v1/callbacks/{adapter}/{merchant_id}"


@pytest.fixture(scope="module")
def comparing() -> requests.Session:
    """Has no token of its own, so that schemathesis can leave it out."""
    session = requests.Session()
    session.trust_env = False
    session.hooks["response"].append(require_described)
    return session


@pytest.fixture(scope="module")
def tokens(server: Server, module_database: str) -> dict[Role, str]:
    """A token of each role, once the server knows it."""
    found = {role: token_for(module_database, role) for role in Role}
    until = time.monotonic() + SOON
    for token in found.values():
        headers = {"Authorization": f"Bearer {token}"}
        while (
            requests.get(server.url + "/v1/events", headers=headers, timeout=SOON).status_code
            == 401
        ):
            assert time.monotonic() < until, "the server does not learn of it"
            time.sleep(0.02)
    return found


def test_the_server_serves_the_document_that_is_checked_in(server: Server) -> None:
    served = server.get("/openapi.json").json()
    assert served == json.loads((ROOT / "docs" / "openapi.json").read_text()) == document()


def test_the_document_is_openapi(described: Any) -> None:
    described.validate()
    for each in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(each)


def test_every_reference_has_its_target() -> None:
    require_references(document())


def test_an_order_is_as_its_own_schema_has_it() -> None:
    text = (ROOT / "docs" / "order.schema.json").read_text()
    schema = json.loads(text.replace("#/$defs/", "#/components/schemas/"))
    parts = schema.pop("$defs")
    del schema["$schema"]
    components = document()["components"]["schemas"]
    assert components["Order"] == schema
    assert {name: components[name] for name in parts} == parts


#: The modules of the routes that submit.
SUBMITTING = [CODE / "submitting.py", CODE / "batches.py"]


def raised_in(modules: Sequence[Path]) -> dict[int, set[str]]:
    """The problems that modules raise: codes by status."""
    text = "".join(each.read_text() for each in modules)
    found = re.findall(r'(?:Problem|_refusal)\(\s*(\d{3}),\s*"([a-z_]+)"', text)
    found += [
        (422, f"invalid_{what}".replace(" ", "_"))
        for what in re.findall(r'invalid\(error, "([a-z ]+)"', text)
    ]
    by_status: dict[int, set[str]] = {}
    for status, code in found:
        by_status.setdefault(int(status), set()).add(code)
    return by_status


@pytest.mark.parametrize("module", sorted(CODE.glob("*.py")), ids=lambda path: path.stem)
def test_every_problem_is_documented_and_every_documented_one_is_raised(module: Path) -> None:
    described: dict[int, set[str]] = {}
    modules, tables = [module], [PROBLEMS.get(module.stem, {})]
    if module in SUBMITTING:
        modules, tables = SUBMITTING, [each.problems for each in OPERATIONS]
    for table in tables:
        for status, codes in table.items():
            described.setdefault(status, set()).update(codes)
    raised = raised_in(modules)
    for status, codes in OUTSIDE.items():
        raised.get(status, set()).difference_update(codes)
    assert {status: codes for status, codes in raised.items() if codes} == described


def test_replies_are_as_described(server: Server, order_id: str) -> None:
    """The session compares each with the document; so do all other tests of the server."""
    same = order(order_id)
    path = f"/v1/merchants/m1/orders/{order_id}"
    assert server.post("/v1/orders", same).status_code == 202
    assert server.post("/v1/orders/batch", [same, {}]).status_code == 207
    assert server.post(path + "/cancel").status_code == 202
    for each in (path, "/v1/events", "/healthz", "/readyz"):
        assert server.get(each).status_code == 200
    assert server.post("/v1/orders", order(currency="euro")).json() == examples.PROBLEM


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (202, {**examples.SUBMITTED, "other": 1}),
        (202, {**examples.SUBMITTED, "state": "unknown"}),
        (201, examples.SUBMITTED),
        (422, {**examples.PROBLEM, "code": "other"}),
        (409, examples.PROBLEM),
        (429, {**examples.PROBLEM, "status": 429, "code": "rate_limited"}),
    ],
)
def test_a_reply_that_is_not_described_is_found(status: int, content: dict[str, Any]) -> None:
    reply = requests.Response()
    reply.request = requests.Request("POST", "http://gateway/v1/orders").prepare()
    reply.status_code, reply.raw = status, BytesIO(json.dumps(content).encode())
    kind = "problem+json" if "code" in content else "json"
    reply.headers["content-type"] = f"application/{kind}"
    with pytest.raises((AssertionError, KeyError, ValidationError)):
        require_described(reply)


def test_roles_are_described() -> None:
    [submit] = [each for each in OPERATIONS if each.name == "submitOrder"]
    [show] = [each for each in OPERATIONS if each.name == "showOrder"]
    assert (submit.roles, 403 in submit.codes()) == ([Role.BACKEND, Role.OPERATOR], True)
    assert (show.roles, 403 in show.codes()) == (list(Role), False)


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.path != CALLBACKS],
    ids=lambda each: each.name,
)
def test_an_operation_asks_for_a_token_of_its_roles(
    operation: Operation, server: Server, tokens: dict[Role, str], comparing: requests.Session
) -> None:
    url = server.url + operation.path.format(**examples.IDS)

    def status(headers: dict[str, str]) -> int:
        with comparing.request(
            operation.method, url, headers=headers, timeout=SOON, stream=True
        ) as reply:
            return reply.status_code

    is_open = operation.needs is None
    assert (status({}) != 401) == is_open
    assert (status({"Authorization": "Bearer nonsense"}) != 401) == is_open
    for role in Role:
        refused = status({"Authorization": f"Bearer {tokens[role]}"}) in (401, 403)
        assert refused == (not is_open and role not in operation.roles)


def parameters(described: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Names, places and bounds; FastAPI knows a path's ids as texts alone."""
    return [
        (
            each["name"],
            each["in"],
            *(each["schema"].get(name) for name in ("type", "minimum", "maximum", "default")),
        )
        for each in described
    ]


def test_routes_of_fastapi_have_the_parameters_that_are_described() -> None:
    missing: Any = None
    found = application(
        missing, missing, missing, missing, missing, missing, problem=missing
    ).openapi()
    described = document()["paths"]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            ours = described[path][method].get("parameters", [])
            assert parameters(ours) == parameters(operation.get("parameters", []))
    plain = {"/v1/orders", "/v1/orders/batch", STREAM, CALLBACKS}
    assert set(described) == plain | set(found["paths"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_examples_are_valid(operation: Operation) -> None:
    described = document()
    shown = described["paths"][operation.path][operation.method]
    bodies = [shown.get("requestBody", {}), *shown["responses"].values()]
    for body in bodies:
        for content in body.get("content", {}).values():
            schema = {**content["schema"], "components": described["components"]}
            if "example" in content:
                Draft202012Validator(schema).validate(content["example"])
    for reply in operation.replies.values():
        if isinstance(reply.content, type):
            reply.content.model_validate_json(json.dumps(reply.example), strict=True)


def test_events_have_the_types_of_outcomes() -> None:
    events = [{**examples.EVENT, "type": each} for each in schemas.EVENT_TYPES]
    page = {**examples.EVENTS, "events": events}
    schemas.EventPage.model_validate_json(json.dumps(page), strict=True)
    with pytest.raises(ValidationError):
        schemas.EventView.model_validate({**examples.EVENT, "type": "order.retry"})


@pytest.fixture(scope="module")
def described() -> Any:
    """The document, as schemathesis reads it."""
    from tests.server.schemathesis_cases import loaded

    return loaded()


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    """It knows the order of the examples, with a cancel request."""
    ids = examples.IDS
    assert server.post("/v1/orders", order(**ids)).ok
    path = f"/v1/merchants/{ids['merchant_id']}/orders/{ids['order_id']}"
    assert server.post(path + "/cancel").ok
    return server


def test_schemathesis_finds_nothing(
    described: Any, filled: Server, comparing: requests.Session, subtests: pytest.Subtests
) -> None:
    """Imported here, and not where each process of pytest collects the tests: it takes seconds."""
    from tests.server.schemathesis_cases import tests

    tried = 0
    for operation, test in tests(described):
        tried += 1
        with subtests.test(operation):
            test(server=filled, session=comparing)
    assert tried == len(OPERATIONS) - 1  # a callback needs a signature
