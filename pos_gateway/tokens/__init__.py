"""Access tokens of the HTTP server: who may do what, and how often."""
