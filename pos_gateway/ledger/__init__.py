"""What is kept in the database: its schema, its migrations, and how to reach it."""
