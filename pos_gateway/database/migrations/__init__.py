"""The schema's way from version to version; each is a file in ``versions/``."""

#: Every revision, oldest first. A worker only compares names: Alembic, which can follow them, takes
#: nine megabytes.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
