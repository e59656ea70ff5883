"""What workers share through Redis beside limits: merchants' records, catalogs and access tokens.

Nothing there can be read by whoever has Redis alone: secrets are sealed as they are in the database.
"""

import json
from collections.abc import Mapping

from pos_gateway.auth.tokens import Token
from pos_gateway.merchant import Merchant
from pos_gateway.merchants import catalogs
from pos_gateway.merchants.shared import SharedValues
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.vault import CannotOpen, Vault


class Shelves:
    """Each kind of value. The constructor does no I/O.

    Args:
        redis_url: where Redis is.
        store: knows what a record is as text.
        vault: without a key tokens, and records with secrets, stay with each worker.

    Raises:
        InvalidSettings: the package ``redis`` is not installed, or the URL is none.
    """

    def __init__(self, redis_url: str, store: MerchantStore, vault: Vault) -> None:
        self._store = store
        self._vault = vault
        self.records: SharedValues[Merchant] = SharedValues(
            redis_url, "merchants", encode=self._record, decode=self._merchant
        )
        self.catalogs: SharedValues[Mapping[str, str]] = SharedValues(
            redis_url,
            "catalogs",
            encode=lambda _, catalog: catalogs.as_text(catalog),
            decode=lambda _, text: catalogs.of_text(text),
            at_once=catalogs.AT_ONCE,
        )
        self.tokens: SharedValues[Token] = SharedValues(
            redis_url, "tokens", encode=self._sealed, decode=self._token
        )

    def close(self) -> None:
        """Let go of the connections. Idempotent."""
        self.records.close()
        self.catalogs.close()
        self.tokens.close()

    def _record(self, _: str, merchant: Merchant) -> str:
        return self._store.sealed(merchant)

    def _merchant(self, _: str, text: str) -> Merchant:
        return self._store.unsealed(text)

    def _sealed(self, key: str, token: Token) -> str:
        text = json.dumps([token.value, token.since])
        return self._vault.seal_bytes(text.encode(), whose=f"token {key}")

    def _token(self, key: str, text: str) -> Token:
        try:
            value, since = json.loads(self._vault.open_bytes(text, whose=f"token {key}"))
        except CannotOpen as error:
            raise ValueError(str(error)) from None
        return Token(value, since)
