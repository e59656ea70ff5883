"""The audit: what operators and programs did, who did it, why, and what was changed."""
