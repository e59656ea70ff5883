"""Who may start now. Pure: knows no Celery, no HTTP, no clock of its own; time is handed in."""
