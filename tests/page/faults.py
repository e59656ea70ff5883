"""Faults in the page, its sessions and its actions, each with the test that must find it.

``python -m tests.page.faults`` tries them.
"""

from tests.planting import ROOT, Fault, try_all

ACTING, SECURITY, LOGIN = "server/page/acting", "server/page/security", "server/page/login"


class ScriptFault(Fault):
    """A fault in ``page.js``, planted as it is read."""

    @property
    def fits(self) -> bool:
        script = (ROOT / "pos_gateway/server/page/static/page.js").read_text()
        return super().fits and self.wrong.split("'")[1] in script


def in_script(rule: str, right: str, by: str) -> ScriptFault:
    """Without these characters."""
    assert "'" not in right
    read = "path.read_bytes()"
    wrong = f"{read}.replace(b'{right}', b'')"
    return ScriptFault(rule, "server/page/static", read, wrong, f"browser::{by}")


FAULTS = [
    Fault(
        "a viewer does not act",
        ACTING,
        "        require_operator(visit)\n        if not compare",
        "        if not compare",
        "acting::a_viewer_may_neither_act",
    ),
    Fault(
        "a form is of its session",
        ACTING,
        'if not compare_digest(form.get("csrf", "").encode(), visit.csrf.encode()):',
        "if False:",
        "acting::a_form_of_another_session_does_nothing or the_other_sessions_token",
    ),
    Fault(
        "an action has a reason",
        ACTING,
        "if not REASON[0] <= len(reason) <= REASON[1]:",
        "if len(reason) > REASON[1]:",
        "acting::a_reason_has_three",
    ),
    Fault(
        "an action is in the audit",
        ACTING,
        '        self._note(action, act, "")\n        return',
        "        return",
        "acting::is_in_the_audit_with_the_operator",
    ),
    Fault(
        "a form acts once",
        ACTING,
        "        if earlier is not None:\n            return _result_of(earlier)\n",
        "",
        "acting::a_form_that_is_submitted_twice",
    ),
    Fault(
        "a form is from this page",
        SECURITY,
        "origin and origin in _origins(scope, public_url) and site",
        "site",
        "login::another_site_logs_no_person_in",
    ),
    Fault(
        "a cross-site request is told by the browser, too",
        SECURITY,
        'and site in (None, b"same-origin")',
        "",
        "login::another_site_logs_no_person_in",
    ),
    Fault(
        "of two cookies neither is taken",
        SECURITY,
        "next(iter(found)) if len(found) == 1 else None",
        "next(iter(found), None)",
        "login::of_two_cookies_neither",
    ),
    Fault(
        "no script reads the cookie",
        SECURITY,
        "HttpOnly; SameSite=Strict",
        "SameSite=Strict",
        "login::the_cookie_is_for_this_site",
    ),
    Fault(
        "no other site frames a page",
        SECURITY,
        "frame-ancestors 'none'; ",
        "",
        "pages::every_page_forbids",
    ),
    Fault(
        "a backend's token does not log in",
        LOGIN,
        "if token.role not in ROLES:",
        "if False:",
        "login::a_backends_token_is_refused",
    ),
    Fault(
        "a login goes on at a page of ours",
        LOGIN,
        'return after if self._is_page(after) else "/"',
        'return after or "/"',
        "login::a_login_goes_on_at_a_page_of_ours",
    ),
    Fault(
        "failed logins are bounded",
        LOGIN,
        "self._attempts.failed(client, now)  #",
        "pass  #",
        "login::failures_are_bounded_by_client",
    ),
    Fault(
        "a login ends the session that the browser had",
        "tokens/sessions",
        "if replaces is not None and is_secret(replaces):",
        "if False:",
        "login::a_login_makes_another_secret",
    ),
    Fault(
        "guesses cause few reads",
        "server/shared_reads",
        "if self._next is None:",
        "if True:",
        "login::guesses_cause_few_reads",
    ),
    Fault(
        "guesses one after the other cause few reads",
        "server/page/entrance",
        "self._refresh, every=EVERY",
        "self._refresh, every=0",
        "login::guesses_one_after_the_other",
    ),
    Fault(
        "a stream is no use of a session",
        "server/page/live",
        "self._entrance.find(scope)",
        "self._entrance.find(scope, touch=True)",
        "login::a_stream_is_none",
    ),
    Fault(
        "viewers share a render that runs",
        "server/page/live",
        "if running is None:",
        "if True:",
        "live::pages_at_the_same_time_share",
    ),
    Fault(
        "viewers share the last render",
        "server/page/live",
        "if last is not None and now",
        "if last is not None and not now",
        "live::pages_at_the_same_time_share",
    ),
    Fault(
        "what viewers have not taken is bounded",
        "server/page/live",
        "with self._unread.holding(len(body), session.token.digest):",
        "if True:",
        "live::replies_that_are_not_read_are_bounded",
    ),
    Fault(
        "words of others are escaped",
        "server/page/foreign",
        "else escape(each)",
        "else Markup(each)",
        "words::foreign_words_are_data",
    ),
    Fault(
        "hidden characters are shown",
        "server/page/foreign",
        '"Cc", "Cf", "Cs"',
        '"Cc", "Cs"',
        "words::hidden_characters_are_shown",
    ),
    Fault(
        "templates escape",
        "server/page/render",
        "autoescape=True",
        "autoescape=False",
        "words::a_page_escapes_foreign_words",
    ),
    Fault(
        "an error says nothing of the inside",
        "server/page/app",
        'detail = "the request failed; this server\'s log says why"\n    return',
        "detail = str(error)\n    return",
        "pages::errors_are_pages",
    ),
    Fault(
        "a script that is no file of the page does not run",
        SECURITY,
        "script-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        "browser::the_policy_refuses_scripts",
    ),
    in_script(
        "a part that has not changed is not replaced",
        "if (held.innerHTML === part.innerHTML) return;",
        "a_part_is_replaced_when_it_has_changed",
    ),
    in_script(
        "focus outlives a replacement",
        "if (again) again.focus({ preventScroll: true });",
        "focus_stays_where_it_is",
    ),
    in_script(
        "selected text outlives a replacement",
        "if (isSelected(part)) { waiting.set(name, html); return; }",
        "what_is_being_copied_stays",
    ),
    in_script(
        "a lost connection is said since when it was lost",
        "lostAt || ",
        "a_lost_connection_says_since_when",
    ),
    in_script(
        "an ended session is said",
        "say(text);",
        "a_session_that_is_revoked_says_so",
    ),
    Fault(
        "a page of an order masks personal data",
        "server/page/views/order_content",
        'record = order.model_dump(mode="json", exclude_none=True) if reveal else masked(order)',
        'record = order.model_dump(mode="json", exclude_none=True)',
        "orders::no_page_or_part_has_personal_data",
    ),
    Fault(
        "the POS's words are masked for every role",
        "server/page/views/order_life",
        "    if is_the_poss:\n        return ShownReason(MASK, MASK)\n",
        "",
        "orders::no_page_or_part_has_personal_data",
    ),
    Fault(
        "a viewer sees no reason's message",
        "server/page/views/order_life",
        '(message or "") if role.allows(Capability.REVEAL) else MASK',
        'message or ""',
        "orders::a_viewer_sees_no_reasons_message",
    ),
    Fault(
        "operators' words are not for viewers",
        "server/page/views/order_life",
        "role is None or role.allows(Capability.REVEAL)",
        "True",
        "orders::the_life_has_attempts",
    ),
    Fault(
        "a reveal is in the audit",
        "server/page/views/order",
        "        self._reading.orders.note(\n            key,",
        "        (lambda *_, **__: None)(\n            key,",
        "orders::a_reveal_shows_it_once or without_the_audits_line",
    ),
    Fault(
        "no notice but an order's reveal reveals it",
        "server/page/views/order",
        "if visit.notice == _revealed(visit.values) and",
        "if visit.notice is not None and",
        "orders::no_other_notice_reveals",
    ),
    Fault(
        "an order that changed since its form was opened is refused",
        "server/page/views/order_acts",
        'if act.form.get("seen") != _token(name, facts.order):',
        "if False:",
        "orders::changed_meanwhile_is_refused",
    ),
    Fault(
        "what has ended otherwise is not cancelled",
        "server/page/views/order_acts",
        "    if order.state is not State.ACCEPTED:\n        return f",
        "    if False:\n        return f",
        "orders::what_has_ended_otherwise",
    ),
    Fault(
        "an order in doubt gets no new time",
        "administration/extend",
        "    if order.is_in_doubt:\n",
        "    if False:\n",
        "orders::no_time_is_given",
    ),
    Fault(
        "an order's page goes on behind the last one",
        "ledger/order_search",
        "or_(orders.c.updated_at < at, is_later)",
        "orders.c.updated_at < at",
        "orders::pages_have_every_order_once",
    ),
    Fault(
        "a refused edit says no value",
        "server/page/views/merchant_edit",
        '"; ".join(f"{each.field}: {each.problem}" for each in error.errors)',
        'f"{error}: {dict(act.form)}"',
        "merchants::no_reply_has_a_secret",
    ),
    Fault(
        "a secret's field has no value",
        "server/page/views/merchant_edit",
        "name in _auth_fields(record, are_secret=True)",
        "name in ()",
        "merchants::no_reply_has_a_secret",
    ),
    Fault(
        "a secret is shown as set",
        "administration/merchant_view",
        "            shown[name] = SET if name in shown else NOT_SET",
        "            shown[name] = getattr(auth, name) and getattr(auth, name).get_secret_value()",
        "merchants::no_reply_has_a_secret",
    ),
    Fault(
        "an edit is of the record that was shown",
        "server/page/views/merchant_edit",
        "what=what, stamp=stamp)",
        "what=what)",
        "merchants::the_second_is_refused",
    ),
    Fault(
        "an edit writes what was typed alone",
        "server/page/views/merchant_edit",
        "if typed != shown.strip():",
        "if typed:",
        "merchants::edits_the_other_fields",
    ),
    Fault(
        "a viewer sees no action of a merchant",
        "server/page/views/merchant",
        '"may_act": looking.role.allows(Capability.ACT)',
        '"may_act": True',
        "merchants::a_viewer_sees_no_action",
    ),
    Fault(
        "operators' words about orders are not for viewers",
        "server/page/views/merchant",
        "if not line.order_id or",
        "if True or",
        "merchants::does_not_read_what_operators",
    ),
    Fault(
        "a viewer sees no action of a provider",
        "server/page/views/merchants",
        '"may_act": looking.role.allows(Capability.ACT)',
        '"may_act": True',
        "merchants::a_viewer_sees_no_action",
    ),
    Fault(
        "no page costs a query a merchant",
        "administration/troubles",
        "known = records(connection, [each.merchant_id for each in worst])",
        "known = {}\n        for each in worst:\n"
        "            known |= records(connection, [each.merchant_id])",
        "merchants::costs_a_query_a_merchant",
    ),
    Fault(
        "a check ends",
        "server/page/merchant_check",
        "                timeout=TIMEOUT,\n",
        "",
        "merchants::check_that_has_no_result",
    ),
    Fault(
        "no id has a NUL",
        "server/page/links",
        'None if any("\\0" in each for each in ids.values()) else ids',
        "ids",
        "merchants::no_id_in_a_path",
    ),
    Fault(
        "an action's result is shown at once",
        "server/page/app",
        "fresh=has_acted",
        "fresh=False",
        "orders::an_order_has_its_page_on_either",
    ),
    Fault(
        "a viewer is offered no act on a run",
        "server/page/views/runs",
        '"may_act": looking.role.allows(Capability.ACT)',
        '"may_act": True',
        "lists::a_viewer_may_look",
    ),
    Fault(
        "what is confirmed is the preview that was shown",
        "server/page/views/runs",
        "            total=total,\n            refused=refused,\n",
        "",
        "lists::what_is_confirmed",
    ),
    Fault(
        "one run at a time acts on letters",
        "server/bulk_threads",
        "        self.store.require_idle(action.subject)\n",
        "",
        "lists::of_two_operators_at_once",
    ),
    Fault(
        "a server that stops stops its runs",
        "server/bulk_threads",
        "is_stopped=self._stopping.is_set, why_not=",
        "why_not=",
        "lists::a_run_goes_on_where",
    ),
    Fault(
        "a run stops once its operator may not act",
        "server/page/views/runs",
        "            reason=act.reason,\n            may_go_on=act.may_go_on,\n",
        "            reason=act.reason,\n",
        "lists::a_run_stops_once_its_operator",
    ),
    Fault(
        "a form that waited is of a session that has not ended",
        ACTING,
        "if not self._entrance.is_valid(act.visit.session):",
        "if False:",
        "acting::whose_session_ends_while_it_waits",
    ),
    Fault(
        "a line that does not fit the audit's table keeps no other waiting",
        "tokens/audit",
        "merchant_id[:ID]",
        "merchant_id",
        "acting::the_table_would_refuse",
    ),
    Fault(
        "an action has one line in the audit",
        ACTING,
        "if action.audits and not always:",
        "if False:",
        "orders::is_resolved_as_accepted",
    ),
    Fault(
        "an order's line in the audit has the operator's words",
        "administration/resolve",
        '            details=f"{self._note}{details}",\n            reason=self._reason,\n',
        '            details=f"{self._note}{details}",\n',
        "orders::is_resolved_as_accepted",
    ),
    Fault(
        "a preview sees all letters, or waits",
        "administration/bulk/letters",
        "if not (queue.others or were_others):",
        "if True:",
        "lists::waits_for_another_reader",
    ),
    Fault(
        "a count that would miss letters is none",
        "server/page/letter_count",
        "if queue.others:",
        "if False:",
        "lists::waits_for_another_reader",
    ),
    Fault(
        "a client's failures keep no valid token out",
        LOGIN,
        "token = self._entrance.known(text)",
        "token = None",
        "login::failures_are_bounded_by_client",
    ),
    Fault(
        "logins that do not end keep no operator from acting",
        "server/page/app",
        "(forms or self._forms).reading()",
        "self._forms.reading()",
        "login::keep_no_operator_from_acting",
    ),
    Fault(
        "what is kept of parts is bounded",
        "server/page/live",
        "while len(self._last) > TOPICS:",
        "while False:",
        "live::kept_of_parts_is_bounded",
    ),
    Fault(
        "a form's id is no header",
        ACTING,
        "        if _FORM_ID.fullmatch(form_id) is None:  # it",
        "        if False:  # it",
        "acting::a_form_without_its_id",
    ),
    Fault(
        "all viewers share one count of letters",
        "server/page/letter_count",
        "if self._is_reading or now < self._next_at or not (is_old or again):",
        "if False:",
        "lists::a_hundred_viewers",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "page")
