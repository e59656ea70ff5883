"""The process: clocks, green threads, sockets, TLS, secrets at rest, failpoints."""
