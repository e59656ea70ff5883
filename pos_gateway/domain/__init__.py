"""Values: orders, merchants, outcomes, errors, and validation of external records."""
