"""What workers say of themselves, in the database: written by each of them, read all together."""
