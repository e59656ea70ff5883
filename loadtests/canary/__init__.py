"""The move to green workers, rehearsed: the old ones and a canary on one broker, under load."""
