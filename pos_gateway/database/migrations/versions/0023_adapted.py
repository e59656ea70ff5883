"""The fields of an order adapted for the POS."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("orders", sa.Column("adapted", sa.Text()))


def downgrade() -> None:
    op.drop_column("orders", "adapted")
