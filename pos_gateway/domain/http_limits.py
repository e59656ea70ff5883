"""Limits of the HTTP API, which the server enforces and the client keeps to. See ``docs/http.md``."""

#: Maximum orders of a batch, and maximum bytes.
BATCH, BATCH_BYTES = 1000, 16 * 1024 * 1024
#: Maximum events of a page, and maximum seconds that a request waits for one.
PAGE, LONGEST_WAIT = 1000, 60.0
#: Maximum bytes of a reply that the client reads. The largest is a page of events: 4 MiB and fifty
#: events more, of a MiB each.
REPLY_BYTES = 64 * 1024 * 1024
