"""What each reason of a dead letter wants of an operator, in a sentence (docs/operating.md)."""

from pos_gateway.domain.outcome import CREDENTIAL_REFUSED

_CREDENTIALS = (
    "The merchant's credentials or certificates are not valid: check its POS on the merchant's page, put them "
    "right, then replay."
)
_ADDRESS = "The merchant's base_url, or an id in its catalog, is wrong: put it right, resume the merchant, then replay."
_FOREIGN = (
    "Another program publishes to orders: find it by these letters' ids and times, then discard these. Their bodies are "
    "the command line's alone: pos-gateway dlq show ID --reveal."
)
_REMEDIES = {
    "unknown_merchant": "No merchant has this id: add it on the merchant's page, then replay.",
    **dict.fromkeys(
        ("certificate", "tls", CREDENTIAL_REFUSED, "token", "http_401", "http_403"), _CREDENTIALS
    ),
    **dict.fromkeys(("security", "url", "redirect", "http_404", "http_410"), _ADDRESS),
    "expired": "The merchant was away or paused for too long, or workers are too few: replay with new time, if the "
    "customers still want their orders.",
    "poison": "Three workers died with each of these: read the workers' logs first, then replay one by one.",
    "delivery_limit": "Workers were killed again and again while they had these: find out why, then replay. They have "
    "had no event.",
    "message_ttl": "Their sender, or a policy, has them end before a worker took them: have that left out, then replay. "
    "They have had no event.",
    "internal_error": "A bug in the gateway, which the workers' log has: replay with the release that mends it.",
    "invalid_order": "The backend sent an invalid order: it sends it again, corrected; discard these.",
    "too_large": "Longer than POS_GATEWAY_MAX_ORDER_BYTES: raise that for all workers, then replay; else discard.",
    "invalid_bundle": "Another release has parked these orders, which have had no event: replay them with that one, or with "
    "a later one.",
    **dict.fromkeys(
        ("undecodable", "unknown_task", "unknown_message", "invalid_message", "compressed"),
        _FOREIGN,
    ),
}
_OTHER = "Look at one of the orders for what its POS said, remove the cause, then replay."


def remedy(reason: str) -> str:
    """What to do about it."""
    return _REMEDIES.get(reason, _OTHER)
