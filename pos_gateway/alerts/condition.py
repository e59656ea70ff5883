"""What can be wrong, so that a person is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pos_gateway.reports.words import START_READING


class Condition(StrEnum):
    """What is wrong. The values are in messages, and in the database."""

    NO_WORKER = "no_worker"
    BREAKER_OPEN = "breaker_open"
    IN_DOUBT = "orders_in_doubt"
    OVERDUE = "orders_overdue"
    CONTRADICTED = "orders_contradicted"
    DEAD_LETTERS = "dead_letters"
    QUEUES_UNKNOWN = "queues_unknown"
    CREDENTIAL_REFUSED = "credential_refused"
    GRANT_ENDS = "grant_ends"
    ORDERS_FAILING = "orders_failing"
    EVENTS_LATE = "events_late"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a condition is alerted of."""

    #: Seconds for which it must be seen before an alert begins.
    lasts: float
    #: What several subjects are: "merchants".
    plural: str
    #: What helps.
    remedy: str
    #: The page of the operations page, and the part of docs/runbook.md.
    path: str
    runbook: str


RULES: Mapping[Condition, Rule] = {
    Condition.NO_WORKER: Rule(
        120.0,
        "fleets",
        START_READING,
        "/",
        "posgatewaynoworker",
    ),
    Condition.BREAKER_OPEN: Rule(
        0.0,  # workers say for how long it is
        "merchants with a breaker that is not closed",
        "Ask the merchant, or pause it: pos-gateway merchants slow says why it fails.",
        "/merchants",
        "posgatewaybreakersopen",
    ),
    Condition.IN_DOUBT: Rule(
        0.0,  # the ledger says since when they are
        "merchants with orders in doubt",
        "Ask the merchant whether it has them, then: pos-gateway orders resolve.",
        "/in-doubt",
        "posgatewayordersindoubt",
    ),
    Condition.OVERDUE: Rule(
        300.0,  # workers that come back after an outage end the rest
        "ledgers",
        "Replay each that has a dead letter; have the backend submit the others again, which is harmless.",
        "/orders?state=overdue",
        "posgatewaydeadlettersgrowing",
    ),
    Condition.CONTRADICTED: Rule(
        0.0,
        "merchants whose POS contradicts an event",
        "Call the merchant: the kitchen may make the order. pos-gateway orders show says what the POS said.",
        "/orders",
        "posgatewayordersindoubt",
    ),
    Condition.DEAD_LETTERS: Rule(
        0.0,
        "queues",
        "Remove the cause, then replay or discard them: pos-gateway dlq count says why.",
        "/dead-letters",
        "posgatewaydeadlettersgrowing",
    ),
    Condition.QUEUES_UNKNOWN: Rule(
        300.0,
        "brokers",
        "Look whether the workers' login may see the queues: pos-gateway doctor, pos-gateway dlq count.",
        "/",
        "posgatewaydeadlettersgrowing",
    ),
    Condition.CREDENTIAL_REFUSED: Rule(
        0.0,
        "merchants whose credentials were refused",
        "Renew the merchant's credentials, then: pos-gateway merchants check ID.",
        "/merchants",
        "posgatewayordersfailing",
    ),
    Condition.GRANT_ENDS: Rule(
        0.0,
        "merchants whose grants are refused or soon end",
        "Bring in a new grant: docs/authentication.md. Then: pos-gateway merchants check ID.",
        "/merchants",
        "posgatewayordersfailing",
    ),
    Condition.ORDERS_FAILING: Rule(
        120.0,
        "merchants most of whose orders fail",
        "Look at its last orders for what their calls ended with; then: pos-gateway merchants check ID.",
        "/merchants",
        "posgatewayordersfailing",
    ),
    Condition.EVENTS_LATE: Rule(
        120.0,
        "pipelines",
        "The broker or the database is slow, or nothing publishes: pos-gateway doctor.",
        "/",
        "posgatewayeventslate",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject for which a condition holds."""

    #: A merchant's id, a queue, or the fleet.
    subject: str
    #: What is wrong, in a sentence.
    says: str
    #: How many orders, letters or seconds.
    count: int = 1


#: What was found of each condition; a condition of which nothing can be said now is missing.
Findings = Mapping[Condition, Sequence[Finding]]
