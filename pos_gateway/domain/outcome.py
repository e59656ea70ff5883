"""The outcome of one attempt to deliver an order."""

from dataclasses import dataclass
from enum import StrEnum
from unicodedata import category

from pos_gateway.domain.facts import Facts

#: Maximum characters of a reason's message: a merchant's error page is no reason.
REASON_LIMIT = 500


class Kind(StrEnum):
    """How an attempt ended. Where there is an event, the value is its type's last word."""

    ACCEPTED = "accepted"  # the POS has the order
    REJECTED = "rejected"  # the POS has refused it
    CANCELLED = "cancelled"  # the POS has cancelled it
    PENDING = "pending"  # the POS has it and has not decided
    EXPIRED = "expired"  # its ``deliver_by`` has passed
    FAILED = "failed"  # cannot succeed as configured
    RETRY = "retry"  # provably not processed; may be retried
    IN_DOUBT = "in_doubt"  # bytes may have left and no complete valid reply came


class Lifecycle(StrEnum):
    """What a POS says of an order after it has accepted it. Each is an event's type, too."""

    PREPARING = "preparing"
    READY = "ready"
    COMPLETED = "completed"
    CANCELLED_BY_POS = "cancelled_by_pos"

    def is_after(self, other: "Lifecycle | None") -> bool:
        """Whether an order goes from there to here, and never back; None: it was just accepted."""
        return other is None or _ORDER.index(self) > _ORDER.index(other)


_ORDER = tuple(Lifecycle)


#: The POS, or its token endpoint, takes no credential of the merchant's: its orders wait for another one.
CREDENTIAL_REFUSED = "credential_refused"
#: An operator's decision about an order that was in doubt.
RESOLVED = "resolved"
#: Reasons of a retry that an operator mends at the gateway, and not the merchant.
MENDED_HERE = frozenset({"secret_key", "local", "look_ups", CREDENTIAL_REFUSED})


class CallResult(StrEnum):
    """How the merchant's POS behaved in an attempt, whatever the order's outcome."""

    NONE = "none"  # it was not called
    ANSWERED = "answered"  # a decision, or a refusal that is no sign of trouble
    OVERLOADED = "overloaded"  # too many requests, or unavailable (429, 503, 504)
    APP_OVERLOADED = "app_overloaded"  # too many requests of the app, whichever the merchant
    TIMED_OUT = "timed_out"  # no reply in time
    FAILED = "failed"  # not reached, broken off, an invalid reply, or a refused credential


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for programs and a sentence for people."""

    code: str
    message: str

    @classmethod
    def of(cls, code: str, message: object) -> "Reason":
        """A reason from untrusted text: one line, printable, bounded."""
        said = str(message)[: 4 * REASON_LIMIT]  # the rest is not processed
        return cls(one_line(code[:256])[:64], one_line(said)[:REASON_LIMIT])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt; ``attempt/decision.py`` alone decides what follows from it."""

    kind: Kind
    reason: Reason | None = None
    external_id: str | None = None
    #: Seconds of the POS's ``Retry-After``, clamped.
    retry_after: float | None = None
    #: Seconds until the next look-up, where the POS has not asked for a delay.
    look_again: float | None = None
    contact: CallResult = CallResult.NONE
    #: No retry: an operator must ask a POS without look-up, or find the cause.
    for_operator: bool = False
    #: The POS no longer serves this merchant, which is paused until an operator resumes it.
    merchant_gone: bool = False
    #: A look-up did not find an order that the POS may have been sent, or refused as a duplicate.
    not_found: bool = False
    #: Of a step at the POS (``adapters/steps.py``): what the next steps start from.
    facts: Facts | None = None

    def after(self, contact: CallResult) -> "Outcome":
        """The same outcome with this call result. ``replace`` takes five times as long."""
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
            self.facts,
        )


def one_line(text: str) -> str:
    """Untrusted text as one printable line, which any database can store.

    Words stay whole: joiners within a word are kept, and other invisible characters (direction
    marks, soft hyphens, tags) are left out. Overrides of direction become blanks.
    """
    if text.isprintable():
        return " ".join(text.split())
    text = "".join([c if c.isprintable() else _instead(c) for c in text])
    # A word of joiners alone would pass for a name.
    return " ".join(filter(None, (word.strip(JOINERS) for word in text.split())))


#: Zero width joiner and non-joiner: Persian and Sinhala words and emoji of families have them.
JOINERS = "\u200c\u200d"
#: Embeddings, overrides and isolates, which turn the text around them.
_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _instead(character: str) -> str:
    kind = category(character)
    if character in JOINERS or kind in ("Cn", "Co"):  # of a later Unicode, or a vendor's own
        return character
    return "" if kind == "Cf" and character not in _OVERRIDES else " "
