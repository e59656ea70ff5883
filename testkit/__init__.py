"""What tests and load tests share: real servers, simulated merchants, fault proxies, hostile peers."""
