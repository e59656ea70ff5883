"""One order's way through: delivery, cancellation, and what follows from an outcome. ``processing/delivery.py`` first."""
