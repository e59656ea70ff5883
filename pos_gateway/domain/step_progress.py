"""How far an order has come through the steps at its POS."""

import json
from dataclasses import dataclass, field
from typing import Any

from pos_gateway.domain.errors import FieldError, InvalidFacts
from pos_gateway.domain.facts import Facts, facts_json, read_facts
from pos_gateway.domain.outcome import Kind, Outcome, Reason


@dataclass(frozen=True, slots=True)
class StepProgress:
    """What the ledger keeps of an order's steps, for the next attempt or a later cancel request."""

    #: Of all steps that are done.
    facts: Facts = field(default_factory=dict)
    #: The order's outcome once its steps are undone; None: the steps are not being undone.
    because: Outcome | None = None

    def to_json(self, reopened: int) -> str:
        """The progress as JSON. Raises InvalidFacts: the facts cannot be kept."""
        record = {"reopened": reopened, "facts": json.loads(facts_json(self.facts))}
        if self.because is not None:
            reason = self.because.reason or Reason(self.because.kind, "")
            record["because"] = [self.because.kind, reason.code, reason.message]
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def parse(cls, text: bytes | str | None, reopened: int) -> "StepProgress":
        """The progress in a text of ``to_json``; none, if the order was reopened since.

        Args:
            text: the text; None: there is none.
            reopened: how often the order has been reopened.

        Raises:
            InvalidFacts: no release writes this text.
        """
        try:
            match json.loads(text or "{}"):
                case {"reopened": int(number), "facts": facts, **rest} if number == reopened:
                    because: Any = rest.get("because")
                    outcome = None if because is None else _outcome(*because)
                    return cls(read_facts(json.dumps(facts)), outcome)
                case {}:
                    return cls()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidFacts([FieldError("facts", f"cannot be read: {error}")]) from None
        raise InvalidFacts([FieldError("facts", "should be a JSON object")])


def _outcome(kind: str, code: str, message: str) -> Outcome:
    return Outcome(Kind(kind), Reason(code, message))
