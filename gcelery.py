"""So that ``celery -A gcelery worker`` is the green worker too."""

from pos_gateway.gcelery import app

__all__ = ["app"]
