"""Celery worker extensions: the admission strategy, the consumer's loop, start and stop."""
