"""The cache shared by workers in Redis: merchants' records, catalogs and access tokens."""

import json
from collections.abc import Mapping

from pos_gateway.auth.tokens import PosToken
from pos_gateway.cache.shared import SharedValues
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants import catalogs
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault


class SharedCache:
    """A shared cache per kind of value. The constructor does no I/O.

    Args:
        redis_url: where Redis is.
        store: encodes and decodes records.
        vault: seals all values; must have a key.

    Raises:
        InvalidSettings: the package ``redis`` is not installed, or the URL is invalid.
    """

    def __init__(self, redis_url: str, store: MerchantStore, vault: Vault) -> None:
        self.records: SharedValues[Merchant] = SharedValues(
            redis_url, "merchants", vault=vault, encode=store.sealed, decode=store.unsealed
        )
        self.catalogs: SharedValues[Mapping[str, str]] = SharedValues(
            redis_url,
            "catalogs",
            vault=vault,
            encode=catalogs.as_text,
            decode=catalogs.of_text,
            batch_size=catalogs.BATCH_SIZE,
        )
        self.tokens: SharedValues[PosToken] = SharedValues(
            redis_url,
            "tokens",
            vault=vault,
            encode=lambda token: json.dumps([token.value, token.since]),
            decode=lambda text: PosToken(*json.loads(text)),
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.records.close()
        self.catalogs.close()
        self.tokens.close()
