"""An order's present step at the POS, and the facts of the steps before."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("orders", sa.Column("step", sa.String(64)))
    op.add_column("orders", sa.Column("facts", sa.Text()))


def downgrade() -> None:
    op.drop_column("orders", "facts")
    op.drop_column("orders", "step")
