"""Removes secrets from a POS's words. No I/O."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from urllib.parse import quote, quote_plus

from pos_gateway.domain.outcome import REASON_LIMIT, Outcome, Reason

#: Replaces a secret.
HIDDEN = "[secret]"
#: Minimum characters of a secret, or of what is left of one at the end of a truncated text. Shorter
#: ones occur in ordinary words, and stay.
SHORTEST = 4
#: Credentials whose encoded forms are cached.
_CACHE_SIZE = 4096


def redacted(outcome: Outcome, secrets: tuple[str, ...]) -> Outcome:
    """The same outcome, with none of these secrets in its texts.

    In any case, URL-encoded, in JSON or in Base64, alone or after a prefix (``user:password``).
    """
    find = _finder(secrets)
    if find is None:
        return outcome
    pattern, forms = find
    known_as, reason = outcome.external_id, outcome.reason
    if known_as is not None and pattern.search(known_as):
        outcome = replace(outcome, external_id=_hidden(pattern, known_as))
    if outcome.facts:
        facts = {
            name: _hidden(pattern, value) if isinstance(value, str) else value
            for name, value in outcome.facts.items()
        }
        outcome = replace(outcome, facts=facts)
    if reason is not None:
        code, message = _hidden(pattern, reason.code), _hidden(pattern, reason.message)
        if len(reason.message) >= REASON_LIMIT:
            message = _without_beginning(message, forms)
        if (code, message) != (reason.code, reason.message):
            outcome = replace(outcome, reason=Reason.of(code, message))
    return outcome


def _hidden(pattern: re.Pattern[str], text: str) -> str:
    """The text without any of the secrets, even if they overlap or nest."""
    kept: list[str] = []
    end = 0
    for found in pattern.finditer(text):
        if found.start() > end or not kept:
            kept.append(text[end : found.start()])
        end = max(end, found.end(1))
    return HIDDEN.join([*kept, text[end:]])


def _without_beginning(text: str, forms: tuple[str, ...]) -> str:
    """A truncated text without the beginning of a secret at its end."""
    lower = text.lower()
    for form in forms:
        start = -1
        while (start := lower.find(form[:SHORTEST], start + 1)) >= 0:
            if form.startswith(lower[start:]):
                return text[:start] + HIDDEN
    return text


@lru_cache(_CACHE_SIZE)
def _finder(secrets: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[str, ...]] | None:
    forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
    if not forms:
        return None
    longest_first = sorted(forms, key=len, reverse=True)
    # A lookahead matches at every character, since secrets may overlap.
    pattern = re.compile(f"(?=({'|'.join(map(re.escape, longest_first))}))", re.IGNORECASE)
    return pattern, tuple(form.lower() for form in longest_first)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield " ".join(secret.split())  # as Reason normalises it
    yield json.dumps(secret)[1:-1]
    yield quote(secret, "")
    yield quote_plus(secret)
    data = secret.encode()
    for before in range(3):  # a prefix shifts it by 0 to 2 bytes of a Base64 group
        begin, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(before) + data).decode()[begin:end]
