"""Adapters: an order to one POS's requests, and its replies to an Outcome. One POS a file."""
