"""The broker: which exchanges and queues there are, and publishing that is known to have worked."""
