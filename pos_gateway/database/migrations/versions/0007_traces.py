"""The trace that an event belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("events", sa.Column("trace", sa.Text()))


def downgrade() -> None:
    op.drop_column("events", "trace")
