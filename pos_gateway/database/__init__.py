"""The database: engine, tables, migrations."""
