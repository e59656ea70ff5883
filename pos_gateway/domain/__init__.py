"""Values: orders, merchants, outcomes, errors, and how records from outside say what is wrong."""
