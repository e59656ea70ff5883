"""An order's Celery request: what of Celery's own acknowledging is not safe for an order."""

from typing import Any

from celery.app.trace import fast_trace_task
from celery.worker.request import Request
from celery.worker.state import task_ready


class OrderRequest(Request):
    """A request that is acknowledged only when its task has returned."""

    #: Whose order it is, and which; None when the message does not say.
    merchant_id: str = ""
    order_id: str | None = None
    #: When it is worthless (Unix time); None when the message does not say.
    deliver_by: float | None = None
    #: The lane of admission that it is in: its merchant's, as a rule.
    lane: str = ""
    #: Set when the task has returned: what follows from the outcome is stored.
    settled = False

    def spawn(self, pool: Any) -> Any:
        """Run the task on a green thread of the pool, and return that.

        Unlike ``execute_using_pool`` it knows no revoking (a revoked order would be acknowledged
        unsent), no time limits (likewise; the delivery has its own) and no callbacks from the
        wire, and the body is not decoded a second time.
        """
        arguments, named, _ = self._payload
        return pool.apply_async(
            fast_trace_task,
            args=(self._type, self.id, self._request_dict, (arguments, named, {}), None, None),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
        )

    def on_success(self, failed__retval__runtime: tuple[Any, Any, Any], **options: Any) -> None:
        failed, returned, _ = failed__retval__runtime
        if not failed and returned is None:
            # A green thread that was killed looks like success to Celery (a task's own None
            # arrives as text). Whether the order was sent is not known: it must come again.
            task_ready(self)
            self.reject(requeue=True)
            return
        self.settled = not failed
        super().on_success(failed__retval__runtime, **options)
