"""What it costs to take an order over HTTP, and how soon an event reaches a stream."""
