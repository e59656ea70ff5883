"""Limits of the HTTP API, which the server enforces and the client keeps to. See ``docs/http.md``."""

#: Most orders of a batch, and most bytes.
BATCH, BATCH_BYTES = 1000, 16 * 1024 * 1024
#: Most events of a page, and most seconds that a request waits for one.
PAGE, LONGEST_WAIT = 1000, 60.0
