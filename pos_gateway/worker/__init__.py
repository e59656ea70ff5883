"""What plugs into Celery's worker: the admission strategy, the consumer's loop, start and stop."""
