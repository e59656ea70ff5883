"""Authenticates the gateway to a merchant's POS.

- ``tokens``: access tokens (OAuth2, Toast), fetched once for all who need them
- ``redaction``: removes secrets from a POS's words
- ``authenticator``: the entry point for deliveries: the headers that credentials add to a request

Credentials in a merchant's record are in ``pos_gateway.domain.credentials``, their encryption in
``pos_gateway.runtime.vault``.
"""
