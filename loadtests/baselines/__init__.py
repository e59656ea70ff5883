"""What the gateway is compared with."""
