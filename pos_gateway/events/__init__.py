"""Status events: what the order backend learns of its orders."""
