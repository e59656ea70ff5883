"""What a merchant's trouble wants of an operator, in a sentence (docs/operating.md)."""

from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.reports.fleet_view import FleetTrouble
from pos_gateway.reports.words import SLOW, SLOW_AT_LEAST, RecordStatus

_PAUSED = (
    "Its reason says until when: resume it then. Its orders wait, and expire at their deliver_by."
)
_UNLOADED = "Check its POS: the check says whether its record can be used."
_REFUSED = (
    "Renew its credentials: edit its record, then check its POS. Its orders wait meanwhile, and expire at their "
    "deliver_by."
)
_AWAY = (
    "Wait, if its POS is expected back: its backlog is delivered at its own rate. If customers wait in vain, pause it; if "
    "other merchants of its provider are in trouble, too, pause the provider."
)
_SLOW = (
    "Other merchants are not affected. If its calls time out and its POS answers later, raise its time limit; if its "
    "POS takes more orders at once, its concurrency limit. If customers wait in vain, pause it."
)
_TIMES_OUT = (
    "Some of its calls time out, and others are answered: if its POS answers later than its time limit, raise its "
    "time limit. A lowered limit returns by itself if calls time out all the same; a higher one does not help."
)
_OVERLOADED = (
    "Its limit is lowered by itself meanwhile. If it stays so, lower its concurrency limit."
)
_AT_LIMIT = "If its POS takes more orders at once, raise its concurrency limit."
_FAILING = "Check its POS, and look at its last orders for what their calls ended with."


def remedy(trouble: FleetTrouble | None, record: RecordStatus) -> str:
    """What to do about it, by the rules of ``reports/words.py``; empty: nothing."""
    if record.paused or trouble is None:
        return _PAUSED if record.paused else ""
    rules = (
        (bool(trouble.workers) and not trouble.agreed, _UNLOADED),
        (trouble.error == CREDENTIAL_REFUSED, _REFUSED),
        (trouble.breaker == "closed" and 0 < trouble.timed_out < trouble.calls, _TIMES_OUT),
        (trouble.breaker != "closed" or bool(trouble.silent), _AWAY),
        (_is_slow(trouble), _SLOW),
        (bool(trouble.overloaded), _OVERLOADED),
        (bool(trouble.waiting) and 0 < trouble.limit <= trouble.in_flight, _AT_LIMIT),
    )
    return next((says for applies, says in rules if applies), _FAILING)


def _is_slow(trouble: FleetTrouble) -> bool:
    latest, usual = trouble.latest, trouble.usual
    return latest is not None and usual is not None and latest >= max(SLOW_AT_LEAST, SLOW * usual)
