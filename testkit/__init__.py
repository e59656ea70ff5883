"""What tests and load tests share: real servers, simulated merchants and vendors, fault proxies, hostile peers."""
