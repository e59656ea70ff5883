"""What a merchant may do with a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.latency import PROMPT, Latency, parse_latency
from pos_gateway.simulated_merchants.replies import CountedReply

E = TypeVar("E", bound=StrEnum)


class Treatment(StrEnum):
    """The ways to treat a request.

    The first four are decisions about a new order; an order that is already there, a lookup and a
    cancellation get the truth instead (only ``conflict`` repeats itself). The others are faults:
    they meet every request.
    """

    ACCEPT = "accept"  # 201, or 200 when the order is already there
    PENDING = "pending"  # 202, and accepted `decided_after` seconds later
    REJECT = "reject"  # 422
    CONFLICT = "conflict"  # has the order, says 409
    FAIL = "fail"  # an error status
    LIMIT = "limit"  # 429 with Retry-After
    RESET = "reset"  # the connection is reset in place of a reply
    HANG = "hang"  # reads the request and falls silent, at a stage of the reply
    DRIP = "drip"  # accepts, and sends the reply byte by byte


class Stage(StrEnum):
    """How much of a reply there is before a merchant hangs.

    What it is to hang before a request is read, the tests' hostile peers play.
    """

    REPLY = "reply"  # nothing
    HEAD = "head"  # the status line
    BODY = "body"  # all but the last byte


MAKES_ORDERS = frozenset({Treatment.ACCEPT, Treatment.PENDING, Treatment.CONFLICT, Treatment.DRIP})
FAULTS = frozenset({Treatment.FAIL, Treatment.LIMIT, Treatment.RESET, Treatment.HANG})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to treat a request, complete with its figures.

    An order is made when its request arrives, not when the reply leaves: a client that gives up
    early has an order all the same.
    """

    kind: Treatment
    #: Seconds from arrival to reply.
    latency: Latency = PROMPT
    #: The status of ``fail``.
    status: int = 503
    #: The Retry-After of ``limit``: seconds or an HTTP date, sent as it is.
    retry_after: str = "1"
    #: Seconds until ``pending`` becomes accepted; None is never.
    decided_after: float | None = 1.0
    #: Where ``hang`` falls silent. One that has begun to reply has made the order.
    stage: Stage = Stage.REPLY
    #: Seconds after which ``hang`` makes the order and replies after all; None is never.
    hangs_for: float | None = None
    #: Seconds between two bytes of ``drip``.
    byte_every: float = 0.2
    #: The error of ``reject``.
    code: str = "out_of_stock"
    message: str = "an item is out of stock"
    #: A fault that strikes after the order was made, so that the client cannot know.
    makes_order: bool = False
    #: The reply, where it is always the same.
    standing_reply: CountedReply | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not 100 <= self.status <= 599:
            raise ScenarioError(f"status {self.status!r}: from 100 to 599")
        for name in ("decided_after", "hangs_for"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise ScenarioError(f"{name} {seconds!r}: 0 or more seconds, or null for never")
        if not self.byte_every > 0:
            raise ScenarioError(f"byte_every {self.byte_every!r}: seconds above 0")
        if self.stage is not Stage.REPLY and self.kind is not Treatment.HANG:
            raise ScenarioError(f"stage {self.stage!r}: only for kind: hang")
        if self.makes_order and self.kind is Treatment.REJECT:
            raise ScenarioError("makes_order: true contradicts kind: reject")
        makes_order = self.makes_order or self.kind in MAKES_ORDERS or self.stage is not Stage.REPLY
        object.__setattr__(self, "makes_order", makes_order)
        object.__setattr__(self, "standing_reply", self._standing_reply())

    def _standing_reply(self) -> CountedReply | None:
        match self.kind:
            case Treatment.REJECT:
                return replies.error_reply(422, self.code, self.message)
            case Treatment.CONFLICT:
                return replies.error_reply(409, "duplicate", "the order is already there")
            case Treatment.FAIL:
                return replies.error_reply(self.status, "failed", "the POS is in trouble")
            case Treatment.LIMIT:
                retry_after = f"Retry-After: {self.retry_after}"
                return replies.error_reply(429, "rate_limited", "too many requests", retry_after)
            case _:
                return None


_FIELDS = {each.name for each in fields(Behaviour) if each.init}


def parse_behaviour(value: Mapping[str, Any]) -> Behaviour:
    """Read a behaviour from JSON: ``{"kind": "fail", "status": 500, "latency": 0.2}``."""
    if unknown := value.keys() - _FIELDS:
        raise ScenarioError(
            f"behaviour: unknown {', '.join(sorted(unknown))}; known: {', '.join(sorted(_FIELDS))}"
        )
    settings = {
        **value,
        "kind": _one_of(Treatment, "kind", value.get("kind", Treatment.ACCEPT)),
        "stage": _one_of(Stage, "stage", value.get("stage", Stage.REPLY)),
        "latency": parse_latency(value.get("latency", 0.0)),
    }
    try:
        return Behaviour(**settings)
    except TypeError as wrong:
        raise ScenarioError(f"behaviour {dict(value)!r}: {wrong}") from wrong


def _one_of(names: type[E], field_name: str, value: Any) -> E:
    try:
        return names(value)
    except ValueError:
        raise ScenarioError(f"{field_name} {value!r}: one of {', '.join(names)}") from None
