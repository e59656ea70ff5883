"""Orders in doubt: the POS, since when on a worker's clock, and the leases taken over from."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("orders", sa.Column("endpoint", sa.String(32)))
    op.add_column("orders", sa.Column("settling", sa.String(160)))
    op.add_column("orders", sa.Column("taken_from", sa.Text()))
    op.add_column("workers", sa.Column("clock", sa.Double()))


def downgrade() -> None:
    op.drop_column("workers", "clock")
    op.drop_column("orders", "taken_from")
    op.drop_column("orders", "settling")
    op.drop_column("orders", "endpoint")
