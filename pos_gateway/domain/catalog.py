"""One line of a merchant's catalog: our sku, and the POS's id for it."""

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from pos_gateway.domain.errors import InvalidCatalogEntry
from pos_gateway.domain.record import Identifier, Record, field_errors

#: Maximum entries of a merchant's catalog: a worker reads one in milliseconds.
MAX_ENTRIES = 10_000


class CatalogEntry(Record):
    """An item or a modifier: our sku and the POS's id."""

    model_config = ConfigDict(extra="forbid")

    merchant_id: Identifier
    #: As in orders, in any form.
    sku: Annotated[str, Field(min_length=1, max_length=256)]
    #: The longest documented ones, Square's, have 192 characters.
    pos_id: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,192}$")]

    @classmethod
    def parse(cls, record: Any) -> Self:
        """An entry from decoded JSON. Raises InvalidCatalogEntry, naming every wrong field."""
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            raise InvalidCatalogEntry(field_errors(error)) from None
