"""The ledger: each order's claim, attempts, outcome and events, in the database."""
