"""Status events, published to the order backend."""
