"""How the gateway proves to a merchant's POS who it is.

- ``signing``: the headers that credentials add to a request
- ``tokens``: access tokens (OAuth2, Toast), fetched once for all who need them
- ``redaction``: a POS's words without the secrets that it was shown
- ``authenticator``: the one door for deliveries

What a merchant's record says is in ``pos_gateway.domain.credentials``, sealing it in ``pos_gateway.runtime.vault``.
"""
