"""Adapters: an order to one POS's requests, its replies to an Outcome. One POS a file."""
