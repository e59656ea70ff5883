"""Is the canary as good as the others? What is compared, by which statistics, and what follows."""
