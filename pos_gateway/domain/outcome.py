"""What came of one attempt to deliver an order."""

from dataclasses import dataclass
from enum import StrEnum

#: The longest reason that is kept; a merchant's error page is not a reason.
REASON_LIMIT = 500


class Kind(StrEnum):
    """How an attempt ended. The value is the event type's last word where there is one."""

    ACCEPTED = "accepted"  # the POS has the order
    REJECTED = "rejected"  # the POS has decided against it
    CANCELLED = "cancelled"  # the POS has let go of it again
    PENDING = "pending"  # the POS has it and has not decided
    EXPIRED = "expired"  # too late to try (again)
    FAILED = "failed"  # it can never succeed as things are configured
    RETRY = "retry"  # provably not processed; may be tried again
    IN_DOUBT = "in_doubt"  # bytes may have left and no complete valid reply came


class CallResult(StrEnum):
    """How the merchant's side fared in an attempt, whatever that means for the order."""

    NONE = "none"  # it was not called
    ANSWERED = "answered"  # with a decision, or a refusal that is no sign of trouble
    OVERLOADED = "overloaded"  # it said that this is too much (429, 503)
    TIMED_OUT = "timed_out"  # no reply in time
    FAILED = "failed"  # not reached, broken off, or a reply that makes no sense


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, in a word for programs and a sentence for people."""

    code: str
    message: str

    @classmethod
    def of(cls, code: str, message: object) -> "Reason":
        """A reason from text that may come from outside: one line, printable, bounded."""
        said = str(message)[: 4 * REASON_LIMIT]  # a page's worth of it is not looked at
        return cls(one_line(code[:256])[:64], one_line(said)[:REASON_LIMIT])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt; ``worker/tasks.py`` alone decides what follows from it."""

    kind: Kind
    reason: Reason | None = None
    external_id: str | None = None
    #: Seconds the merchant asked us to stay away, already clamped.
    retry_after: float | None = None
    #: Seconds after which it makes sense to look again, which the merchant has not asked for.
    look_again: float | None = None
    contact: CallResult = CallResult.NONE
    #: Not tried again: an operator has to find out, at a POS that cannot be asked, or why it fails.
    for_operator: bool = False
    #: The POS says that it no longer serves this merchant: it is paused until an operator has looked.
    merchant_gone: bool = False
    #: The POS does not know an order that it may have been sent: asked, or when it refused it as one
    #: that it has.
    not_found: bool = False

    def after(self, contact: CallResult) -> "Outcome":
        """The same, with how the merchant fared. ``replace`` takes five times as long."""
        return Outcome(
            self.kind,
            self.reason,
            self.external_id,
            self.retry_after,
            self.look_again,
            contact,
            self.for_operator,
            self.merchant_gone,
            self.not_found,
        )


def one_line(text: str) -> str:
    """Text from outside as one line that can be printed, and kept in any database."""
    if not text.isprintable():
        text = "".join([c if c.isprintable() else " " for c in text])
    return " ".join(text.split())
