"""Numbers on the command line, as the database and the system can count."""

import click

#: How many at most.
LIMIT = click.IntRange(1, 2**31 - 1)
#: An event's position.
POSITION = click.IntRange(1, 2**63 - 1)
