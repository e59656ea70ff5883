"""The one way an action runs: by an operator, from a form of this session, with a reason, once.

``run`` is called on a thread. What it does is in the audit, with the operator's token and the
reason. The form's second submit, in any process, shows what the first one came to.
"""

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hmac import compare_digest
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.domain.errors import LedgerUnavailable, PosGatewayError
from pos_gateway.server.page.entrance import Entrance
from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.view import Act, Done, FormAction
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import duration, without_commands
from pos_gateway.server.problems import Problem
from pos_gateway.tokens import act_store
from pos_gateway.tokens.act_store import ActResult, ActStore, Notice, act_id
from pos_gateway.tokens.audit import TokenAudit
from pos_gateway.tokens.token import Capability

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Characters of a reason.
REASON = 3, 200
#: Actions at once; more wait for a thread.
THREADS = 4
#: Seconds for an action, after which the browser is sent on, and the action goes on.
TIMEOUT = 20.0
#: Seconds for which a second submit waits for the first one's result, and between two looks.
_WAIT, _LOOK = 5.0, 0.1
#: A form's id, and most characters of an error.
_FORM_ID, _LONGEST_TEXT = re.compile("[A-Za-z0-9_-]{16,64}"), 4000

_UNKNOWN = (
    "The database does not answer: it may have been done, or not. Look before you do it again."
)
_NOT_BEGUN = "The database does not answer: nothing was done. Submit it again in a moment."
_OTHER_SESSION = "This form is of an earlier session: nothing was done. Look at what you typed, and submit it again."
_FAILED = "It failed, and may have been done in part; this server's log says why. Look before you do it again."


#: Of a form whose session has ended before it was done.
ENDED = (
    "your session has ended, and nothing was done. Log in again in another tab, then go back here and "
    "submit the form again: what you typed is kept"
)


class FormRefused(Exception):
    """The action is not done, or failed: the form is shown again, with what was typed.

    ``same``: as the same form, whose submit shows the result.
    """

    def __init__(self, status: int, why: str, form: Fields, *, same: bool = False) -> None:
        super().__init__(status, why)
        self.status, self.why, self.form, self.same = status, why, form, same


