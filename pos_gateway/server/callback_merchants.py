"""The merchants whose POSes call, as the database has them when they call.

No record is answered from memory: one that is seconds old would refuse, or drop for good, what a POS
says of a merchant that is new or has moved. And each call costs the same read, whether there is such
a merchant or not, and whether its POS ever calls.
"""

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.signatures import share_a_key
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.credentials import UnreadableCredentials
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.server.pos_accounts import Account, MerchantsByAccount
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.shared_reads import SharedReads

#: Maximum merchants whose provider is in memory.
_PROVIDERS = 10_000
#: Seconds after which a POS calls again while a merchant's secrets cannot be read here.
_RETRY_AFTER = 10.0


class CallbackMerchants:
    """Finds the merchants that a callback may be about. For the event loop."""

    def __init__(self, store: MerchantStore, reading: Reading) -> None:
        self._records: SharedReads[str, Merchant] = SharedReads(reading, store.get)
        self._accounts: SharedReads[Account, tuple[str, ...]] = SharedReads(
            reading, MerchantsByAccount(store).find
        )
        self._providers: dict[str, str | None] = {}

    async def get(self, adapter: Adapter, merchant_id: str) -> Merchant | None:
        """The record of the adapter's merchant; None: there is none. Raises Problem 503."""
        merchant = (await self._records([merchant_id])).get(merchant_id)
        return merchant if merchant is not None and merchant.adapter == adapter.name else None

    async def owners(
        self, adapter: Adapter, merchant: Merchant, callback: Callback
    ) -> dict[str, tuple[str, ...]]:
        """The merchants that it may be about, each with the fingerprints of its POS.

        They are at the account that it names, and have the key of the merchant whose URL it came to.

        Raises:
            Problem: 503: the database is away, or the secrets of one cannot be read here.
        """
        found = [merchant]
        if callback.account is not None:
            at_account = await self._at_account((adapter.name, *callback.account), merchant)
            for each in at_account:
                require_readable(each)
            found = [each for each in at_account if share_a_key(each, merchant)]
        if len(self._providers) > _PROVIDERS:
            self._providers.clear()
        self._providers.update({each.id: each.provider for each in found})
        return {each.id: (endpoint(each, adapter), each.endpoint) for each in found}

    async def _at_account(self, account: Account, known: Merchant) -> list[Merchant]:
        """The adapter's merchants at this account; ``known`` is not read again if it is the only one."""
        ids = (await self._accounts([account]))[account]
        records = await self._records(ids) if {*ids} - {known.id} else {known.id: known}
        found = [records[each] for each in ids if each in records]
        return [each for each in found if each.adapter == account[0]]

    def provider(self, merchant_id: str) -> str | None:
        """The provider of a merchant that ``owners`` found lately."""
        return self._providers.get(merchant_id)


def require_readable(merchant: Merchant) -> None:
    """Raise Problem 503 if this server has no key for its secrets: no signature can be verified."""
    if isinstance(merchant.auth, UnreadableCredentials):
        raise Problem(
            503,
            "secrets_unreadable",
            "this server cannot read a merchant's secrets: see POS_GATEWAY_SECRET_KEY",
            retry_after=_RETRY_AFTER,
        )
