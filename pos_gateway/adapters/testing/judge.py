"""Judges outcomes: form, revealed texts, and contradictions to the POS."""

from collections.abc import Iterable, Iterator, Sequence

from pos_gateway.adapters.replies import RETRY_AFTER
from pos_gateway.adapters.testing.orders import GUEST
from pos_gateway.adapters.testing.pos import Made
from pos_gateway.domain.errors import InvalidFacts
from pos_gateway.domain.facts import facts_json
from pos_gateway.domain.outcome import REASON_LIMIT, Kind, Outcome, one_line


def malformed(outcome: Outcome | None, called: str, secrets: Iterable[str]) -> Iterator[str]:
    """Wrong forms and revealed texts of an outcome.

    Args:
        outcome: of a step's function.
        called: the function: run, look_up or undo.
        secrets: texts forbidden in outcomes.
    """
    if outcome is None and called == "look_up":
        return
    if not isinstance(outcome, Outcome) or not isinstance(outcome.kind, Kind):
        yield f"{called} returned {outcome!r}, which is no Outcome"
        return
    if outcome.kind is Kind.EXPIRED or (called, outcome.kind) == ("undo", Kind.ACCEPTED):
        yield f"{called} returned {outcome.kind}, which {called} never returns"
    external_id = outcome.external_id
    if external_id is not None and not (isinstance(external_id, str) and external_id.isprintable()):
        yield f"external_id is {external_id!r}, and an id is a text: identifier(…), decision(…)"
    low, high = RETRY_AFTER
    if outcome.retry_after is not None and not low <= outcome.retry_after <= high:
        yield f"retry_after is {outcome.retry_after}: use retry_after(reply)"
    texts = [str(external_id), *_reason(outcome)]
    if outcome.reason is not None:
        message = outcome.reason.message
        if one_line(message) != message or len(message) > REASON_LIMIT:
            yield f"the reason's message is not one short printable line: {message[:80]!r}"
    try:
        texts.append(facts_json(outcome.facts or {}))
    except InvalidFacts as error:
        yield f"its facts cannot be kept: {error}"
    for secret in secrets:
        if any(secret in text for text in texts):
            kind = "the guest's" if secret in GUEST.values() else "a secret of the merchant's"
            yield f"{called} reveals {kind} {secret!r}: {outcome.reason or outcome.facts}"


def contradicted(outcome: Outcome, made: Sequence[Made], total: int) -> Iterator[str]:
    """How the POS's orders contradict an outcome.

    Args:
        outcome: the last one, with nothing left to undo.
        made: the order at the POS.
        total: the order's.
    """
    standing = [each for each in made if not each.is_cancelled]
    has = f"the POS has {len(standing)} standing orders: {standing}"
    if len(standing) > 1:
        yield f"{shown(outcome)}, and {has}"
    elif outcome.kind is Kind.ACCEPTED:
        if not standing or standing[0].total not in (None, total):
            yield f"{shown(outcome)} at {total}, and {has}"
    elif outcome.kind in _WITHOUT and not outcome.not_found and standing:
        yield f"{shown(outcome)}, and {has}"


#: Of these the POS has no standing order.
_WITHOUT = (Kind.REJECTED, Kind.FAILED, Kind.CANCELLED, Kind.RETRY)


def shown(outcome: Outcome | None) -> str:
    """An outcome in a finding."""
    if outcome is None:
        return "None (never heard of the order)"
    code, message = [*_reason(outcome), "", ""][:2]
    return f"{outcome.kind}{f' ({code}: {message[:120]})' if code or message else ''}"


def _reason(outcome: Outcome) -> list[str]:
    return [] if outcome.reason is None else [outcome.reason.code, outcome.reason.message]
