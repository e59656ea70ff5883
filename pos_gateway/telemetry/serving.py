"""The metrics' port."""

import structlog
from prometheus_client import start_http_server

log = structlog.get_logger(__name__)


def serve_metrics(port: int) -> None:
    """Serve this process's metrics on a thread of its own; 0: do not.

    A port that is taken is said and no more: what is measured matters more than its figures.
    """
    if not port:
        return
    try:
        start_http_server(port)
    except OSError as error:
        log.warning("metrics.port_taken", port=port, error=str(error))
