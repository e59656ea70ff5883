"""Which of an order's generations a cancel request is for."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("orders", sa.Column("generation", sa.Integer()))


def downgrade() -> None:
    op.drop_column("orders", "generation")
