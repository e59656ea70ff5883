"""The quotas of a POS that a merchant shares."""

from pos_gateway.adapters.protocol import Limits
from pos_gateway.admission.limits import QuotaTerms
from pos_gateway.domain.credentials import NoAuth
from pos_gateway.domain.merchant import Merchant


def quotas_of(merchant: Merchant, limits: Limits) -> tuple[QuotaTerms, ...]:
    """The quotas of the merchant's location or credential, and of the app, if the vendor states limits.

    The app is the client of OAuth, or the merchant's ``provider`` for tokens without a client.
    """
    auth, found = merchant.auth, []
    is_own = limits.per_location or isinstance(auth, NoAuth)
    at_once = None if is_own else limits.concurrency  # a merchant has ``Terms.limit``
    if limits.per_second or limits.sustained or at_once:
        key = merchant.id if is_own else f"credential {auth.fingerprint}"
        rates = limits.per_second, limits.sustained
        found.append(QuotaTerms(key, *rates, at_once, limits.requests))
    client = getattr(auth, "client_id", merchant.provider)
    if client is not None and (limits.app_per_second or limits.app_concurrency):
        key, rate = f"app {merchant.adapter} {client}", limits.app_per_second
        found.append(
            QuotaTerms(key, rate, None, limits.app_concurrency, limits.requests, is_app=True)
        )
    return tuple(found)
