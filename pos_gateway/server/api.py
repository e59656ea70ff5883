"""FastAPI's routes: those that read, and the documents of all."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import AfterValidator, BeforeValidator
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from pos_gateway import __version__
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.http_limits import LONGEST_WAIT, PAGE
from pos_gateway.domain.record import identifier
from pos_gateway.server.access import Access
from pos_gateway.server.asgi import internal
from pos_gateway.server.body import Disconnected, disconnected
from pos_gateway.server.following import PAGE_BYTES, Feeds
from pos_gateway.server.openapi import document
from pos_gateway.server.orders import Orders
from pos_gateway.server.problems import Problem
from pos_gateway.server.query import LAST_POSITION, decimal, require_parameters, whole
from pos_gateway.server.reading import Reading
from pos_gateway.server.submitting import SubmitRoutes
from pos_gateway.server.unread import Unread
from pos_gateway.tokens.token import Capability, Token

T = TypeVar("T")


def _unquoted(text: str) -> str:
    found = identifier(unquote(text))
    if found is None:
        raise ValueError("should be 1 to 128 visible ASCII characters, in a URL percent-encoded")
    return found


#: Of a path that is not decoded yet (see ``asgi.py``): an id may have slashes in it.
MerchantId = Annotated[str, Path(), AfterValidator(_unquoted)]
OrderId = Annotated[str, Path(), AfterValidator(_unquoted)]
#: Numbers as a stream's parser takes them: pydantic's takes ``1_0``, ``5.0`` and `` 5``, too.
Position = Annotated[
    int,
    Query(ge=0, le=LAST_POSITION, description="The last position that you have."),
    BeforeValidator(whole),
]
Limit = Annotated[int, Query(ge=1, le=PAGE), BeforeValidator(whole)]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False), BeforeValidator(decimal)]


def application(
    access: Access,
    submission: SubmitRoutes,
    orders: Orders,
    feeds: Feeds,
    reading: Reading,
    unread: Unread,
    *,
    problem: Callable[[], str | None],
) -> FastAPI:
    """The routes.

    Args:
        problem: why this process is not ready; None: it is.
    """
    app = FastAPI(
        title="POS Gateway",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _report_problems(app)

    async def reader_of(request: Request) -> Token:
        return access.require(request.scope, Capability.READ)

    # As a dependency it is asked for before the parameters are looked at.
    Reader = Annotated[Token, Depends(reader_of)]  # noqa: N806

    @app.get("/v1/merchants/{merchant_id}/orders/{order_id}", tags=["orders"])
    async def show_order(
        request: Request, token: Reader, merchant_id: MerchantId, order_id: OrderId
    ) -> Response:
        """An order's state, attempts and events."""
        reveal = token.role.allows(Capability.REVEAL)
        found = await reading(lambda: orders.show(merchant_id, order_id, reveal=reveal))
        access.revealed(token, request.scope, "orders.reveal", merchant_id, order_id)
        return _json(found)

    @app.post("/v1/merchants/{merchant_id}/orders/{order_id}/cancel", tags=["orders"])
    async def cancel_order(
        request: Request, merchant_id: MerchantId, order_id: OrderId
    ) -> Response:
        """Ask for an order to be cancelled."""
        reply = await submission.cancel(request.scope, request.receive, merchant_id, order_id)
        return Response(reply.body, reply.status, media_type="application/json")

    @app.get("/v1/events", tags=["events"])
    async def events(
        request: Request,
        token: Reader,
        after: Position = 0,
        limit: Limit = 100,
        wait: Wait = 0.0,
    ) -> Response:
        """The events after a position, in order; ``wait`` seconds for one if there is none."""
        require_parameters(request.scope["query_string"], ("after", "limit", "wait"))
        access.revealed(token, request.scope, "events.reveal")
        page = feeds.of(token).page(after, limit, unread.room(PAGE_BYTES, token.digest), wait)
        found = await (_while_connected(request, page) if wait else page)
        access.confirm(token)
        last = found[-1].position if found else after
        bodies = b",".join(event.body for event in found)
        body = b'{"events":[' + bodies + b'],"next":%d}' % last
        return Response(body, media_type="application/json")

    @app.get("/openapi.json", tags=["documents"])
    async def openapi(_token: Reader) -> Response:
        """The API's document."""
        return _json(document())

    @app.head("/healthz", include_in_schema=False)  # load balancers ask so
    @app.get("/healthz", tags=["health"])
    async def healthz() -> Response:
        """200 while the process runs."""
        return _json({"healthy": True})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["health"])
    async def readyz() -> Response:
        """200, or 503 while it cannot take orders; the metrics port's page says why."""
        is_ready = problem() is None
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    return app


async def _while_connected(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """The result, unless the client goes: then nothing waits for it any longer."""
    gone = asyncio.ensure_future(disconnected(request.receive))
    result = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait((gone, result), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise Disconnected
        return await result
    finally:
        gone.cancel()
        result.cancel()


def _json(content: Any, status: int = 200) -> Response:
    return Response(
        to_json(content),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def _report_problems(app: FastAPI) -> None:
    """Every error is a problem detail."""

    async def of_problem(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)  # noqa: S101
        headers = {name.decode(): value.decode() for name, value in error.headers()}
        return Response(error.body(), error.status, headers=headers)

    async def of_request(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        errors = [
            FieldError(str(each["loc"][-1]), each["msg"][:1].lower() + each["msg"][1:])
            for each in error.errors()
        ]
        detail = "; ".join(map(str, errors))
        return await of_problem(request, Problem(422, "invalid_request", detail, errors=errors))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        detail = f"there is no {request.method} {request.url.path[:200]}; see /openapi.json"
        problem = Problem(error.status_code, code, detail, headers=error.headers)
        return await of_problem(request, problem)

    async def of_mistake(request: Request, error: Exception) -> Response:
        return await of_problem(request, internal())

    app.add_exception_handler(Problem, of_problem)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(Exception, of_mistake)
