"""Faults in the audit, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.audit.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "a page is not the end",
        "audit/log",
        "if len(page) < PAGE:",
        "if True:",
        "log::more_than_a_page",
    ),
    Fault(
        "what was done is no pattern",
        "audit/log",
        ", autoescape=True",
        ", autoescape=False",
        "log::narrowed_down",
    ),
    Fault(
        "what is followed is shown once",
        "audit/log",
        "if each.id not in self._seen]",
        "]",
        "log::shown_once",
    ),
    Fault(
        "what came in the last minute is read again",
        "audit/log",
        "now - self._ends[0][0] >= LATE",
        "now - self._ends[0][0] >= 0",
        "log::comes_within_a_minute",
    ),
    Fault(
        "what was listed is followed from its beginning",
        "audit/log",
        "self._floor = min(self._seen) if self._seen",
        "self._floor = log.end() if self._seen",
        "log::between_the_list",
    ),
    Fault(
        "details fit their column",
        "audit/note",
        "each.details[:DETAILS]",
        "each.details",
        "log::too_long_is_cut",
    ),
    Fault(
        "the last change of paused says why",
        "merchants/pauses",
        "func.max(audit.c.id)",
        "func.min(audit.c.id)",
        "log::last_change_of_paused",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "audit")
