"""The outcome of one attempt."""

from dataclasses import replace

from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason


def test_an_outcome_after_a_call_is_the_same_in_all_else() -> None:
    outcome = Outcome(
        Kind.REJECTED,
        Reason("price_mismatch", "1701 instead of 1700"),
        external_id="7",
        retry_after=2.0,
        look_again=3.0,
        for_operator=True,
        merchant_gone=True,
        not_found=True,
        facts={"total": 1701},
    )
    expected = replace(outcome, contact=CallResult.ANSWERED)
    assert outcome.after(CallResult.ANSWERED) == expected
