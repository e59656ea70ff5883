"""The canary split: a share of the merchants, and pilots by name."""

import hashlib
from datetime import datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, ValidationError

from pos_gateway.domain.errors import InvalidSplit
from pos_gateway.domain.record import Identifier, Record, field_errors

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]

#: Maximum pilots; for more, use a percentage.
MAX_PINS = 1000


class Split(Record):
    """The canary rule, the same in every backend and for all of a merchant's orders."""

    percent: Percent = Field(0.0, description="Of merchants, not of orders.")
    pins: Annotated[frozenset[Identifier], Field(max_length=MAX_PINS)] = Field(
        frozenset(), description="Merchants that are in it whatever the percentage is: pilots."
    )
    changed_by: str | None = None
    changed_at: AwareDatetime | None = None

    @classmethod
    def parse_json(cls, text: bytes | str) -> Self:
        """A split from JSON text. Raises InvalidSplit, which names every wrong field."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidSplit(field_errors(error)) from None

    def to_json(self) -> bytes:
        """The split as JSON."""
        return self.model_dump_json(exclude_none=True).encode()

    def __str__(self) -> str:
        share = f"{self.percent:g} % of the merchants"
        pilots = ", ".join(sorted(self.pins))
        return f"{share}, and the pilots {pilots}" if pilots else share

    @property
    def takes_any(self) -> bool:
        """Whether the canary may get any order."""
        return self.percent > 0 or bool(self.pins)

    def takes(self, merchant_id: str) -> bool:
        """Whether this merchant's orders go to the canary."""
        return merchant_id in self.pins or in_canary(merchant_id, self.percent)

    def changed(self, by: str, at: datetime, **fields: object) -> Self:
        """The same with these fields changed, and by whom. Raises InvalidSplit."""
        try:
            known = self.model_dump(exclude_none=True)
            return self.model_validate({**known, **fields, "changed_by": by, "changed_at": at})
        except ValidationError as error:
            raise InvalidSplit(field_errors(error)) from None


def in_canary(merchant_id: str, percent: float) -> bool:
    """Whether a merchant is in this share: a stable hash, so no merchant flips back.

    A merchant that is in at 5 % is in at 10 % too. SHA-256 because every process and language
    must agree (Python's ``hash`` differs from process to process).
    """
    if percent <= 0:
        return False
    digest = hashlib.sha256(merchant_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * 100 < percent
