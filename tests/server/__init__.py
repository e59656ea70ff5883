"""The HTTP server, as a process on a real socket."""
