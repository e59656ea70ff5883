"""The replies' shapes, for the documents and the tests. Replies are built by hand, and compared."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.submit_result import SUBMITTED
from pos_gateway.ledger.states import State
from pos_gateway.server import examples
from pos_gateway.server.problems import TYPE

#: The types of events.
EVENT_TYPES = tuple(f"order.{kind}" for kind in (*Kind, *Lifecycle) if kind is not Kind.RETRY)
_STATES = [SUBMITTED, *(state.value for state in State)]


def _event_type(text: str) -> str:
    if text not in EVENT_TYPES:
        raise ValueError(f"is none of {EVENT_TYPES}")
    return text


OrderState = Annotated[
    State | Literal["submitted"],
    WithJsonSchema({"type": "string", "enum": _STATES}),
    Field(description="`submitted` until a worker has it; then the ledger's state."),
]
EventType = Annotated[
    str,
    AfterValidator(_event_type),
    WithJsonSchema({"type": "string", "enum": list(EVENT_TYPES)}),
]


class ReplyModel(BaseModel):
    """A part of a reply: nothing is in it that is not described."""

    model_config = ConfigDict(extra="forbid")


class SubmittedView(ReplyModel):
    """An order that is taken, or that has ended."""

    order_id: str
    merchant_id: str
    state: OrderState


class CancellingView(ReplyModel):
    """A cancel request that is taken."""

    order_id: str
    merchant_id: str


class WrongField(ReplyModel):
    """A wrong field, and what is wrong."""

    field: str
    problem: str
    value: Any = Field(None, description="As it was given, 80 characters of it.")


class ProblemView(ReplyModel):
    """Why a request is not done: a problem detail (RFC 9457)."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.PROBLEM]})

    type: str = Field(pattern=f"^{TYPE}[a-z_]+$")
    title: str
    status: int
    code: str = Field(description="For programs.")
    detail: str = Field(description="For people, with the remedy.")
    errors: list[WrongField] = Field(default=[], description="The wrong fields, if there are any.")


class BatchSubmittedView(SubmittedView):
    """A batch's order that is taken, or that has ended."""

    status: int


class ReasonView(ReplyModel):
    """Why: a code for programs and a sentence for people."""

    code: str
    message: str = Field(description="Masked for a token without the right to see personal data.")


class AttemptView(ReplyModel):
    """One attempt at the POS. Durations are in seconds; null: not reached, or not measured."""

    at: datetime | None
    did: str | None = Field(description="`send`, `look_up`, or null: the POS was not called.")
    came: int | str | None = Field(description="The reply's status, or the failure's code.")
    outcome: str
    reason: ReasonView | None
    waited_seconds: float | None
    claim_seconds: float | None
    connect_seconds: float | None
    first_byte_seconds: float | None
    seconds: float | None
    worker: str


class CancellationView(ReplyModel):
    """The order's cancel request."""

    state: State
    reason: ReasonView | None
    attempt_count: int
    attempts: list[AttemptView]
    updated_at: datetime


class AdaptedView(ReplyModel):
    """A field that the POS has elsewhere than in a field of its own."""

    field: str = Field(description="Its path in the order.")
    as_: str = Field(alias="as", description="Where a kitchen or a courier reads it: `note`, say.")


class OrderEvent(ReplyModel):
    """An event of the order, without the order."""

    id: str = Field(description="Of an event that comes again, the same.")
    position: int = Field(ge=1, description="Its place among all events, without a gap.")
    type: EventType
    occurred_at: datetime | None
    external_id: str | None
    reason: ReasonView | None
    attempts: int
    incomplete: str = Field("", description="Why there is no order, if it cannot be read any more.")
    truncated: bool = Field(
        False, description="True if the whole event is too long; there is no order then."
    )
    adapted: list[AdaptedView] = Field(
        [], description="Of `order.accepted`: what was adapted for the POS, 20 fields at most."
    )
    adapted_more: int = Field(0, description="How many more fields were adapted.")


class OrderView(ReplyModel):
    """An order's state, attempts and events."""

    order_id: str
    merchant_id: str
    state: OrderState
    submitted_at: datetime | None = Field(description="When it came over HTTP, if it did.")
    external_id: str | None = Field(description="The POS's id for it.")
    reason: ReasonView | None
    attempt_count: int
    deliver_by: datetime | None = None
    in_doubt_since: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    attempts: list[AttemptView] = Field(description="The last ten, oldest first.")
    cancellation: CancellationView | None
    events: list[OrderEvent]


class MerchantView(ReplyModel):
    """What an event says of its merchant."""

    provider: str | None
    adapter: str


class EventView(OrderEvent):
    """A status event."""

    order_id: str
    merchant_id: str
    merchant: MerchantView | None = Field(description="Null: it is not known any more.")
    order: dict[str, Any] | str | None = Field(
        description="As it was submitted; masked for a token without the right to see it."
    )


class EventPage(ReplyModel):
    """Events in order, and the position to go on from."""

    events: list[EventView]
    next: int = Field(ge=0, description="`after` of the next request.")


class CallbackView(ReplyModel):
    """What followed from a call: from each thing that it says."""

    results: list[str] = Field(description="As `pos_gateway_http_callbacks_total` has them.")


class HealthView(ReplyModel):
    """Whether the process runs."""

    healthy: bool


class ReadyView(ReplyModel):
    """Whether it takes orders."""

    ready: bool
