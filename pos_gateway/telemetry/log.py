"""Structured logs: one JSON object a line on standard error."""

import logging
import sys

import structlog


def configure(level: int = logging.INFO) -> None:
    """Set up structlog for this process, from this level (logging's) on. For programs to call."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.EventRenamer("event"),
            structlog.processors.format_exc_info,  # without the values of variables
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
