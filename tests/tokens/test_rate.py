"""Rate limits, in virtual time."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from pos_gateway.tokens import rate as subject
from pos_gateway.tokens.rate import RateLimit, RateLimits
from pos_gateway.tokens.token import Role, Token

EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
#: A machine that has run for a month: floats are coarser than near zero.
UP = 2_600_000.0

rates = st.integers(1, 2_000)
gaps = st.floats(0, 3, allow_nan=False) | st.sampled_from([0.0, 1e-6, 1e-3, 0.1])
costs = st.sampled_from([1, 1, 1, 2, 10, 1_000])


def a_token(name: str, rate: int | None = None) -> Token:
    return Token(name, Role.BACKEND, rate, f"digest of {name}", 0.0, None, None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(rates, st.lists(st.tuples(gaps, costs), min_size=1, max_size=120))
def test_in_no_span_passes_more_than_the_rate_and_one_burst(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    limit, now, passed = RateLimit(rate), UP, list[tuple[float, int]]()
    for gap, cost in requests:
        now += gap
        if limit.take(now, cost) == 0.0:
            passed.append((now, cost))
    for first, (start, _) in enumerate(passed):
        total = 0
        for end, cost in passed[first:]:
            total += cost
            burst = max(rate, *(each for _, each in passed[first:]))
            assert total <= rate * (end - start + 1e-5) + burst + 1e-6


@settings(max_examples=EXAMPLES, deadline=None)
@given(rates, st.lists(st.tuples(gaps, costs), min_size=1, max_size=60))
def test_the_wait_is_enough_and_no_longer_than_needed(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    limit, now = RateLimit(rate), UP
    for gap, cost in requests:
        now += gap
        wait = limit.take(now, cost)
        assert wait >= 0.0
        if wait:
            early = now + wait * 0.9 - 1e-5
            if early > now:
                assert limit.take(early, cost) > 0.0
            now += wait
            assert limit.take(now, cost) == 0.0


def test_a_seconds_worth_may_come_at_once_and_no_more() -> None:
    limit = RateLimit(10)
    assert [limit.take(UP) for _ in range(10)] == [0.0] * 10
    assert 0.09 < limit.take(UP) < 0.11
    assert limit.take(UP + 0.11) == 0.0
    assert limit.take(UP + 0.12) > 0.0


def test_a_pause_saves_up_no_more_than_a_burst() -> None:
    limit = RateLimit(10)
    limit.take(UP)
    later = UP + 3600
    assert sum(limit.take(later) == 0.0 for _ in range(100)) == 10


def test_a_steady_caller_at_its_rate_never_waits() -> None:
    limit = RateLimit(7)
    assert not any(limit.take(UP + at / 7) for at in range(10_000))


def test_a_batch_above_the_rate_passes_when_the_bucket_is_full_and_is_paid_for_after_it() -> None:
    limit = RateLimit(100)
    assert limit.take(UP, 1_000) == 0.0
    assert 9.0 < limit.take(UP) <= 10.0
    assert limit.take(UP + 9.5) == 0.0
    assert limit.take(UP + 9.6, 1_000) > 0.0


@settings(max_examples=EXAMPLES, deadline=None)
@given(rates, costs, st.lists(gaps, max_size=3), gaps)
def test_a_batch_whose_first_request_was_taken_early_pays_as_if_at_once(
    rate: int, cost: int, before: list[float], read: float
) -> None:
    """The bucket fills meanwhile, and no further than it can."""
    early, late, now = RateLimit(rate), RateLimit(rate), UP
    for gap in before:
        now += gap
        assert early.take(now) == late.take(now)
    if early.take(now) == 0.0:
        wait, expected = early.take(now, cost, taken=1), late.take(now, cost)
        assert (wait > 0) == (expected > 0)
        if not wait:
            assert abs(early._full_at - late._full_at) < 1e-6
    slow = RateLimit(rate)
    slow.take(now)
    assert slow.take(now + read, cost, taken=1) == 0.0
    assert slow._full_at <= max(now + read, now + 1 / rate) + (cost - 1) / rate + 1e-6


def test_each_token_has_its_limit() -> None:
    limits = RateLimits(default=2)
    slow, fast = a_token("slow", 1), a_token("fast")
    assert [limits.take(slow, UP) == 0.0 for _ in range(3)] == [True, False, False]
    assert [limits.take(fast, UP) == 0.0 for _ in range(3)] == [True, True, False]


def test_idle_tokens_take_no_memory_and_busy_ones_keep_their_limits() -> None:
    limits, busy = RateLimits(default=1), a_token("busy")
    for at in range(5 * subject._MAX_TOKENS):
        now = UP + at / 1_000
        limits.take(busy, now)
        limits.take(a_token(f"t{at}"), now)
    assert len(limits._limits) <= subject._MAX_TOKENS + 1
    assert limits.take(busy, now) > 0.0
