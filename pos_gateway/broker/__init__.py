"""The broker: its exchanges and queues, and confirmed publishing."""
