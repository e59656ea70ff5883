"""An order's progress through the steps at its POS: what the ledger keeps of it."""

import pytest

from pos_gateway.domain.errors import InvalidFacts
from pos_gateway.domain.facts import FACTS_LIMIT
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.step_progress import StepProgress

UNDOING = Outcome(Kind.REJECTED, Reason("sold_out", 'no "fries" \u2028 left'))


@pytest.mark.parametrize(
    "progress",
    [
        StepProgress(),
        StepProgress({"id": "K-77", "version": 3}),
        StepProgress({"id": "K"}, UNDOING),
        StepProgress({}, Outcome(Kind.EXPIRED, Reason("expired", ""))),
    ],
)
def test_progress_is_read_as_it_was_written(progress: StepProgress) -> None:
    assert StepProgress.parse(progress.to_json(2), 2) == progress


def test_none_is_left_once_the_order_is_reopened() -> None:
    """A release without steps leaves the column as it is."""
    assert StepProgress.parse(StepProgress({"id": "K"}, UNDOING).to_json(0), 1) == StepProgress()


@pytest.mark.parametrize("text", [None, "", b"", "{}", '{"later": 1}'])
def test_a_text_without_progress_is_none(text: str | bytes | None) -> None:
    assert StepProgress.parse(text, 0) == StepProgress()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"reopened":0,"facts":[]}',
        '{"reopened":0,"facts":{},"because":["eaten","",""]}',
        '{"reopened":0,"facts":{},"because":["rejected"]}',
        '{"reopened":0,"facts":{"x":1.5}}',
    ],
)
def test_a_text_that_no_release_writes_is_refused(text: str) -> None:
    with pytest.raises(InvalidFacts):
        StepProgress.parse(text, 0)


def test_facts_that_cannot_be_kept_are_named() -> None:
    with pytest.raises(InvalidFacts, match="shorten note"):
        StepProgress({"note": "x" * FACTS_LIMIT}).to_json(0)
