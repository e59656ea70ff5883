"""Faults in the tokens, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.tokens.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "a revoked token is not valid",
        "tokens/store",
        "query = select(tokens).where(_IS_VALID, _READABLE)",
        "query = select(tokens).where(_READABLE)",
        "tokens::seen_by_every_process_at_its_next_refresh",
    ),
    Fault(
        "only the digest is kept",
        "tokens/store",
        '"digest": digest(token),',
        '"digest": token,',
        "store::only_its_digest_is_kept",
    ),
    Fault(
        "the first revocation counts",
        "tokens/store",
        "update(tokens).where(of_it, _IS_VALID, _READABLE)",
        "update(tokens).where(of_it, _READABLE)",
        "store::the_first_revocation_counts",
    ),
    Fault(
        "a revocation is in the audit",
        "tokens/store",
        '_note(connection, now, operator, "tokens.revoke", name)',
        "pass",
        "store::every_act_is_in_the_audit",
    ),
    Fault(
        "a use moves forward only",
        "tokens/store",
        'tokens.c.digest == bindparam("of"), earlier)',
        'tokens.c.digest == bindparam("of"))',
        "store::a_use_only_moves_forward",
    ),
    Fault(
        "uses are written in order of digest",
        "tokens/store",
        "for each in sorted(uses)]",
        "for each in uses]",
        "store::in_the_same_order",
    ),
    Fault(
        "a later version's role fails no other token",
        "tokens/store",
        "query = select(tokens).where(_IS_VALID, _READABLE)",
        "query = select(tokens).where(_IS_VALID)",
        "store::a_later_versions_role",
    ),
    Fault(
        "known tokens are valid for ten minutes without the database",
        "tokens/tokens",
        "if known is None or self._age(known[1]) > self._stale_after:",
        "if known is None:",
        "tokens::for_ten_minutes_and_no_longer",
    ),
    Fault(
        "the age of what is known counts from before it was read",
        "tokens/tokens",
        "self._store.all_valid(), began",
        "self._store.all_valid(), self._clock.monotonic()",
        "tokens::a_slow_refresh_counts_from_its_start",
    ),
    Fault(
        "uses are written once a minute",
        "tokens/tokens",
        "                    self._write_at = began + WRITE_EVERY\n",
        "",
        "tokens::uses_are_written_once_a_minute",
    ),
    Fault(
        "a use is written once",
        "tokens/tokens",
        "uses, self._uses = self._uses, {}",
        "uses = self._uses",
        "tokens::a_use_is_written_once",
    ),
    Fault(
        "a failed write forgets no later use",
        "tokens/tokens",
        "self._uses = uses | self._uses",
        "self._uses = self._uses | uses",
        "tokens::a_failed_write_forgets_no_use",
    ),
    Fault(
        "a mistyped token is told from an unknown one",
        "tokens/token",
        "    return _checksum(token[:-_CHECKSUM]) == token[-_CHECKSUM:]",
        "    return True",
        "token::one_wrong_character",
    ),
    Fault(
        "no repr has a digest",
        "tokens/token",
        "digest: str = field(repr=False)",
        "digest: str",
        "tokens::in_no_repr_and_no_log_line",
    ),
    Fault(
        "a viewer may not act or reveal",
        "tokens/token",
        "Role.VIEWER: frozenset({Capability.READ, Capability.INSPECT})",
        "Role.VIEWER: frozenset(Capability)",
        "token::a_viewer_only_look",
    ),
    Fault(
        "a token is no name",
        "tokens/token",
        " and not text.startswith(_PREFIX)",
        "",
        "token::names_are_plain_and_no_tokens",
    ),
    Fault(
        "a pause saves up one burst",
        "tokens/rate",
        "max(self._full_at, now) + seconds",
        "self._full_at + seconds if self._full_at > 0 else now + seconds",
        "rate::a_pause_saves_up_no_more_than_a_burst",
    ),
    Fault(
        "no more than the rate and one burst passes",
        "tokens/rate",
        "max(0.0, BURST - seconds)",
        "BURST",
        "rate::in_no_span_passes_more",
    ),
    Fault(
        "what a request took before counts",
        "tokens/rate",
        "+ seconds - before",
        "+ seconds",
        "rate::a_batch_whose_first",
    ),
    Fault(
        "the wait is enough",
        "tokens/rate",
        "            return wait\n",
        "            return wait * 0.99\n",
        "rate::the_wait_is_enough",
    ),
    Fault(
        "the limits of idle tokens are dropped",
        "tokens/rate",
        "                    self._drop_idle(now)\n",
        "                    pass\n",
        "rate::idle_tokens_take_no_memory",
    ),
    Fault(
        "a logout is not undone by a refresh at the same time",
        "tokens/sessions",
        "        self._forget(digest)  # a refresh may have read it before it was gone\n",
        "",
        "sessions::while_a_session_is_being_ended",
    ),
    Fault(
        "words that the table refuses leave no result unknown",
        "tokens/act_store",
        '.replace("\\0", "\\N{SYMBOL FOR NULL}")',
        "",
        "sessions::words_that_the_table_refuses",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "tokens")
