"""A merchant: its POS's address and API, and its limits."""

import hashlib
from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError

from pos_gateway.domain.credentials import NONE, Auth
from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.record import Identifier, Record, field_errors, has_dot_segment


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:  # its message may repeat a password
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise ValueError("must look like https://pos.example.com/api")
    if "@" in parts.netloc:
        raise ValueError("must not carry a user or password; put them into auth")
    if "?" in url or "#" in url:  # even empty: a path added to the URL would become part of it
        raise ValueError("must not carry a query or fragment")
    if has_dot_segment(parts.path):
        raise ValueError("must not have . or .. in its path")
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ValueError("must not contain white space or control characters")
    return url.rstrip("/")


#: Small, and safe in the headers and URLs that they go into.
PosIds = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")], Identifier],
    Field(max_length=16),
]


class Merchant(Record):
    """A merchant's record. Omitted limits follow the gateway's settings.

    Unlike in an order, an unknown field is refused: it is a typing mistake.
    """

    model_config = ConfigDict(extra="forbid")

    id: Identifier
    provider: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None,
        description="The POS vendor or host that many merchants share; left out: it stands alone.",
    )
    adapter: Annotated[str, Field(min_length=1, max_length=64)] = "rest"
    base_url: Annotated[str, Field(max_length=2048), AfterValidator(_base_url)]
    max_concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = Field(
        default=None, description="How many of its orders may be in flight at once."
    )
    request_timeout: Annotated[float, Field(gt=0, le=120, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds for one whole exchange, connecting included."
    )
    auth: Auth = Field(
        default=NONE, description="How the gateway proves who it is; {} where the POS asks nothing."
    )
    pos: PosIds = Field(
        default_factory=dict,
        description="The ids by which the POS knows the merchant; which ones, the adapter says.",
    )
    paused: bool = Field(default=False, description="A paused merchant is sent nothing.")

    #: The POS's ids of items and modifiers by our skus. Imported separately: no field of the
    #: record.
    catalog: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: The stamp of the record's last edit (``merchants/stamps.py``); 0: not read from the directory.
    stamp: ClassVar[float] = 0.0

    @classmethod
    def parse(cls, record: Any) -> Self:
        """A merchant from decoded JSON.

        Raises:
            InvalidMerchant: names every wrong field without its value, which may be a misplaced
                secret.
        """
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            wrong = [FieldError(each.field, each.problem) for each in field_errors(error)]
            raise InvalidMerchant(wrong) from None

    @cached_property
    def endpoint(self) -> str:
        """A fingerprint of the POS with all of ``pos``, independent of credentials and limits."""
        return self.endpoint_without(())

    def endpoint_without(self, fields: Collection[str]) -> str:
        """The same, independent of these fields of ``pos``, too."""
        ids = sorted(each for each in self.pos.items() if each[0] not in fields)
        where = f"{self.adapter} {self.base_url} {ids}"
        return hashlib.blake2b(where.encode(), digest_size=16).hexdigest()

    def pos_id(self, sku: str | None) -> str | None:
        """The POS's id of an item or a modifier; None: it is not in the catalog."""
        return None if sku is None else self.catalog.get(sku)

    def with_catalog(self, catalog: Mapping[str, str]) -> Self:
        """The same merchant with this catalog."""
        return self.model_copy(update={"catalog": catalog})

    def with_stamp(self, stamp: float) -> "Merchant":
        """The same merchant with the stamp of its last edit."""
        merchant = self.trusted(vars(self))
        vars(merchant)["stamp"] = stamp
        return merchant

    @classmethod
    def trusted(cls, fields: Mapping[str, Any]) -> "Merchant":
        """A merchant from all of its fields, validated when they were stored.

        All share the set of given fields: one's own would take more memory than its values.
        """
        return cls.model_construct(_ALL_FIELDS, **fields)


_ALL_FIELDS = set(Merchant.model_fields)
