"""A span for each attempt."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.domain.outcome import Kind
from pos_gateway.merchants.directory import Directory

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Span, Tracing

#: Attempts once to do as a message asks, and decides.
Decide = Callable[[Attempt[Any], Any], Decision]


def traced(decide: Decide, tracing: "Tracing", directory: Directory) -> Decide:
    """``decide`` within a span with the attempt's facts as in the log line, also without a call."""

    def decided(attempt: Attempt[Any], action: Any) -> Decision:
        with tracing.delivering(attempt.message.trace) as span:
            attempt.trace_id, attempt.span = span.trace_id, span.context
            decision = decide(attempt, action)
            _describe(span, attempt, decision, directory)
        return decision

    return decided


def _describe(
    span: "Span", attempt: Attempt[Any], decision: Decision, directory: Directory
) -> None:
    content, outcome = attempt.content, decision.outcome
    claims = [claim for claim, _ in decision.entries if claim.key.action is attempt.action]
    reason = outcome.reason if outcome.kind is not Kind.REJECTED else None
    span.says(
        action=attempt.action,
        order_id=content.order_id,
        merchant_id=content.merchant_id,
        provider=content.merchant_id and directory.provider_of(content.merchant_id),
        attempt=claims[0].history.attempts + 1 if claims else None,
        outcome=outcome.kind,
        contact=outcome.contact,
        reason=reason and reason.code,
        waited_seconds=attempt.waited,
        claim_seconds=attempt.claim_seconds,
    )
    if outcome.kind in (Kind.FAILED, Kind.IN_DOUBT):
        span.failed(outcome.kind)