class Acting:
    """Runs actions. For the event loop.

    Args:
        entrance: knows whether a session has ended since its form began to come.
    """

    def __init__(self, store: ActStore, audit: TokenAudit, entrance: Entrance) -> None:
        self._store = store
        self._audit = audit
        self._entrance = entrance
        self._threads = ThreadPoolExecutor(THREADS, "acts")
        #: Actions of this process that run.
        self._running: dict[str, asyncio.Future[tuple[ActResult, str, str]]] = {}

    async def __call__(self, action: FormAction, visit: Visit, form: Fields) -> str:
        """Where the browser goes on.

        Raises:
            Problem: 403: the role may not; 401: the session has ended.
            FormRefused: the sentence for the form.
        """
        require_operator(visit)
        if not compare_digest(form.get("csrf", "").encode(), visit.csrf.encode()):
            raise FormRefused(403, _OTHER_SESSION, form)
        reason = " ".join(form.get("reason", "").split())
        if not REASON[0] <= len(reason) <= REASON[1]:
            length = f"{REASON[0]} to {REASON[1]} characters"
            raise FormRefused(
                422, f"Reason: say in {length} why you do this; the audit keeps it.", form
            )
        form_id = form.get("form", "")
        if _FORM_ID.fullmatch(form_id) is None:  # it goes into a header
            raise FormRefused(422, _OTHER_SESSION, form)
        of = act_id(visit.session.digest, form_id)
        token = visit.token
        act = Act(visit, form, reason, lambda: self._entrance.may_act(token))
        result, says, address = await self._once(of, act, lambda: self._run(action, act))
        if result is ActResult.REFUSED:
            raise FormRefused(409, says, form)
        return f"{address}{'&' if '?' in address else '?'}notice={form_id}"

    def notice(self, visit: Visit, form_id: str) -> Notice | None:
        """What an action has done, the first time that it is asked for. Blocks."""
        if _FORM_ID.fullmatch(form_id) is None:
            return None
        return self._store.take_notice(act_id(visit.session.digest, form_id))

    def close(self) -> None:
        """End. Actions that have begun go on, and are waited for as the process ends."""
        self._threads.shutdown(wait=False)

    async def _once(
        self, of: str, act: Act, run: Callable[[], tuple[ActResult, str, str]]
    ) -> tuple[ActResult, str, str]:
        form = act.form
        running = self._running.get(of)
        if running is None:
            running = asyncio.ensure_future(self._in_thread(lambda: self._begin(of, act, run)))
            self._running[of] = running
            running.add_done_callback(lambda done: self._ended(of, done))
        try:
            async with asyncio.timeout(TIMEOUT):
                return await asyncio.shield(running)
        except TimeoutError:
            why = f"It takes longer than {TIMEOUT:g} s, and goes on. Submit this again to see its result."
            raise FormRefused(202, why, form, same=True) from None
        except (SQLAlchemyError, LedgerUnavailable):
            raise FormRefused(503, _NOT_BEGUN, form) from None

    def _begin(
        self, of: str, act: Act, run: Callable[[], tuple[ActResult, str, str]]
    ) -> tuple[ActResult, str, str]:
        # The form may have come slowly, or waited for a thread.
        if not self._entrance.is_valid(act.visit.session):
            raise Problem(401, "unauthorized", ENDED)
        earlier = self._store.begin(of)
        until = time.monotonic() + _WAIT
        while earlier is not None and earlier.result is None and time.monotonic() < until:
            time.sleep(_LOOK)  # another process runs it
            earlier = self._store.earlier(of)
        if earlier is not None:
            return _result_of(earlier)
        result, says, address = run()
        try:
            self._store.finish(of, result, says, address)
        except SQLAlchemyError as error:
            log.warning("page.result_unrecorded", error=str(error))
        return result, says, address

    def _run(self, action: FormAction, act: Act) -> tuple[ActResult, str, str]:
        try:
            done: Done = action.run(act)
        except (SQLAlchemyError, LedgerUnavailable) as error:
            log.warning("page.act_unknown", what=action.what, error=str(error))
            self._note(action, act, "; outcome unknown: the database did not answer", always=True)
            return ActResult.REFUSED, _UNKNOWN, ""
        except (PosGatewayError, Problem) as error:
            said = error.detail if isinstance(error, Problem) else str(error)
            text = without_commands(said)
            return ActResult.REFUSED, text[:1].upper() + text[1:_LONGEST_TEXT], ""
        except Exception as error:
            log.error("page.act_failed", what=action.what, exc_info=error)
            self._note(action, act, "; it failed", always=True)
            return ActResult.REFUSED, _FAILED, ""
        result = ActResult.WARNED if done.warns else ActResult.DONE
        self._note(action, act, "")
        return result, without_commands(done.notice), done.address

    def _note(self, action: FormAction, act: Act, outcome: str, *, always: bool = False) -> None:
        what = action.what, act.visit.client
        ids = {name: act.values.get(name, "") for name in ("merchant_id", "order_id")}
        if action.audits and not always:  # one action, one line: `run` has written it
            self._audit.log(act.visit.token, *what, **ids)
            return
        details = f"page, from {act.visit.client}{outcome}"
        self._audit.note(act.visit.token, *what, **ids, details=details, reason=act.reason)
        self._audit.write()

    async def _in_thread(self, run: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _ended(self, of: str, done: "asyncio.Future[tuple[ActResult, str, str]]") -> None:
        del self._running[of]
        if not done.cancelled():
            done.exception()  # its request may have given up


def require_operator(visit: Visit) -> None:
    """Raise Problem 403 unless the token may act."""
    if not visit.role.allows(Capability.ACT):
        raise Problem(
            403,
            "not_allowed",
            f"the token {visit.token.name!r} has the role {visit.role}, which may look and not act; "
            "log in with an operator's token: pos-gateway tokens create NAME --role operator",
        )


def _result_of(earlier: act_store.StoredAct) -> tuple[ActResult, str, str]:
    if earlier.result is None:
        ago = duration(earlier.age)
        why = (
            f"This form was submitted {ago} ago, and its result is not known: it still runs, or its server ended. "
            "Look before you do it again, from a new form."
        )
        return ActResult.REFUSED, why, ""
    return earlier.result, earlier.says, earlier.address
