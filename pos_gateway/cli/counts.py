"""Number types of options, within what the database and the system can hold."""

import click

#: A --limit.
LIMIT = click.IntRange(1, 2**31 - 1)
#: An event's position.
POSITION = click.IntRange(1, 2**63 - 1)
