"""Limits of the HTTP API, which the server enforces and the client keeps to. See ``docs/http.md``."""

#: Most orders of a batch, and most bytes.
BATCH, BATCH_BYTES = 1000, 16 * 1024 * 1024
#: Most events of a page, and most seconds that a request waits for one.
PAGE, LONGEST_WAIT = 1000, 60.0
#: Most bytes of a reply that the client reads. The largest is a page of events: 4 MiB and fifty
#: events more, of a MiB each.
REPLY_BYTES = 64 * 1024 * 1024
